import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.draft.trees.acceptance import prior_rates
from jax_smash.draft.trees.sizing import expected_tokens, most_expected
from jax_smash.draft.trees.templates import LEVELS, RANKS, named_tree, published_recycling_tree
from jax_smash.draft.trees.tree import chain, grow, pack, topology, tree_from_ranks, tree_of, unpack, vectors_at
from jax_smash.draft.verify.accept import accept
from jax_smash.pytree import replace


def ancestors(parent, node):
    """Returns the nodes from one up to the root, by walking."""
    path = [node]
    while path[-1]:
        path.append(int(parent[path[-1]]))
    return path


def random_parents(rng, nodes):
    return [0, *(int(rng.integers(0, node)) for node in range(1, nodes))]


def test_a_vector_of_each_row_is_read_at_its_node_however_it_is_read(monkeypatch):
    values = jax.random.normal(jax.random.key(0), (3, 5, 40))
    node = jnp.asarray([4, 0, 2], jnp.int32)
    wanted = np.asarray(values)[np.arange(3), np.asarray(node)][:, None]
    np.testing.assert_array_equal(jax.jit(vectors_at)(values, node), wanted)
    # As on a TPU.
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *arrays, tpu, default: tpu(*arrays))
    np.testing.assert_array_equal(jax.jit(lambda *arrays: vectors_at(*arrays))(values, node), wanted)


@pytest.mark.parametrize("nodes", [1, 2, 31, 32, 33, 81])
def test_ancestor_bits_are_those_of_a_walk_to_the_root(nodes):
    parent = random_parents(np.random.default_rng(nodes), nodes)
    tree = topology(parent)
    seen = unpack(tree.ancestors, nodes)
    for node in range(nodes):
        assert set(np.flatnonzero(seen[node]).tolist()) == set(ancestors(parent, node))
        assert int(tree.depth[node]) == len(ancestors(parent, node)) - 1


def test_packing_and_unpacking_give_back_the_flags():
    flags = jnp.asarray(np.random.default_rng(0).random((3, 70)) < 0.5)
    np.testing.assert_array_equal(unpack(pack(flags), 70), flags)


def test_a_tree_made_on_the_device_is_that_of_the_host():
    rng = np.random.default_rng(1)
    parents = [random_parents(rng, 20) for _ in range(3)]
    levels = max(topology(p).levels for p in parents)
    token = jnp.asarray(rng.integers(0, 99, (3, 20)), jnp.int32)
    made = jax.jit(tree_of, static_argnames="levels")(
        token, jnp.asarray(parents, jnp.int32), jnp.ones((3, 20), bool), levels=levels
    )
    for row, parent in enumerate(parents):
        np.testing.assert_array_equal(made.ancestors[row], topology(parent).ancestors)
        np.testing.assert_array_equal(made.depth[row], topology(parent).depth)


def test_what_hangs_below_an_absent_node_is_absent():
    shape = topology([0, 0, 0, 1, 2, 3])
    tree = grow(shape, jnp.asarray([[7, -1, 4, 5, 6, 8], [7, 1, -1, 5, 6, -1]], jnp.int32))
    assert tree.valid.tolist() == [[True, False, True, False, True, False], [True, True, False, True, False, False]]


def paths_of(tree, row):
    """Returns the tokens on the path to each valid node, with its rank."""
    path, valid, rank = np.asarray(tree.paths())[row], np.asarray(tree.valid)[row], np.asarray(tree.rank)[row]
    return {(tuple(t for t in p.tolist() if t >= 0), int(r)) for p, v, r in zip(path, valid, rank, strict=True) if v}


def with_gaps(nodes, rows, seed):
    """Returns a tree of random shape in which a third of the nodes, and what hangs below them, are absent."""
    rng = np.random.default_rng(seed)
    token = rng.integers(0, 99, (rows, nodes))
    token[rng.random(token.shape) < 0.3] = -1
    token[:, 0] = 7
    return grow(topology(random_parents(rng, nodes)), jnp.asarray(token, jnp.int32))


@pytest.mark.parametrize("nodes", [1, 2, 9, 40])
def test_valid_nodes_come_first_and_the_tree_stays_the_same(nodes):
    tree = with_gaps(nodes, 4, nodes)
    moved = jax.jit(lambda tree: tree.valid_first())(tree)
    count = np.asarray(tree.valid).sum(1)
    np.testing.assert_array_equal(moved.valid, np.arange(nodes)[None] < count[:, None])
    assert (np.asarray(moved.parent)[:, 1:] < np.arange(1, nodes)).all()
    for row in range(4):
        assert paths_of(moved, row) == paths_of(tree, row)
        assert sorted(np.asarray(moved.token)[row]) == sorted(np.asarray(tree.token)[row])


def test_what_a_node_sees_moves_with_it_whatever_its_parent():
    tree = grow(topology([0, 0, 0]), jnp.asarray([[7, -1, 5]], jnp.int32))
    assert tree.ancestors[0, :, 0].tolist() == [0b001, 0b011, 0b101]
    assert tree.valid_first().ancestors[0, :, 0].tolist() == [0b001, 0b011, 0b101]
    blind = replace(tree, ancestors=tree.ancestors.at[0, 2, 0].set(0b100))
    assert blind.valid_first().ancestors[0, :, 0].tolist() == [0b001, 0b010, 0b101]


