"""2,000 examples of each task and split, drawn once for all tests of the tasks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jax_smash.tasks import TASKS, Example

ROOT = Path(__file__).parents[3]
DRAW = """
import json, sys
from dataclasses import asdict
from jax_smash.tasks import examples
task, split = sys.argv[1:]
print(json.dumps([asdict(example) for example in examples(task, split=split, count=2000, seed=4)]))
"""


@pytest.fixture(scope="session")
def corpus():
    """Returns the examples by task and split, drawn where no annotations are checked: that takes ten times as long."""
    drawn = {}
    for task in TASKS:
        for split in ("train", "test"):
            command = [sys.executable, "-c", DRAW, task, split]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
            drawn[task, split] = [Example(**fields) for fields in json.loads(done.stdout)]
    return drawn
