"""What CONTRIBUTING says of adding: a part of each kind, made here, that needs nothing but its own lines there."""

import dataclasses
import json
import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental import pallas as pl

from jax_smash import generate, load
from jax_smash.cache import Block
from jax_smash.draft.trees.continuations import tree_of_continuations
from jax_smash.methods import METHODS, OPTIONS, DraftOptions
from jax_smash.methods.drafted import drafted
from jax_smash.models.definition import NnxModel
from jax_smash.models.depth import hidden_without_cache
from jax_smash.models.families import FAMILIES, from_hf, llama
from jax_smash.models.transformer import abstract_params
from jax_smash.objectives import summed_cross_entropy
from jax_smash.protocols import Needs
from jax_smash.sparse import sparsified
from jax_smash.sparse.selecting import Selecting
from pallas_kernels.tree_attention import reference
from pallas_kernels.tree_attention.cases import TESTS, make
from tests.checkpoints import LLAMA, write_checkpoint
from tests.tiny import tiny_model
from tests.train.corpus_files import make_packed
from train.data.rows import Packed, held_out_batches, training_batches
from train.parts.part import Part, Rows, Shapes
from train.run.flow import run
from train.run.frozen import Frozen
from train.run.optimiser import Optimiser
from train.run.settings import Settings
from train.run.start import Stored, stored_weights

PROMPTS = ["aaaa", "a b a b", "to be or not to be"]


@dataclasses.dataclass(frozen=True)
class Again:
    """A drafter that proposes the pending token again and again, and learns nothing."""

    needs = Needs()

    def init(self, params, batch, slots, block):
        return ()

    def read(self, params, own, shared, seen):
        return own, shared

    def propose(self, params, own, shared, context, topology):
        token = jnp.broadcast_to(context.pending[:, None, None], (*context.pending.shape, 1, topology.levels))
        one = jnp.ones((context.pending.shape[0], 1), jnp.int32)
        return tree_of_continuations(topology, context.pending, token, one), None

    def learn(self, params, own, shared, made, outcome):
        return own, shared


def test_a_drafter_is_its_class_and_two_entries(monkeypatch):
    monkeypatch.setitem(METHODS, "again", lambda setup: drafted("again", setup, Again(), None))
    monkeypatch.setitem(OPTIONS, "again", ("tree",))
    model = tiny_model(stop_tokens=(10,))
    plain = generate(model, PROMPTS, max_new_tokens=24)
    again = generate(model, PROMPTS, max_new_tokens=24, method="again", draft=DraftOptions(tree="chain-4"))
    assert [c.token_ids for c in again] == [c.token_ids for c in plain]
    assert sum(c.target_forwards for c in again) < sum(c.target_forwards for c in plain)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Even(Selecting):
    """A policy that reads slots of even numbers first."""

    def select(self, view, query):
        slot = jnp.arange(view.layer.keys.shape[2], dtype=jnp.int32)
        score = jnp.where(slot % 2 == 0, 1.0, 0.0)
        return self.best(view, jnp.broadcast_to(score[None, None], view.layer.keys.shape[:3]))


def test_a_sparse_policy_is_its_class():
    model = tiny_model(layer_kinds=("full", "full"), stop_tokens=(10,))

    def tokens(budget):
        return [c.token_ids for c in generate(sparsified(model, Even(budget=budget)), PROMPTS, max_new_tokens=24)]

    plain = [c.token_ids for c in generate(model, PROMPTS, max_new_tokens=24)]
    assert tokens(256) == plain
    assert tokens(8) != plain


def test_a_family_is_its_entry(monkeypatch, tmp_path):
    def read(raw):
        return dataclasses.replace(llama.read({**raw, "hidden_size": raw["width"]}), family="mine")

    family = dataclasses.replace(
        llama.LLAMA, model_type="mine", read=read, write=lambda config: {"width": config.d_model}
    )
    monkeypatch.setitem(FAMILIES, "mine", family)
    raw = {**LLAMA, "model_type": "mine", "width": LLAMA["hidden_size"]}
    write_checkpoint(tmp_path / "mine", {k: v for k, v in raw.items() if k != "hidden_size"})
    write_checkpoint(tmp_path / "llama", LLAMA)
    assert from_hf(raw).family == "mine"
    texts = [
        [c.token_ids for c in generate(load(tmp_path / name), [[5, 7, 9], [3]], max_new_tokens=8)]
        for name in ("mine", "llama")
    ]
    assert texts[0] == texts[1]