@pytest.mark.parametrize("nodes", [1, 5, 32, 33])
def test_the_first_nodes_are_a_tree_of_their_own(nodes):
    tree = with_gaps(40, 3, nodes)
    first = tree.first(nodes)
    assert first.ancestors.shape == (3, nodes, -(-nodes // 32))
    for row in range(3):
        assert paths_of(first, row) <= paths_of(tree, row)
    np.testing.assert_array_equal(first.paths(), np.asarray(tree.paths())[:, :nodes])


def test_paths_hold_the_tokens_below_the_root():
    tree = grow(topology([0, 0, 1, 1, 3]), jnp.asarray([[9, 1, 2, 3, 4]], jnp.int32))
    assert tree.paths()[0].tolist() == [[-1, -1, -1], [1, -1, -1], [1, 2, -1], [1, 3, -1], [1, 3, 4]]


def test_the_published_template_has_its_published_sizes():
    tree = published_recycling_tree()
    assert np.bincount(tree.depth).tolist() == [1, 8, 21, 25, 15, 8, 3]
    assert tree.nodes - len(set(tree.parent.tolist())) == 40  # Leaves.


def test_the_template_has_a_multiple_of_eight_nodes():
    tree = named_tree("recycling-80")
    assert (tree.nodes, tree.levels) == (80, 6)
    assert np.bincount(tree.depth).tolist() == [1, 8, 21, 24, 15, 8, 3]


@pytest.mark.parametrize(("nodes", "padded"), [(1, 1), (2, 8), (8, 8), (9, 16), (33, 40)])
def test_a_padded_tree_has_invalid_nodes_behind_its_own(nodes, padded):
    tree = grow(chain(nodes - 1) if nodes > 1 else topology([0]), jnp.ones((2, nodes), jnp.int32))
    wide = tree.padded(8)
    assert wide.token.shape == (2, padded)
    np.testing.assert_array_equal(wide.valid, np.broadcast_to(np.arange(padded) < nodes, (2, padded)))
    np.testing.assert_array_equal(wide.ancestors[:, :nodes, : tree.ancestors.shape[2]], tree.ancestors)
    seen = np.asarray(unpack(wide.ancestors, padded))
    assert (seen[:, nodes:] == np.eye(padded, dtype=bool)[nodes:]).all()
    accepted = accept(wide, jnp.ones((2, padded), jnp.int32))
    np.testing.assert_array_equal(accepted.count, [nodes, nodes])


def test_ranks_and_parents_name_the_same_tree():
    a, b = tree_from_ranks([[1], [0], [0, 2], [0, 0]]), topology([-1, 0, 0, 1, 1], [0, 0, 1, 0, 2])
    np.testing.assert_array_equal(a.parent, b.parent)
    np.testing.assert_array_equal(a.rank, b.rank)
    np.testing.assert_array_equal(a.ancestors, b.ancestors)


def test_a_tree_of_a_size_is_the_one_of_which_most_is_expected():
    tree = named_tree("tree-15")
    assert tree.nodes == 16
    rates = prior_rates(LEVELS, RANKS)
    assert expected_tokens(rates, tree) == pytest.approx(most_expected(rates, 15), rel=1e-5)
    assert int(tree.rank.max()) > 0


def test_a_chain_hangs_each_node_below_the_one_before():
    assert chain(3).parent.tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize(
    ("parent", "message"),
    [
        ([0, 2, 1], "cycle"),
        ([0, 1], "node 1 is its own ancestor"),
        ([0, 0, 5], "node 2 has no parent in the tree of 3 nodes"),
        ([0, 0, -1], "node 2 has no parent"),
        ([0, 2, 0], "node 1 stands before its parent 2"),
        ([1, 0], "node 0 must be the root"),
        ([], "node 0 must be the root"),
    ],
)
def test_what_is_no_tree_is_refused(parent, message):
    with pytest.raises(ValueError, match=message):
        topology(parent)


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([[0, 0]], "has no parent"),
        ([[0], [0]], "stands twice"),
        ([[]], "is the root"),
        ([[-1]], "rank"),
    ],
)
def test_ranks_that_are_no_tree_are_refused(paths, message):
    with pytest.raises(ValueError, match=message):
        tree_from_ranks(paths)


@pytest.mark.parametrize("name", ["chain-0", "chain", "chain--1", "tree-0", "tree-", "bush", "absent.json"])
def test_an_unknown_tree_is_refused(name):
    with pytest.raises((ValueError, OSError)):
        named_tree(name)


@pytest.mark.parametrize("content", ["{", '{"parent": [0]}', "[[0], 3]", '{"parents": [0, 2, 1]}', '"x"'])
def test_a_file_without_a_tree_is_named(tmp_path, content):
    file = tmp_path / "tree.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=r"tree\.json"):
        named_tree(str(file))


def test_a_tree_is_read_from_a_file(tmp_path):
    file = tmp_path / "tree.json"
    file.write_text("[[0], [1], [0, 0]]")
    assert named_tree(str(file)).parent.tolist() == [0, 0, 0, 1]
    file.write_text("[]")
    assert named_tree(str(file)).nodes == 1


def test_nodes_of_named_trees_stand_likeliest_first(tmp_path):
    file, rates = tmp_path / "tree.json", prior_rates(LEVELS, RANKS)
    file.write_text("[[0], [1], [2], [3], [0, 0], [2, 0], [0, 0, 0]]")
    for name in ("tree-15", "tree-79", "recycling-80", str(file)):
        tree, kept = named_tree(name), [1.0]
        for parent, depth, rank in np.stack([tree.parent, tree.depth, tree.rank], axis=1).tolist()[1:]:
            kept.append(kept[parent] * float(rates[depth - 1, rank]))
        assert all(after <= before * (1 + 1e-6) for before, after in itertools.pairwise(kept)), name
