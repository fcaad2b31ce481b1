"""Recall tasks to train and to test on: co-reference, key and value, copying, arithmetic, state.

Everything is drawn from our own word lists, disjoint between training and tests. Imports neither jax nor transformers.
"""

from jax_smash.tasks.catalogue import TASKS, Task, examples, smallest_length
from jax_smash.tasks.example import Example

__all__ = ["TASKS", "Example", "Task", "examples", "smallest_length"]
