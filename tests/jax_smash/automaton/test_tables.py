import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.automaton import DEAD, FREE, START, join, regex_automaton, stop_automaton, tables
from jax_smash.automaton.tables import ByteMachine, build, transitions

TOKENS = [b"a", b"b", b"ab", b"ba", b"", b"abba", b"c"] * 5  # 35: not a multiple of a word's 32 bits.
STOP = 4


def random_automaton(seed, states=9):
    rng = np.random.default_rng(seed)
    machine = ByteMachine(rng.integers(-1, states, (states, 256)).astype(np.int32), rng.random(states) < 0.3)
    table, token_class = transitions(machine, TOKENS)
    return machine, build(table, token_class, machine.accepting)


def bytes_walk(machine, state, text):
    for byte in text:
        if state < 0:
            break
        state = machine.next_state[state, byte]
    return int(state)


@pytest.mark.parametrize("seed", range(3))
def test_a_token_moves_as_its_bytes_do(seed):
    machine, automaton = random_automaton(seed)
    states = np.arange(len(machine.next_state))
    for token, text in enumerate(TOKENS):
        reached = automaton.step(jnp.asarray(states + START, jnp.int32), jnp.full(len(states), token, jnp.int32))
        expected = [bytes_walk(machine, state, text) for state in states]
        np.testing.assert_array_equal(reached, [state + START if state >= 0 else DEAD for state in expected])


def test_tokens_that_move_alike_share_a_column():
    machine, _ = random_automaton(0)
    table, token_class = transitions(machine, TOKENS)
    assert table.shape[1] == 7
    np.testing.assert_array_equal(token_class[:7], token_class[28:35])


@pytest.mark.parametrize("seed", range(3))
def test_allowed_tokens_are_those_that_do_not_lead_to_the_dead_state(seed):
    machine, automaton = random_automaton(seed)
    states = jnp.asarray([DEAD, FREE, *range(START, START + len(machine.next_state))], jnp.int32)
    vocabulary = jnp.arange(len(TOKENS), dtype=jnp.int32)
    step = jax.jit(automaton.step)
    expected = [step(jnp.full_like(vocabulary, state), vocabulary) != DEAD for state in states]
    np.testing.assert_array_equal(automaton.allowed(states), expected)
    np.testing.assert_array_equal(automaton.allowed(states[None, :, None])[0, :, 0], expected)
    assert not np.asarray(expected[0]).any()
    assert np.asarray(expected[1]).all()


def test_walking_a_path_equals_stepping_and_tracing_it():
    _, automaton = random_automaton(1)
    rng = np.random.default_rng(0)
    path = rng.integers(-1, len(TOKENS), (2, 4, 6)).astype(np.int32)
    start = jnp.array([START, FREE], jnp.int32)
    walked = automaton.walk(start, jnp.asarray(path))
    trace, step = jax.jit(automaton.trace), jax.jit(automaton.step)
    for node in range(4):
        state = start
        traced = trace(start, jnp.asarray(path[:, node]))
        for place in range(6):
            state = step(state, jnp.asarray(path[:, node, place]))
            np.testing.assert_array_equal(traced[:, place], state)
        np.testing.assert_array_equal(walked[:, node], state)


def test_an_empty_path_stays_where_it_is():
    _, automaton = random_automaton(1)
    np.testing.assert_array_equal(
        automaton.walk(automaton.start(3), jnp.zeros((3, 2, 0), jnp.int32)), [[START] * 2] * 3
    )
    assert automaton.trace(automaton.start(3), jnp.zeros((3, 0), jnp.int32)).shape == (3, 0)


def test_the_dead_state_is_never_left_and_matches_nothing():
    _, automaton = random_automaton(2)
    dead = jnp.full(len(TOKENS), DEAD, jnp.int32)
    np.testing.assert_array_equal(automaton.step(dead, jnp.arange(len(TOKENS), dtype=jnp.int32)), dead)
    assert not np.asarray(automaton.matched(jnp.array([DEAD, FREE]))).any()


def test_each_row_of_joined_automata_walks_as_it_would_alone():
    stops = stop_automaton(["abb"], TOKENS)
    words = regex_automaton("(?:ab)*c", TOKENS, stop_tokens=[STOP])
    joined, start = join([words, None, stops, words])
    assert start[0] == start[3]
    tokens = jnp.asarray(np.random.default_rng(4).integers(0, len(TOKENS), (300, 5)), jnp.int32)
    for row, alone in enumerate([words, None, stops]):
        reached = joined.trace(jnp.full(300, start[row]), tokens)
        if alone is None:
            assert (np.asarray(reached) == FREE).all()
            continue
        expected = alone.trace(alone.start(300), tokens)
        np.testing.assert_array_equal(joined.matched(reached), alone.matched(expected))
        np.testing.assert_array_equal(joined.allowed(reached), alone.allowed(expected))
        np.testing.assert_array_equal(reached == DEAD, expected == DEAD)


def test_one_automaton_for_some_rows_is_not_copied():
    _, automaton = random_automaton(0)
    joined, start = join([None, automaton, automaton])
    assert joined is automaton
    np.testing.assert_array_equal(start, [FREE, START, START])


def test_automata_over_different_vocabularies_do_not_join():
    _, automaton = random_automaton(0)
    with pytest.raises(ValueError, match=r"one vocabulary; got sizes \[3, 35\]"):
        join([automaton, stop_automaton(["a"], TOKENS[:3])])
    with pytest.raises(ValueError, match="at least one row"):
        join([None])


def test_another_automaton_of_about_the_same_size_compiles_nothing():
    step = jax.jit(lambda automaton, state, token: automaton.step(state, token))
    for stop in ("abc", "abbac", "ca"):
        automaton = stop_automaton([stop], TOKENS)
        step(automaton, automaton.start(1), jnp.zeros(1, jnp.int32))
    assert step._cache_size() == 1


def test_too_many_states_are_an_error():
    states = tables.MAX_STATES + 1
    with pytest.raises(ValueError, match=f"at most 16384 states; got {states}"):
        ByteMachine(np.zeros((states, 256), np.int8), np.zeros(states, bool))


def test_tables_that_would_be_too_large_are_an_error(monkeypatch):
    monkeypatch.setattr(tables, "MAX_BYTES", 5000)
    with pytest.raises(ValueError, match=r"at most 16384 states and 5000 bytes; got 96 states"):
        stop_automaton(["ab" * 40], TOKENS)
