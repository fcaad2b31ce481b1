"""Short texts are read whole: from which length choosing pays, and what a step reads below and above it."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.cache import Block, KVCache, SelectedCache, Write
from jax_smash.sparse import (
    Butler,
    ChoiceCosts,
    Dense,
    Oracle,
    Quest,
    Recency,
    StreamingLLM,
    TokenSelect,
    choice_costs,
    paying,
    pays_from,
    sparsified,
)
from jax_smash.sparse.traffic import predictor_bytes
from tests.predictors import sizes_of
from tests.tiny import tiny_model

SLOTS, READ = 64, 40
COSTS = ChoiceCosts(seconds=1e-6, row_seconds=0.0, gathered=1.5, scored=1.0, ranked=4.0, bytes_per_second=1e10)
QUEST = Quest(budget=12, page_size=4, dense_layers=0)


def model():
    return tiny_model(layer_kinds=("full", "full"), max_positions=4096)


def found(policy, *, batch=1, costs=COSTS):
    return pays_from(policy, model().config, model().params["target"], batch=batch, costs=costs)


def test_it_pays_from_where_the_choice_and_what_it_reads_cost_less_than_everything():
    policy = Quest(budget=64, dense_layers=0)
    slot = 2 * 2 * 8 * 4  # Keys and values of two KV heads of 8 float32 numbers.

    def gain(slots):
        chosen, pages = min(64, slots) * slot, -(-slots // 16)
        choice = 1.5 * chosen + pages * slot + 4 * 2 * pages
        return (slots * slot - choice) / 1e10 - 1e-6

    least = found(policy)
    assert 0 < least < 4096
    assert gain(least) > 0 >= gain(least - 64)


def test_more_rows_pay_earlier_and_larger_budgets_later():
    few, many = found(Quest(budget=64)), found(Quest(budget=64), batch=8)
    assert many < few < found(Quest(budget=512)) < found(Quest(budget=1024))
    by_row = dataclasses.replace(COSTS, seconds=0.0, row_seconds=1e-6)
    assert found(Quest(budget=64), batch=8, costs=by_row) == found(Quest(budget=64), costs=by_row) == few


def test_what_looks_at_every_key_pays_later_or_never():
    assert found(Oracle(budget=0.9)) == 4096
    assert found(Recency(budget=64)) < found(Oracle(budget=64)) < 4096
    assert found(TokenSelect(budget=64, sinks=2, window=4)) == 0


@pytest.mark.parametrize("kind", ["cpu", "NVIDIA H100 80GB HBM3", "TPU v5 lite", "a new one"])
def test_every_device_has_costs(kind):
    costs = choice_costs(kind)
    assert min(dataclasses.astuple(costs)) >= 0
    assert costs.seconds + costs.row_seconds > 0


def read(policy):
    """Returns a model whose cache holds two texts, of 40 and 33 entries, and the cache; all of its own without one."""
    plain = model() if policy is None else sparsified(model(), policy)
    bound = plain.definition.bind(plain.params["target"])
    token = jnp.asarray(np.random.default_rng(0).integers(0, 250, (2, READ)), jnp.int32)
    position = jnp.broadcast_to(jnp.arange(READ, dtype=jnp.int32), token.shape)
    count = jnp.asarray([READ, READ - 7], jnp.int32)
    cache = bound.init_cache(2, SLOTS, READ)
    out = bound.forward(bound.embed(token), position, cache, Block.causal(position < count[:, None], prompt=True))
    return bound, cache.commit(out.block_kv, Write(position=position, count=count))


def after(policy):
    """Returns hidden states of a draft of three tokens, and the cache with two of them."""
    bound, cache = read(policy)
    token = jnp.asarray([[3, 4, 5], [6, 7, 8]], jnp.int32)
    position = cache.slot_length[:, None] + jnp.arange(3, dtype=jnp.int32)[None]
    out = bound.forward(bound.embed(token), position, cache, Block.causal(jnp.ones((2, 3), bool)))
    return out.hidden, cache.commit(out.block_kv, Write(position=position, count=jnp.asarray([2, 2], jnp.int32)))


def test_all_slots_are_read_while_the_longest_row_is_shorter_and_chosen_ones_from_then_on():
    whole, _ = after(None)
    chosen, kept = after(QUEST)
    assert not np.allclose(whole, chosen, atol=1e-2)
    short, held = after(dataclasses.replace(QUEST, pays_from=READ + 1))
    assert isinstance(held, SelectedCache)
    assert np.allclose(short, whole, rtol=1e-5, atol=1e-5)
    long, _ = after(dataclasses.replace(QUEST, pays_from=READ))
    assert np.allclose(long, chosen, rtol=1e-5, atol=1e-5)
    # What a policy goes by is learned from entries, however they were read: here from those of the first layer.
    for name in ("low", "high"):
        assert np.allclose(getattr(held.channels[0], name), getattr(kept.channels[0], name), rtol=1e-5, atol=1e-5)


def test_a_cache_that_is_never_long_enough_is_the_models_own():
    _, cache = read(dataclasses.replace(QUEST, pays_from=SLOTS))
    assert isinstance(cache, KVCache)


def test_a_policy_that_must_know_of_every_choice_always_chooses():
    with pytest.raises(
        ValueError, match="pays_from must be 0 for TokenSelect, which must know of every choice; got 64"
    ):
        TokenSelect(pays_from=64)
    with pytest.raises(ValueError, match="pays_from must be at least 0; got -1"):
        Quest(pays_from=-1)


def test_a_predictors_weights_are_read_once_and_what_is_beside_its_keys_once_a_row():
    config = model().config
    policy = Butler(budget=64).sized(sizes_of(config, "per_head", attach=0, width=2, reduced=4))
    weights = predictor_bytes(policy, model().params["target"])
    slot, layers = 2 * 2 * 8 * 4, 2

    def gain(slots, batch):
        scorer = policy.scorer_bytes(config, slots, 4) + policy.beside_bytes(slots, 4) / layers
        choice = 1.5 * min(64, slots) * slot + scorer + 4 * 2 * slots
        return (batch * (slots * slot - choice) - weights / layers) / 1e10 - 1e-6

    for batch in (1, 8):
        least = found(policy, batch=batch)
        assert 0 < least < 4096
        assert gain(least, batch) > 0 >= gain(least - 64, batch)
    free = dataclasses.replace(COSTS, seconds=1e-12)
    assert found(policy, batch=8, costs=free) < found(policy, costs=free), "more rows share the weights"
    with pytest.raises(ValueError, match="Butler has no predictor yet"):
        found(Butler(budget=64))


def test_a_policy_chooses_from_where_that_pays_for_a_model_unless_it_says_so_itself():
    params = model().params["target"]
    known = pays_from(QUEST, model().config, params, batch=2)
    assert known > 0
    assert paying(QUEST, model(), batch=2) == dataclasses.replace(QUEST, pays_from=known)
    given = dataclasses.replace(QUEST, pays_from=7)
    assert paying(given, model(), batch=2) == given
    for policy in (TokenSelect(budget=64, sinks=2, window=4), StreamingLLM(slots=64), Dense()):
        assert paying(policy, model(), batch=2) == policy
