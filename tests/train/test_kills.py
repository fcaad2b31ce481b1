import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.train.corpus_files import make_packed
from tests.train.test_settings import FIELDS, MODEL

STEPS = 60
CONFIG = FIELDS | {"model": MODEL | {"d_model": 128, "mlp_width": 256}, "steps": STEPS, "length": 32}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Packed shards, a tokenizer and a configuration."""
    root = tmp_path_factory.mktemp("kills")
    make_packed(root)
    (root / "config.json").write_text(json.dumps(CONFIG))
    return root


def begin(place, output, *options, before=()):
    command = [
        *before,
        sys.executable,
        "-m",
        "train.base",
        "--config",
        place / "config.json",
        "--packed",
        place / "packed",
    ]
    command += ["--tokenizer", place / "tokenizer", "--output", output, "--devices", "2", "--save-every", "1"]
    command += ["--evaluate-every", "1000", *options]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(place / "cache")}
    environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "XLA_FLAGS": ""}
    return subprocess.Popen(list(map(str, command)), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(process):
    _, errors = process.communicate()
    assert process.returncode == 0, errors.decode()[-2000:]


def newest(output):
    steps = [int(path.name) for path in (output / "checkpoints").glob("*") if path.name.isdecimal()]
    return max(steps, default=0)


def killed_often(place, output, kills, seed):
    """Kills a run again and again while it works, and lets it end; returns the newest checkpoints at the kills."""
    rng, steps = random.Random(seed), []
    for number in range(kills):
        process = begin(place, output, "--resume")
        if number % 5 == 4:  # Anywhere, starting up included.
            time.sleep(rng.uniform(0, 10))
        else:  # A step or a few after the checkpoint that it began from; most of a step is saving.
            target = newest(output) + rng.randint(1, 2)
            while newest(output) < target and process.poll() is None:
                time.sleep(0.002)
            time.sleep(rng.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stderr.close()
        steps.append(newest(output))
    finish(begin(place, output, "--resume"))
    return steps


def weights(output):
    return (output / "model" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_ends_with_the_same_weights(place, tmp_path, kills):
    finish(begin(place, tmp_path / "whole"))
    steps = killed_often(place, tmp_path / "killed", kills, seed=kills)
    print("newest checkpoints at the kills:", steps)
    assert steps == sorted(steps)
    assert 0 < steps[-1] < STEPS
    assert weights(tmp_path / "whole") == weights(tmp_path / "killed")
    lines = [json.loads(line) for line in (tmp_path / "killed/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(10, STEPS + 1, 10))


def test_a_disk_that_fills_costs_nothing_that_was_saved(place, tmp_path):
    finish(begin(place, tmp_path / "whole", "--steps", "8"))
    output = tmp_path / "full"
    finish(begin(place, output, "--steps", "8", "--until", "3"))

    # The limit, in KiB a file, acts as a full disk does: writing fails.
    full = begin(place, output, "--steps", "8", "--resume", before=["bash", "-c", 'ulimit -f 20 && exec "$@"', "bash"])
    errors = full.communicate()[1].decode()
    assert full.returncode == 1
    assert "a checkpoint could not be written: File too large; the newest whole one is of step 3" in errors
    assert "Traceback" not in errors
    finish(begin(place, output, "--steps", "8", "--resume"))
    assert weights(tmp_path / "whole") == weights(output)
