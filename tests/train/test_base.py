import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jax_smash
from jax_smash.cache import Block
from jax_smash.checkpoints.huggingface import load_params
from tests.train.test_settings import FIELDS, MODEL
from train.base import main
from train.data import Corpus, Source, load_packed, ordered_batches, pack_corpus
from train.export import export_run
from train.loop import data_mesh, make_evaluation, read_metrics
from train.objective import language_model_objective
from train.tokenizer import save_tokenizer, train_tokenizer


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of six steps on a text of one sentence, from its text to its export."""
    root = tmp_path_factory.mktemp("base")
    (root / "text").mkdir()
    stories = [{"text": f"The fox number {i} ran to the den. It sat there."} for i in range(400)]
    (root / "text/a.jsonl").write_text("".join(json.dumps(story) + "\n" for story in stories))
    save_tokenizer(train_tokenizer([story["text"] for story in stories], 290), root / "tokenizer")
    corpus = Corpus(sources=(Source("text", ("text",)),), length=32, held_out=0.1)
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


def test_the_loss_falls(trained):
    losses = [line["held_out_loss"] for line in read_metrics(trained / "run/metrics.jsonl") if "held_out_loss" in line]
    assert losses[-1] < np.log(290)


def test_the_exported_model_loads_and_generates(trained):
    model = jax_smash.load(trained / "run/model")
    assert model.config.eos_tokens == (1, 5)
    completion = jax_smash.generate(model, ["The fox"], max_new_tokens=4)[0]
    assert completion.new_tokens >= 1


def test_the_card_states_the_loss_of_the_stored_weights(trained):
    card = (trained / "run/model/README.md").read_text()
    assert "Sentences about foxes" in card
    assert "6 of 6 planned" in card
    graphdef, params = load_params(trained / "run/model", dtype=np.float32)
    rows = load_packed(trained / "packed", trained / "tokenizer", split="held_out")
    evaluate = make_evaluation(language_model_objective(graphdef), data_mesh())
    assert f"| {evaluate(params, ordered_batches(rows, 8)):.4f} nats" in card


def test_an_export_is_not_written_over_another(trained):
    with pytest.raises(FileExistsError):
        export_run(trained / "run", trained / "packed", trained / "tokenizer", trained / "run/model")


def test_documents_in_a_row_do_not_see_each_other(trained):
    rows = load_packed(trained / "packed", trained / "tokenizer", split="train")
    graphdef, params = load_params(trained / "run/model", dtype=np.float32)
    objective = language_model_objective(graphdef)
    batch = next(ordered_batches(rows, 1))
    segments = batch.segments[0]
    last = segments == segments[-1]
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
