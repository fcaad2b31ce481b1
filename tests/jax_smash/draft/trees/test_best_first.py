import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.draft.trees.best_first import BEAM, FIRST, grow_best_first, grow_by

TOKENS = 30
RANKS = 4


def table(seed):
    """Returns random successors of each token, some missing, with probabilities that fall by rank."""
    rng = np.random.default_rng(seed)
    token = np.stack([rng.permutation(TOKENS)[:RANKS] for _ in range(TOKENS)])
    probability = -np.sort(-rng.dirichlet(np.ones(RANKS + 2), TOKENS)[:, :RANKS], axis=1)
    token[rng.random(token.shape) < 0.1] = -1
    return token.astype(np.int32), probability.astype(np.float32)


def grown(seed, roots, *, nodes, levels, most_rank=RANKS - 1):
    token, probability = map(jnp.asarray, table(seed))

    def children(above):
        return token[above], probability[above]

    grow = jax.jit(lambda root, rank: grow_best_first(root, children, nodes=nodes, levels=levels, most_rank=rank))
    return grow(jnp.asarray(roots, jnp.int32), jnp.int32(most_rank))


def every_path(seed, root, levels, most_rank=RANKS - 1):
    """Returns the ranks that lead to each place below a root, with the product of probabilities and the token there."""
    token, probability = table(seed)
    found = {(): (1.0, root)}
    for depth in range(levels):
        for path in [p for p in found if len(p) == depth]:
            product, above = found[path]
            for rank in range(most_rank + 1):
                if token[above, rank] >= 0:
                    found[*path, rank] = (product * float(probability[above, rank]), int(token[above, rank]))
    del found[()]
    return found


def rank_paths(tree, row):
    """Returns the ranks that lead to each drafted node, with its token, read from parents and ranks."""
    parent, rank, token, valid = (np.asarray(x)[row].tolist() for x in (tree.parent, tree.rank, tree.token, tree.valid))
    paths = {0: ()}
    for node in range(1, len(parent)):
        if valid[node]:
            paths[node] = (*paths[parent[node]], rank[node])
    return {path: token[node] for node, path in paths.items() if node}


@pytest.mark.parametrize(("seed", "nodes", "levels"), [(0, 2, 1), (1, 6, 2), (2, 20, 3), (3, BEAM + 1, 4)])
def test_no_tree_of_as_many_nodes_has_a_higher_sum_of_products(seed, nodes, levels):
    roots = [0, 7, 29]
    tree = grown(seed, roots, nodes=nodes, levels=levels)
    assert (tree.token.shape, tree.levels) == ((3, nodes), levels)
    assert tree.token[:, 0].tolist() == roots
    for row, root in enumerate(roots):
        expected, drafted = every_path(seed, root, levels), rank_paths(tree, row)
        assert all(expected[path][1] == token for path, token in drafted.items())
        best = sorted((product for product, _ in expected.values()), reverse=True)[: nodes - 1]
        np.testing.assert_allclose(sorted((expected[path][0] for path in drafted), reverse=True), best, rtol=1e-5)


def test_nodes_stand_behind_their_parents_and_depths_fit():
    tree = grown(4, [3, 4], nodes=25, levels=5)
    for row, node in itertools.product(range(2), range(1, 25)):
        above = int(tree.parent[row, node])
        assert above < node
        assert int(tree.depth[row, node]) == int(tree.depth[row, above]) + 1


def test_the_first_rank_alone_makes_a_chain():
    tree = grown(6, [1, 2], nodes=5, levels=4, most_rank=0)
    for row, root in enumerate((1, 2)):
        assert rank_paths(tree, row) == {p: t for p, (_, t) in every_path(6, root, 4, 0).items()}
        count = int(tree.valid[row].sum())
        assert tree.parent[row, :count].tolist() == [0, *range(count - 1)]


def test_places_that_nothing_is_found_for_are_not_proposed_and_no_trial():
    tree = grown(7, [5], nodes=12, levels=1)
    found = every_path(7, 5, 1)
    assert int(tree.valid.sum()) == 1 + len(found) < 12
    assert (tree.rank[~tree.valid] == -1).all()
    assert (tree.parent[~tree.valid] == 0).all()


