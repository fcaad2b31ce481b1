"""Draft trees checked by a recurrent model: it keeps each node's step, and commits those of the accepted path."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash import DraftOptions, Forward, Model, SamplingOptions, generate
from jax_smash.cache import Block
from jax_smash.draft.trees.templates import named_tree
from jax_smash.draft.trees.tree import grow
from jax_smash.protocols import CausalLM
from jax_smash.pytree import pytree, replace

VOCABULARY, WIDTH = 64, 16
PROMPTS = [[7, 10, 18], [1, 2, 3, 4, 1, 2, 3, 4], [9]]
WARM = SamplingOptions(temperature=0.7, repetition_penalty=1.2)


@pytree
class State:
    """The state of each row. A record holds what each entry multiplies it by, and what it adds."""

    state: jax.Array  # [B, D]
    slot_length: jax.Array  # [B]

    slots = 2**30

    def commit(self, block_kv, write):
        ((decay, added),) = block_kv
        if write.path is not None:
            decay, added = (jnp.take_along_axis(x, write.path[:, :, None], axis=1) for x in (decay, added))

        def step(state, x):
            decay, added, written = x
            return jnp.where(written[:, None], decay * state + added, state), None

        written = jnp.arange(decay.shape[1])[None] < write.count[:, None]
        steps = (decay.swapaxes(0, 1), added.swapaxes(0, 1), written.T)
        state, _ = jax.lax.scan(step, self.state, steps)
        return replace(self, state=state, slot_length=self.slot_length + write.count)


@dataclasses.dataclass(frozen=True)
class Gated:
    """state = sigmoid(x A) · its parent's state + x B; `in_order` takes the entry before for the parent."""

    params: dict
    in_order: bool

    vocab_size, tree_blocks = VOCABULARY, True

    def embed(self, tokens):
        return self.params["embedding"][tokens]

    def forward(self, inputs, position, cache, block, policy=None):
        decay, added = jax.nn.sigmoid(inputs @ self.params["gate"]), inputs @ self.params["input"]
        width = inputs.shape[1]
        before = jnp.broadcast_to(jnp.arange(-1, width - 1, dtype=jnp.int32), inputs.shape[:2])
        parents = before if self.in_order else block.parents()

        def step(states, entry):
            above = jnp.take_along_axis(states, jnp.maximum(parents[:, entry], 0)[:, None, None], axis=1)[:, 0]
            above = jnp.where((parents[:, entry] < 0)[:, None], cache.state, above)
            return states.at[:, entry].set(decay[:, entry] * above + added[:, entry]), None

        states, _ = jax.lax.scan(step, jnp.zeros_like(added), jnp.arange(width, dtype=jnp.int32))
        hidden = jnp.tanh(states)
        return Forward(hidden=hidden, taps=(inputs, hidden), block_kv=((decay, added),))

    def unembed(self, hidden):
        return hidden @ self.params["head"].T

    def init_cache(self, batch, slots, block):
        return State(state=jnp.zeros((batch, WIDTH)), slot_length=jnp.zeros((batch,), jnp.int32))


@dataclasses.dataclass(frozen=True)
class GatedDef:
    in_order: bool = False

    def bind(self, params):
        return Gated(params, self.in_order)


@functools.cache
def gated(*, in_order=False):
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = {"embedding": (VOCABULARY, WIDTH), "gate": (WIDTH, WIDTH), "input": (WIDTH, WIDTH)}
    shapes["head"] = (VOCABULARY, WIDTH)
    params = {name: jax.random.normal(key, shape) for key, (name, shape) in zip(keys, shapes.items(), strict=True)}
    return Model(name="gated", definition=GatedDef(in_order), params={"target": params})


def said(model, **options):
    request = {"max_new_tokens": 40, "sampling": [SamplingOptions(), WARM, WARM], "seed": [0, 1, 2]}
    return generate(model, PROMPTS, **request, **options)


def test_a_nodes_parent_is_the_last_other_node_that_it_sees():
    topology = named_tree("recycling-80")
    tree = grow(topology, jnp.zeros((2, topology.nodes), jnp.int32))
    np.testing.assert_array_equal(tree.block.parents()[:, 1:], tree.parent[:, 1:])
    assert tree.block.parents()[:, 0].tolist() == [-1, -1]
    causal = Block.causal(jnp.asarray([[True, True, False]]))
    assert causal.parents().tolist() == [[-1, 0, 1]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "tree"),
    [("recycling", "recycling-80"), ("suffix", "tree-15"), ("hybrid", "tree-15"), ("lookahead", None)],
)
def test_drafted_trees_change_no_text_of_a_recurrent_model(method, tree):
    assert isinstance(gated().definition.bind(gated().params["target"]), CausalLM)
    plain = said(gated())
    drafted = said(gated(), method=method, draft=DraftOptions(tree=tree) if tree else DraftOptions())
    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]
    assert sum(c.target_forwards for c in drafted) < sum(c.target_forwards for c in plain)


@pytest.mark.slow
def test_a_model_that_steps_from_the_entry_before_would_be_found_out():
    """The control: it says the same of plain text, and not of trees."""
    ordered = gated(in_order=True)
    plain = [c.token_ids for c in said(gated())]
    assert [c.token_ids for c in said(ordered)] == plain
    drafted = said(ordered, method="recycling", draft=DraftOptions(tree="recycling-80"))
    assert [c.token_ids for c in drafted] != plain
