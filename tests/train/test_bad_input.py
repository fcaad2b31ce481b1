"""What a user can get wrong while training, each through its program: one clear line, a status, nothing damaged."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.corpus_files import make_packed, make_tokenizer, write_lines
from tests.train.run.test_settings import FIELDS, MODEL
from train.base import main as train_base
from train.run.program import run_program
from train.tokenizer import save_tokenizer, train_tokenizer

ROOT = Path(__file__).parents[2]
SHORT = FIELDS | {"steps": 3}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Packed shards, their tokenizer, another one, configurations, and a run of three steps."""
    root = tmp_path_factory.mktemp("place")
    make_packed(root)
    save_tokenizer(train_tokenizer(["Nothing of all that was ever packed. "] * 3, 280), root / "other-tokenizer")
    shutil.copytree(root / "tokenizer", root / "no-template", ignore=shutil.ignore_patterns("chat_template.jinja"))
    (root / "latin.md").write_bytes("Märchen".encode("latin-1"))
    (root / "config.json").write_text(json.dumps(SHORT))
    (root / "wider.json").write_text(json.dumps(SHORT | {"model": MODEL | {"d_model": 48}}))
    (root / "parts.json").write_text(json.dumps(SHORT | {"accumulate": 2}))
    train_base(root / "config.json", root / "packed", root / "tokenizer", root / "run", until=2, save_every=1)
    return root


@pytest.fixture
def call(monkeypatch, tmp_path):
    """Runs a program of `train` on its command line in this process, in an empty folder; returns what it ended with."""

    def call_(program, *args):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [f"{program}.py", *map(str, args)])
        with pytest.raises(SystemExit) as end:
            run_program(importlib.import_module(f"train.{program}").main)
        return end.value.code

    return call_


def run(folder, program, *args, blocks=None) -> subprocess.CompletedProcess:
    """Runs a program of `train` in a folder; `blocks` is the longest file that it can write, as on a full disk."""
    command = [sys.executable, "-m", f"train.{program}", *map(str, args)]
    if blocks is not None:
        command = ["sh", "-c", f'ulimit -f {blocks}; exec "$@"', "sh", *command]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def refused(ended, *said):
    """Checks that a program ended with one line that says all of this."""
    if isinstance(ended, subprocess.CompletedProcess):
        assert ended.returncode == 1, ended
        assert "Traceback" not in ended.stderr
        ended = ended.stderr.splitlines()[-1]  # Progress stands before it.
    assert isinstance(ended, str)
    assert ended.startswith("error: ")
    assert "\n" not in ended
    for text in said:
        assert text in ended


def options(place, **changes):
    """Returns the options that a training run needs, some of them changed."""
    given = {"config": place / "config.json", "packed": place / "packed", "tokenizer": place / "tokenizer"} | changes
    return [word for name, value in given.items() for word in (f"--{name}", value)]


