import itertools

import jax
import jax.numpy as jnp
import numpy as np

from jax_smash.draft.trees.tree import grow, topology
from jax_smash.draft.verify.accept import accept


def by_walking(tree, target, row):
    """Returns the longest agreed path of a row, by trying every node."""
    best = [0]
    for node in range(tree.token.shape[1]):
        path, at = [], node
        while at:
            path.append(at)
            at = int(tree.parent[row, at])
        path = [0, *reversed(path)]
        agrees = all(
            bool(tree.valid[row, child]) and int(tree.token[row, child]) == int(target[row, above])
            for above, child in itertools.pairwise(path)
        )
        if agrees and len(path) > len(best):
            best = path
    return best


def test_the_longest_agreed_path_is_kept_as_by_trying_all():
    rng = np.random.default_rng(0)
    rows, nodes = 64, 24
    parent = [0, *(int(rng.integers(0, n)) for n in range(1, nodes))]
    # Three tokens only, so that paths agree often and siblings repeat.
    token = rng.integers(-1, 3, (rows, nodes))
    tree = grow(topology(parent), jnp.asarray(token, jnp.int32))
    target = jnp.asarray(rng.integers(0, 3, (rows, nodes)), jnp.int32)
    accepted = jax.jit(accept)(tree, target)
    lengths = set()
    for row in range(rows):
        expected = by_walking(tree, target, row)
        count = int(accepted.count[row])
        assert count == len(expected)
        path = accepted.path[row, :count].tolist()
        assert [int(tree.token[row, n]) for n in path[1:]] == [int(tree.token[row, n]) for n in expected[1:]]
        assert all(int(tree.parent[row, b]) == a for a, b in itertools.pairwise(path))
        lengths.add(count)
    assert len(lengths) > 3


def test_a_rejected_node_takes_its_subtree_with_it():
    tree = grow(topology([0, 0, 1]), jnp.asarray([[5, 6, 7]], jnp.int32))
    assert accept(tree, jnp.asarray([[0, 7, 0]], jnp.int32)).count.tolist() == [1]
    assert accept(tree, jnp.asarray([[6, 7, 0]], jnp.int32)).count.tolist() == [3]


def test_a_root_alone_is_always_kept():
    tree = grow(topology([0]), jnp.asarray([[3], [4]], jnp.int32))
    accepted = accept(tree, jnp.asarray([[1], [2]], jnp.int32))
    assert accepted.count.tolist() == [1, 1]
    assert accepted.path.tolist() == [[0], [0]]
