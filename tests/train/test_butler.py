"""Runs of `train.butler`, from packed shards to an export that loads beside its base."""

import contextlib
import dataclasses
import io
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.checkpoints.butler import load_butler
from jax_smash.checkpoints.fingerprint import fingerprint
from jax_smash.checkpoints.huggingface import read_config
from tests.checkpoints import LLAMA, write_checkpoint
from tests.train.corpus_files import make_packed
from train.butler import main
from train.parts.butler.part import Butler
from train.run.flow import run
from train.run.metrics import read_metrics
from train.run.start import loaded_params, stored_weights

RAW = {**LLAMA, "vocab_size": 290, "bos_token_id": 0, "eos_token_id": 1}
CONFIG = {
    "predictors": {
        "small": {"kind": "grouped", "every": 2, "hidden": 16, "width": 6},
        "low_rank": {"kind": "low_rank", "width": 6},
        "gate": {"kind": "gate", "page": 4, "width": 6},
    },
    "optimiser": {"warmup": 1, "learning_rate": 0.01, "weight_decay": 0.0},
    "batch_size": 8,
    "length": 32,
    "steps": 6,
    "recall_from": 8,
}
NAMES = tuple(CONFIG["predictors"])
RUN = {"save_every": 2, "log_every": 2, "evaluate_every": 3, "held_out_rows": 0, "mesh": "data=2"}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Packed shards, their base in bfloat16, another of its shape, and a configuration."""
    folder = tmp_path_factory.mktemp("butler")
    _, tokenizer = make_packed(folder)
    for seed, name in enumerate(("base", "other")):
        write_checkpoint(folder / name, RAW, seed=seed, dtype="BF16")
        for file in tokenizer.iterdir():
            shutil.copy(file, folder / name)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "sources.md").write_text("Sentences about foxes, written for this test.")
    return folder


def said(root, output, **options):
    """Makes the run, or what is left of it, in this process; returns what it printed."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main(root / "config.json", root / "packed", root / "base", output, sources=root / "sources.md", **options)
    return out.getvalue()


@pytest.fixture(scope="module")
def whole(root):
    """A run that nothing disturbs, and what it said."""
    return root / "whole", said(root, root / "whole", **RUN)


def mark_of(folder):
    loaded = loaded_params(folder)
    return fingerprint(loaded.config, loaded.params)


def test_the_export_loads_beside_its_base_and_no_other(root, whole):
    folder, printed = whole
    assert printed.splitlines()[-1] == f"exported to {folder / 'butler'}"
    config, mark = read_config(root / "base")[0], mark_of(root / "base")
    found = load_butler(folder / "butler" / "small", config, mark)
    assert {leaf.dtype for leaf in jax.tree.leaves(found.params)} == {jnp.dtype(jnp.bfloat16)}
    assert (found.config.kind, found.config.hidden, found.base_fingerprint) == ("grouped", 16, mark)
    with pytest.raises(ValueError, match="was trained with a base whose weights have fingerprint"):
        load_butler(folder / "butler" / "small", config, mark_of(root / "other"))


def test_the_run_says_how_it_went(whole):
    lines = read_metrics(whole[0] / "metrics.jsonl")
    assert [line["step"] for line in lines if "loss" in line] == [2, 4, 6]
    held_out = [line for line in lines if "held_out_loss" in line]
    assert [line["step"] for line in held_out] == [3, 6]
    for line in held_out:
        assert {*line["held_out"]} == {"stories", "chats"}
        assert {*line["held_out_means"]} == {f"{n} {of}" for n in NAMES for of in ("loss", "recall", "recent_recall")}
        assert all(0 < line["held_out_means"][f"small {of}"] < 1 for of in ("recall", "recent_recall"))


def test_the_card_says_what_was_made_of_what(root, whole):
    card = (whole[0] / "butler" / "README.md").read_text()
    line = read_metrics(whole[0] / "metrics.jsonl")[-1]
    assert all(f"## `{name}`" in card for name in NAMES)
    assert "| Form | `grouped`: " in card
    assert f"fingerprint of its weights {mark_of(root / 'base')}" in card
    assert "Sentences about foxes" in card
    assert f"the last entries, as many, hold {line['held_out_means']['small recent_recall']:.3f}" in card
    assert "| Steps | 6 of 6 planned, 8 rows of 32 tokens each |" in card


@pytest.mark.slow
def test_a_run_that_was_cut_off_ends_with_the_same_weights(root, whole, tmp_path):
    for options in ({"until": 2}, {"until": 4, "resume": True}, {"resume": True}):
        said(root, tmp_path / "parts", **RUN, **options)
    for name in NAMES:
        files = [folder / "butler" / name / "butler.safetensors" for folder in (whole[0], tmp_path / "parts")]
        assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.slow
