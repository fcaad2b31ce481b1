import functools

import pytest

from jax_smash.draft.lookup import Lookup
from jax_smash.draft.trees.tree import chain, tree_from_ranks
from tests.drafting import follow_a_chat, plain_agreeing, plain_following, plain_tree


def plain_lookup(topology, text, drafter=Lookup()):  # noqa: B008 - frozen
    """Returns the tokens of the tree that prompt lookup proposes for a text."""
    looked_at = 1 if drafter.least else drafter.places
    agreeing = {place: plain_agreeing(text, place, drafter.max_ngram) for place in range(len(text) - 1)}
    places = sorted((p for p in agreeing if agreeing[p]), key=lambda p: (-agreeing[p], -p))[:looked_at]
    found = [(plain_following(text, p, topology.levels), 2 ** (drafter.places - i)) for i, p in enumerate(places)]
    return plain_tree(topology, text[-1], found, max(agreeing.values(), default=0), drafter.least)


def test_a_hand_worked_text():
    # "2 3" stood before 4 and, later, before 7; a lone "3" before 9.
    text = [1, 2, 3, 4, 2, 3, 7, 3, 9, 2, 3]
    assert plain_lookup(chain(3), text) == [3, 7, 3, 9]
    assert plain_lookup(tree_from_ranks([[0], [1], [2], [0, 0], [1, 0], [2, 0]]), text) == [3, 7, 4, 9, 3, 2, 2]


@pytest.mark.slow
def test_drafts_are_those_of_a_plain_program_over_two_turns_of_a_chat():
    found, expected = follow_a_chat("lookup", plain_lookup)
    assert found == expected
    assert any(draft[1] >= 0 for draft in found)


@pytest.mark.slow
def test_a_chain_stops_where_a_plain_program_has_it_stop():
    drafts = []
    for least in (0.1, 0.2):
        plain = functools.partial(plain_lookup, drafter=Lookup(least=least))
        found, expected = follow_a_chat("lookup", plain, tree=f"chain-4:least={least}")
        assert found == expected
        drafts += found
    assert {any(token >= 0 for token in draft[1:]) for draft in drafts} == {True, False}
    stopping = Lookup(least=0.2)
    assert plain_lookup(chain(2), [1, 2, 5, 7, 2], stopping) == [2, -1, -1]
    assert plain_lookup(chain(2), [1, 2, 5, 7, 1, 2], stopping) == [2, 5, 7]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_ngram": 0}, "max_ngram must be at least 1; got 0"),
        ({"places": 31}, "places must be from 1 to 30; got 31"),
    ],
)
def test_numbers_out_of_range_are_refused(fields, said):
    with pytest.raises(ValueError, match=said):
        Lookup(**fields)
