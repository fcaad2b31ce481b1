import functools

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from eval.chips.kernel_bytes import Blocks, kernel_bytes
from pallas_kernels.tree_attention import tpu
from pallas_kernels.tree_attention.cases import Case, make
from pallas_kernels.tree_attention.rows import needed_blocks


def blocks(shape, block, index_map, dtype=jnp.float32):
    return Blocks(shape, dtype, block, index_map)


def test_a_piece_is_moved_where_it_changes():
    grid, tile = (2, 3), 8 * 128 * 4
    rows = blocks((16, 128), (8, 128), lambda i, j: (i, 0))
    columns = blocks((24, 128), (8, 128), lambda i, j: (j, 0))
    found = kernel_bytes(grid, [rows, columns], [rows])
    # Columns are read again for each row of the grid; a row stays while its columns go by.
    assert (found.read, found.written) == ((2 + 6) * tile, 2 * tile)


def test_a_piece_that_is_returned_to_at_once_is_not_moved_again():
    columns = blocks((24, 128), (8, 128), lambda i, j: (jnp.where(i % 2 == 0, j, 2 - j), 0))
    assert kernel_bytes((2, 3), [columns], []).read == 5 * 8 * 128 * 4


def test_what_lies_behind_the_array_is_not_moved():
    last = blocks((20, 128), (8, 128), lambda i: (i, 0))
    assert kernel_bytes((3,), [last], []).read == (8 + 8 + 8) * 128 * 4  # A tile of 8 rows is whole.
    far = blocks((2, 20, 128), (1, 16, 128), lambda i: (0, i, 0))
    assert kernel_bytes((2,), [far], []).read == 24 * 128 * 4


def test_few_rows_and_lanes_are_filled_up_to_tiles():
    assert kernel_bytes((1,), [blocks((1, 3, 5), (1, 3, 5), lambda i: (0, 0, 0))], []).read == 4 * 128 * 4


def test_index_maps_read_scalars():
    order = jnp.asarray([[2, 0, 0], [1, 1, 1]], jnp.int32)
    cached = blocks((2, 24, 128), (1, 8, 128), lambda i, j, order: (i, order[i, j], 0))
    assert kernel_bytes((2, 3), [cached], [], [order]).read == 3 * 8 * 128 * 4 + 6 * 4


def test_a_spec_without_blocks_is_refused():
    with pytest.raises(ValueError, match="block shape"):
        Blocks.of(pl.BlockSpec(), jnp.zeros((8, 128)))


@functools.cache
def called(case):
    """Returns the specs and operands with which tree attention calls its kernel, and the inputs of the call."""
    seen = {}
    call = pl.pallas_call

    def spy(kernel, *, grid_spec, **options):
        made = call(kernel, grid_spec=grid_spec, **options)

        def recorded(*operands):
            seen.update(spec=grid_spec, operands=operands, out=options["out_shape"])
            return made(*operands)

        return recorded

    inputs = make(case)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tpu.pl, "pallas_call", spy)
        tpu.attend(inputs, case.options, interpret=True)
    return seen, inputs


@pytest.mark.parametrize("held", [(300, 300), (300, 40)])
def test_tree_attention_reads_the_blocks_that_rows_need_once_a_tile(held, monkeypatch):
    monkeypatch.setattr(tpu, "MOST_SLOTS", 128)
    case = Case("two rows", 40, 512, held, heads=4, kv_heads=2, head_width=128)
    seen, inputs = called(case)
    spec, scalars = seen["spec"], seen["operands"][:2]
    grid = tuple(int(n) for n in spec.grid)
    reads = [Blocks.of(s, x) for s, x in zip(spec.in_specs, seen["operands"][2:], strict=True)]
    found = kernel_bytes(grid, reads, [Blocks.of(spec.out_specs, seen["out"])], scalars)
    assert found.written == seen["out"].size * 4 == 2 * 40 * 4 * 128 * 4
    _, count = needed_blocks(inputs, case.options, 128)
    cache = kernel_bytes(grid, reads[-2:], [], scalars).read - sum(x.size * 4 for x in scalars)
    assert cache == 2 * 2 * int(np.sum(count)) * 128 * 128 * 4
    assert cache < 2 * inputs.keys.size * 4
    # With entries in two tiles, each tile reads the cache again.
    monkeypatch.setattr(tpu, "MOST_ROWS", 64)
    called.cache_clear()
    again, _ = called(case)
    reads = [Blocks.of(s, x) for s, x in zip(again["spec"].in_specs, again["operands"][2:], strict=True)]
    grid = tuple(int(n) for n in again["spec"].grid)
    assert grid[2] == 2
    assert kernel_bytes(grid, reads[-2:], [], scalars).read > 1.5 * cache
