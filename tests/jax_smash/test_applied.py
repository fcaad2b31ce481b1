import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from jax_smash import DraftOptions, SamplingOptions, from_apply, generate, rollout
from jax_smash.cache import Block
from jax_smash.decode.forced import forced_log_probs
from jax_smash.methods import make_method
from jax_smash.serve.session import Session
from tests.tiny import tiny_model
from tests.tokenizers import byte_tokenizer

PROMPTS = [[5, 6, 7], [1, 2, 3, 4, 1, 2, 3], [9]]
WARM = SamplingOptions(temperature=0.9, top_k=30, top_p=0.9, repetition_penalty=1.2, presence_penalty=0.2)
SIZES = {"max_new_tokens": 20, "slots": 64}


def read_at_once(definition, params, tokens):
    """Returns the logits of one of this package's models, which reads the tokens without a cache."""
    target = definition.bind(params)
    position = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
    block = Block.causal(jnp.ones_like(tokens, bool))
    return target.unembed(target.forward(target.embed(tokens), position, None, block).hidden)


@functools.cache
def pair():
    """Returns a model, and the same model as nothing but a function from tokens to logits."""
    model = tiny_model()
    apply_fn = functools.partial(read_at_once, model.definition)
    return model, from_apply(apply_fn, model.params["target"], tokenizer=model.tokenizer, max_positions=512)


def tokens(completions):
    return [c.token_ids for c in completions]


def test_a_function_says_what_the_model_behind_it_says_in_a_batch_of_unequal_prompts():
    """Greedy and sampled rows, with processors, side by side."""
    model, applied = pair()
    request = SIZES | {"sampling": [SamplingOptions(), WARM, WARM], "seed": [0, 1, 2]}
    together = generate(applied, PROMPTS, **request)
    assert tokens(together) == tokens(generate(model, PROMPTS, **request))
    assert tokens(generate(applied, PROMPTS[1], sampling=WARM, seed=1, **SIZES)) == tokens(together)[1:2]


def test_a_function_streams_records_stops_and_keeps_to_a_grammar():
    model, applied = (dataclasses.replace(one, stop_tokens=(10,)) for one in pair())
    said = {}
    request = SIZES | {"regex": "[a-z]{6,9}", "log_probs": 2, "prompt_log_probs": 1}
    streamed = generate(applied, "fox", on_text=lambda i, text: said.setdefault(i, []).append(text), **request)[0]
    plain = generate(model, "fox", **request)[0]
    assert streamed.token_ids == plain.token_ids
    assert "".join(said[0]) == streamed.text == plain.text
    for mine, theirs in zip(streamed.log_probs, plain.log_probs, strict=True):
        assert mine.log_prob == pytest.approx(theirs.log_prob, abs=1e-4)
    assert [r.token for r in streamed.prompt_log_probs] == [r.token for r in plain.prompt_log_probs]


def test_a_function_goes_on_with_a_second_turn():
    texts = []
    for model in pair():
        options = {"sampling": [SamplingOptions()] * 2, "seeds": [0, 0]}
        session = Session(model, make_method(model, "ar"), slots=64, max_new_tokens=8, **options)
        for turn in ([[65, 66, 67], [70]], [[72, 73], [76, 77, 78]]):
            session.read(turn)
            while session.run(5):
                pass
            texts.append(session.outputs())
    assert texts[:2] == texts[2:]


@pytest.mark.parametrize("method", ["recycling", "lookup"])
def test_a_drafted_chain_is_checked_by_one_call_and_changes_no_text(method):
    _, applied = pair()
    request = SIZES | {"sampling": [SamplingOptions(), WARM, SamplingOptions()], "seed": 3}
    plain = generate(applied, PROMPTS, **request)
    chained = generate(applied, PROMPTS, method=method, draft=DraftOptions(tree="chain-4"), **request)
    assert tokens(chained) == tokens(plain)
    assert sum(c.target_forwards for c in chained) < sum(c.target_forwards for c in plain)


def test_a_tree_is_refused_by_name_for_a_function():
    with pytest.raises(ValueError, match="the tree recycling-80 branches, and apply_fn does not honour tree blocks"):
        generate(pair()[1], [1], method="recycling", draft=DraftOptions(tree="recycling-80"))


class Linen(linen.Module):
    """A token's logits depend on the mean of all tokens so far."""

    @linen.compact
    def __call__(self, tokens):
        x = linen.Embed(32, 8)(tokens)
        count = jnp.arange(1, tokens.shape[1] + 1, dtype=jnp.float32)[None, :, None]
        return linen.Dense(32)(jnp.tanh(jnp.cumsum(x, axis=1) / count))


class Nnx(nnx.Module):
    """The same in NNX."""

    def __init__(self, rngs):
        self.embed, self.dense = nnx.Embed(32, 8, rngs=rngs), nnx.Linear(8, 32, rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(tokens)
        count = jnp.arange(1, tokens.shape[1] + 1, dtype=jnp.float32)[None, :, None]
        return self.dense(jnp.tanh(jnp.cumsum(x, axis=1) / count))


def greedy(logits_of, prompt, count):
    text = list(prompt)
    for _ in range(count):
        text.append(int(np.asarray(logits_of(jnp.asarray([text], jnp.int32)))[0, -1].argmax()))
    return text[len(prompt) :]


def test_flax_modules_decode_as_they_are():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        module = Linen()
        params = module.init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32))
        said = generate(from_apply(module.apply, params), PROMPTS[0], max_new_tokens=10)[0].token_ids
        assert said == greedy(functools.partial(module.apply, params), PROMPTS[0], 10)

        own = Nnx(nnx.Rngs(0))
        graphdef, state = nnx.split(own)
        model = from_apply(lambda state, tokens: nnx.merge(graphdef, state)(tokens), state)
        said = generate(model, PROMPTS[0], max_new_tokens=10)[0].token_ids
        assert said == greedy(own, PROMPTS[0], 10)


