import jax
import jax.numpy as jnp
import pytest

from jax_smash.draft.context import Context
from jax_smash.draft.hybrid import Hybrid, _first_nodes, _joined
from jax_smash.draft.lookup import Lookup
from jax_smash.draft.suffix import Suffix
from jax_smash.draft.trees.acceptance import prior_rates
from jax_smash.draft.trees.sizing import best_tree, expected_tokens
from jax_smash.draft.trees.templates import LEVELS, RANKS, named_tree
from jax_smash.draft.trees.tree import chain, grow, topology
from jax_smash.pytree import replace
from tests.drafting import proposed


def joined(tree_tokens, line_tokens):
    return joined_rows(tree_tokens, line_tokens, [len(line_tokens)], nodes=4 + len(line_tokens))


def joined_rows(tree_tokens, line_tokens, counts, *, nodes):
    """Joins a tree of four nodes and a chain, of which each row takes so many nodes."""
    tree = grow(topology([0, 0, 0, 1], levels=3), jnp.asarray([tree_tokens] * len(counts), jnp.int32))
    tokens = jnp.asarray([[tree_tokens[0], *line_tokens]] * len(counts), jnp.int32)
    line = grow(replace(chain(len(line_tokens)), levels=3), tokens)
    return _joined(tree, line, jnp.asarray(counts, jnp.int32), nodes=nodes, levels=3)


def paths(tree, row=0):
    """Returns the token paths of all valid nodes of a row."""
    every = tree.paths()[row].tolist()
    return sorted(
        [t for t in path if t >= 0] for path, valid in zip(every, tree.valid[row].tolist(), strict=True) if valid
    )


def test_a_chain_of_other_tokens_hangs_beside_the_tree():
    found = joined([9, 1, 2, 3], [5, 6])
    assert paths(found) == [[], [1], [1, 3], [2], [5], [5, 6]]


def test_a_chain_goes_on_from_the_branch_that_it_begins_like():
    found = joined([9, 1, 2, 3], [1, 3, 7])
    assert paths(found) == [[], [1], [1, 3], [1, 3, 7], [2]]
    assert paths(joined([9, 1, 2, 3], [2, 7, 8])) == [[], [1], [1, 3], [2], [2, 7], [2, 7, 8]]


def test_a_chain_that_the_tree_has_adds_nothing():
    assert paths(joined([9, 1, 2, 3], [1, 3])) == [[], [1], [1, 3], [2]]


def test_an_absent_chain_adds_nothing():
    assert paths(joined([9, 1, 2, 3], [-1, 4])) == [[], [1], [1, 3], [2]]


def test_no_path_stands_twice():
    every = paths(joined([9, 1, 1, 3], [1, 3]))
    assert every.count([1, 3]) == 1


def test_each_row_takes_as_many_of_the_chain_s_nodes_as_it_is_to_have():
    found = joined_rows([9, 1, 2, 3], [1, 3, 7], [0, 1, 2, 3], nodes=4)
    assert [paths(found, row) for row in range(4)] == [
        [[], [1], [1, 3], [2]],
        [[], [1], [2]],
        [[], [1], [1, 3]],
        [[], [1], [1, 3], [1, 3, 7]],
    ]
    assert found.rank.tolist() == [[0, 0, 1, 0], [0, 0, 1, -1], [0, 0, -1, -1], [0, -1, -1, -1]]


def test_the_chain_is_no_trial_of_the_tree_s_ranks():
    assert joined([9, 1, 2, 3], [5, 6]).rank.tolist() == [[0, 0, 1, 0, -1, -1]]


@pytest.mark.parametrize("drafted", [8, 15, 16, 79])
def test_the_nodes_that_make_room_are_the_least_likely(drafted):
    rates, tree = prior_rates(LEVELS, RANKS), named_tree(f"tree-{drafted}")
    line = Hybrid(tree=Lookup(), line=Lookup())._longest(tree)
    for room in (line, *((quarters * drafted + 2) // 4 for quarters in (1, 2, 3))):
        best = expected_tokens(rates, best_tree(rates, drafted - room))
        assert expected_tokens(rates, _first_nodes(tree, tree.nodes - room)) == pytest.approx(best, rel=1e-6)


@pytest.mark.slow
def test_a_chain_that_is_not_drafted_takes_no_room():
    """One token that stood before deserves a quarter of the budget, unless that is too little to draft at all."""
    text, count = jnp.asarray([[1, 2, 5, 7, 8, 9]], jnp.int32), jnp.asarray([6], jnp.int32)
    waiting = Context(
        pending=jnp.asarray([2], jnp.int32),
        token_length=count + 1,
        running=jnp.ones(1, bool),
        key=jax.random.split(jax.random.key(0), 1),
        processors=(),
        processed=(),
    )

    def drafted(line):
        hybrid = Hybrid(tree=Lookup(), line=line)
        own = tuple(kept.extended(text, count) for kept in hybrid.init({}, 1, 16, 1))
        return proposed(hybrid.propose({}, own, (None, None), waiting, chain(4))[0])[0]

    assert drafted(Suffix(least=0.2)) == [2, 5, 7, 8, 9]
    assert drafted(Suffix())[:4] == [2, 5, 7, 8]
    assert drafted(Suffix())[4] == -1
