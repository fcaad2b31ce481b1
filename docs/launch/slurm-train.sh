#!/bin/bash
# Trains on two nodes of eight GPUs: sbatch docs/launch/slurm-train.sh, from a checkout that all nodes see.
#SBATCH --job-name=smash-train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
# Asks the run to save and end two minutes before the time is up.
#SBATCH --signal=TERM@120
#SBATCH --requeue
set -euo pipefail
source .venv/bin/activate

# One process a GPU, as JAX shares them out under SLURM. --resume begins where nothing is saved yet.
srun --kill-on-bad-exit=1 python -m train.base \
  --config train/configs/tiny.json \
  --packed "$DATA/packed" \
  --tokenizer "$DATA/tokenizer" \
  --output "$RUNS/base" \
  --mesh fsdp=16 \
  --save-every 500 \
  --resume
