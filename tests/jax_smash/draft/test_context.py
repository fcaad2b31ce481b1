import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.automaton import regex_automaton
from jax_smash.draft.context import Context
from jax_smash.sampling import SamplingOptions, gumbel_noise, processors_for

LETTERS = [b"a", b"b", b"c", b"d", b""]
STOP = 4
PLACES = jnp.arange(5, 8, dtype=jnp.int32)[None]


def context_of(options, grammar=None):
    processors = processors_for(options, stop_tokens=[STOP], vocab_size=len(LETTERS), grammar=grammar)
    batch = len(options)
    return Context(
        pending=jnp.zeros(batch, jnp.int32),
        token_length=jnp.full(batch, 5, jnp.int32),
        running=jnp.ones(batch, bool),
        key=jax.random.split(jax.random.key(3), batch),
        processors=processors,
        processed=tuple(p.init(batch, len(LETTERS)) for p in processors),
    )


def logits_of(batch, places=3):
    return jnp.asarray(np.random.default_rng(1).normal(0, 2, (batch, places, len(LETTERS))), jnp.float32)


def nothing(batch, places=3):
    return jnp.full((batch, places, 1), -1, jnp.int32)


@pytest.mark.parametrize("noisy", [False, True])
def test_greedy_rows_are_ranked_by_their_logits_beside_a_row_that_samples(noisy):
    told = context_of([SamplingOptions(top_k=1), SamplingOptions(temperature=0.5, top_k=2)])
    logits, places = logits_of(2), jnp.broadcast_to(PLACES, (2, 3))
    ranked = told.ranked(logits, nothing(2), places if noisy else None)
    np.testing.assert_array_equal(ranked[0], logits[0])
    chosen = told.process(logits, nothing(2))[1]
    noise = gumbel_noise(told.key, places, len(LETTERS))[1] if noisy else 0.0
    np.testing.assert_array_equal(ranked[1], chosen + noise)
    # The control: what tokens are chosen from leaves a greedy row one of them.
    assert np.isfinite(told.process(logits, nothing(2))[0]).sum(-1).tolist() == [1, 1, 1]


@pytest.mark.parametrize("noisy", [False, True])
def test_places_in_a_row_follow_a_grammar_one_by_one(noisy):
    grammar = regex_automaton("ab[cd]", LETTERS, stop_tokens=[STOP])
    sampling = SamplingOptions(temperature=1.0) if noisy else SamplingOptions()
    told = context_of([sampling], grammar)
    logits, noise = logits_of(1), PLACES if noisy else None
    path = told.between(logits, noise)
    assert path[0, :, 0].tolist() == [-1, 0, 0]
    assert path[0, :, 1].tolist() == [-1, -1, 1]
    ranked = told.ranked(logits, path, noise)
    assert [np.flatnonzero(np.isfinite(place)).tolist() for place in ranked[0]] == [[0], [1], [2, 3]]
    # The control: with nothing between, each place says what only the first may.
    alone = told.ranked(logits, nothing(1), noise)
    assert [np.flatnonzero(np.isfinite(place)).tolist() for place in alone[0]] == [[0]] * 3


def test_nothing_is_between_places_without_a_grammar():
    told = context_of([SamplingOptions(temperature=1.0), SamplingOptions()])
    np.testing.assert_array_equal(told.between(logits_of(2)), nothing(2))
