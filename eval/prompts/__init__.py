"""The prompts that programs continue, shipped and read from files."""