def test_a_certain_successor_stands_below_its_parent():
    """Products of 1 tie along the whole path; the upper node must still come first."""

    def always(above):
        found = jnp.stack([above + 1, above + 2], axis=2)
        return found, jnp.broadcast_to(jnp.asarray([1.0, 0.0], jnp.float32), found.shape)

    grow = jax.jit(lambda root, rank: grow_best_first(root, always, nodes=4, levels=3, most_rank=rank))
    tree = grow(jnp.asarray([0], jnp.int32), jnp.int32(1))
    assert tree.token.tolist() == [[0, 1, 2, 3]]
    assert tree.parent.tolist() == [[0, 0, 1, 2]]


def test_a_root_alone_is_plain_decoding():
    tree = grown(0, [3], nodes=1, levels=0)
    assert (tree.token.tolist(), tree.valid.tolist(), tree.levels) == ([[3]], [[True]], 0)


def test_more_nodes_than_the_beam_are_filled_from_it():
    tree = grown(8, [2], nodes=80, levels=5)
    drafted, expected = rank_paths(tree, 0), every_path(8, 2, 5)
    assert len(drafted) == min(79, len(expected))
    total = sum(expected[path][0] for path in drafted)
    best = sum(sorted((product for product, _ in expected.values()), reverse=True)[:79])
    assert total > 0.98 * best


@pytest.mark.parametrize(("nodes", "levels"), [(9, 4), (5, 4), (3, 2)])
def test_the_chain_that_stays_is_in_the_tree_beside_the_likeliest_others(nodes, levels):
    token, probability = map(jnp.asarray, table(3))
    # A likeliest child that is hardly likely: without the chain, none of its descendants would stay.
    probability = probability * jnp.float32(0.01)

    def expand(carry, beam, depth):
        return carry, (token[beam.token], probability[beam.token])

    def grow(root, chain):
        first = token[root[:, None]], probability[root[:, None]]
        return grow_by(root, first, expand, None, nodes=nodes, levels=levels, beam=4, chain=chain)

    roots = [2, 5, 11]
    with_chain, without = (jax.jit(grow, static_argnums=1)(jnp.asarray(roots, jnp.int32), c) for c in (True, False))
    missing = 0
    for row, root in enumerate(roots):
        drafted, expected = rank_paths(with_chain, row), every_path(3, root, levels)
        chain = [(0,) * n for n in range(1, levels + 1) if (0,) * n in expected]
        assert {*chain} <= {*drafted}
        assert all(expected[path][1] == token for path, token in drafted.items())
        others = sorted((expected[p][0] for p in drafted if p not in chain), reverse=True)
        most = sorted((product for p, (product, _) in expected.items() if p not in chain), reverse=True)
        np.testing.assert_allclose(others[:1], most[: len(others)][:1], rtol=1e-5)
        missing += sum(path not in rank_paths(without, row) for path in chain)
    assert missing > 0


@pytest.mark.parametrize("chain", [False, True])
@pytest.mark.parametrize("least", [0.02, 0.1, 0.2])
def test_unlikely_nodes_are_not_proposed_nor_anything_where_no_first_one_is_likely(least, chain):
    token, probability = map(jnp.asarray, table(3))
    expanded = []

    def expand(carry, beam, depth):
        jax.debug.callback(lambda depth: expanded.append(int(depth)), depth)
        return carry, (token[beam.token], probability[beam.token])

    def grow(root):
        first = token[root[:, None]], probability[root[:, None]]
        return grow_by(root, first, expand, None, nodes=60, levels=4, beam=30, chain=chain, least=least)

    grow, empty, full = jax.jit(grow), 0, 0
    for root in range(TOKENS):
        drafted, every = rank_paths(grow(jnp.asarray([root], jnp.int32)), 0), every_path(3, root, 4)
        worth = max((p for path, (p, _) in every.items() if len(path) == 1), default=0.0) >= FIRST * least
        expected = {path: found for path, (p, found) in every.items() if worth and p >= least}
        assert drafted == expected
        empty, full = empty + (not expected), full + (len(expected) > 1)
        jax.effects_barrier()
        # A level that no node has come to is not read.
        assert max(expanded, default=0) == min(max((len(path) for path in expected), default=0), 3)
        expanded.clear()
    assert full
    assert empty or least < 0.1
