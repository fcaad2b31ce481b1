import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.draft.context import Context
from jax_smash.draft.suffix import HEAVIEST, Suffix
from jax_smash.draft.trees.tree import chain
from tests.drafting import follow_a_chat, plain_agreeing, plain_following, plain_tree


def plain_suffix(topology, text, drafter=Suffix()):  # noqa: B008 - frozen
    """Returns the tokens of the tree that a suffix index proposes for a text."""
    agreeing = {place: plain_agreeing(text, place, len(text)) for place in range(len(text) - 1)}
    places = sorted((p for p in agreeing if agreeing[p]), key=lambda p: (-agreeing[p], -p))[: drafter.places]
    found = [(plain_following(text, p, topology.levels), 2 ** min(agreeing[p], HEAVIEST)) for p in places]
    return plain_tree(topology, text[-1], found, max(agreeing.values(), default=0), drafter.least)


def test_a_longer_match_wins_and_of_equally_long_ones_the_frequent_continuation():
    # "1 2 3" stood before 4 once; "2 3" before 5 twice and before 6 once, at the latest.
    assert plain_suffix(chain(1), [1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3]) == [3, 4]
    assert plain_suffix(chain(1), [9, 2, 3, 5, 8, 2, 3, 5, 7, 2, 3, 6, 0, 2, 3]) == [3, 5]


@pytest.mark.parametrize("pieces", [1, 2, 5, 16])
def test_the_index_grown_piece_by_piece_knows_the_longest_match_of_every_place(pieces):
    rng = np.random.default_rng(pieces)
    text = np.concatenate([rng.integers(0, 2, 30), np.tile([0, 1, 1], 7), rng.integers(0, 3, 9)]).tolist()
    then = jax.jit(lambda index, token, count: index.extended(token, count))
    index, read = Suffix().init({}, 2, 64, 1), [[], []]
    while len(read[0]) < len(text):
        count = [min(int(rng.integers(0, pieces + 1)), len(text) - len(row)) for row in read]
        token = np.full((2, pieces), 1, np.int32)
        for row in range(2):
            token[row, : count[row]] = text[len(read[row]) : len(read[row]) + count[row]]
            read[row] += text[len(read[row]) : len(read[row]) + count[row]]
        index = then(index, jnp.asarray(token), jnp.asarray(count, jnp.int32))
        for row, known in enumerate(read):
            expected = [plain_agreeing(known, place, len(known)) for place in range(len(known) - 1)]
            assert index.agreeing[row, : max(len(known) - 1, 0)].tolist() == expected


def test_drafts_are_those_of_a_plain_program_over_two_turns_of_a_chat():
    found, expected = follow_a_chat("suffix", plain_suffix)
    assert found == expected
    assert any(draft[1] >= 0 for draft in found)


@pytest.mark.slow
def test_a_chain_stops_where_a_plain_program_has_it_stop():
    stopping = Suffix(least=0.2)
    found, expected = follow_a_chat(
        "suffix", functools.partial(plain_suffix, drafter=stopping), tree="chain-4:least=0.2"
    )
    assert found == expected
    assert {any(token >= 0 for token in draft[1:]) for draft in found} == {True, False}
    # One token that agrees says too little; of two, what follows counts while the places do not differ.
    assert plain_suffix(chain(3), [1, 2, 5, 2], stopping) == [2, -1, -1, -1]
    assert plain_suffix(chain(3), [1, 2, 5, 7, 8, 1, 2], stopping) == [2, 5, 7, 8]
    assert plain_suffix(chain(2), [1, 2, 5, 7, 1, 2, 6, 8, 1, 2], stopping) == [2, -1, -1]


@pytest.mark.slow
def test_a_longer_ending_that_was_there_before_deserves_a_larger_part():
    rows = [[1, 2, 3, 4], [1, 2, 0, 3, 1], [1, 2, 0, 1, 2], [1, 2, 3, 0, 1, 2, 3], [1, 2, 3, 4, 5, 1, 2, 3, 4]]
    count = jnp.asarray([len(row) - 1 for row in rows], jnp.int32)
    token = jnp.asarray([row[:-1] + [0] * (9 - len(row)) for row in rows], jnp.int32)
    index = Suffix().init({}, len(rows), 16, 1).extended(token, count)
    waiting = Context(
        pending=jnp.asarray([row[-1] for row in rows], jnp.int32),
        token_length=count + 1,
        running=jnp.ones(len(rows), bool),
        key=jax.random.split(jax.random.key(0), len(rows)),
        processors=(),
        processed=(),
    )
    assert Suffix().quarters(index, waiting).tolist() == [0, 1, 2, 3, 3]


def test_no_places_are_refused():
    with pytest.raises(ValueError, match="places must be at least 1; got 0"):
        Suffix(places=0)
