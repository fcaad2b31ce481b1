"""One cache read in two ways: the check is the model itself, and a draft level by level is a draft in one forward."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.cache import Block, Earlier, Noted, SelectedCache, SelectedLayer, Write
from jax_smash.platform import tracing_for
from jax_smash.sparse import (
    H2O,
    TOVA,
    Dense,
    Oracle,
    Quest,
    Recency,
    SnapKV,
    StreamingLLM,
    TokenSelect,
    drafting_policy,
    self_drafting,
    sparsified,
)
from tests.tiny import tiny_model

SLOTS, READ = 64, 40


@dataclasses.dataclass(frozen=True, kw_only=True)
class Watching(Recency):
    """A policy of a user that goes by probabilities and evicts nothing."""

    records = True


def model():
    return tiny_model(layer_kinds=("full", "full"))


@functools.cache
def made(policy):
    """Returns the model as it checks, as it drafts and as it is, and two caches with a text: the policy's, its own."""
    plain = model()
    checking, drafting = self_drafting(plain, policy)
    checks, drafts = (part.bind(checking.params["target"]) for part in (checking.definition, drafting))
    own = plain.definition.bind(plain.params["target"])
    token = jnp.asarray(np.random.default_rng(0).integers(0, 250, (2, READ)), jnp.int32)
    position = jnp.broadcast_to(jnp.arange(READ, dtype=jnp.int32), token.shape)
    count = jnp.asarray([READ, READ - 7], jnp.int32)
    caches = []
    for bound in (checks, own):
        cache = bound.init_cache(2, SLOTS, READ)
        out = bound.forward(bound.embed(token), position, cache, Block.causal(position < count[:, None], prompt=True))
        caches.append(cache.commit(out.block_kv, Write(position=position, count=count)))
    return checks, drafts, own, *caches


def entries(count):
    token = jnp.asarray(np.random.default_rng(1).integers(0, 250, (2, count)), jnp.int32)
    position = jnp.asarray([[READ], [READ - 7]], jnp.int32) + jnp.arange(count, dtype=jnp.int32)[None]
    return token, position


@pytest.mark.parametrize("policy", [Quest(budget=12, page_size=4, dense_layers=0), Oracle(budget=8)])
def test_a_check_is_a_forward_of_the_model_itself(policy):
    checks, drafts, own, kept, plain = made(policy)
    assert isinstance(kept, SelectedCache)
    token, position = entries(3)
    block = Block.causal(jnp.ones((2, 3), bool))
    expected = own.forward(own.embed(token), position, plain, block).hidden
    assert np.array_equal(checks.forward(checks.embed(token), position, kept, block).hidden, expected)
    assert not np.allclose(drafts.forward(drafts.embed(token), position, kept, block).hidden, expected, atol=1e-2)


@pytest.mark.parametrize(
    "policy",
    [
        Recency(budget=12),
        TokenSelect(budget=12, sinks=2, window=4),
        Oracle(budget=8),
        Quest(budget=12, page_size=4, dense_layers=1),
        Oracle(budget=32, page_size=16),
        Oracle(budget=8, pays_from=READ),
        Oracle(budget=8, pays_from=READ + 1),
    ],
)
def test_a_draft_reads_the_slots_that_its_first_token_chooses(policy):
    """What is read behind an earlier entry, of slots that this one chose, is as in one forward over both."""
    _, drafts, own, cache, plain = made(policy)
    assert drafts.continued_blocks
    token, position = entries(2)
    both = drafts.forward(drafts.embed(token), position, cache, Block.causal(jnp.ones((2, 2), bool)))
    first = drafts.forward(drafts.embed(token[:, :1]), position[:, :1], cache, Block.causal(jnp.ones((2, 1), bool)))
    assert not any(isinstance(made, Noted) for made in first.block_kv)
    earlier = Earlier(block_kv=first.block_kv, position=position[:, :1])
    block = Block(valid=jnp.ones((2, 2), bool), ancestors=jnp.full((2, 1, 1), 3, jnp.uint32), earlier=earlier)
    child = (drafts.embed(token[:, 1:]), position[:, 1:])
    second = drafts.forward(*child, first.policy_state, block).hidden
    assert np.allclose(second[:, 0], both.hidden[:, 1], rtol=1e-4, atol=1e-4)
    alone = drafts.forward(*child, first.policy_state, Block.causal(jnp.ones((2, 1), bool))).hidden
    assert not np.allclose(second, alone, atol=1e-2)
    whole = own.forward(own.embed(token), position, plain, Block.causal(jnp.ones((2, 2), bool))).hidden[:, 1:]
    assert np.allclose(second, whole, rtol=1e-4, atol=1e-4) == (policy.pays_from > READ)
    if isinstance(policy, Oracle | Quest) and policy.page_size < 16 and not policy.pays_from:
        anew = drafts.forward(*child, cache, block).hidden
        assert not np.allclose(second, anew, atol=1e-3)


@pytest.mark.parametrize(
    ("policy", "held"), [(Oracle(budget=32, page_size=16), "pages"), (Oracle(budget=8), "gathered")]
)
@pytest.mark.parametrize("pays_from", [0, READ + 1])
def test_pages_that_a_kernel_reads_are_not_gathered(policy, held, pays_from):
    _, drafts, _, cache, _ = made(dataclasses.replace(policy, pays_from=pays_from))
    token, position = entries(1)
    block = Block.causal(jnp.ones((2, 1), bool))
    with tracing_for("tpu"):
        out = jax.eval_shape(lambda: drafts.forward(drafts.embed(token), position, cache, block))
    layers = out.policy_state.layers
    assert len(layers) == 2
    for layer in layers:
        assert [name for name in ("pages", "gathered") if getattr(layer, name) is not None] == [held]


def test_policies_keep_their_cache_under_both():
    checks, drafts, _, cache, _ = made(Quest(budget=12, page_size=4, dense_layers=1))
    assert [isinstance(cache.layer(i), SelectedLayer) for i in range(2)] == [False, True]
    for bound in (checks, drafts):
        shapes = jax.eval_shape(lambda bound=bound: bound.init_cache(2, SLOTS, READ))
        assert jax.tree.map(lambda x: x.shape, shapes) == jax.tree.map(lambda x: x.shape, cache)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (Dense(), "Dense leaves nothing out"),
        (H2O(budget=8), "H2O evicts slots"),
        (TOVA(budget=8), "TOVA evicts slots"),
        (SnapKV(budget=64), "SnapKV evicts slots"),
        (Watching(budget=8), "notes no probabilities, and Watching goes by them"),
        (Quest(prompt="stepwise"), "reads prompts by its whole cache; got Quest with stepwise"),
    ],
)
def test_a_policy_that_cannot_draft_is_refused_by_name(policy, said):
    with pytest.raises(ValueError, match=said):
        drafting_policy(policy)


def test_streaming_drafts_by_the_recency_that_reads_the_same():
    assert drafting_policy(StreamingLLM(slots=48, sinks=2)) == Recency(budget=48, sinks=2)


def test_a_model_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="must have a cache without a policy"):
        self_drafting(sparsified(model(), Recency(budget=8)), Recency(budget=8))
    with pytest.raises(ValueError, match="budget must be at most the 512 slots"):
        self_drafting(model(), Recency(budget=1024))
