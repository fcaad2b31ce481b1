"""1,000 examples of each task and split, drawn once for all tests of the tasks."""

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
from jax_smash.tasks import TASKS, examples
split = sys.argv[1]
drawn = {task: [asdict(e) for e in examples(task, split=split, count=1000, seed=4)] for task in TASKS}
print(json.dumps(drawn))
"""


@pytest.fixture(scope="session")
def corpus():
    """Returns the examples by task and split, drawn where no annotations are checked: that takes ten times as long."""
    programs = {
        split: subprocess.Popen([sys.executable, "-c", DRAW, split], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for split in ("train", "test")
    }
    drawn = {}
    for split, program in programs.items():
        written, _ = program.communicate()
        assert program.returncode == 0
        for task, fields in json.loads(written).items():
            drawn[task, split] = [Example(**example | {"shown": tuple(example["shown"])}) for example in fields]
    assert {task for task, _ in drawn} == set(TASKS)
    return drawn
