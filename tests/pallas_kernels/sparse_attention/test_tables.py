import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.sparse_attention import Pages, tables
from pallas_kernels.sparse_attention.cases import make
from tests.sparse_kernels import named


def steps(count, *numbers):
    """The steps that read so many pages: of each its KV head and block."""
    total, head, block = jax.jit(tables.steps, static_argnums=(1, 2, 3, 4))(jnp.asarray(count, jnp.int32), *numbers)
    assert not np.asarray(head)[int(total) :].any()
    assert not np.asarray(block)[int(total) :].any()
    assert len(head) > int(total)
    return list(zip(np.asarray(head)[: int(total)].tolist(), np.asarray(block)[: int(total)].tolist(), strict=True))


def test_a_head_has_as_many_steps_as_its_pages_make_blocks():
    assert steps([[5, 0], [2, 3]], 2, 2, 6, 1) == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (3, 0), (3, 1)]


def test_a_head_without_pages_has_a_step_a_tile_of_entries():
    assert steps([[0, 4]], 2, 4, 8, 2) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_heads_that_share_a_set_have_its_steps_each():
    assert steps([[3], [1]], 2, 2, 4, 1) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (3, 0)]


def test_every_head_has_its_most_pages_at_the_most():
    assert len(steps([[8, 8], [8, 8]], 2, 3, 8, 1)) == 4 * 3


def test_a_table_is_whole_whatever_lies_behind_its_count():
    pages = Pages(jnp.asarray([[[3, 9, -7], [2, 1, 0]]], jnp.int32), jnp.asarray([[1, 7]], jnp.int32))
    table, count, *_ = jax.jit(tables.whole, static_argnums=(1, 2))(pages, 64, 16)
    np.testing.assert_array_equal(table, [[[3, 0, 0], [2, 1, 0]]])
    np.testing.assert_array_equal(count, [[1, 3]])


def test_positions_come_page_by_page_and_are_hidden_behind_the_count():
    case = named("ragged rows")
    inputs, pages = make(case)
    pages = tables.whole(pages, case.slots, case.page_size)
    found = np.asarray(tables.chosen_positions(inputs, pages, case.page_size, 160))
    by_page = np.asarray(inputs.slot_position).reshape(2, -1, 32)
    assert found.shape == (2, 2, 160)
    np.testing.assert_array_equal(found[0, 1, :32], by_page[0, pages.table[0, 1, 0]])
    assert (found[0, 1, 32:] == tables.HIDDEN).all()


def test_slots_that_are_known_to_be_filled_have_no_position_looked_up():
    case = named("ragged rows")
    inputs, pages = make(case)
    pages = tables.whole(pages._replace(filled=jnp.asarray([[100, 7], [1, 64]], jnp.int32)), case.slots, 32)
    found = np.asarray(tables.chosen_positions(inputs, pages, 32, 160))
    # Of the second row's sets one is empty, and the other has two pages.
    assert (found == 0).sum(2).tolist() == [[100, 7], [0, 64]]
    assert ((found == 0) | (found == tables.HIDDEN)).all()
    assert (np.diff(found) >= 0).all()
