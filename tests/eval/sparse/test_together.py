"""What policies keep of a prompt that is read for all of them is what each keeps that reads it alone."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eval.scores.engine import Engine
from eval.sparse.arms import beside, policy_of, read_policy
from eval.sparse.shared import SharedPrompts
from eval.sparse.together import reading_together
from jax_smash.methods import make_method
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.session import Session
from jax_smash.sparse import Dense, Learned, sparsified
from tests.predictors import modules_of, sizes_of
from tests.tiny import tiny_model

NAMES = (
    *("oracle", "random", "recency", "quest:dense_layers=1", "tokenselect:sinks=2:window=2", "h2o", "tova"),
    *("snapkv:observers=4", "snapkv:observers=4:rolling=true", "butler", "grouped", "grouped:int8=true"),
    *("grouped:int4=true", "low-rank:int4=true", "gate"),
)
ASKED = (*((name, 0.5) for name in NAMES), ("h2o", 0.25), ("grouped", 0.25))
PROMPTS = ("Tom sat on the mat and saw a dog that ran to the river", "The cat sat", "ab" * 17)


@functools.cache
def small():
    return tiny_model(layer_kinds=("full", "full"), window=0, spread=4.0)


def arm(name, budget):
    policy = dataclasses.replace(read_policy(name, protocol="dense", page_size=None), budget=budget)
    predictor = modules_of(sizes_of(small().config, policy.form)) if isinstance(policy, Learned) else None
    made = sparsified(small(), policy, predictor)
    return beside(made, dataclasses.replace(policy_of(made), budget=budget))


@pytest.fixture(scope="module")
def arms():
    return {(name, budget): arm(name, budget) for name, budget in ASKED} | {"dense": small()}


@pytest.fixture(scope="module")
def few(arms):
    """Arms of every kind: with a predictor and without, two budgets of one policy, and dense decoding."""
    return {name: arms[name] for name in (("h2o", 0.5), ("h2o", 0.25), ("gate", 0.5), "dense")}


def read(model):
    """Returns the rows of prompts of several lengths that a model has read."""
    session = Session(
        model,
        make_method(model, "ar"),
        slots=96,
        max_new_tokens=8,
        sampling=[SamplingOptions()] * len(PROMPTS),
        seeds=[0] * len(PROMPTS),
    )
    session.read([small().encode(text) for text in PROMPTS])
    return session.state.rows


@pytest.mark.slow
def test_a_prompt_leaves_each_policy_what_it_keeps_alone(arms):
    shared = SharedPrompts(small(), arms, batch_size=4)
    together = read(reading_together(small(), [one for name, one in arms.items() if name != "dense"]))
    for name, one in arms.items():
        found, alone = shared.rows_of(one, together), read(one)
        assert jax.tree.structure(found) == jax.tree.structure(alone), name
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(alone), strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype), name
            if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
                a, b = jax.random.key_data(a), jax.random.key_data(b)
            np.testing.assert_allclose(
                np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=2e-4, atol=2e-4, err_msg=str(name)
            )


def test_what_is_kept_differs_where_the_prompt_does(arms):
    """The control: what is kept of one prompt is not what is kept of another."""
    name = ("h2o", 0.5)
    shared = SharedPrompts(small(), {name: arms[name]}, batch_size=4)
    found = shared.rows_of(arms[name], read(reading_together(small(), [arms[name]])))
    sums = found.cache.channels[0]
    assert np.abs(sums[0] - sums[1]).max() > 0.1


@pytest.mark.slow
def test_answers_behind_shared_prompts_are_those_of_each_arm_alone(few):
    shared, prompts = SharedPrompts(small(), few, batch_size=2), [small().encode(text) for text in PROMPTS]
    differ = set()
    for name, one in few.items():
        found = shared.engine(name).continuations(prompts, max_new_tokens=12, stop=("zq",))
        alone = Engine(one, batch_size=2).continuations(prompts, max_new_tokens=12, stop=("zq",))
        assert [(c.text, c.token_ids, c.finish_reason) for c in found] == [
            (c.text, c.token_ids, c.finish_reason) for c in alone
        ], name
        differ.add(tuple(c.text for c in found))
    assert len(differ) > 1
    assert not shared.waiting


@pytest.mark.slow
def test_texts_behind_shared_contexts_score_as_each_arm_alone_says(few):
    shared = SharedPrompts(small(), few, batch_size=3)
    texts, scored = (
        [small().encode(text) for text in ("Tom sat on the mat", "Tom sat on a", "The cat and Tom")],
        [8, 2, 4],
    )
    sums = set()
    for name, one in few.items():
        found = shared.engine(name).log_probs(texts, scored=scored)
        alone = Engine(one, batch_size=3, by_steps=True).log_probs(texts, scored=scored)
        for a, b in zip(found, alone, strict=True):
            assert [r.token for r in a] == [r.token for r in b]
            np.testing.assert_allclose([r.log_prob for r in a], [r.log_prob for r in b], atol=2e-4, err_msg=str(name))
        sums.add(round(sum(r.log_prob for r in found[0]), 2))
    assert len(sums) > 1
    assert not shared.waiting


def test_dense_decoding_and_prompts_within_the_budget_need_no_policy(arms):
    reader = reading_together(small(), [arms["oracle", 0.5]])
    cache = reader.definition.bind(reader.params["target"]).init_cache(1, 64, 8)
    assert jax.tree.structure(policy_of(reader).of_policy(cache, Dense(), small())) == jax.tree.structure(cache.cache)
    whole = dataclasses.replace(policy_of(arms["oracle", 0.5]), budget=64)
    assert jax.tree.structure(policy_of(reader).of_policy(cache, whole, small())) == jax.tree.structure(cache.cache)
