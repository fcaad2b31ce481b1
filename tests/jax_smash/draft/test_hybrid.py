import jax.numpy as jnp

from jax_smash.draft.hybrid import _joined
from jax_smash.draft.trees.tree import chain, grow, topology
from jax_smash.pytree import replace


def joined(tree_tokens, line_tokens):
    tree = grow(topology([0, 0, 0, 1], levels=3), jnp.asarray([tree_tokens], jnp.int32))
    line = grow(replace(chain(len(line_tokens)), levels=3), jnp.asarray([[tree_tokens[0], *line_tokens]], jnp.int32))
    return _joined(tree, line, 3)


def paths(tree):
    """Returns the token paths of all valid nodes."""
    every = tree.paths()[0].tolist()
    return sorted(
        [t for t in path if t >= 0] for path, valid in zip(every, tree.valid[0].tolist(), strict=True) if valid
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


def test_the_chain_is_no_trial_of_the_tree_s_ranks():
    assert joined([9, 1, 2, 3], [5, 6]).rank.tolist() == [[0, 0, 1, 0, -1, -1]]
