import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jax_smash
from jax_smash.cache import Block
from jax_smash.checkpoints.huggingface import load_params
from jax_smash.sharding import make_mesh, place
from tests.train.run.test_settings import FIELDS, MODEL
from train.base import main
from train.data.corpus import Corpus, Source
from train.data.rows import Packed, held_out_batches, training_batches
from train.export import export_run
from train.pack import pack_corpus
from train.parts.language_model.objective import language_model_objective
from train.parts.language_model.part import LanguageModel
from train.run.metrics import read_metrics
from train.run.step import make_evaluation
from train.tokenizer import save_tokenizer, train_tokenizer


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of six steps on a text of one sentence, from its text to its export."""
    root = tmp_path_factory.mktemp("base")
    (root / "text").mkdir()
    stories = [{"text": f"The fox number {i} ran to the den. It sat there."} for i in range(400)]
    (root / "text/a.jsonl").write_text("".join(json.dumps(story) + "\n" for story in stories))
    save_tokenizer(train_tokenizer([story["text"] for story in stories], 290), root / "tokenizer")
    corpus = Corpus(sources=(Source("text", paths=("text",)),), held_out=0.1)
    pack_corpus(corpus, root, root / "tokenizer", root / "packed")
    (root / "config.json").write_text(json.dumps(FIELDS | {"model": MODEL | {"max_positions": 256}}))
    (root / "sources.md").write_text("Sentences about foxes, written for this test.")
    main(
        root / "config.json",
        root / "packed",
        root / "tokenizer",
        root / "run",
        save_every=3,
        sources=root / "sources.md",
    )
    return root


@pytest.mark.slow
def test_the_loss_falls(trained):
    losses = [line["held_out_loss"] for line in read_metrics(trained / "run/metrics.jsonl") if "held_out_loss" in line]
    assert losses[-1] < np.log(290)


def test_the_exported_model_loads_and_generates(trained):
    model = jax_smash.load(trained / "run/model")
    assert model.config.eos_tokens == (1, 5)
    completion = jax_smash.generate(model, ["The fox"], max_new_tokens=4)[0]
    assert completion.new_tokens >= 1


def test_the_card_states_the_losses_of_the_stored_weights(trained):
    card = (trained / "run/model/README.md").read_text()
    assert "Sentences about foxes" in card
    assert "6 of 6 planned" in card
    assert re.search(r"^\| Code \| (commit [0-9a-f]{40}|jax_smash \S+, outside).*; Python 3\.", card, re.MULTILINE)
    graphdef, params = load_params(trained / "run/model", dtype=np.float32)
    mesh = make_mesh("data=8")
    held_out = held_out_batches(Packed(trained / "packed", trained / "tokenizer"), length=32, batch_size=8)
    loss, by_set, _ = make_evaluation(language_model_objective(graphdef), mesh)(place(params, mesh), held_out)
    assert f"| {loss:.4f} nats" in card
    assert f"text {by_set['text']:.2f}" in card


def test_an_export_is_not_written_over_another(trained):
    with pytest.raises(FileExistsError):
        export_run(trained / "run", trained / "packed", trained / "tokenizer", trained / "run/model")


def test_an_export_is_measured_on_rows_of_the_run_alone(trained, tmp_path):
    shutil.copytree(trained / "packed", tmp_path / "packed")
    index = json.loads((tmp_path / "packed/index.json").read_text()) | {"sources_sha256": "0" * 64}
    (tmp_path / "packed/index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"packed must hold the rows that the run in .*run was trained on; it holds"):
        export_run(trained / "run", tmp_path / "packed", trained / "tokenizer", tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.slow
def test_training_goes_on_from_exported_weights(trained, tmp_path):
    fields = {name: value for name, value in FIELDS.items() if name != "model"}
    fields |= {"steps": 3, "optimiser": {"warmup": 0, "learning_rate": 1e-9}}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    places = [tmp_path / "config.json", trained / "packed", trained / "tokenizer"]
    main(*places, tmp_path / "run", init_from=trained / "run/model", mesh="data=2,tp=2")
    before, after = (load_params(folder / "run/model", dtype=np.float32)[1] for folder in (trained, tmp_path))
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    (tmp_path / "config.json").write_text(json.dumps(fields | {"model": MODEL | {"max_positions": 256}}))
    with pytest.raises(ValueError, match=r"was begun with init_sha256 [0-9a-f]{64}; got"):
        main(*places, tmp_path / "run", resume=True)


def test_stop_tokens_of_the_weights_that_a_run_begins_with_are_kept(trained, tmp_path):
    shutil.copytree(trained / "run/model", tmp_path / "model")
    settings = tmp_path / "model/generation_config.json"
    settings.write_text(json.dumps({"eos_token_id": [1, 5, 77]}))
    fields = {name: value for name, value in FIELDS.items() if name != "model"}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    places = [tmp_path / "config.json", trained / "packed", trained / "tokenizer"]
    assert LanguageModel.from_files(*places, init_from=tmp_path / "model").settings.model.eos_tokens == (1, 5, 77)
    assert LanguageModel.from_files(*places, init_from=trained / "run/model").settings.model.eos_tokens == (1, 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mesh": "fsdp=128"}, "mesh fsdp=128 needs 128 devices; "),
        ({"mesh": "rows=2"}, "a mesh axis must be one of data, fsdp, tp; got 'rows'"),
        ({"packed": Path("nowhere")}, "nowhere cannot be read as packed data"),
        ({"tokenizer": Path("nowhere")}, "nowhere is not a tokenizer's folder"),
        ({"config": Path("nowhere.json")}, r"nowhere\.json is not a training file"),
        ({"init_from": Path("nowhere")}, "nowhere"),
        ({"steps": 1}, "steps must exceed the 2 steps of warm-up; got 1"),
        ({"until": 7}, "until must be from 1 to the run's 6 steps; got 7"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_written(trained, tmp_path, options, message):
    places = {"config": trained / "config.json", "packed": trained / "packed", "tokenizer": trained / "tokenizer"}
    with pytest.raises((ValueError, OSError), match=message):
        main(**(places | {"output": tmp_path / "run"} | options))
    assert not (tmp_path / "run").exists()


def test_the_program_tells_an_error_in_a_line(trained, tmp_path):
    command = [sys.executable, "-m", "train.base", "--config", trained / "config.json", "--packed", "nowhere"]
    command += ["--tokenizer", trained / "tokenizer", "--output", tmp_path / "run"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    run = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith("error: nowhere cannot be read as packed data")
    assert "Traceback" not in run.stderr


def test_documents_in_a_row_do_not_see_each_other(trained):
    rows = Packed(trained / "packed", trained / "tokenizer")
    graphdef, params = load_params(trained / "run/model", dtype=np.float32)
    objective = language_model_objective(graphdef)
    batch = next(training_batches(rows, length=32, batch_size=1, seed=0))
    segments = batch.segments[0]
    last = segments == segments.max()
    assert 0 < last.sum() < len(last)
    weights = batch.weights * last
    changed = np.where(last, batch.tokens, (batch.tokens + 1) % 290)
    loss = jax.jit(objective)
    before = loss(params, batch._replace(weights=weights))[0]
    np.testing.assert_allclose(loss(params, batch._replace(weights=weights, tokens=changed))[0], before, rtol=1e-6)


def test_transformers_gives_the_same_logits(trained):
    torch = pytest.importorskip("torch", reason="torch is the reference; it comes with the extra `peers`")
    transformers = pytest.importorskip("transformers")
    folder = trained / "run/model"
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = jnp.arange(7, 27, dtype=jnp.int32)[None]
    with torch.no_grad():
        expected = theirs(torch.tensor(tokens.tolist())).logits.numpy()
    graphdef, params = load_params(folder, dtype=np.float32)
    model = nnx.merge(graphdef, params)
    position = jnp.arange(20, dtype=jnp.int32)[None]
    with jax.default_matmul_precision("highest"):
        block = Block.causal(jnp.ones((1, 20), bool))
        logits = model.unembed(model.forward(model.embed(tokens), position, None, block).hidden)
    np.testing.assert_allclose(logits, expected, atol=1e-5 * np.abs(expected).max())
