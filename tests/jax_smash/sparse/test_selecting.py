"""The choice of the best slots or pages, by scores made up for it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.cache import EMPTY, LayerCache, LayerPlan, SelectedLayer
from jax_smash.pytree import replace
from jax_smash.sparse import H2O, Recency
from jax_smash.sparse.selecting import _highest

B, K, S = 2, 3, 128
FILLED = (100, 20)


def view(policy, slots=S):
    cache = LayerCache(
        keys=jnp.zeros((B, K, slots, 4)),
        values=jnp.zeros((B, K, slots, 4)),
        position=jnp.full((B, slots), EMPTY, jnp.int32),
    )
    plan = LayerPlan(slots=policy.slots_of(slots), least=policy.least, share=None, by_head=None, scale=1.0, softcap=0.0)
    filled = jnp.asarray(FILLED, jnp.int32)
    return SelectedLayer(layer=cache, filled=filled, alive=None, channels=None, policy=policy, plan=plan)


def scores(sets, pages):
    return jnp.asarray(np.random.default_rng(0).permutation(B * sets * pages).reshape(B, sets, pages), jnp.float32)


def test_the_newest_page_is_read_last_and_it_alone_has_empty_slots():
    policy = Recency(budget=64, page_size=16, sinks=1)
    chosen = policy.best(view(policy), scores(K, S // 16))
    pages = chosen.pages
    assert pages.counts.tolist() == [[4] * K, [2] * K]
    assert pages.filled.tolist() == [[48 + 4] * K, [20] * K]
    for row, newest in enumerate((6, 1)):
        for head in range(K):
            table = pages.table[row, head, : pages.counts[row, head]].tolist()
            assert table[-1] == newest
            assert table[0] == 0, "the first page holds the sink"
            assert len(set(table)) == len(table)
            slots, valid = np.asarray(chosen.slots[row, head]), np.asarray(chosen.valid[row, head])
            np.testing.assert_array_equal(slots.reshape(-1, 16)[: len(table), 0], np.asarray(table) * 16)
            # The filled slots are the first.
            np.testing.assert_array_equal(valid, np.arange(64) < int(pages.filled[row, head]))


def test_a_page_that_is_not_chosen_is_not_put_last():
    policy = Recency(budget=32, page_size=16, sinks=0, newest_page=False)
    chosen = policy.best(view(policy), -jnp.broadcast_to(jnp.arange(8.0)[None, None], (B, K, 8)))
    assert chosen.pages.table[0].tolist() == [[0, 1]] * K
    assert chosen.pages.filled.tolist() == [[32] * K, [20] * K]


def test_a_score_for_all_heads_chooses_one_set():
    policy = Recency(budget=64, page_size=16)
    score = scores(1, S)
    shared, each = (policy.best(view(policy), x) for x in (score, jnp.broadcast_to(score, (B, K, S))))
    assert shared.pages.table.shape == (B, 1, 4)
    np.testing.assert_array_equal(jnp.broadcast_to(shared.pages.table, (B, K, 4)), each.pages.table)
    for name in ("slots", "valid"):
        np.testing.assert_array_equal(getattr(shared, name), getattr(each, name))
    # Heads that may read more or less, or have evicted other slots, have sets of their own.
    own = replace(view(policy), plan=replace_plan(view(policy).plan, by_head=(1.0, 0.5, 0.25)))
    assert policy.best(own, score).pages.counts[0].tolist() == [4, 2, 2]
    alive = jnp.ones((B, K, S), bool).at[0, 1, :64].set(False)
    found = policy.best(replace(view(policy), alive=alive), score)
    assert min(found.pages.table[0, 1, : found.pages.counts[0, 1]].tolist()) >= 4
    assert found.pages.table.shape == (B, K, 4)


@pytest.mark.parametrize("slots", [100, 256, 333, 1024])
@pytest.mark.parametrize("kind", ["ties", "normal", "few", "none"])
def test_the_highest_are_meant_first_and_of_equal_ones_the_first(kind, slots):
    rng = np.random.default_rng(slots)
    rank = rng.normal(size=(2, 3, slots)).astype(np.float32)
    if kind == "ties":
        rank = np.round(rank)
        rank[0, 0, : slots // 8] = np.inf
    elif kind != "normal":
        rank[...] = -np.inf
        rank[:, :, 5 : 9 if kind == "few" else 5] = 0.0
    count = rng.integers(0, slots // 4, (2, 3)).astype(np.int32)
    found, valid = jax.jit(_highest, static_argnames="most")(rank, count, most=slots // 4)
    for at in np.ndindex(2, 3):
        best = np.argsort(-rank[at], kind="stable")[: count[at]]
        best = best[rank[at][best] > -np.inf]
        np.testing.assert_array_equal(valid[at], np.arange(slots // 4) < len(best))
        assert sorted(found[at][: len(best)].tolist()) == sorted(best.tolist())


def replace_plan(plan, **changes):
    return LayerPlan(**(vars(plan) | changes))


@pytest.mark.parametrize(("size", "slots"), [(1, 128), (8, 128), (16, 120)])
def test_slots_and_pages_that_are_no_whole_tiles_are_chosen_as_slots(size, slots):
    policy = Recency(budget=32, page_size=size)
    assert policy.best(view(policy, slots), scores(K, -(-slots // size))).pages is None


@pytest.mark.parametrize(
    "policy",
    [
        H2O(budget=0.25, page_size=16),
        H2O(budget=0.25, page_size=16, sinks=20, recent=1.0),
        H2O(budget=64, page_size=16, sinks=4),
        H2O(budget=64, page_size=16, sinks=4, recent=1.0),
        H2O(budget=96, page_size=16, sinks=4, grace=48),
        H2O(budget=0.25, page_size=16, sinks=4, grace=48),
    ],
    ids=str,
)
def test_pages_of_sinks_and_last_entries_are_within_what_is_read_at_every_length(policy):
    size, slots = policy.page_size, 512
    share = policy.budget if isinstance(policy.budget, float) else None
    plan = replace_plan(view(policy).plan, slots=policy.slots_of(slots), share=share)
    filled = jnp.arange(1, slots + 1, dtype=jnp.int32)
    limit = plan.limit(filled, K)
    page = jnp.arange(slots // size, dtype=jnp.int32)
    there = page[None, None] * size < filled[:, None, None]
    always = np.asarray(policy._always(filled, limit, slots // size) & there)
    assert (always.sum(-1) <= np.asarray(limit) // size).all()
    assert always[np.arange(slots), :, (np.arange(slots)) // size].all(), "the page of the last entry is read"
    if policy.grace:
        first = np.maximum(np.arange(1, slots + 1) - policy.grace, 0) // size
        assert always[np.arange(slots), :, first].all(), "all of the last entries are read"


@pytest.mark.parametrize(("grace", "last"), [(0, [16, 32]), (16, [16, 32]), (20, [20, 32])])
def test_grace_counts_where_it_is_more_than_the_last_entries_share(grace, last):
    limits = jnp.array([[32, 64]], jnp.int32)
    assert H2O(budget=64, grace=grace).last(limits).tolist() == [last]
