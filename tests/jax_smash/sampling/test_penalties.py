import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_smash.automaton import regex_automaton
from jax_smash.sampling import (
    LogitBias,
    MinNewTokens,
    OutputPenalty,
    RepetitionPenalty,
    SamplingOptions,
    processors_for,
)
from jax_smash.sampling.penalties import FORBIDDEN

VOCAB = 24
LETTERS = [bytes([ord("a") + i]) for i in range(VOCAB - 1)] + [b""]
STOP = VOCAB - 1


def no_path(batch):
    return jnp.zeros((batch, 1, 0), jnp.int32)


def random_logits(batch, nodes=1, seed=0):
    return jnp.asarray((np.random.default_rng(seed).normal(size=(batch, nodes, VOCAB)) * 3).astype(np.float32))


def after(processor, prompts, outputs):
    """Returns the state of rows that have read their prompts and emitted their outputs."""
    state = processor.init(len(prompts), VOCAB)
    width = max(map(len, prompts))
    tokens = np.zeros((len(prompts), width), np.int32)
    valid = np.zeros((len(prompts), width), bool)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)], valid[row, : len(prompt)] = prompt, True
    state = observed(processor, state, jnp.asarray(tokens), jnp.asarray(valid))
    for place in range(max(map(len, outputs))):
        running = jnp.array([place < len(o) for o in outputs])
        token = jnp.array([o[place] if place < len(o) else 0 for o in outputs], jnp.int32)
        (state,) = advanced((processor,), (state,), token, running)
    return state


@jax.jit
def observed(processor, state, tokens, valid):
    return processor.observe_prompt(state, tokens, valid)


@jax.jit
def run(processors, states, logits, path):
    for processor, state in zip(processors, states, strict=True):
        logits = processor.apply(state, logits, path)
    return logits


@jax.jit
def advanced(processors, states, token, running):
    return tuple(p.advance(s, token, running) for p, s in zip(processors, states, strict=True))


@jax.jit
def started(processors, prompt, valid):
    batch = prompt.shape[0]
    return tuple(p.observe_prompt(p.init(batch, VOCAB), prompt, valid) for p in processors)


def applied(processor, state, logits):
    return run((processor,), (state,), logits, no_path(logits.shape[0]))


@pytest.fixture
def transformers_processors():
    pytest.importorskip("torch", reason="transformers' logits processors need torch")
    from transformers.generation import logits_process

    return logits_process


def test_repetition_penalty_equals_transformers(transformers_processors):
    import torch

    prompts, outputs = [[1, 2, 3, 3], [4], [20, 21]], [[5, 1], [], [7, 7, 7]]
    penalty, logits = [1.3, 2.0, 0.7], random_logits(3)
    processor = RepetitionPenalty(penalty=jnp.array(penalty))
    ours = applied(processor, after(processor, prompts, outputs), logits)
    for row, setting in enumerate(penalty):
        ids = torch.tensor([prompts[row] + outputs[row]])
        theirs = transformers_processors.RepetitionPenaltyLogitsProcessor(setting)(
            ids, torch.from_numpy(np.array(logits[row]))
        )
        np.testing.assert_allclose(ours[row], theirs.numpy(), rtol=1e-6)


@pytest.mark.parametrize("emitted", [0, 1, 2, 3])
def test_min_new_tokens_forbids_what_transformers_forbids(transformers_processors, emitted):
    import torch

    stops, logits = [3, STOP], random_logits(1)
    processor = MinNewTokens(count=jnp.array([2]), stop_tokens=jnp.array([[*stops, -1]]))
    ours = applied(processor, after(processor, [[1, 2]], [[5] * emitted]), logits)
    theirs = transformers_processors.MinNewTokensLengthLogitsProcessor(2, 2, stops)(
        torch.zeros((1, 2 + emitted), dtype=torch.long), torch.from_numpy(np.array(logits[0]))
    ).numpy()
    np.testing.assert_array_equal(np.asarray(ours[0]), np.where(np.isinf(theirs), np.float32(FORBIDDEN), theirs))


