"""Training on two hosts, which are two processes of this machine."""

import json
import random
import shutil
import signal
import time

import pytest

from tests.evaluating_host import measured
from tests.hosts import Hosts
from tests.train.corpus_files import make_packed
from tests.train.outputs import losses, newest
from tests.train.run.test_settings import FIELDS
from train.base import main

STEPS = 6
LONGEST = 60
"""Seconds until a job has ended of which one process was killed."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Packed shards, a tokenizer and a configuration."""
    root = tmp_path_factory.mktemp("hosts")
    make_packed(root)
    (root / "config.json").write_text(json.dumps(FIELDS | {"steps": STEPS}))
    return root


@pytest.fixture(scope="module")
def alone(place):
    """A run of one process, on as many devices."""
    main(place / "config.json", place / "packed", place / "tokenizer", place / "alone", **options("data=2"))
    return place / "alone"


def options(mesh, **changes):
    return {"mesh": mesh, "save_every": 1, "evaluate_every": 3, "log_every": 1} | changes


def begin(place, output, *words, count=2, mesh="data=2", folders=None, **given):
    program = ["-m", "train.base", "--config", place / "config.json", "--packed", place / "packed"]
    program += ["--tokenizer", place / "tokenizer", "--output", output]
    given = options(mesh, **given)
    program += [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
    return Hosts([*program, *words], count, folders=folders)


@pytest.mark.slow
def test_two_hosts_train_as_one_and_one_goes_on_with_what_they_saved(place, alone, tmp_path):
    first, other = begin(place, tmp_path, "--until", 4).ended()
    assert (first.status, other.status) == (0, 0), first.errors + other.errors
    assert "stopped after step 4" in first.output
    assert "stopped" not in other.output
    assert "held-out" not in other.errors
    main(place / "config.json", place / "packed", place / "tokenizer", tmp_path, resume=True, **options("data=2"))
    assert losses(tmp_path) | losses(alone) == pytest.approx(losses(alone) | losses(tmp_path), abs=1e-5)
    assert {step for step, _ in losses(tmp_path)} == set(range(1, STEPS + 1))
    # Two devices of one host add up in the same order as one device of each of two.
    assert weights(tmp_path) == weights(alone)


@pytest.mark.slow
def test_two_hosts_evaluate_every_row_once():
    first, other = Hosts(["-m", "tests.evaluating_host"]).ended()
    assert (first.status, other.status) == (0, 0), first.errors + other.errors
    assert measured().means["rows"] == 2
    assert first.output.splitlines()[-1] == str(measured())


def weights(output):
    return (output / "model" / "model.safetensors").read_bytes()


def files(output):
    return {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}


def killed(place, output, process, *, until, count=2, **given):
    """Kills one process of a run once it has saved a step; returns what became of all."""
    hosts = begin(place, output, "--resume", count=count, **given)
    hosts.kill_when(process, lambda: newest(output) >= until)
    began = time.monotonic()
    ended = hosts.ended(timeout=2 * LONGEST)
    assert time.monotonic() - began < LONGEST
    return ended


@pytest.mark.slow
def test_a_host_that_is_killed_ends_the_run_which_goes_on_from_its_last_checkpoint(place, alone, tmp_path):
    first, other = killed(place, tmp_path, 1, until=2)
    assert other.status == -9
    assert first.status != 0
    assert any(said in first.errors for said in ("another process of the 2 was lost", "another task died"))
    assert 0 < newest(tmp_path) < STEPS
    assert not (tmp_path / "model").exists()
    lacking = shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name}-lacking"))
    shutil.rmtree(lacking / "checkpoints" / str(newest(lacking)) / "state" / "ocdbt.process_1")
    before = files(lacking)
    with pytest.raises(ValueError, match=r"is damaged: it lacks the part of host 1: state/ocdbt\.process_1 is missing"):
        main(place / "config.json", place / "packed", place / "tokenizer", lacking, resume=True, **options("fsdp=4"))
    assert files(lacking) == before
    # On another mesh: four devices, which divide the weights.
    main(place / "config.json", place / "packed", place / "tokenizer", tmp_path, resume=True, **options("fsdp=4"))
    assert losses(tmp_path) == pytest.approx(losses(alone), abs=1e-5)


@pytest.mark.slow
def test_a_host_that_is_told_to_end_has_all_save_and_end(place, alone, tmp_path):
    given = {"save_every": 1000, "evaluate_every": 1000}
    hosts = begin(place, tmp_path, steps=2000, **given)
    hosts.kill_when(1, lambda: (tmp_path / "metrics.jsonl").exists() and losses(tmp_path), by=signal.SIGTERM)
    for process in hosts.ended():
        assert process.status == 1
        assert process.errors.splitlines()[-1] == (
            f"error: told to end; step {newest(tmp_path)} of 2000 is saved, and --resume goes on"
        )
    assert newest(tmp_path) > 0
    lacking = shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name}-lacking"))
    shutil.rmtree(lacking / "checkpoints" / str(newest(lacking)) / "state" / "ocdbt.process_1")
    before = files(lacking)
    for process in begin(place, lacking, "--resume", steps=2000, **given).ended():
        assert process.status == 1
        assert process.seconds < LONGEST
        assert "it lacks the part of host 1" in process.errors
        assert "Traceback" not in process.errors
    assert files(lacking) == before
    for process in begin(place, tmp_path, "--resume", steps=2000, until=newest(tmp_path) + 1, **given).ended():
        assert process.status == 0, process.errors


@pytest.mark.slow
def test_a_folder_that_the_hosts_do_not_share_is_refused(place, tmp_path):
    """Each host has a working folder of its own, in which the run's is named."""
    for process in begin(place, "run", folders=[tmp_path / "first", tmp_path / "second"]).ended():
        assert process.status == 1
        assert "process 1 of 2 did not find in run what process 0 wrote there" in process.errors
    assert not [*tmp_path.glob("*/run/*")]


@pytest.mark.slow
def test_a_mesh_that_does_not_have_all_devices_is_refused_on_every_host(place, tmp_path):
    for process in begin(place, tmp_path, mesh="data=1").ended():
        assert process.status == 1
        assert "mesh data=1 has 1 devices; on several hosts it must have all 2" in process.errors
        assert "Traceback" not in process.errors
    assert not tmp_path.exists() or not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_four_hosts_that_are_killed_ten_times_end_with_the_weights_of_an_undisturbed_run(place, tmp_path):
    rng, output = random.Random(4), tmp_path / "killed"
    given = {"mesh": "data=4", "steps": 40, "evaluate_every": 1000}

    def finish(folder):
        for process in begin(place, folder, "--resume", count=4, **given).ended():
            assert process.status == 0, process.errors

    finish(tmp_path / "whole")
    for _ in range(10):
        killed(place, output, rng.randrange(4), until=newest(output) + rng.randint(1, 3), count=4, **given)
    finish(output)
    assert weights(output) == weights(tmp_path / "whole")
    # Four devices of one process add in another order.
    main(place / "config.json", place / "packed", place / "tokenizer", tmp_path / "alone", **options(**given))
    assert losses(output) == pytest.approx(losses(tmp_path / "alone"), abs=1e-5)
