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
from train.checkpoint import only_run

CONFIG = FIELDS | {"model": MODEL | {"d_model": 128, "mlp_width": 256}, "length": 32}
SHORT, LONG = 12, 60


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Packed shards, a tokenizer and a configuration."""
    root = tmp_path_factory.mktemp("kills")
    make_packed(root)
    (root / "config.json").write_text(json.dumps(CONFIG))
    return root


@pytest.fixture(scope="module")
def undisturbed(place):
    """A short run that nothing disturbs."""
    finish(begin(place, place / "whole", SHORT))
    return place / "whole"


def begin(place, output, steps, *options, before=()):
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
    command += ["--evaluate-every", "1000", "--steps", steps, *options]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(place / "cache")}
    environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "XLA_FLAGS": ""}
    return subprocess.Popen(list(map(str, command)), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(process):
    _, errors = process.communicate()
    assert process.returncode == 0, errors.decode()[-2000:]


def newest(output):
    steps = [int(path.name) for path in (output / "checkpoints").glob("*") if path.name.isdecimal()]
    return max(steps, default=0)


def killed_often(place, output, total, kills):
    """Kills a run again and again while it works, and lets it end; returns the newest checkpoints at the kills."""
    rng, steps = random.Random(kills), []
    for number in range(kills):
        process = begin(place, output, total, "--resume")
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
    finish(begin(place, output, total, "--resume"))
    return steps


def weights(output):
    return (output / "model" / "model.safetensors").read_bytes()


def check(whole, killed, steps, total):
    print("newest checkpoints at the kills:", steps)
    assert steps == sorted(steps)
    assert 0 < steps[-1] < total
    assert weights(whole) == weights(killed)
    lines = [json.loads(line) for line in (killed / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [*range(10, total, 10), total]


def test_a_run_that_is_killed_ends_with_the_same_weights(place, undisturbed, tmp_path):
    check(undisturbed, tmp_path, killed_often(place, tmp_path, SHORT, 2), SHORT)


@pytest.mark.slow
def test_a_run_that_is_killed_twenty_times_ends_with_the_same_weights(place, tmp_path):
    finish(begin(place, tmp_path / "whole", LONG))
    steps = killed_often(place, tmp_path / "killed", LONG, 20)
    check(tmp_path / "whole", tmp_path / "killed", steps, LONG)


def test_a_second_program_on_a_runs_folder_is_refused_and_leaves_the_run_alone(place, undisturbed, tmp_path):
    finish(begin(place, tmp_path, SHORT, "--until", "3"))
    with only_run(tmp_path):
        second = begin(place, tmp_path, SHORT, "--resume")
        errors = second.communicate()[1].decode()
    assert second.returncode == 1
    assert f"another program trains in {tmp_path}; wait for it, or stop it" in errors
    assert "Traceback" not in errors
    finish(begin(place, tmp_path, SHORT, "--resume"))
    assert weights(undisturbed) == weights(tmp_path)


# Reads a run's checkpoints until the last.  In a process of its own: a checkpoint that is deleted while it is read
# leaves Orbax reads behind that end later, as exceptions that nobody awaits.
READER = """
import sys
from pathlib import Path

from train.checkpoint import load_newest
from train.export import newest_state
from train.settings import load_settings

whole, read_too, last = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
_, like = newest_state(whole, load_settings(whole / "settings.json"))
print("ready", flush=True)
step = 0
while step < last:
    if any(path.name.isdecimal() for path in read_too.glob("*")):
        step = int(load_newest(read_too, like)[0].step)
        print(step, flush=True)
"""


def test_a_run_that_is_read_while_it_saves_ends_with_the_same_weights(place, undisturbed, tmp_path):
    """Saves take most of this run's time, so most readings fall into one."""
    command = [sys.executable, "-c", READER, undisturbed, tmp_path / "checkpoints", SHORT]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout.readline() == "ready\n"
        run = begin(place, tmp_path, SHORT)
        try:
            finish(run)
            read = [int(line) for line in reader.communicate(timeout=120)[0].split()]
        finally:
            reader.kill()
    print("read at steps:", read)
    assert read == sorted(read)
    assert len({*read}) > 2
    assert read[-1] == SHORT
    assert weights(undisturbed) == weights(tmp_path)


def test_a_disk_that_fills_costs_nothing_that_was_saved(place, undisturbed, tmp_path):
    finish(begin(place, tmp_path, SHORT, "--until", "3"))
    # The limit, in KiB a file, acts as a full disk does: writing fails.
    full = begin(place, tmp_path, SHORT, "--resume", before=["bash", "-c", 'ulimit -f 20 && exec "$@"', "bash"])
    errors = full.communicate()[1].decode()
    assert full.returncode == 1
    assert "a checkpoint could not be written: File too large; the newest whole one is of step 3" in errors
    assert "Traceback" not in errors
    finish(begin(place, tmp_path, SHORT, "--resume"))
    assert weights(undisturbed) == weights(tmp_path)