def attend_by_head(inputs, options):
    """Returns tree attention by a kernel of one program a row and KV head, with everything in memory at once."""
    batch, width, heads, head_width = inputs.query.shape
    kv_heads, group = inputs.keys.shape[1], heads // inputs.keys.shape[1]
    seen = jnp.concatenate([reference.seen_slots(inputs, options), reference.seen_entries(inputs, options)], axis=2)
    keys = jnp.concatenate([inputs.keys, inputs.key.transpose(0, 2, 1, 3)], axis=2)
    values = jnp.concatenate([inputs.values, inputs.value.transpose(0, 2, 1, 3)], axis=2)
    query = inputs.query.reshape(batch, width, kv_heads, group, head_width).transpose(0, 2, 3, 1, 4)

    def kernel(query, keys, values, seen, out):
        for g in range(group):
            scores = jnp.dot(query[0, 0, g], keys[0, 0].T, precision="highest") * options.scale
            if options.softcap:
                scores = options.softcap * jnp.tanh(scores / options.softcap)
            shown = seen[0]
            weights = jnp.where(shown, jnp.exp(scores - jnp.where(shown, scores, -1e30).max(-1, keepdims=True)), 0.0)
            total = jnp.maximum(weights.sum(-1, keepdims=True), 1e-30)
            out[0, 0, g] = jnp.dot(weights / total, values[0, 0], precision="highest")

    def of_head(*shape):
        return pl.BlockSpec((1, 1, *shape), lambda row, head: (row, head, *(0 for _ in shape)))

    out = pl.pallas_call(
        kernel,
        grid=(batch, kv_heads),
        in_specs=[
            of_head(group, width, head_width),
            of_head(*keys.shape[2:]),
            of_head(*values.shape[2:]),
            pl.BlockSpec((1, *seen.shape[1:]), lambda row, head: (row, 0, 0)),
        ],
        out_specs=of_head(group, width, head_width),
        out_shape=jax.ShapeDtypeStruct(query.shape, query.dtype),
        interpret=True,
    )(query, keys, values, seen)
    return out.transpose(0, 3, 1, 2, 4).reshape(batch, width, heads, head_width)


@pytest.mark.parametrize("case", [c for c in TESTS if c.dtype == "float32"][:3], ids=lambda case: case.name)
def test_a_kernel_is_held_to_the_reference_by_the_cases_of_its_folder(case):
    inputs = make(case)
    wanted = reference.attend(inputs, case.options)
    np.testing.assert_allclose(attend_by_head(inputs, case.options), wanted, atol=2e-5, rtol=2e-5)


@dataclasses.dataclass(frozen=True)
class Shift(Part):
    """A part: one vector, added to what a frozen base ends with."""

    settings: Settings
    packed: Packed
    base: Stored

    name, hint, token_flops, data_sha256 = "shift", "", 0.0, "0" * 64

    def check(self, loop):
        pass

    def shapes(self):
        vector = jax.ShapeDtypeStruct((self.settings.model.d_model,), jnp.float32)
        return Shapes({"shift": vector}, {"base": abstract_params(self.settings.model, self.base.dtype)[1]})

    def begin(self, mesh):
        return {"shift": jnp.zeros((self.settings.model.d_model,))}

    def frozen(self, mesh):
        params, mark = self.base.load(mesh)
        return Frozen({"base": params}, {"base": mark}, {"base": self.base.folder})

    def optimiser(self):
        return optax.adam(0.05)

    def objective(self):
        graphdef = abstract_params(self.settings.model)[0]

        def loss(params: Any, batch: Any) -> Any:
            model = jax.tree.map(lambda x: x.astype(jnp.float32), params["base"])
            model = jax.tree.map(jax.lax.stop_gradient, model)
            model = NnxModel(graphdef).bind(model)
            block = Block.causal(batch.segments > 0, batch.segments)
            hidden = hidden_without_cache(model, model.embed(batch.tokens), batch.positions, block)
            hidden = hidden + params["shift"][None, None]
            return summed_cross_entropy(model.unembed, hidden, batch.targets, batch.weights, chunk=64)

        return loss

    def measured(self):
        return self.objective()

    def rows(self, held_out, share):
        settings = self.settings
        batches = training_batches(self.packed, length=settings.length, batch_size=settings.batch_size, seed=0)
        return Rows(batches, self.held_out(held_out))

    def held_out(self, most):
        settings = self.settings
        return held_out_batches(self.packed, length=settings.length, batch_size=settings.batch_size, rows=most)

    def tokens_of(self, batch):
        return batch.tokens.size

    def stored(self, trained, frozen):
        return trained

    def save(self, folder, stored, frozen):
        np.save(folder / "shift.npy", np.asarray(stored["shift"]))

    def card(self, folder, stored, frozen, ended):
        return f"step {ended.step}, loss {ended.losses[0]:.4f}, beside {frozen.fingerprints['base']}"


@pytest.fixture(scope="module")
def shift(tmp_path_factory):
    """A part beside a random base."""
    folder = tmp_path_factory.mktemp("shift")
    packed, tokenizer = make_packed(folder)
    raw = {**LLAMA, "vocab_size": 290, "bos_token_id": 0, "eos_token_id": 1}
    write_checkpoint(folder / "base", raw, dtype="BF16")
    for file in tokenizer.iterdir():
        shutil.copy(file, folder / "base")
    base = stored_weights(folder / "base")
    settings = Settings(base.config, Optimiser(warmup=1), batch_size=8, length=32, steps=6, init_sha256=base.sha256)
    return Shift(settings, Packed(packed, tokenizer), base)


def test_a_trained_part_is_its_class(shift, tmp_path):
    options = {"mesh": "data=1", "log_every": 1, "evaluate_every": 6, "save_every": 3}
    run(shift, tmp_path / "whole", **options)
    run(shift, tmp_path / "twice", until=3, **options)
    run(shift, tmp_path / "twice", resume=True, **options)
    losses = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in losses if "loss" in line]
    assert losses[-1] < losses[0]
    whole, twice = (np.load(tmp_path / name / "shift" / "shift.npy") for name in ("whole", "twice"))
    assert np.abs(whole).max() > 0
    np.testing.assert_array_equal(whole, twice)
    assert (tmp_path / "whole" / "shift" / "README.md").read_text().startswith("step 6")
