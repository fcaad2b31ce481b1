import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.tree_attention.cases import EMPTY, TESTS, Case, make, slot_positions
from pallas_kernels.tree_attention.inputs import Options
from pallas_kernels.tree_attention.rows import (
    entries,
    heads_side_by_side,
    needed_blocks,
    query_rows,
    row_positions,
    row_words,
)

BLOCK = 16


def needed(case, **changes):
    """The blocks that each batch row reads, of sixteen slots."""
    inputs = make(case)._replace(**changes)
    order, count = jax.jit(needed_blocks, static_argnums=(1, 2))(inputs, Options(scale=1.0, window=case.window), BLOCK)
    assert order.shape == (len(case.held), -(-case.slots // BLOCK))
    return [row[:many].tolist() for row, many in zip(np.asarray(order), np.asarray(count), strict=True)]


def test_a_row_reads_the_blocks_it_has_filled():
    assert needed(Case("", 3, 70, (0, 1, 16, 17, 70))) == [[], [0], [0], [0, 1], [0, 1, 2, 3, 4]]


def test_a_window_leaves_out_what_is_behind_it():
    assert needed(Case("", 1, 80, (80, 33), window=17)) == [[4], [1, 2]]


def test_a_cache_that_went_round_is_read_where_its_positions_say():
    # Position 95 is in slot 15: the window of 16 reaches back to position 80, in slot 0.
    assert needed(Case("", 1, 80, (96,), window=17)) == [[0]]
    assert needed(Case("", 1, 80, (88,), window=17)) == [[0, 4]]


def test_a_finished_row_reads_nothing():
    case = Case("", 3, 64, (64, 64))
    valid = jnp.asarray([[False, False, False], [True, True, True]])
    assert needed(case, valid=valid) == [[], [0, 1, 2, 3]]


def test_no_block_that_anyone_sees_is_left_out():
    for case in (case for case in TESTS if case.window or case.padding):
        inputs = make(case)
        position, slot = np.asarray(inputs.position)[:, :, None], np.asarray(inputs.slot_position)[:, None]
        seen = (slot <= position) & np.asarray(inputs.valid)[:, :, None]
        if case.window:
            seen &= slot > position - case.window
        for row, blocks in enumerate(needed(case)):
            assert {*(np.flatnonzero(seen[row].any(0)) // BLOCK).tolist()} <= {*blocks}


def test_rows_and_entries_are_each_others_inverse():
    inputs = make(TESTS[2])
    batch, width, heads, _ = inputs.query.shape
    rows = jax.jit(query_rows, static_argnums=(1, 2))(inputs.query, 1, 48)
    assert rows.shape[1:3] == (1, 48)
    np.testing.assert_array_equal(np.asarray(rows)[:, 0, 3 * heads + 2], np.asarray(inputs.query)[:, 3, 2])
    np.testing.assert_array_equal(jax.jit(entries, static_argnums=(1, 2))(rows, width, heads), inputs.query)
    position = np.asarray(jax.jit(row_positions, static_argnums=1)(inputs, 48))
    np.testing.assert_array_equal(position[:, : width * heads : heads], inputs.position)
    assert (position[:, width * heads :] == -1).all()
    assert row_words(inputs, 48, 2).shape == (batch, 48, 2)


def test_heads_lie_side_by_side_as_a_layer_makes_them():
    inputs = make(TESTS[1])
    (batch, width, heads, head_width), kv_heads = inputs.query.shape, inputs.key.shape[2]
    row = np.asarray(jax.jit(heads_side_by_side, static_argnums=1)(inputs, width + 3))
    assert row.shape == (batch, width + 3, (heads + 2 * kv_heads) * head_width)
    assert not row[:, width:].any()
    made = row[:, :width].reshape(batch, width, kv_heads, -1, head_width)
    np.testing.assert_array_equal(made[..., :-2, :].reshape(inputs.query.shape), inputs.query)
    np.testing.assert_array_equal(made[..., -2, :], inputs.key)
    np.testing.assert_array_equal(made[..., -1, :], inputs.value)


def test_padding_is_no_row_s_ancestor_and_has_none():
    case = next(case for case in TESTS if case.padding < 0)
    inputs = make(case)
    valid = np.asarray(inputs.valid)[0]
    group = case.heads // case.kv_heads
    words = np.asarray(row_words(inputs, case.nodes * group, 1))[0, ::group, 0]
    bits = (words[:, None] >> np.arange(case.nodes, dtype=np.uint32)) & 1
    assert (bits[~valid] == 0).all()
    assert (bits[:, ~valid] == 0).all()
    assert (np.diag(bits)[valid] == 1).all()


@pytest.mark.parametrize("held", [0, 3, 8, 13])
def test_slots_hold_the_latest_positions(held):
    (found,) = slot_positions(np.asarray([[held]]), 8)
    positions = {slot: p for p in range(held) for slot in [p % 8]}
    assert found.tolist() == [positions.get(slot, EMPTY) for slot in range(8)]
