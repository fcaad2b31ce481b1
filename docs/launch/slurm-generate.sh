#!/bin/bash
# Continues a file of prompts on two nodes of eight GPUs: sbatch docs/launch/slurm-generate.sh
#SBATCH --job-name=smash-generate
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
set -euo pipefail
source .venv/bin/activate

srun --kill-on-bad-exit=1 jax-smash generate \
  --model "$MODELS/model" \
  --prompts "$DATA/prompts.jsonl" \
  --mesh data=2,tp=8 \
  --batch-size 16 \
  --max-new-tokens 256 \
  --json "$RUNS/texts.jsonl" \
  --resume
