"""A program for tests of several hosts: joins them, and prints what an evaluation of numbered rows measures.

python -m tests.evaluating_host --coordinator … --num-processes … --process-id …
"""

import argparse

import jax.numpy as jnp
import numpy as np

from jax_smash.hosts import HostOptions, join_hosts
from jax_smash.sharding import make_mesh
from train.run.step import Measured, Tally, make_evaluation

ROWS, BATCHES = 4, 3


def measured() -> Measured:
    """Returns what two devices measure of a set; `rows` are those that a device reads of a batch."""

    def objective(params, batch):
        (numbers,) = batch
        return (params * numbers).sum(), Tally(
            count=jnp.float32(numbers.size), means={"rows": (jnp.float32(numbers.size), jnp.float32(1))}
        )

    numbers = np.arange(ROWS * BATCHES, dtype=np.float32).reshape(BATCHES, ROWS)
    return make_evaluation(objective, make_mesh("data=2"))(jnp.float32(3), {"one": [(row,) for row in numbers]})


def main() -> None:
    """Joins the other hosts and evaluates."""
    parser = argparse.ArgumentParser()
    for name, kind in (("coordinator", str), ("num-processes", int), ("process-id", int)):
        parser.add_argument(f"--{name}", type=kind)
    words = parser.parse_args()
    join_hosts(HostOptions(words.coordinator, words.num_processes, words.process_id))
    print(measured())


if __name__ == "__main__":
    main()
