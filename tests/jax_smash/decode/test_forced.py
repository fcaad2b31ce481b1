"""Text read by decode steps is scored as a whole forward scores it, and as a policy's cache lets it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_smash
from jax_smash.cache import Block
from jax_smash.decode.forced import Prompts, forced_log_probs
from jax_smash.sparse import StreamingLLM, sparsified
from tests.tiny import tiny_model

WIDTH = 48
LENGTHS = (WIDTH, 17, 2, 1)


def texts():
    return jnp.asarray(np.random.default_rng(0).integers(0, 250, (len(LENGTHS), WIDTH)), jnp.int32)


def forced(model, tokens, lengths, n=1):
    run = jax.jit(functools.partial(forced_log_probs, model.definition, n=n))
    return run(model.params["target"], tokens, jnp.asarray(lengths, jnp.int32))


def whole(model, tokens, visible=None):
    """Returns the log-probabilities of a whole forward at once, and the likeliest token of each place."""
    target = model.definition.bind(model.params["target"])
    position = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32)[None], tokens.shape)
    out = target.forward(target.embed(tokens), position, None, Block.causal(jnp.ones(tokens.shape, bool)))
    table = jax.nn.log_softmax(target.unembed(out.hidden), axis=-1)[:, :-1]
    return np.asarray(jnp.take_along_axis(table, tokens[:, 1:, None], axis=2)[..., 0]), np.asarray(table.argmax(-1))


def test_every_token_is_scored_as_a_whole_forward_scores_it():
    model, tokens = tiny_model(), texts()
    found, (expected, likeliest) = forced(model, tokens, LENGTHS), whole(model, tokens)
    for row, length in enumerate(LENGTHS):
        np.testing.assert_allclose(found.chosen[row, : length - 1], expected[row, : length - 1], rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(found.top_tokens[row, : length - 1, 0], likeliest[row, : length - 1])
        assert not np.asarray(found.chosen[row, length - 1 :]).any()


def test_behind_prompts_that_are_read_at_once_tokens_score_the_same():
    """Two texts share a prompt; a third has its own, and a fourth nothing behind it."""
    model = tiny_model()
    tokens, of, read = np.array(texts()), (1, 1, 0, 2), (20, 20, 9, 5)
    tokens[1, :20] = tokens[0, :20]
    lengths = (WIDTH, 31, 12, 5)
    beginnings = np.zeros((4, 24), np.int32)
    for prompt, row in ((0, 2), (1, 0), (2, 3)):
        beginnings[prompt, : read[row]] = tokens[row, : read[row]]
    prompts = Prompts(tokens=jnp.asarray(beginnings), lengths=jnp.asarray([9, 20, 5, 0]), of=jnp.asarray(of))
    run = jax.jit(functools.partial(forced_log_probs, model.definition))
    found = run(model.params["target"], jnp.asarray(tokens), jnp.asarray(lengths), prompts=prompts).chosen
    alone = forced(model, jnp.asarray(tokens), lengths).chosen
    for row, (length, first) in enumerate(zip(lengths, read, strict=True)):
        count = length - first
        np.testing.assert_allclose(found[row, :count], alone[row, first - 1 : length - 1], rtol=1e-4, atol=1e-4)
        assert not np.asarray(found[row, count:]).any()


def test_outside_of_jit_it_says_the_same_and_leaves_what_it_was_given():
    model, tokens = tiny_model(), texts()
    lengths = jnp.asarray(LENGTHS, jnp.int32)
    prompts = Prompts(tokens=tokens[:, :1], lengths=jnp.ones(4, jnp.int32), of=jnp.arange(4, dtype=jnp.int32))
    eager = [
        forced_log_probs(model.definition, model.params["target"], tokens, lengths, prompts=behind, n=1)
        for behind in (None, prompts)
    ]
    assert not any(x.is_deleted() for x in jax.tree.leaves((tokens, lengths, prompts)))
    np.testing.assert_allclose(eager[0].chosen, forced(model, tokens, LENGTHS).chosen, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(eager[1].chosen, eager[0].chosen)


def test_the_text_it_would_write_itself_has_the_likeliest_token_everywhere():
    model = tiny_model()
    (written,) = jax_smash.generate(model, [[5, 6, 7]], max_new_tokens=20)
    tokens = jnp.asarray([[5, 6, 7, *written.token_ids]])
    found = forced(model, tokens, [tokens.shape[1]])
    np.testing.assert_array_equal(found.top_tokens[0, 2:, 0], tokens[0, 3:])
    np.testing.assert_array_equal(found.chosen[0, 2:], found.top_values[0, 2:, 0])


def test_a_policy_shows_each_token_what_it_has_kept():
    model = tiny_model(layer_kinds=("full", "full"), window=0)
    tokens = texts()[:1]
    dense, roomy, narrow = (
        np.asarray(forced(m, tokens, [WIDTH]).chosen[0])
        for m in (model, sparsified(model, StreamingLLM(WIDTH)), sparsified(model, StreamingLLM(12, 2)))
    )
    np.testing.assert_array_equal(dense, roomy)
    # Token i + 1 is scored by tokens 0 … i: up to 12 of them are all kept.
    np.testing.assert_allclose(dense[:12], narrow[:12], rtol=1e-4, atol=1e-4)
    assert np.abs(dense[12:] - narrow[12:]).max() > 0.1


def test_streaming_decode_equals_a_plain_program_that_masks():
    """The text's first tokens and last ones alone, read anew for each token without the others."""
    model = tiny_model(num_layers=1, layer_kinds=("full",), window=0)
    tokens, slots, sinks = texts()[:1, :24], 12, 2
    streamed = forced(sparsified(model, StreamingLLM(slots, sinks)), tokens, [24]).chosen[0]
    for end in (13, 20, 23):
        kept = jnp.concatenate([tokens[:, :sinks], tokens[:, end - (slots - sinks) : end], tokens[:, end : end + 1]], 1)
        expected, _ = whole(model, kept)
        np.testing.assert_allclose(streamed[end - 1], expected[0, -1], rtol=1e-3, atol=1e-3)


def test_logits_that_are_no_numbers_are_told_from_where_they_came():
    model = tiny_model()
    broken = jax.tree.map(lambda w: w, model.params["target"])
    broken = jax.tree.map(lambda w: jnp.full_like(w, jnp.nan) if w.ndim > 1 else w, broken)
    run = jax.jit(functools.partial(forced_log_probs, model.definition))
    found = run(broken, texts(), jnp.asarray(LENGTHS, jnp.int32))
    for row, length in enumerate(LENGTHS):
        assert np.isnan(found.chosen[row, : length - 1]).any() == (length > 1)
        assert not np.isnan(found.chosen[row, length - 1 :]).any()


def test_a_text_of_one_token_is_refused():
    with pytest.raises(ValueError, match="at least 2 a row; got 1"):
        forced(tiny_model(), texts()[:, :1], LENGTHS)