def test_a_function_that_has_closed_over_its_parameters_needs_none():
    table = jax.random.normal(jax.random.key(0), (16, 16))
    model = from_apply(lambda params, tokens: table[tokens])
    expected, token = [], 3
    for _ in range(5):
        token = int(np.asarray(table)[token].argmax())
        expected.append(token)
    assert generate(model, [3], max_new_tokens=5)[0].token_ids == expected


def test_text_needs_a_tokenizer_and_gets_its_stop_token():
    table = jax.random.normal(jax.random.key(0), (len(byte_tokenizer()),) * 2)
    model = from_apply(lambda params, tokens: table[tokens], name="table")
    with pytest.raises(ValueError, match="table has no tokenizer"):
        generate(model, "fox")
    tokenizer = byte_tokenizer()
    ends = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
    assert from_apply(lambda params, tokens: table[tokens], tokenizer=tokenizer).stop_tokens == ends
    assert from_apply(lambda params, tokens: table[tokens], stop_tokens=[7]).stop_tokens == (7,)


def seen_from_behind(params, tokens):
    return jax.nn.one_hot(tokens, 8) + jax.nn.one_hot(tokens, 8).mean(1, keepdims=True)


@pytest.mark.parametrize(
    ("apply_fn", "params", "error", "message"),
    [
        (seen_from_behind, None, ValueError, r"apply_fn must be causal, .* changed by 0\.\d+ with the tokens behind"),
        (lambda p, t: (t, t), None, TypeError, r"must return an array of logits \[B, T, V\]; got tuple"),
        (lambda p, t: t, None, ValueError, r"for tokens \[2, 16\] it returned \[2, 16\]"),
        (lambda p, t: jnp.zeros((1, 16, 8)), None, ValueError, r"it returned \[1, 16, 8\]"),
        (lambda p, t: jnp.zeros((*t.shape, 8), jnp.int32), None, TypeError, "logits of a float dtype; got int32"),
        (lambda p, t: jnp.zeros((*t.shape, 8)), {"w": "text"}, TypeError, r"params must be arrays; got str at \['w'\]"),
    ],
)
def test_a_function_that_cannot_be_decoded_is_refused(apply_fn, params, error, message):
    with jax.numpy_rank_promotion("allow"), pytest.raises(error, match=message):
        from_apply(apply_fn, params)


def test_a_stop_token_and_a_text_must_fit_the_function():
    table = jnp.zeros((8, 8))
    with pytest.raises(ValueError, match="stop_tokens must be from 0 to 7; got 8"):
        from_apply(lambda params, tokens: table[tokens], stop_tokens=[8])
    short = from_apply(lambda params, tokens: table[tokens], max_positions=12)
    with pytest.raises(ValueError, match=r"17 are more than the model's context of 12"):
        generate(short, [1], max_new_tokens=16)


def test_a_function_is_never_asked_for_more_than_the_positions_that_it_has():
    table, places = jnp.eye(8), jnp.zeros((12, 8))
    model = from_apply(lambda params, tokens: table[tokens] + places[None, : tokens.shape[1]], max_positions=12)
    with jax.numpy_rank_promotion("allow"):
        assert generate(model, [1], max_new_tokens=4, slots=64)[0].token_ids == [1, 1, 1, 1]


def test_logits_of_minus_infinity_are_no_fault():
    def apply_fn(params, tokens):
        return jnp.where(jnp.arange(8) == 3, -math.inf, jax.nn.one_hot((tokens + 1) % 8, 8))

    with jax.numpy_rank_promotion("allow"):
        assert generate(from_apply(apply_fn), [5], max_new_tokens=3)[0].token_ids == [6, 7, 0]


def test_a_table_of_positions_is_never_left():
    """Writes past its end are dropped, in rows of rollouts, sessions and given text alike."""
    table, places = jnp.eye(8), jnp.zeros((20, 8))

    def apply_fn(params, tokens):
        return table[(tokens + 1) % 8] + places[None, : tokens.shape[1]]

    prompt = [i % 8 for i in range(10)]
    expected = [i % 8 for i in range(10, 20)]
    with jax.numpy_rank_promotion("allow"):
        model = from_apply(apply_fn, max_positions=20)
        run = functools.partial(rollout, model.definition, max_new_tokens=10, temperature=0.0)
        made = jax.jit(run)(model.params["target"], jnp.asarray([prompt]), jax.random.key(0))
        assert made.tokens.tolist() == [expected]
        rows = {"slots": 64, "max_new_tokens": 10, "sampling": [SamplingOptions()], "seeds": [0]}
        session = Session(model, make_method(model, "ar"), **rows)
        session.read([prompt])
        session.run(20)
        assert session.outputs() == [expected]
        text = jnp.asarray([prompt + expected + [4, 5]])
        told = [
            jax.jit(functools.partial(forced_log_probs, model.definition))(
                model.params["target"], text, jnp.asarray([length])
            ).chosen[0]
            for length in (20, 22)
        ]
    likeliest = jax.nn.log_softmax(jnp.eye(8))[0, 0]
    np.testing.assert_allclose(told[0], [likeliest] * 19 + [0.0] * 2, rtol=1e-5)
    np.testing.assert_allclose(told[1], [likeliest] * 20 + [math.nan], rtol=1e-5)
