"""Top sets of every query head, and what they have in common, beside plain loops over a small random model."""

import functools
import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from eval.sparse.agreement import agreement, overlap
from eval.sparse.calibration import head_recall, shares_by_recall
from eval.sparse.look_ahead import look_ahead
from eval.sparse.top_sets import top_sets
from jax_smash.cache import Block
from jax_smash.config import RopeConfig
from jax_smash.models.attended import attended
from jax_smash.sparse import Oracle, Recency, sparsified
from tests.tiny import tiny_model

FIRST, LENGTH, SHARE, SINKS = 20, 32, 0.5, 4
TOKENS = np.random.default_rng(0).integers(0, 250, (2, LENGTH))


def model():
    return tiny_model(layer_kinds=("full", "full"), window=0, spread=4.0)


@functools.cache
def sets():
    return list(top_sets(model(), TOKENS.tolist(), share=SHARE, first=FIRST))


def by_loops(text):
    """Returns the sets of each head and each layer of a text by plain loops."""
    bound = model().definition.bind(model().params["target"])
    tokens = jnp.asarray(text)[None]
    place = jnp.arange(LENGTH, dtype=jnp.int32)[None]
    out = bound.forward(bound.embed(tokens), place, None, Block.causal(jnp.ones(tokens.shape, bool)))
    made = attended(bound, out.taps, place)
    query, key = np.asarray(made.queries[:, 0], np.float64), np.asarray(made.keys[:, 0], np.float64)
    heads = np.zeros((2, 4, LENGTH - FIRST, LENGTH), bool)
    layers = np.zeros((2, LENGTH - FIRST, LENGTH), bool)
    for layer, position in itertools.product(range(2), range(FIRST, LENGTH)):
        k, total = -(-position // 2) - SINKS, np.zeros(LENGTH)
        for head in range(4):
            scores = key[layer, :position, head // 2] @ query[layer, position, head] / np.sqrt(8)
            mass = np.exp(scores - scores.max())
            total[:position] += mass / mass.sum()
            heads[layer, head, position - FIRST, SINKS + np.argsort(-mass[SINKS:])[:k]] = True
        layers[layer, position - FIRST, SINKS + np.argsort(-total[SINKS:position])[:k]] = True
    return heads, layers


def test_top_sets_are_those_of_plain_loops():
    for text, (by_head, by_layer) in zip(TOKENS, sets(), strict=True):
        heads, layers = by_loops(text)
        np.testing.assert_array_equal(by_head, heads)
        np.testing.assert_array_equal(by_layer, layers)


def test_models_whose_layers_see_less_than_a_text_or_turn_by_its_length_are_refused():
    windowed = tiny_model(layer_kinds=("full", "sliding"), window=LENGTH - 1)
    with pytest.raises(ValueError, match=r"a text must be at most the 31 tokens of .* window; got 32"):
        next(top_sets(windowed, TOKENS.tolist(), share=SHARE, first=FIRST))
    stretched = tiny_model(rope=RopeConfig(scaling="dynamic", factor=4.0, original_positions=8))
    with pytest.raises(ValueError, match=r"rotary embedding of .* must not depend on the length of the text"):
        agreement(stretched, TOKENS.tolist(), share=SHARE, first=FIRST)


def test_agreement_tells_pairs_apart_by_what_they_share():
    rows, table = agreement(model(), TOKENS.tolist(), share=SHARE, first=FIRST)
    found = {row["kind"]: row for row in rows}
    assert found.keys() == {
        "heads of a group",
        "groups of a layer",
        "chance",
    }  # Of two layers the first does not count.
    expected = []
    for by_head, _ in sets():
        count = by_head[1, 0].sum()
        expected.append(np.mean([(by_head[1, a] & by_head[1, b]).sum() / count for a, b in ((0, 1), (2, 3))]))
    assert found["heads of a group"]["score"] == pytest.approx(np.mean(expected))
    assert found["heads of a group"]["n"] == 2
    assert table.shape == (2, 2)
    # Sets with k of n candidates share k² / n: 6 to 12 of 16 to 27.
    assert 0.3 < found["chance"]["score"] < 0.5


def test_a_set_overlaps_itself_wholly_and_its_complement_not_at_all():
    one = np.array([[[True, False, True, False]]])
    np.testing.assert_array_equal(overlap(np.concatenate([one, ~one])), np.eye(2))


def test_what_is_held_of_later_sets_falls_with_the_steps_and_is_highest_of_the_layer_itself():
    rows = look_ahead(model(), TOKENS.tolist(), share=SHARE, first=FIRST, steps=(1, 4))
    found = {row["kind"]: row["score"] for row in rows}
    own = np.concatenate([by_head[1:, :, 1:] for by_head, _ in sets()], axis=1)
    before = np.concatenate([by_head[1:, :, :-1] for by_head, _ in sets()], axis=1)
    assert found["1 steps before"] == pytest.approx((own & before).sum() / own.sum())
    assert found["previous layer"] == found["first layer"]  # Of two layers they are the same.
    assert found["own layer"] > found["previous layer"]
    assert found["own layer"] > found["chance"]
    with pytest.raises(ValueError, match="steps must be fewer than the 12 queries of a text; got 12"):
        look_ahead(model(), TOKENS.tolist(), share=SHARE, first=FIRST, steps=(12,))


def test_recall_by_kv_head_ranks_heads_for_their_shares():
    sizes = {"share": SHARE, "batch_size": 2, "prompt": FIRST}
    recall = head_recall(sparsified(model(), Recency(budget=SHARE, dense_layers=1)), TOKENS, **sizes)
    assert np.isnan(recall[0]).all()
    assert ((recall[1] > 0) & (recall[1] < 1)).all()
    shares = shares_by_recall(recall, SHARE)
    assert shares.mean() == pytest.approx(SHARE)
    assert shares[1].argmax() == recall[1].argmin()
    with pytest.raises(ValueError, match="no head can be calibrated"):
        head_recall(sparsified(model(), Oracle(budget=1.0)), TOKENS, **sizes)
