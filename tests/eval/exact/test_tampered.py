import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eval.exact.tampered import FirstChildren, FlippedBit, Padded, Reordered, SkippedAtNodes
from jax_smash.draft.context import Outcome
from jax_smash.draft.trees.tree import grow, topology, tree_of, unpack
from jax_smash.draft.verify.accept import accept
from jax_smash.protocols import LogitsProcessor
from jax_smash.sampling import LogitBias

PARENT = [0, 0, 0, 0, 1, 1, 2, 4, 4]
TOKENS = [9, 10, 11, 12, 20, 21, 22, 30, 31]


@pytest.fixture
def tree():
    token = jnp.asarray([TOKENS, TOKENS[::-1]], jnp.int32).at[1, 5].set(-1)
    return grow(topology(PARENT), token)


@functools.partial(jax.jit, static_argnames="tamper")  # Op by op, every operation would be compiled alone.
def tampered(tree, tamper):
    return tamper.change(tree)


@functools.partial(jax.jit, static_argnames="tamper")
def restored(seen, tamper):
    return tamper.restore(seen)


@jax.jit
def verified(tree):
    batch, nodes = tree.token.shape
    target = jnp.asarray([[10, 20, 1, 1, 31, 1, 1, 1, 1, *[10] * (nodes - 9)], [1] * nodes], jnp.int32)
    row, node = jnp.meshgrid(jnp.arange(batch), jnp.arange(nodes), indexing="ij")
    each = (100 * row + node).astype(jnp.float32)[:, :, None]
    return Outcome(
        tree=tree,
        target=target,
        likeliest=None,
        hidden=each,
        taps=(each, each + 1),
        pending=target[:, 0],
        accepted=accept(tree, target),
        count=jnp.asarray([4, 1], jnp.int32),
        running=jnp.ones(batch, bool),
    )


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def paths(tree):
    """Returns, of each row, the paths to valid nodes."""
    return [
        sorted(map(tuple, row[valid].tolist()))
        for row, valid in zip(np.asarray(tree.paths()), np.asarray(tree.valid), strict=True)
    ]


def test_padding_leaves_the_mask_of_the_tree_s_own_nodes_alone(tree):
    padded = tampered(tree, Padded(None, extra=40))
    assert padded.token.shape == (2, 49)
    np.testing.assert_array_equal(padded.block.mask()[:, :9, :9], tree.block.mask())
    assert not padded.block.mask()[:, :9, 9:].any()
    assert not padded.valid[:, 9:].any()


def test_a_padding_node_would_be_accepted_were_it_valid(tree):
    padded = tampered(tree, Padded(None, extra=1))
    np.testing.assert_array_equal(padded.token[:, 9], tree.token[:, 1])
    np.testing.assert_array_equal(unpack(padded.ancestors, 10)[:, 9], [[True, *[False] * 8, True]] * 2)


def test_the_drafter_does_not_see_the_padding(tree):
    change = Padded(None, extra=40)
    seen = restored(verified(tampered(tree, change)), change)
    same(seen, verified(tree))


def test_swapped_siblings_make_the_same_tree_in_another_order(tree):
    swapped = tampered(tree, Reordered(None))
    assert swapped.token[0].tolist() == [9, 11, 10, 12, 20, 21, 22, 31, 30]
    assert paths(swapped) == paths(tree)
    assert not np.array_equal(swapped.ancestors, tree.ancestors)


def test_swapped_bits_and_parents_belong_together(tree):
    swapped = tampered(tree, Reordered(None))
    same(tree_of(swapped.token, swapped.parent, swapped.valid, levels=3), dataclasses.replace(swapped, rank=None))


def test_the_drafter_sees_siblings_where_it_put_them(tree):
    change = Reordered(None)
    swapped = tampered(tree, change)
    order = jnp.asarray([[0, 2, 1, 3, 4, 5, 6, 8, 7]] * 2, jnp.int32)
    plain = verified(tree)
    moved = {
        "target": jnp.take_along_axis(plain.target, order, axis=1),
        "hidden": jnp.take_along_axis(plain.hidden, order[:, :, None], axis=1),
        "taps": tuple(jnp.take_along_axis(leaf, order[:, :, None], axis=1) for leaf in plain.taps),
    }
    seen = dataclasses.replace(verified(swapped), **moved, accepted=accept(swapped, moved["target"]))
    back = restored(seen, change)
    count = int(plain.accepted.count[0])
    assert count == 4
    assert back.accepted.path[0, :count].tolist() == plain.accepted.path[0, :count].tolist() == [0, 1, 4, 8]
    same(dataclasses.replace(back, accepted=plain.accepted), plain)


def test_first_children_are_a_chain(tree):
    chain = tampered(tree, FirstChildren(None))
    assert paths(chain)[0] == sorted([(-1, -1, -1), (10, -1, -1), (10, 20, -1), (10, 20, 30)])


def test_a_sibling_takes_the_place_of_one_that_is_not_valid(tree):
    missing = grow(topology(PARENT), tree.token.at[:, 1].set(-1))
    assert paths(tampered(missing, FirstChildren(None)))[0] == sorted([(-1, -1, -1), (11, -1, -1), (11, 22, -1)])


def test_one_flipped_bit_is_one_entry_of_the_mask(tree):
    flipped = tampered(tree, FlippedBit(None))
    changed = np.argwhere(np.asarray(flipped.block.mask() != tree.block.mask()))
    assert changed.tolist() == [[0, 1, 0], [1, 1, 0]]


def test_any_bit_can_be_flipped(tree):
    wide = tampered(tree, Padded(None, extra=40))
    flipped = tampered(wide, FlippedBit(None, node=44, ancestor=44))
    changed = np.argwhere(np.asarray(unpack(flipped.ancestors, 49) != unpack(wide.ancestors, 49)))
    assert changed.tolist() == [[0, 44, 44], [1, 44, 44]]


def test_a_skipped_processor_still_works_at_the_root():
    bias = LogitBias(tokens=jnp.asarray([[2]], jnp.int32), bias=jnp.asarray([[5.0]], jnp.float32))
    skipped = SkippedAtNodes(processor=bias)
    assert isinstance(skipped, LogitsProcessor)
    path = jnp.asarray([[[-1, -1], [7, -1]]], jnp.int32)
    logits = skipped.apply((), jnp.zeros((1, 2, 4), jnp.float32), path)
    assert logits.tolist() == [[[0, 0, 5, 0], [0, 0, 0, 0]]]
