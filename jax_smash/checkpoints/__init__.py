"""Checkpoints: Hugging Face directories and Orbax, to parameters and back. Nothing in a checkpoint is executed."""
