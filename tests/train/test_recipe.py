"""Whole recipes as a user runs them: killed and resumed, refused, and failing."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from train.recipe import main
from train.run.program import run_program
from train.stages.recipe_lock import LOCK, MADE, hash_files, only_call, read_lock

ROOT = Path(__file__).parents[2]
SMOKE = Path(__file__).parent / "smoke"
TOKENIZER, PACKED, START = "tokenizer", "packed", "start"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The smoke recipe, its files, and a recipe of its first stages; outputs are `OUT` beside it."""
    root = tmp_path_factory.mktemp("recipe")
    shutil.copytree(SMOKE, root, dirs_exist_ok=True)
    fields = json.loads((root / "smoke.json").read_text())
    (root / "short.json").write_text(json.dumps(fields | {"stages": fields["stages"][:3]}))
    (root / "text.json").write_text(json.dumps(fields | {"stages": fields["stages"][:2]}))
    return root


@pytest.fixture(scope="module")
def begin(place, same_programs):
    """Begins a call of the program in a process of its own, which writes what it says to a file beside its outputs."""
    environment = same_programs() | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}

    def begin_(recipe, output, *options, before=()):
        command = [*before, sys.executable, "-m", "train.recipe", place / f"{recipe}.json"]
        command += ["--input", f"text={place / 'data'}", "--output", output, *options]
        with output.with_name(f"{output.name}.said").open("w") as said:  # No pipe that nobody reads.
            return subprocess.Popen(list(map(str, command)), env=environment, stdout=said, stderr=said)

    return begin_


@pytest.fixture(scope="module")
def end(begin):
    """Makes a call to its end; returns its status and what it said."""

    def end_(recipe, output, *options, **others):
        status = begin(recipe, output, *options, **others).wait()
        return status, output.with_name(f"{output.name}.said").read_text()

    return end_


@pytest.fixture(scope="module")
def made(place, end):
    """The outputs of the recipe of two stages, made without a break."""
    status, said = end("text", place / "made")
    assert status == 0, said
    return place / "made"


@pytest.fixture
def text(made, tmp_path):
    """A copy of those outputs."""
    return shutil.copytree(made, tmp_path / "out")