def test_output_penalties_count_the_output_alone():
    processor = OutputPenalty(presence=jnp.array([0.5]), frequency=jnp.array([0.25]))
    state = after(processor, [[1, 1, 2]], [[3, 4, 4, 4]])
    penalised = applied(processor, state, jnp.zeros((1, 1, VOCAB)))[0, 0]
    expected = np.zeros(VOCAB)
    expected[3], expected[4] = -0.5 - 0.25, -0.5 - 3 * 0.25
    np.testing.assert_array_equal(penalised, expected)


def test_a_new_prompt_starts_counts_of_output_anew():
    counting = OutputPenalty(presence=jnp.array([0.5, 0.5]), frequency=jnp.zeros(2))
    state = after(counting, [[1], [1]], [[3], [3]])
    state = observed(counting, state, jnp.array([[2], [0]]), jnp.array([[True], [False]]))
    np.testing.assert_array_equal(state.sum(1), [0, 1])


def test_logit_bias_is_added_and_its_padding_is_not():
    processor = LogitBias(tokens=jnp.array([[2, -1], [0, VOCAB - 1]]), bias=jnp.array([[1.5, 9.0], [-100.0, 4.0]]))
    biased = run((processor,), ((),), jnp.ones((2, 3, VOCAB)), jnp.zeros((2, 3, 0), jnp.int32))
    expected = np.ones((2, 3, VOCAB))
    expected[0, :, 2], expected[1, :, 0], expected[1, :, -1] = 2.5, -99.0, 5.0
    np.testing.assert_array_equal(biased, expected)


@functools.cache
def every_processor():
    """Returns processors of every kind, for rows of different settings."""
    grammar = regex_automaton("(?:[a-h]+x)?[a-k]*", LETTERS, stop_tokens=[STOP])
    options = [
        SamplingOptions(
            temperature=0.7,
            top_k=9,
            top_p=0.95,
            min_p=0.01,
            repetition_penalty=1.4,
            presence_penalty=0.5,
            frequency_penalty=0.3,
            logit_bias={1: 2.0, 5: -1.0},
            min_new_tokens=4,
        ),
        SamplingOptions(repetition_penalty=1.2, frequency_penalty=-0.4, min_new_tokens=2),
        SamplingOptions(temperature=1.5, top_p=0.8, logit_bias={STOP: 3.0}),
    ]
    return processors_for(options, stop_tokens=[STOP], vocab_size=VOCAB, grammar=[grammar, None, grammar])


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_path_has_the_same_effect_as_tokens_emitted(seed):
    rng = np.random.default_rng(seed)
    batch, nodes, depth = 3, 5, 4
    processors = every_processor()
    prompt = jnp.asarray(rng.integers(0, VOCAB, (batch, 6)), jnp.int32)
    states = started(processors, prompt, jnp.asarray(rng.random((batch, 6)) < 0.7))
    for _ in range(2):
        token = jnp.asarray(rng.integers(0, 8, batch), jnp.int32)
        states = advanced(processors, states, token, jnp.asarray(rng.random(batch) < 0.8))

    logits = random_logits(batch, nodes, seed)
    path = rng.integers(0, 8, (batch, nodes, depth)).astype(np.int32)
    path[np.arange(depth) >= rng.integers(0, depth + 1, (batch, nodes, 1))] = -1
    together = np.asarray(run(processors, states, logits, jnp.asarray(path)))
    for node in range(nodes):
        at_node = states
        for place in range(depth):
            token = jnp.asarray(path[:, node, place])
            at_node = advanced(processors, at_node, jnp.maximum(token, 0), token >= 0)
        alone = run(processors, at_node, logits[:, node : node + 1], no_path(batch))
        np.testing.assert_allclose(together[:, node], alone[:, 0], rtol=1e-6, atol=1e-6)