def files(directory: Path) -> dict[str, bytes]:
    """Returns the content of every file below a directory."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def write_bad(folder, name, content):
    """Writes a corpus of one file, and returns the options that pack it."""
    (folder / name).write_bytes(content)
    (folder / "corpus.json").write_text('{"sources": [{"name": "a", "paths": ["a.jsonl"]}]}')
    make_tokenizer(folder / "tokenizer")
    return "--corpus", "corpus.json", "--data-root", ".", "--output", "out", "--tokenizer", "tokenizer"


CORPORA = {
    "empty": ("a.jsonl", b"", ["source 'a' must have a document to train on; got 0"]),
    "absent": ("b.jsonl", b"", ["source 'a': expected a .jsonl, .json or .txt file at", "a.jsonl; got none"]),
    "not-text": ("a.jsonl", b'{"text": "\xff\xfe"}\n', ["a.jsonl cannot be read as UTF-8 text", "0xff"]),
    "cut-line": ("a.jsonl", b'{"turns": ["Hi", "Hello"]}\n{"turns": ["Hi", \n', ["a.jsonl:2: Expecting value"]),
    "unknown-role": (
        "a.jsonl",
        b'{"messages": [{"role": "tool", "content": "x"}]}\n',
        ["a.jsonl:1: role must be system, user or assistant; got 'tool'"],
    ),
}


@pytest.mark.parametrize("corpus", CORPORA)
def test_a_corpus_that_cannot_be_packed_is_named_by_file_and_line(call, tmp_path, corpus):
    name, content, said = CORPORA[corpus]
    asked = write_bad(tmp_path, name, content)
    before = files(tmp_path)
    refused(call("pack", *asked), *said)
    assert files(tmp_path) == before
    assert not (tmp_path / "out").exists()


def test_a_bad_line_of_a_chat_file_ends_the_program_with_one_line(call, tmp_path):
    asked = write_bad(tmp_path, "a.jsonl", b'{"turns": ["Hi", "Hello"]}\n\n{"turns": ["Hi", 3]}\n')
    before = files(tmp_path)
    refused(call("pack", *asked), "a.jsonl:3: expected text, messages, turns", "got ['turns']")
    assert files(tmp_path) == before


def test_a_corpus_that_no_tokenizer_can_be_trained_on_is_named(call, tmp_path):
    write_lines(tmp_path / "a.jsonl", {"text": "fine"}, {"txt": "not"})
    refused(call("tokenizer", "--data", "a.jsonl", "--output", "out"), "a.jsonl:2: expected text", "got ['txt']")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_tokenizer_that_is_there_is_not_written_over(call, place):
    before = files(place / "tokenizer")
    story = place / "data" / "stories" / "a.jsonl"
    ended = call("tokenizer", "--data", story, "--output", place / "tokenizer")
    refused(ended, "tokenizer must be a new or empty directory; it has files in it")
    assert files(place / "tokenizer") == before


@pytest.mark.parametrize(
    ("program", "given"),
    [
        ("speed", ("--shape", "llama-100m", "--output")),
    ],
)
def test_a_file_that_cannot_be_made_is_told_before_the_work(call, tmp_path, program, given):
    refused(call(program, *given, "no/out.json"), "no/out.json needs a folder no; there is none")
    (tmp_path / "out.json").write_text("precious")
    refused(call(program, *given, "out.json"), "out.json exists; choose another file")
    assert files(tmp_path) == {"out.json": b"precious"}


def test_a_disk_that_fills_with_the_last_bytes_of_a_shard_leaves_no_folder(place, tmp_path):
    write_lines(tmp_path / "a.jsonl", *({"text": f"Once there were {i} foxes. They ran away."} for i in range(100)))
    (tmp_path / "corpus.json").write_text('{"sources": [{"name": "a", "paths": ["a.jsonl"]}]}')
    before = files(tmp_path)
    asked = ("--corpus", "corpus.json", "--data-root", ".", "--tokenizer", place / "tokenizer", "--output", "out")
    full = run(tmp_path, "pack", *asked, "--shard-tokens", 1000, blocks=2)
    refused(full, "out: no room to save: File too large")
    assert files(tmp_path) == before
    assert not (tmp_path / "out").exists()


RUNS = {
    "no-shards": ({"packed": "tokenizer"}, ["tokenizer cannot be read as packed data: ", "index.json: No such file"]),
    "no-tokenizer": ({"tokenizer": "packed"}, ["packed is not a tokenizer's folder"]),
    "no-chat-template": ({"tokenizer": "no-template"}, ["no-template/chat_template.jinja is missing"]),
    "no-configuration": ({"config": "absent.json"}, ["absent.json is not a training file: ", "No such file"]),
    "no-sources": ({"sources": "absent.md"}, ["absent.md must be a file on the text's sources; there is none"]),
    "sources-of-another-code": ({"sources": "latin.md"}, ["latin.md cannot be read as UTF-8 text", "0xe4"]),
    "programs-in-a-file": (
        {"programs": "config.json"},
        ["--programs must be a folder or beside; got the file", "config.json"],
    ),
    "mesh-too-large": ({"mesh": "fsdp=128"}, ["mesh fsdp=128 needs 128 devices; got"]),
    "mesh-malformed": (
        {"mesh": "fsdp:2"},
        ["mesh must be AXIS=SIZE pairs, as in fsdp=4,tp=2, or one of dp, fsdp, tp, fsdp+tp; got 'fsdp:2'"],
    ),
    "mesh-of-other-rows": ({"mesh": "data=3"}, ["a batch must divide among 3 devices; got 8 rows"]),
    "mesh-of-other-width": ({"mesh": "tp=5"}, ["must be divisible by the mesh's tp=5; got size 48"]),
    "parts-of-other-rows": (
        {"config": "parts.json", "mesh": "data=8"},
        ["a batch must divide among 8 devices and 2 parts of each; got 8 rows"],
    ),
}


@pytest.mark.parametrize("case", RUNS)
def test_a_run_that_cannot_be_is_refused_before_anything_is_written(call, place, tmp_path, case):
    changes, said = RUNS[case]
    changed = {name: value if name == "mesh" else place / value for name, value in changes.items()}
    refused(call("base", *options(place, **changed), "--output", "out"), *said)
    assert list(tmp_path.iterdir()) == []


def test_shards_of_another_tokenizer_end_the_program_with_one_line(call, place, tmp_path):
    asked = options(place, tokenizer=place / "other-tokenizer")
    said = ("packed was packed with the tokenizer of hash", "other-tokenizer has")
    refused(call("base", *asked, "--output", "out"), *said)
    assert list(tmp_path.iterdir()) == []


def test_a_run_of_another_shape_is_not_resumed_and_stays_as_it_is(call, place):
    before = files(place / "run")
    wider = options(place, config=place / "wider.json")
    output = ("--output", place / "run")
    refused(call("base", *wider, *output, "--resume"), "run was begun with model.d_model 32; got 48")
    refused(call("base", *options(place), *output), "run holds a run; resume it or choose another folder")
    assert files(place / "run") == before


def test_a_checkpoint_of_another_shape_is_neither_exported_nor_resumed(call, place, tmp_path):
    settings = json.loads((place / "run" / "settings.json").read_text())
    settings["model"]["mlp_width"] = 56
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "settings.json").write_text(json.dumps(settings))
    (tmp_path / "run" / "checkpoints").symlink_to(place / "run" / "checkpoints")
    before = files(place / "run")
    data = ("--packed", place / "packed", "--tokenizer", place / "tokenizer")
    said = ("holds another model: ", "must be of shape", "56", "got", "48")
    refused(call("export", "--run", "run", *data, "--output", "out"), *said)
    refused(call("base", "--config", "run/settings.json", *data, "--output", "run", "--resume"), *said)
    assert files(place / "run") == before
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("case", ["no-chat-template", "sources-of-another-code", "no-sources"])
def test_an_export_that_cannot_be_is_refused_before_the_weights_are_read(call, place, tmp_path, case):
    changes, said = RUNS[case]
    (tmp_path / "run").mkdir()
    shutil.copyfile(place / "run/settings.json", tmp_path / "run/settings.json")  # There is no checkpoint.
    given = {"packed": "packed", "tokenizer": "tokenizer"} | changes
    words = [word for name, value in given.items() for word in (f"--{name}", place / value)]
    refused(call("export", "--run", "run", *words, "--output", "out"), *said)
    assert not (tmp_path / "out").exists()


def test_a_damaged_checkpoint_is_named_with_the_one_before(call, place, tmp_path):
    shutil.copytree(place / "run", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "2" / "state")
    before = files(tmp_path / "run")
    ended = call("base", *options(place), "--output", "run", "--resume")
    refused(ended, "2 is damaged: ", "remove it to go back to step 1")
    assert files(tmp_path / "run") == before