@pytest.fixture
def call(place, monkeypatch, capsys):
    """Calls the program in this process, with a copy of the inputs; returns what it ended with and what it printed."""

    def call_(recipe, output, *options, data=place / "data"):
        words = [place / f"{recipe}.json", "--input", f"text={data}", "--output", output, *options]
        monkeypatch.setattr(sys, "argv", ["recipe.py", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            run_program(main)
        return ended.value.code, capsys.readouterr().out

    return call_


def states(output):
    return {name: entry.state for name, entry in read_lock(output).stages.items()}


def child(output):
    """Returns the number of the process that a stage runs in."""
    return int((output / ".running").read_text().rpartition(" ")[2].rstrip(","))


def steps(run):
    return [int(path.name) for path in (run / "checkpoints").glob("*") if path.name.isdecimal()]


def wait_for(output):
    """Waits until no process works in a folder of outputs."""
    while True:
        with contextlib.suppress(ValueError), only_call(output):
            return
        time.sleep(0.01)


def test_a_recipe_makes_all_its_stages_and_locks_what_they_were_made_of(place, made):
    lock = read_lock(made)
    assert states(made) == dict.fromkeys((TOKENIZER, PACKED), MADE)
    assert lock.inputs["@text"] == hash_files(place / "data")
    for name, entry in lock.stages.items():
        assert entry.outputs == hash_files(made / name)
        assert all(entry.reads.values())
        assert len(entry.code) == 1
        assert " jax " in entry.code[0]
        assert (made / f"{name}.log").read_text().startswith("--- ")


@pytest.mark.slow
def test_a_recipe_that_is_killed_ends_with_the_same_weights(begin, end, tmp_path):
    whole = tmp_path / "whole"
    status, said = end("short", whole)
    assert status == 0, said
    assert {"README.md", "model/model.safetensors"} <= read_lock(whole).stages[START].outputs.keys()
    output = shutil.copytree(whole, tmp_path / "killed", ignore=shutil.ignore_patterns(START, ".running"))
    recipe = begin("short", output, "--from", START)
    while not steps(output / START):
        assert recipe.poll() is None, output.with_name("killed.said").read_text()
        time.sleep(0.01)
    stage = child(output)
    os.kill(stage, signal.SIGSTOP)
    recipe.send_signal(signal.SIGKILL)
    recipe.wait()
    reached = max(steps(output / START))
    assert states(output)[START] == "begun"
    # The stage outlived its recipe and is still at work, so a second call keeps away.
    status, said = end("short", output)
    assert status == 1
    assert f"is in use: stage 'start', process {stage}, runs; wait for it, or stop it" in said
    os.kill(stage, signal.SIGKILL)
    wait_for(output)
    status, said = end("short", output)
    assert status == 0, said
    assert "1/3 tokenizer: made before" in said
    assert "--resume" in said
    assert reached < 20
    assert states(output) == states(whole)
    for name in ("model/model.safetensors", "model/config.json"):
        assert (output / START / name).read_bytes() == (whole / START / name).read_bytes()


def test_a_recipe_that_is_made_is_verified_and_makes_nothing(text, call):
    before = hash_files(text)
    status, said = call("text", text)
    assert (status, said) == (0, f"all of {text} was made before\n")
    status, said = call("text", text, "--check")
    assert status == 0
    assert said.startswith("as locked: 3 files read, ")
    assert " of 2 of 2 stages made\ntokenizer, packed: " in said
    assert hash_files(text) == before


def test_an_input_that_changed_is_refused_by_name(text, call, place, tmp_path):
    data = shutil.copytree(place / "data", tmp_path / "data")
    (data / "chats.jsonl").write_text('{"turns": ["Who?", "A fox."]}\n')
    before = hash_files(text)
    for options in ((), ("--check",), ("--dry-run",), ("--check", "--relock")):
        status, _ = call("text", text, *options, data=data)
        assert f"error: {text / LOCK} was made with something else: input @text: chats.jsonl changed" in status
        assert hash_files(text) == before
    status, said = call("text", text, "--dry-run", "--relock", data=data)
    assert status == 0
    assert [line.split()[2] for line in said.splitlines()] == ["train.tokenizer", "train.pack"]
    assert hash_files(text) == before


@pytest.mark.slow
def test_what_changed_is_made_again_when_it_is_accepted(text, call, place, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    data = shutil.copytree(place / "data", tmp_path / "data")
    chats = (data / "chats.jsonl").read_text().splitlines(keepends=True)
    (data / "chats.jsonl").write_text("".join(chats[:20]))
    before = {name: hash_files(text / name) for name in (TOKENIZER, PACKED)}
    (text / TOKENIZER / "note.txt").write_text("of the old tokenizer")
    status, _ = call("text", text, "--relock", data=data)
    assert status == 0
    assert states(text) == {TOKENIZER: MADE, PACKED: MADE}
    assert not (text / TOKENIZER / "note.txt").exists()
    assert hash_files(text / PACKED) != before[PACKED]
    assert call("text", text, "--check", data=data)[0] == 0


def test_an_output_that_was_changed_by_hand_is_refused_and_stays_when_it_is_accepted(text, call):
    (text / PACKED / "index.json").write_text("{}")
    status, _ = call("text", text)
    assert "stage 'packed': of its output, index.json changed" in status
    status, said = call("text", text, "--relock")
    assert (status, said) == (0, f"all of {text} was made before\n")
    assert (text / PACKED / "index.json").read_text() == "{}"
    assert call("text", text, "--check")[0] == 0


def test_a_stage_that_fails_names_its_log(place, call, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    shutil.copytree(place / "data", tmp_path / "data")
    (tmp_path / "data" / "chats.jsonl").write_text('{"turn": []}\n')
    status, _ = call("text", tmp_path / "out", data=tmp_path / "data")
    log = tmp_path / "out" / "tokenizer.log"
    assert status.startswith(f"error: stage 'tokenizer' ended with status 1; its log {log} ends: error: ")
    assert "chats.jsonl:1: expected text" in status
    assert status.removesuffix("\n").endswith(log.read_text().splitlines()[-1])
    assert states(tmp_path / "out") == {TOKENIZER: "begun", PACKED: "planned"}


def test_commands_are_printed_and_nothing_is_made(place, call, tmp_path):
    status, said = call("smoke", tmp_path / "out", "--dry-run", "--seed", 40)
    assert status == 0
    lines = said.splitlines()
    assert len(lines) == 7
    assert f"--model {tmp_path / 'out/start/model'}" in lines[3]
    assert "--seed 41" in lines[4]
    assert not (tmp_path / "out").exists()


def test_one_stage_alone_needs_what_it_reads(call, tmp_path):
    status, _ = call("smoke", tmp_path / "out", "--only", PACKED)
    assert "stage 'packed' reads @tokenizer, which is not made yet" in status
    status, _ = call("smoke", tmp_path / "out", "--only", "paked")
    assert "smoke.json has no stage 'paked'; it has tokenizer, packed, start" in status
    status, said = call("smoke", tmp_path / "out", "--only", TOKENIZER, "--dry-run")
    assert (status, len(said.splitlines())) == (0, 1)
    assert not (tmp_path / "out" / LOCK).exists()


def test_a_folder_of_something_else_is_left_alone(call, tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    status, _ = call("text", tmp_path)
    assert f"{tmp_path} is not a recipe's" in status
    assert hash_files(tmp_path).keys() == {"thesis.txt"}
    assert "there is none" in call("text", tmp_path / "absent", "--check")[0]


def test_a_full_disk_is_told_before_a_stage_runs(end, tmp_path):
    # The limit, in blocks a file, acts as a full disk does: writing fails.
    status, said = end("smoke", tmp_path / "out", before=["bash", "-c", 'ulimit -f 1 && exec "$@"', "bash"])
    assert status == 1
    assert said.splitlines()[-1] == f"error: {tmp_path / 'out' / LOCK}: File too large"
    assert hash_files(tmp_path / "out") == {}


def test_a_recipe_that_is_asked_to_end_ends_its_stage(begin, tmp_path):
    recipe = begin("text", tmp_path / "out")
    running = tmp_path / "out" / ".running"
    while not running.exists() or "process" not in running.read_text():
        assert recipe.poll() is None
        time.sleep(0.01)
    recipe.terminate()
    assert recipe.wait() == 130
    with only_call(tmp_path / "out"):
        assert states(tmp_path / "out")[TOKENIZER] == "begun"


@pytest.mark.slow
def test_the_smoke_recipe_killed_in_every_stage_ends_with_the_same_weights(begin, end, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    status, said = end("smoke", whole)
    assert status == 0, said
    stages = list(read_lock(whole).stages)
    for stage in stages:
        recipe = begin("smoke", killed)
        log = killed / f"{stage}.log"
        while not log.exists() or "process" not in (killed / ".running").read_text():
            assert recipe.poll() is None, killed.with_name("killed.said").read_text()
            time.sleep(0.01)
        time.sleep(1)
        process = child(killed)
        recipe.send_signal(signal.SIGKILL)
        recipe.wait()
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        wait_for(killed)
    status, said = end("smoke", killed)
    assert status == 0, said
    weights = sorted(path.relative_to(whole) for path in whole.rglob("*.safetensors"))
    assert len(weights) == 5
    for path in weights:
        assert (whole / path).read_bytes() == (killed / path).read_bytes(), path
    assert (killed / "card" / "README.md").read_text() == (whole / "card" / "README.md").read_text()
