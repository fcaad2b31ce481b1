"""Bytes of a step under a policy, beside sums by hand."""

import dataclasses

import jax.numpy as jnp
import pytest

from jax_smash.models.transformer import abstract_params
from jax_smash.plan import step_bytes
from jax_smash.sparse import H2O, TOVA, Dense, Oracle, Quest, Recency, SnapKV, StreamingLLM, sparse_step_bytes
from tests.tiny import tiny_config

SLOTS, BUDGET = 1024, 64
CONFIG = tiny_config(layer_kinds=("full", "full"))  # 2 layers of 2 KV heads of 8 numbers.
PARAMS = abstract_params(CONFIG, jnp.float32)[1]
KEYS = 2 * SLOTS * 8 * 4
"""Bytes of one layer's keys."""


@pytest.mark.parametrize(
    ("policy", "read", "scorer"),
    [
        (Dense(), 2 * SLOTS, 0),
        (Recency(budget=BUDGET), 2 * BUDGET, 0),
        (Recency(budget=BUDGET, dense_layers=1), BUDGET + SLOTS, 0),
        (Oracle(budget=BUDGET), 2 * BUDGET, 2 * KEYS),
        (Oracle(budget=0.25), 2 * SLOTS // 4, 2 * KEYS),
        (H2O(budget=BUDGET), 2 * BUDGET, 2 * 2 * SLOTS * 5),
        (TOVA(budget=BUDGET), 2 * BUDGET, 2 * SLOTS * (4 + 2)),
        (SnapKV(budget=BUDGET), 2 * BUDGET, 2 * 2 * SLOTS * 5),
        (Quest(budget=BUDGET, dense_layers=0), 2 * BUDGET, 2 * 2 * KEYS // 16),
        (Quest(budget=2048, dense_layers=0), 2 * SLOTS, 0),
        (StreamingLLM(slots=BUDGET), 2 * BUDGET, 0),
    ],
)
def test_a_step_reads_weights_slots_and_what_chooses_them(policy, read, scorer):
    step = sparse_step_bytes(CONFIG, PARAMS, policy, batch=3, slots=SLOTS)
    dense = step_bytes(CONFIG, PARAMS, batch=3, slots=SLOTS)
    assert (step.weights, step.dense_cache) == (dense.weights, dense.cache)
    assert step.cache == 3 * read * 2 * 2 * 8 * 4
    assert step.scorer == 3 * scorer
    assert step.bound == pytest.approx(dense.total / step.total)
    assert step.cache_bound == pytest.approx(dense.cache / (step.cache + step.scorer))


def test_heads_read_their_shares():
    whole = sparse_step_bytes(CONFIG, PARAMS, Recency(budget=BUDGET), batch=1, slots=SLOTS).cache
    shares = Recency(budget=BUDGET, head_shares=((1.0, 0.5), (0.25, 0.25)))
    assert sparse_step_bytes(CONFIG, PARAMS, shares, batch=1, slots=SLOTS).cache == whole // 2


def test_heads_read_whole_pages_within_their_shares():
    def slots(policy, length=SLOTS):
        found = sparse_step_bytes(CONFIG, PARAMS, policy, batch=1, slots=length)
        return found.cache // (2 * 8 * 4)

    shares = ((1.0, 0.4), (0.55, 0.25))
    policy = Quest(budget=160, dense_layers=0, head_shares=shares)
    # 160, 64, 88 and 40 slots in pages of 16, of which 3 are always read.
    assert slots(policy) == 160 + 64 + 80 + 48
    # A quarter of 1,000 slots is 250: 15 pages, though a step of a longer text may read 16.
    assert slots(Quest(budget=0.25, dense_layers=0), 1000) == 4 * 240
    for share in (0.4, 0.55):
        plan = policy.plans(CONFIG, SLOTS)[0]
        limit = dataclasses.replace(plan, by_head=(1.0, share)).limit(jnp.asarray([SLOTS], jnp.int32), 2)
        one = dataclasses.replace(policy, head_shares=((1.0, share), (1.0, share)))
        assert slots(one) == 2 * int((limit // 16 * 16).sum())
