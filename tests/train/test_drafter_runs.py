"""Runs of drafters of every kind: they go on to the same weights, and refuse what was packed for others."""

import json
import shutil

import pytest

import jax_smash
from jax_smash.checkpoints.medusa import load_medusa
from jax_smash.loading import find
from jax_smash.methods import DraftOptions
from tests.train.corpus_files import write_corpus
from tests.train.test_drafter import CONFIG, RUN, root
from train.drafter import KINDS, main
from train.pack import pack_corpus
from train.run.metrics import read_metrics

__all__ = ["root"]

COMMON = {name: CONFIG[name] for name in ("optimiser", "batch_size", "length", "steps")}


def files_of(folder):
    """Returns the content of all files of a folder by their names."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("medusa", {"num_heads": 2}),
        (
            "medusa",
            {"num_heads": 2, "base": "lora", "rank": 2, "heads_alone": 1, "targets": ["w_qkv", "head"]},
        ),
        ("eagle1", {"mlp_width": 32}),
        ("dflash", {"mlp_width": 32, "num_layers": 1, "block_size": 3, "anchors": 4}),
        ("micro", {"micro_steps": 3, "head_size": 200}),
    ],
    ids=["medusa", "medusa-2", "eagle1", "dflash", "micro"],
)
def test_a_run_that_was_cut_off_goes_on_to_the_same_drafter(root, tmp_path, kind, fields):
    (tmp_path / "config.json").write_text(json.dumps(COMMON | fields))
    places = (kind, tmp_path / "config.json", root / "packed", str(root / "base"))
    main(*places, tmp_path / "whole", **RUN)
    main(*places, tmp_path / "run", until=4, **RUN)
    assert not (tmp_path / "run/drafter").exists()
    main(*places, tmp_path / "run", resume=True, **RUN)
    whole = files_of(tmp_path / "whole/drafter")
    assert len(whole) >= 3
    assert files_of(tmp_path / "run/drafter") == whole


@pytest.mark.parametrize("kind", KINDS)
def test_shards_of_another_tokenizer_are_refused_before_anything_is_written(root, tmp_path, kind):
    other = shutil.copytree(root / "base", tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    (other / "tokenizer.json").write_text(json.dumps(tokenizer, indent=1) + "\n")
    (tmp_path / "config.json").write_text(json.dumps(COMMON))
    with pytest.raises(ValueError, match=r"packed was packed with the tokenizer of hash \w{64}; .*other has \w{64}"):
        main(kind, tmp_path / "config.json", root / "packed", str(other), tmp_path / "run")
    assert not (tmp_path / "run").exists()


BLOCKWISE = ("reply_begins=", "dtype=float32", "optimiser.learning_rate=0.003", "optimiser.warmup=1")
"""What a short run changes of the training file of blockwise parallel decoding."""


@pytest.mark.slow
def test_blockwise_parallel_decoding_is_trained_and_drafts_seven_tokens(root, tmp_path, request):
    file, output = request.config.rootpath / "train/configs/blockwise.json", tmp_path / "run"
    places = ("medusa", file, root / "packed", str(root / "base"), output)
    main(*places, change=("length=16", *BLOCKWISE), steps=6, batch_size=8, **RUN)
    lines = [line for line in read_metrics(output / "metrics.jsonl") if "loss" in line]
    assert all(lines[-1][f"loss_{head}"] < lines[0][f"loss_{head}"] for head in range(1, 8))
    heads, model = load_medusa(output / "drafter"), jax_smash.load(root / "base")
    assert (heads.config.num_heads, heads.config.blocks, heads.config.own_rows) == (7, 1, False)
    assert "| A head counts | 1 of the one before it |" in (output / "drafter/README.md").read_text()
    options = {"max_new_tokens": 6, "slots": 64}
    draft = DraftOptions(drafter=output / "drafter", tree="chain-7")
    drafted = jax_smash.generate(model, ["Once there"], method="medusa", draft=draft, **options)[0]
    assert drafted.token_ids == jax_smash.generate(model, ["Once there"], **options)[0].token_ids
    assert len(drafted.drafted.tried) == 7


@pytest.mark.slow
def test_blockwise_parallel_decoding_takes_fewer_forwards_than_its_target_has_tokens(tmp_path, request):
    corpus = write_corpus(tmp_path / "data")
    pack_corpus(corpus, tmp_path / "data", find("tiny"), tmp_path / "packed")
    file, output = request.config.rootpath / "train/configs/blockwise.json", tmp_path / "run"
    places = ("medusa", file, tmp_path / "packed", "tiny", output)
    main(*places, change=("length=32", *BLOCKWISE), steps=24, batch_size=4, mesh="data=1")
    model, prompts = jax_smash.load("tiny"), ["Once there were 5", "Once there were"]
    options, draft = {"max_new_tokens": 32, "slots": 64}, DraftOptions(drafter=output / "drafter", tree="chain-7")
    drafted = jax_smash.generate(model, prompts, method="medusa", draft=draft, **options)
    plain = jax_smash.generate(model, prompts, **options)
    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]
    assert sum(c.target_forwards for c in drafted) < sum(c.target_forwards for c in plain)
