import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.x64_texts import WAYS, text, training

ROOT = Path(__file__).parent.parent.parent
USUAL = ("sampled", "recycling")


def in_64_bits(*names: str) -> dict[str, list]:
    """Returns texts and losses of a process in which JAX computes in 64 bits."""
    environment = os.environ | {"JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu"}
    run = subprocess.run(
        [sys.executable, "-m", "tests.x64_texts", *names],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout)


@pytest.mark.slow
def test_the_usual_ways_to_decode_give_the_same_text_in_64_bits():
    assert in_64_bits(*USUAL) == {name: text(name) for name in USUAL}


@pytest.mark.slow
def test_all_ways_to_decode_give_the_same_text_in_64_bits():
    others = [name for name in WAYS if name not in USUAL]
    assert in_64_bits(*others) == {name: text(name) for name in others}


@pytest.mark.slow
def test_training_steps_have_the_same_losses_in_64_bits():
    losses = in_64_bits("adamw", "muon")
    for name, found in losses.items():
        assert found == pytest.approx(training(name), abs=1e-5)
