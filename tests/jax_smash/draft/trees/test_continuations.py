import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.draft.trees.continuations import tree_of_continuations
from jax_smash.draft.trees.templates import named_tree
from jax_smash.draft.trees.tree import topology, tree_from_ranks
from tests.drafting import plain_tree, proposed

merged = jax.jit(tree_of_continuations, static_argnames="least")


def tokens(tree, continuations, pending=50, agreeing=0, least=0.0):
    token = jnp.asarray([[c for c, _ in continuations]], jnp.int32)
    weight = jnp.asarray([[w for _, w in continuations]], jnp.int32)
    agreeing, pending = (jnp.asarray([x], jnp.int32) for x in (agreeing, pending))
    return proposed(merged(tree, pending, token, weight, agreeing=agreeing, least=least))[0]


def test_continuations_share_the_nodes_of_their_common_beginning():
    tree = tree_from_ranks([[0], [1], [0, 0], [0, 1], [1, 0]])
    assert tokens(tree, [([1, 2], 1), ([1, 3], 1), ([4, 5], 1)]) == [50, 1, 4, 2, 3, 5]


def test_the_heaviest_child_comes_first_and_of_equal_ones_the_earliest():
    tree = tree_from_ranks([[0], [1], [2], [0, 0], [1, 0]])
    found = [([1, 9], 3), ([2, 8], 2), ([3, 7], 5), ([2, 6], 3)]
    assert tokens(tree, found) == [50, 2, 3, 1, 6, 7]


def test_nothing_is_proposed_where_no_continuation_goes():
    tree = tree_from_ranks([[0], [1], [2], [0, 0], [1, 0]])
    assert tokens(tree, [([1, -1], 1), ([2, 3], 1), ([7, 7], 0)]) == [50, 1, 2, -1, -1, 3]
    assert tokens(tree, [([-1, 3], 1), ([2, 3], 1), ([7, 7], 0)]) == [50, 2, -1, -1, 3, -1]


def test_a_root_alone_proposes_nothing():
    tree = merged(topology([0]), jnp.asarray([5], jnp.int32), jnp.zeros((1, 3, 0), jnp.int32), jnp.ones((1, 3), int))
    assert proposed(tree) == [[5]]


@pytest.mark.parametrize("name", ["chain-1", "chain-6", "recycling-80"])
def test_random_continuations_make_the_tree_of_a_plain_program(name):
    tree, rng = named_tree(name), np.random.default_rng(1)
    for _ in range(20):
        token = rng.choice([-1, 0, 1, 2], size=(7, tree.levels), p=[0.05, 0.4, 0.3, 0.25]).tolist()
        weight = rng.integers(0, 4, 7).tolist()
        found = list(zip(token, weight, strict=True))
        assert tokens(tree, found) == plain_tree(tree, 50, found)


def test_unlikely_tokens_are_left_out():
    tree, found = tree_from_ranks([[0], [1], [0, 0]]), [([1, 2], 3), ([4, 5], 1)]
    # Of one agreeing token: 3/4 · 1/2 and, below it, 3/4 · 1/2 · 3/4; the other child of the root has 1/4 · 1/2.
    assert tokens(tree, found, agreeing=1, least=0.12) == [50, 1, 4, 2]
    assert tokens(tree, found, agreeing=1, least=0.124) == [50, 1, 4, 2]
    assert tokens(tree, found, agreeing=1, least=0.126) == [50, -1, -1, -1]  # 3/8 is less than three times as much.
    assert tokens(tree, found, agreeing=9, least=0.2) == [50, 1, 4, 2]
    assert tokens(tree, found, agreeing=9, least=0.25) == [50, -1, -1, -1]
    assert tokens(tree, [([1, 2], 7), ([4, 5], 1)], agreeing=9, least=0.2) == [50, 1, -1, 2]


@pytest.mark.parametrize("least", [0.05, 0.17, 0.28])
def test_what_is_left_out_is_what_a_plain_program_leaves_out(least):
    tree, rng, left = named_tree("recycling-80"), np.random.default_rng(3), 0
    for _ in range(20):
        token = rng.choice([-1, 0, 1, 2], size=(7, tree.levels), p=[0.05, 0.7, 0.15, 0.1]).tolist()
        found = list(zip(token, rng.integers(0, 4, 7).tolist(), strict=True))
        agreeing = int(rng.integers(1, 6))
        made = tokens(tree, found, agreeing=agreeing, least=least)
        assert made == plain_tree(tree, 50, found, agreeing, least)
        left += made.count(-1) > tokens(tree, found).count(-1)
    assert left


def test_rows_do_not_meet():
    tree, rng = named_tree("recycling-80"), np.random.default_rng(2)
    token, weight = rng.integers(0, 3, (3, 5, 6)), rng.integers(0, 3, (3, 5))
    pending = jnp.arange(3, dtype=jnp.int32)
    together = proposed(merged(tree, pending, jnp.asarray(token, jnp.int32), jnp.asarray(weight, jnp.int32)))
    for row in range(3):
        assert together[row] == plain_tree(tree, row, list(zip(token[row].tolist(), weight[row].tolist(), strict=True)))


def test_a_looser_bound_on_the_depth_changes_nothing():
    paths = [[0], [1], [0, 0], [0, 1]]
    found = [([1, 2, 9, 9], 1), ([1, 3, 9, 9], 1), ([4, 5, 9, 9], 1)]
    short = [(c[:2], w) for c, w in found]
    assert tokens(tree_from_ranks(paths, levels=4), found) == tokens(tree_from_ranks(paths), short)
