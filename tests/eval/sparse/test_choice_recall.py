"""Recall of what policies choose: 1 for an oracle by group, less for controls, on small random models."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from eval.scores.engine import Engine
from eval.sparse.choice_recall import RecallSet, choices_seen
from eval.sparse.oracles import EvictingOracle, GuidedOracle
from eval.sparse.truth import held_of_top
from eval.tasks.selection import selection_recall
from jax_smash.cache import Block
from jax_smash.models.attended import attended
from jax_smash.sparse import H2O, Butler, GroupedButler, Learned, Oracle, Quest, Recency, StreamingLLM, sparsified
from tests.predictors import modules_of, sizes_of
from tests.tiny import tiny_model

LENGTH, PROMPT, SHARE = 40, 16, 0.5
TEXTS = ("a text that is read by steps of a policy, all of it", "and another one, which is about as long as the first")


def model():
    return tiny_model(layer_kinds=("full", "full"), window=0, spread=4.0)


@functools.cache
def outcomes(policy, by_steps=True):
    predictor = modules_of(policy.predictor) if isinstance(policy, Learned) else None
    made = model() if policy is None else sparsified(model(), policy, predictor)
    engine = Engine(made, batch_size=2, by_steps=by_steps)
    found = RecallSet(("a", "b"), TEXTS, LENGTH, SHARE, prompt=PROMPT).measure(engine)
    return {outcome.metric: outcome for outcome in found}


@pytest.mark.slow
def test_the_oracle_holds_all_that_groups_attend_to_and_the_last_entries_do_not():
    oracle, recency = outcomes(Oracle(budget=SHARE)), outcomes(Recency(budget=SHARE))
    assert oracle["group_recall"].score == 1
    assert 0.3 < recency["group_recall"].score < 0.9
    assert recency["recall"].score < oracle["recall"].score < 1  # Two query heads share a set.
    assert recency["recall"].more["recent_recall"] == pytest.approx(recency["recall"].score, abs=1e-6)


def test_a_model_that_reads_everything_holds_everything():
    for found in (outcomes(None), outcomes(Oracle(budget=1.0))):
        assert {metric: outcome.score for metric, outcome in found.items()} == {"recall": 1.0, "group_recall": 1.0}


def test_recall_by_head_is_that_of_whole_tables_of_attention():
    policy = Recency(budget=SHARE)
    tokens = np.asarray([list(text.encode()[:LENGTH]) for text in TEXTS], np.int32)
    sparse = sparsified(model(), policy)
    found = choices_seen(sparse, held_of_top(SHARE), tokens, prompt=0, batch_size=2)
    # Layer 0 sees embeddings, which no policy changes.
    bound = model().definition.bind(model().params["target"])
    place = jnp.broadcast_to(jnp.arange(LENGTH, dtype=jnp.int32), tokens.shape)
    out = bound.forward(bound.embed(jnp.asarray(tokens)), place, None, Block.causal(jnp.ones(tokens.shape, bool)))
    made = attended(bound, out.taps, place)
    query, key = np.asarray(made.queries[0], np.float64), np.asarray(made.keys[0], np.float64)
    key = np.repeat(key, query.shape[2] // key.shape[2], axis=2)
    scores = np.einsum("BTNH,BSNH->BNTS", query, key)[:, :, PROMPT:]
    position = np.arange(PROMPT, LENGTH) - 1  # The new entry itself is no candidate.
    slot = np.arange(LENGTH)
    limit = np.ceil(SHARE * (position + 1)).astype(int)
    chosen = (slot[None] <= position[:, None]) & (slot[None] > position[:, None] - (limit - 4)[:, None])
    chosen = np.broadcast_to(chosen, scores.shape)
    for step in (0, 7, LENGTH - PROMPT - 1):
        one = (scores[None, :, :, step : step + 1], chosen[None, :, :, step : step + 1], position[step : step + 1])
        expected = selection_recall(*one, budget=int(limit[step] - 4), first_layer=0, first_position=0)
        np.testing.assert_allclose(found[0].by_head[PROMPT + step].mean(0), expected.recall[0], atol=1e-6)


def learned(policy, **changes):
    return policy.sized(sizes_of(model().config, policy.form, **changes))


@pytest.mark.parametrize(
    "policy",
    [
        H2O(budget=SHARE),
        Quest(budget=0.6, page_size=4, dense_layers=0),
        learned(Butler(budget=SHARE), attach=0),
        learned(GroupedButler(budget=SHARE, sinks=4, window=2, refresh=2), every=1),
    ],
    ids=["h2o", "quest", "butler", "grouped"],
)
def test_a_policy_that_is_watched_chooses_as_it_does_alone(policy):
    found = outcomes(policy)["recall"]
    assert 0 < found.score < 1
    assert found.more["kept"] == pytest.approx(0.5, abs=0.15)


def test_an_oracle_that_evicts_cannot_take_back_what_it_left_out():
    assert 0.3 < outcomes(EvictingOracle(budget=SHARE))["group_recall"].score < 0.9


def chosen_and_attended(view, query, chosen):
    """Returns which slots each KV head reads, and what the layer's heads attend to, all together."""
    row, head = (jnp.arange(n) for n in chosen.slots.shape[:2])
    read = jnp.zeros(view.layer.keys.shape[:3], bool)
    read = read.at[row[:, None, None], head[None, :, None], chosen.slots].max(chosen.valid)
    return read, Oracle(budget=SHARE).attention(view, query).sum(1)


@pytest.mark.parametrize(("guide", "guides"), [("first", (0, 0, 0)), ("previous", (0, 0, 1))])
def test_a_guided_oracle_reads_what_its_guide_attends_to(guide, guides):
    base = tiny_model(num_layers=3, layer_kinds=("full",) * 3, window=0, spread=4.0)
    tokens = np.asarray([list(text.encode()[:LENGTH]) for text in TEXTS], np.int32)
    sparse = sparsified(base, GuidedOracle(budget=SHARE, guide=guide))
    found = choices_seen(sparse, chosen_and_attended, tokens, prompt=PROMPT, batch_size=2)
    for layer, of in enumerate(guides):
        for step, row in np.ndindex(LENGTH - PROMPT, len(tokens)):
            filled = PROMPT + step
            best = np.argsort(-found[of][1][step, row, 4:filled])[: -(-filled // 2) - 4] + 4
            expected = np.isin(np.arange(LENGTH), [0, 1, 2, 3, *best])
            for head in found[layer][0][step, row]:
                np.testing.assert_array_equal(head, expected)
    assert (found[2][0] != found[1][0]).any() == (guide == "previous")


def test_a_layer_that_chooses_nothing_guides_none():
    with pytest.raises(ValueError, match="every layer must choose its slots to guide others"):
        sparsified(tiny_model(), GuidedOracle(budget=SHARE))


@pytest.mark.slow
def test_texts_that_are_read_by_steps_from_the_first_count_behind_the_prompt_as_well():
    stepwise, dense = (outcomes(Oracle(budget=SHARE), by_steps)["recall"] for by_steps in (False, True))
    assert stepwise.settings == dense.settings
    assert stepwise.score != dense.score


def test_what_has_no_choice_of_slots_is_refused():
    with pytest.raises(ValueError, match="StreamingLLM does not choose among the slots"):
        outcomes(StreamingLLM(slots=12))
    short = RecallSet(("short",), ("short",), LENGTH, SHARE, prompt=PROMPT)
    with pytest.raises(ValueError, match="short must have at least 40 tokens to tell recall"):
        short.measure(Engine(model(), batch_size=1))
