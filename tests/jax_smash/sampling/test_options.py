import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.automaton import FREE, START, regex_automaton
from jax_smash.sampling import SamplingOptions, process, processors_for

BAD = [
    ({"temperature": -0.1}, "temperature must be 0 or at least 0.0001; got -0.1"),
    ({"temperature": 1e-5}, "temperature must be 0 or at least 0.0001; got 1e-05"),
    ({"temperature": float("nan")}, "temperature must be finite; got nan"),
    ({"temperature": float("inf")}, "temperature must be finite; got inf"),
    ({"top_k": -1}, "top_k must be from 0 to 2147483647; got -1"),
    ({"top_k": 2**31}, "top_k must be from 0 to 2147483647; got 2147483648"),
    ({"top_p": 0.0}, "top_p must be over 0 and at most 1; got 0.0"),
    ({"top_p": 1.01}, "top_p must be over 0 and at most 1; got 1.01"),
    ({"min_p": -0.5}, "min_p must be from 0 to 1; got -0.5"),
    ({"min_p": 2}, "min_p must be from 0 to 1; got 2"),
    ({"repetition_penalty": 0}, "repetition_penalty must be over 0; got 0"),
    ({"presence_penalty": 2.5}, "presence_penalty must be from -2 to 2; got 2.5"),
    ({"frequency_penalty": -3}, "frequency_penalty must be from -2 to 2; got -3"),
    ({"logit_bias": {3: 101}}, "logit_bias of token 3 must be from -100 to 100; got 101"),
    ({"logit_bias": {3: float("nan")}}, "logit_bias of token 3 must be finite; got nan"),
    ({"logit_bias": {-1: 1}}, "logit_bias must have token ids, at least 0, as keys; got -1"),
    ({"min_new_tokens": -2}, "min_new_tokens must be from 0 to 2147483647; got -2"),
]
WRONG_TYPE = [
    {"temperature": "hot"},
    {"top_k": 2.5},
    {"min_new_tokens": None},
    {"logit_bias": [1]},
    {"logit_bias": {1: None}},
    {"logit_bias": {"a": 1.0}},
]


@pytest.mark.parametrize(("fields", "message"), BAD)
def test_an_option_out_of_range_is_named_with_its_range_and_value(fields, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        SamplingOptions(**fields)


@pytest.mark.parametrize("fields", WRONG_TYPE, ids=str)
def test_an_option_of_the_wrong_type_is_named(fields):
    (name,) = fields
    with pytest.raises(TypeError, match=name):
        SamplingOptions(**fields)


def names(*options, **kwargs):
    made = processors_for(options, **({"stop_tokens": [7], "vocab_size": 8} | kwargs))
    return [type(p).__name__ for p in made]


def test_greedy_rows_need_no_processor():
    assert names(SamplingOptions(), SamplingOptions(top_k=5, top_p=0.5, min_p=0.1)) == []


HEAD = ["LogitBias", "RepetitionPenalty", "OutputPenalty", "MinNewTokens"]
TAIL = ["Temperature", "TopK", "TopP", "MinP"]


def used(*options):
    """Returns the names of the processors that change some row's logits."""
    made = processors_for(options, stop_tokens=[7], vocab_size=8)
    return [type(p).__name__ for p in made if p.active.any()]


def test_what_no_row_uses_is_made_and_skipped():
    for option, name in (({"frequency_penalty": 0.1}, "OutputPenalty"), ({"logit_bias": {1: 2.0}}, "LogitBias")):
        assert names(SamplingOptions(), SamplingOptions(**option)) == HEAD
        assert used(SamplingOptions(), SamplingOptions(**option)) == [name]
    assert names(SamplingOptions(), SamplingOptions(temperature=1.0)) == HEAD + TAIL
    assert used(SamplingOptions(temperature=1.0), SamplingOptions(temperature=1.0)) == []
    # A greedy row beside a sampled one is left its likeliest token, whatever it asks for beside.
    assert used(SamplingOptions(temperature=1.0, top_k=3), SamplingOptions(top_p=0.5)) == ["Temperature", "TopK"]


def test_processors_come_in_the_order_of_transformers():
    everything = SamplingOptions(
        temperature=0.5,
        top_k=3,
        top_p=0.9,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=0.1,
        logit_bias={0: 1.0},
        min_new_tokens=2,
    )
    grammar = regex_automaton("a", [b"a"] * 7 + [b""], stop_tokens=[7])
    assert names(everything, grammar=grammar) == [*HEAD, "Constrained", *TAIL]


def test_noise_that_is_added_leaves_greedy_rows_their_likeliest_token():
    made = processors_for([SamplingOptions()], stop_tokens=[7], vocab_size=8, sampled=True)
    assert [type(p).__name__ for p in made] == [*HEAD, *TAIL]


def test_batches_of_one_run_get_the_same_processors():
    greedy, sampled = SamplingOptions(), SamplingOptions(temperature=1.0, top_k=2, logit_bias={1: 1.0, 2: 1.0})
    first = processors_for([greedy], stop_tokens=[7], vocab_size=8, among=[sampled])
    second = processors_for([sampled], stop_tokens=[7], vocab_size=8, among=[greedy])
    assert jax.tree.structure(first) == jax.tree.structure(second)
    assert [x.shape for x in jax.tree.leaves(first)] == [x.shape for x in jax.tree.leaves(second)]

    logits = jnp.asarray(np.random.default_rng(0).normal(size=(1, 1, 8)), jnp.float32)
    states = [p.init(1, 8) for p in first]
    processed = process(first, states, logits, jnp.zeros((1, 1, 0), jnp.int32))
    assert np.flatnonzero(np.isfinite(processed)).tolist() == [int(jnp.argmax(logits))]


def test_a_row_without_a_grammar_is_free():
    grammar = regex_automaton("a", [b"a"] * 7 + [b""], stop_tokens=[7])
    made = processors_for([SamplingOptions()] * 2, stop_tokens=[7], vocab_size=8, grammar=[None, grammar])
    constrained = made[-1]
    assert constrained.active.tolist() == [False, True]
    np.testing.assert_array_equal(constrained.init(2, 8), [FREE, START])


@pytest.mark.parametrize(
    ("options", "arguments"), [(SamplingOptions(logit_bias={8: 1.0}), {}), (SamplingOptions(), {"stop_tokens": [8]})]
)
def test_a_token_that_is_not_in_the_vocabulary_is_an_error(options, arguments):
    with pytest.raises(ValueError, match="must be below the vocabulary's 8; got 8"):
        names(options, **arguments)


def test_a_grammar_must_fit_the_rows_and_the_vocabulary():
    grammar = regex_automaton("a", [b"a"] * 7 + [b""], stop_tokens=[7])
    with pytest.raises(ValueError, match=r"one for all or one a row \(1\); got 2"):
        names(SamplingOptions(), grammar=[grammar, None])
    with pytest.raises(ValueError, match="over 9 tokens; got 8"):
        names(SamplingOptions(), grammar=grammar, vocab_size=9)
