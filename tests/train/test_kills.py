import json
import math
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.train.corpus_files import make_packed
from tests.train.outputs import newest
from tests.train.run.test_settings import FIELDS, MODEL
from train.base import main
from train.run.checkpoint import only_run

CONFIG = FIELDS | {"model": MODEL | {"num_layers": 1, "d_model": 128, "mlp_width": 256}, "length": 32}
SHORT, LONG, LOG_EVERY = 10, 80, 3
DEVICES, MESH = 8, "data=2"
"""Of the tests' own process and of every other one, that all compile the same programs."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Packed shards, a tokenizer and a configuration."""
    root = tmp_path_factory.mktemp("kills")
    make_packed(root)
    (root / "config.json").write_text(json.dumps(CONFIG))
    return root


@pytest.fixture(scope="module")
def undisturbed(place):
    """A short run that nothing disturbs, saved once."""
    train_here(place, place / "whole", save_every=SHORT)
    return place / "whole"


@pytest.fixture(scope="module")
def begun(place):
    """A short run that stopped after three steps; to be copied."""
    train_here(place, place / "begun", until=3)
    return place / "begun"


def train_here(place, output, **options):
    """Makes a short run, or what is left of it, in this process."""
    given = {"steps": SHORT, "mesh": MESH, "save_every": 1, "evaluate_every": 1000, "log_every": LOG_EVERY} | options
    main(place / "config.json", place / "packed", place / "tokenizer", output, **given)


@pytest.fixture(scope="module")
def begin(place, undisturbed, same_programs):
    """Begins a run, or what is left of it, in a process of its own, which finds what `undisturbed` compiled."""
    environment = same_programs()

    def begin_(output, steps, *options, before=(), errors=subprocess.PIPE):
        command = [*before, sys.executable, "-m", "train.base", "--config", place / "config.json"]
        command += ["--packed", place / "packed", "--tokenizer", place / "tokenizer", "--output", output]
        command += ["--devices", DEVICES, "--mesh", MESH, "--save-every", "1", "--evaluate-every", "1000"]
        command += ["--log-every", LOG_EVERY, "--steps", steps, *options]
        return subprocess.Popen(list(map(str, command)), env=environment, stdout=subprocess.DEVNULL, stderr=errors)

    return begin_


def finish(process):
    _, errors = process.communicate()
    assert process.returncode == 0, errors.decode()[-2000:]


def killed_often(begin, output, total, kills):
    """Kills a run again and again while it works, and lets it end; returns the newest checkpoints at the kills."""
    rng, steps = random.Random(kills), []
    for number in range(kills):
        # No pipe that nobody reads: XLA writes more than one holds where it finds compiled programs, and waits.
        process = begin(output, total, "--resume", errors=subprocess.DEVNULL)
        # A step or a few after the checkpoint that it began from; most of a step is saving. Every fifth time anywhere
        # before that, starting up included.
        target, longest = newest(output) + rng.randint(1, 2), rng.uniform(0, 10) if number % 5 == 4 else math.inf
        began = time.monotonic()
        while newest(output) < target and process.poll() is None and time.monotonic() < began + longest:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.wait()
        steps.append(newest(output))
    finish(begin(output, total, "--resume"))
    return steps


def weights(output):
    return (output / "model" / "model.safetensors").read_bytes()


def check(whole, killed, steps, total):
    print("newest checkpoints at the kills:", steps)
    assert steps == sorted(steps)
    assert 0 < steps[-1] < total
    assert weights(whole) == weights(killed)
    lines = [json.loads(line) for line in (killed / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [*range(LOG_EVERY, total, LOG_EVERY), total]


def test_a_run_that_is_killed_ends_with_the_same_weights(begin, undisturbed, tmp_path):
    check(undisturbed, tmp_path, killed_often(begin, tmp_path, SHORT, 2), SHORT)


@pytest.mark.slow
def test_a_run_that_is_killed_twenty_times_ends_with_the_same_weights(begin, tmp_path):
    finish(begin(tmp_path / "whole", LONG))
    steps = killed_often(begin, tmp_path / "killed", LONG, 20)
    check(tmp_path / "whole", tmp_path / "killed", steps, LONG)


@pytest.mark.slow
def test_a_second_program_on_a_runs_folder_is_refused_and_leaves_the_run_alone(
    place, begin, undisturbed, begun, tmp_path
):
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    with only_run(tmp_path):
        second = begin(tmp_path, SHORT, "--resume")
        errors = second.communicate()[1].decode()
    assert second.returncode == 1
    assert f"another program trains in {tmp_path}; wait for it, or stop it" in errors
    assert "Traceback" not in errors
    train_here(place, tmp_path, resume=True)
    assert weights(undisturbed) == weights(tmp_path)


# Reads a run's checkpoints until the last.  In a process of its own: a checkpoint that is deleted while it is read
# leaves Orbax reads behind that end later, as exceptions that nobody awaits.
READER = """
import sys
from pathlib import Path

from train.run.checkpoint import load_newest
from train.export import newest_state
from train.run.settings import load_settings

whole, read_too, last = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
_, like = newest_state(whole, load_settings(whole / "settings.json"))
print("ready", flush=True)
step = 0
while step < last:
    if any(path.name.isdecimal() for path in read_too.glob("*")):
        step = int(load_newest(read_too, like)[0].step)
        print(step, flush=True)
"""


@pytest.mark.slow
def test_a_run_that_is_read_while_it_saves_ends_with_the_same_weights(place, undisturbed, tmp_path):
    """Saves take most of this run's time, so most readings fall into one."""
    command = [sys.executable, "-c", READER, undisturbed, tmp_path / "checkpoints", SHORT]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout.readline() == "ready\n"
        try:
            train_here(place, tmp_path)
            read = [int(line) for line in reader.communicate(timeout=120)[0].split()]
        finally:
            reader.kill()
    print("read at steps:", read)
    assert read == sorted(read)
    assert len({*read}) > 2
    assert read[-1] == SHORT
    assert weights(undisturbed) == weights(tmp_path)


@pytest.mark.slow
def test_a_disk_that_fills_costs_nothing_that_was_saved(place, begin, undisturbed, begun, tmp_path):
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    # The limit, in KiB a file, acts as a full disk does: writing fails.
    full = begin(tmp_path, SHORT, "--resume", before=["bash", "-c", 'ulimit -f 20 && exec "$@"', "bash"])
    errors = full.communicate()[1].decode()
    assert full.returncode == 1
    assert "a checkpoint could not be written: File too large; the newest whole one is of step 3" in errors
    assert "Traceback" not in errors
    train_here(place, tmp_path, resume=True)
    assert weights(undisturbed) == weights(tmp_path)
