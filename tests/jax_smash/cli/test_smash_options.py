"""`jax-smash generate --method hamburger` on a checkpoint with modules beside it."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from jax_smash.checkpoints import huggingface
from jax_smash.checkpoints.smasher import save_smasher, tokenizer_sha256
from jax_smash.cli.smash_options import SmashFlags
from jax_smash.smash.config import SmashConfig
from jax_smash.smash.options import SmashOptions
from jax_smash.smash.smasher import random_smasher
from tests.checkpoints import write_checkpoint


@pytest.fixture(scope="module")
def smashed(model, tmp_path_factory):
    """A sound checkpoint with modules. Tests must not change it."""
    path = shutil.copytree(model, tmp_path_factory.mktemp("smashed") / "base")
    write_modules(path / "hamburger", path)
    return path


def write_modules(folder: Path, path: Path) -> None:
    """Writes random modules for a checkpoint."""
    config = huggingface.read_config(path)[0]
    sizes = SmashConfig.for_base(config, micro_layers=1, micro_steps=3, tokenizer_sha256=tokenizer_sha256(path))
    counts = np.arange(config.vocab_size)
    save_smasher(folder, sizes, random_smasher(config, sizes)[1], token_counts=counts)


def test_the_program_decodes_with_the_modules_beside_a_model(called, smashed, tmp_path):
    options = ("--method", "hamburger", "--confidence", "0.2", "--micro-head", "100", "--json", "out.jsonl")
    result = called("generate", "--model", smashed, *options, "--prompt", "Once upon a time", "--max-new-tokens", "9")
    assert result.returncode == 0, result.stderr
    record = json.loads((tmp_path / "out.jsonl").read_text())
    assert record["new_tokens"] == 9
    told = record["smashed"]
    assert sum(n * groups for n, groups in enumerate(told["lengths"], 1)) == 9
    assert told["output_compression"] == pytest.approx(9 / sum(told["lengths"]))
    assert f"{told['output_compression']:.2f} tokens a slot of the output" in result.stderr


@pytest.mark.slow
def test_plain_decoding_takes_the_base_that_lies_with_the_modules(called, smashed, model, tmp_path):
    other = shutil.copytree(model, tmp_path / "other")
    write_checkpoint(other, json.loads((other / "config.json").read_text()), seed=1)
    write_modules(other, other)
    arguments = ("--prompt", "Once upon a time", "--regex", "[a-z]{9}", "--max-new-tokens", "9")
    plain = called("generate", "--model", model, *arguments)
    own = called("generate", "--model", other, *arguments)
    assert plain.stdout != own.stdout
    for method in (("ar",), ("recycling", "--tree", "chain-2")):
        given = called("generate", "--model", model, "--modules", other, "--method", *method, *arguments)
        assert given.returncode == 0, given.stderr
        assert given.stdout == own.stdout
        assert given.stderr.endswith(f", decoded by the base in {other}\n")
    beside = called("generate", "--model", model, "--modules", smashed / "hamburger", *arguments)
    assert beside.stdout == plain.stdout
    assert beside.stderr.endswith(f", decoded by the base in {model}\n")
    assert "decoded by" not in plain.stderr


def test_other_options_of_the_modules_stay_refused(call, smashed):
    status, _, err = call("generate", "--model", smashed, "--modules", smashed, "--micro-steps", "2", "--prompt", "a")
    assert status == 2
    assert "--micro-steps does not go with --method ar: it is for hamburger" in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--confidence", "0"), "--confidence must be over 0 and at most 1; got 0.0"),
        (("--token-confidence", "2"), "--token-confidence must be from 0 to 1; got 2.0"),
        (("--confidence", "1.5"), "--confidence must be over 0 and at most 1; got 1.5"),
        (("--micro-steps", "0"), "--micro-steps must be at least 1; got 0"),
        (("--micro-steps", "4"), "--micro-steps must be at most 3, what the modules were trained for; got 4"),
        (("--micro-head", "half"), "--micro-head must be full, int8 or a number of tokens; got 'half'"),
        (("--micro-head", "9999"), "--micro-head must be at most the vocabulary's 259 tokens; got 9999"),
        (("--smash-mode", "wild"), "--smash-mode must be one of blind, exact, checked; got 'wild'"),
        (("--least-rows", "0"), "--least-rows must be at least 1; got 0"),
        (("--modules", "nowhere"), "nowhere has no HAMburger modules: smasher.json is missing"),
        (("--tree", "chain-2"), "--tree does not go with --method hamburger"),
    ],
)
def test_what_cannot_be_is_one_line(call, smashed, options, said):
    status, out, err = call("generate", "--model", smashed, "--method", "hamburger", "--prompt", "a", *options)
    assert (status in (1, 2), out) == (True, "")
    assert len(err.splitlines()) == 1
    assert said in err


def test_what_does_not_fit_is_told_before_weights_are_read(call, smashed, tmp_path):
    """No weight is there to be read."""
    bare = shutil.copytree(smashed, tmp_path / "bare")
    (bare / "model.safetensors").unlink()
    (bare / "hamburger" / "smasher.safetensors").unlink()
    command = ("generate", "--model", bare, "--method", "hamburger", "--prompt", "a")
    for options, said in (
        (("--micro-head", "9999"), "--micro-head must be at most the vocabulary's 259 tokens; got 9999"),
        (("--micro-steps", "4"), "--micro-steps must be at most 3"),
    ):
        assert said in call(*command, *options)[2]
    config = json.loads((bare / "config.json").read_text())
    (bare / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
    assert "the modules were made for a base whose configuration has hash" in call(*command)[2]


def test_another_method_takes_none_of_the_options(call, smashed):
    status, _, err = call("generate", "--model", smashed, "--prompt", "a", "--confidence", "0.5")
    assert (status, "--confidence does not go with --method ar: it is for hamburger" in err) == (2, True)


def test_a_model_without_modules_says_what_to_do(call, model):
    status, _, err = call("generate", "--model", model, "--method", "hamburger", "--prompt", "a")
    assert status == 1
    assert "has no HAMburger modules in" in err
    assert "give --modules FOLDER" in err


def test_flags_and_library_have_the_same_defaults():
    assert SmashFlags().options("ar") == SmashOptions()
    flags = {f.name.replace("smash_mode", "mode") for f in dataclasses.fields(SmashFlags)}
    # What is for measuring has no flag.
    assert flags - {"modules"} == {f.name for f in dataclasses.fields(SmashOptions)} - {"group_length"}