def test_a_row_alone_equals_the_row_in_a_batch():
    processors = every_processor()
    rng = np.random.default_rng(3)
    prompt, valid = jnp.asarray(rng.integers(0, VOCAB, (3, 6)), jnp.int32), jnp.ones((3, 6), bool)
    logits, path = random_logits(3, 2), jnp.asarray(rng.integers(0, 8, (3, 2, 2)), jnp.int32)
    together = run(processors, started(processors, prompt, valid), logits, path)
    for row in range(3):
        one = slice(row, row + 1)
        alone = tuple(
            jax.tree.map(lambda x: x[one] if x.shape[:1] == (3,) else x, p)  # noqa: B023 - used at once
            for p in processors
        )
        states = started(alone, prompt[one], valid[one])
        np.testing.assert_allclose(run(alone, states, logits[one], path[one]), together[one], rtol=1e-6, atol=1e-6)


def test_an_early_stop_token_wins_where_the_grammar_allows_nothing_else():
    grammar = regex_automaton("a", LETTERS, stop_tokens=[STOP])
    options = [SamplingOptions(temperature=1.0, top_p=0.9, min_new_tokens=5)]
    processors = processors_for(options, stop_tokens=[STOP], vocab_size=VOCAB, grammar=grammar)
    states = tuple(p.init(1, VOCAB) for p in processors)
    states = advanced(processors, states, jnp.array([0]), jnp.array([True]))
    logits = run(processors, states, random_logits(1), no_path(1))
    assert int(jnp.argmax(logits)) == STOP
    assert not np.isnan(np.asarray(logits)).any()


def test_a_node_behind_a_forbidden_token_has_no_nan():
    grammar = regex_automaton("ab", LETTERS, stop_tokens=[STOP])
    options = [SamplingOptions(temperature=1.0, top_k=3, top_p=0.9, min_p=0.1)]
    processors = processors_for(options, stop_tokens=[STOP], vocab_size=VOCAB, grammar=grammar)
    states = tuple(p.init(1, VOCAB) for p in processors)
    logits = run(processors, states, random_logits(1, 2), jnp.array([[[0], [7]]]))
    assert np.isfinite(np.asarray(logits[0])).any(-1).all()
    assert np.flatnonzero(np.isfinite(np.asarray(logits[0, 0]))).tolist() == [1]
    assert not np.isnan(np.asarray(logits)).any()


def test_a_grammar_over_another_vocabulary_is_refused():
    grammar = regex_automaton("ab", LETTERS, stop_tokens=[STOP])
    constrained = processors_for([SamplingOptions()], stop_tokens=[STOP], vocab_size=VOCAB, grammar=grammar)[-1]
    with pytest.raises(ValueError, match=r"over 30 tokens.*got 24 tokens"):
        constrained.init(1, 30)


def test_processors_run_inside_a_compiled_loop_as_they_do_outside():
    processors = every_processor()
    prompt, valid = jnp.ones((3, 2), jnp.int32), jnp.ones((3, 2), bool)
    begin = started(processors, prompt, valid)
    logits = random_logits(3, seed=9)

    def step(states):
        token = jnp.argmax(run(processors, states, logits, no_path(3))[:, 0], -1).astype(jnp.int32)
        return advanced(processors, states, token, jnp.ones(3, bool)), token

    def body(carry):
        i, states, tokens = carry
        states, token = step(states)
        return i + 1, states, tokens.at[:, i].set(token)

    looped = jax.jit(
        lambda: jax.lax.while_loop(lambda c: c[0] < 8, body, (jnp.int32(0), begin, jnp.zeros((3, 8), jnp.int32)))
    )()[2]
    states, tokens = begin, []
    for _ in range(8):
        states, token = step(states)
        tokens.append(np.asarray(token))
    np.testing.assert_array_equal(looped, np.stack(tokens, 1))