def test_a_divided_base_trains_the_same_predictor(root, whole, tmp_path):
    said(root, tmp_path / "run", **RUN | {"mesh": "fsdp=2,tp=2"}, until=2)
    divided, alone = (read_metrics(folder / "metrics.jsonl")[0] for folder in (tmp_path / "run", whole[0]))
    for name in ("loss", "gradient_norm"):
        assert divided[name] == pytest.approx(alone[name], rel=2e-2)


@pytest.mark.slow
def test_the_base_is_in_no_checkpoint_and_stays_as_it_is(root, tmp_path):
    part = Butler.from_files(root / "config.json", root / "packed", root / "base")
    frozen = []

    @dataclasses.dataclass(frozen=True)
    class Watched(Butler):
        def frozen(self, mesh):
            frozen.append(super().frozen(mesh))
            return frozen[-1]

    watched = Watched(**{field.name: getattr(part, field.name) for field in dataclasses.fields(part)})
    run(watched, tmp_path / "run", mesh="data=2", until=2)
    after = jax.tree.leaves(frozen[0].params)
    assert {leaf.dtype for leaf in after} == {jnp.dtype(jnp.bfloat16)}
    before = jax.tree.leaves(loaded_params(root / "base").params)
    for x, y in zip(before, after, strict=True):
        np.testing.assert_array_equal(x, np.asarray(y, np.float32))
    other = dataclasses.replace(part.base, folder=root / "other")
    with pytest.raises(ValueError, match=r"was begun beside a frozen base whose weights have fingerprint \w{16}"):
        run(dataclasses.replace(part, base=other), tmp_path / "run", mesh="data=2", resume=True)


BAD = {
    "tokenizer": ({}, "was packed with the tokenizer of hash"),
    "no-tokenizer": ({}, "tokenizer.json is missing"),
    "attach": (
        {"predictors": {"a": {"kind": "per_head", "attach": 9}}},
        "attach must be from 0 to the base's last layer 1; got 9",
    ),
    "page": ({"predictors": {"a": {"kind": "gate", "page": 12}}}, "page must divide the rows' length 32; got 12"),
    "form": (
        {"predictors": {"a": {"kind": "oracle"}}},
        "must be of one of the forms per_head, grouped, low_rank, gate; got 'oracle'",
    ),
    "no-form": ({"predictors": {"a": [1]}}, r"predictor a must be an object; got \[1\]"),
    "none": ({"predictors": {}}, "predictors must be an object with one at least; got {}"),
    "name": ({"predictors": {"../a": {"kind": "gate"}}}, "name must be of letters, digits, '-' and '_'; got '../a'"),
    "stride": ({"query_stride": 5}, "query_stride must divide the rows' length 32; got 5"),
    "field": ({"predictor": 3}, "unknown field 'predictor'"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_go_together_is_refused_before_anything_is_written(root, tmp_path, case):
    changes, expected = BAD[case]
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | changes))
    shutil.copytree(root / "base", tmp_path / "base")
    if case == "tokenizer":
        (tmp_path / "base" / "tokenizer.json").write_text("{}")
    if case == "no-tokenizer":
        (tmp_path / "base" / "tokenizer.json").unlink()
    with pytest.raises((ValueError, FileNotFoundError), match=expected):
        main(tmp_path / "config.json", root / "packed", tmp_path / "base", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_beside_a_base_of_other_files_is_not_resumed(root, tmp_path):
    run(
        Butler.from_files(root / "config.json", root / "packed", root / "base"),
        tmp_path / "run",
        mesh="data=2",
        until=2,
    )
    other = Butler.from_files(root / "config.json", root / "packed", root / "other")
    assert other.base.sha256 != stored_weights(root / "base").sha256
    with pytest.raises(ValueError, match=r"was begun with init_sha256 [0-9a-f]{64}; got [0-9a-f]{64}"):
        run(other, tmp_path / "run", mesh="data=2", resume=True)


def test_shapes_are_those_of_the_weights(root):
    part = Butler.from_files(root / "config.json", root / "packed", root / "base")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1, 1), ("data", "fsdp", "tp"))
    for told, made in zip(part.shapes(), (part.begin(mesh), dict(part.frozen(mesh).params)), strict=True):
        assert jax.tree.structure(told) == jax.tree.structure(made)
        assert [(x.shape, x.dtype) for x in jax.tree.leaves(told)] == [
            (x.shape, x.dtype) for x in jax.tree.leaves(made)
        ]
