import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_smash.cache as cache_module
from jax_smash import cpu
from jax_smash.cache import EMPTY, Block, Write, after, init_cache


def test_an_entry_sees_only_its_own_segment():
    segments = jnp.array([[1, 1, 2, 2, 0]], jnp.int32)
    valid = jnp.array([[True, True, True, True, False]])
    expected = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 0]]
    np.testing.assert_array_equal(Block.causal(valid, segments).mask()[0], np.array(expected, bool))


def test_ancestor_bits_say_who_sees_whom():
    generator = np.random.default_rng(0)
    seen = generator.random((2, 40, 40)) < 0.3
    words = np.zeros((2, 40, 2), np.uint32)
    for row, entry, other in zip(*np.nonzero(seen), strict=True):
        words[row, entry, other // 32] |= np.uint32(1 << (other % 32))
    valid = generator.random((2, 40)) < 0.8
    block = Block(valid=jnp.asarray(valid), ancestors=jnp.asarray(words))
    np.testing.assert_array_equal(block.mask(), seen & valid[:, None, :])


HEADS, WIDTH, WINDOW, BLOCK = 2, 4, 10, 6


def empty_cache(batch, slots):
    return init_cache(
        kinds=("full", "sliding"),
        layer_kinds=("full", "sliding"),
        window=WINDOW,
        batch=batch,
        slots=slots,
        block=BLOCK,
        num_kv_heads=HEADS,
        head_width=WIDTH,
        dtype=jnp.float32,
    )


def plain_commit(held, keys, position, count, path):
    """Appends entries to a list a row: what each slot holds follows from the list."""
    for row, entries in enumerate(held):
        for i in range(count[row]):
            entry = path[row][i] if path is not None else i
            entries.append((position[row, entry], keys[row, entry]))


WRITERS = {
    "by array": lambda *arrays, rotating: cache_module._write_by_array(*arrays),
    "by entry": lambda *arrays, rotating: cpu.write_by_entry(cache_module._write_by_array, *arrays),
    "by row": cache_module._write_by_row,
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(("batch", "width"), [(1, 1), (3, 1), (3, BLOCK), (9, 2)])
@pytest.mark.parametrize("with_path", [False, True])
def test_a_commit_appends_what_was_accepted(monkeypatch, writer, batch, width, with_path):
    # Which writer runs is the platform's choice; all must do the same.
    monkeypatch.setattr(cache_module, "_write", WRITERS[writer])
    commit = jax.jit(lambda cache, entries, *accepted: cache.commit(entries, Write(*accepted)))
    generator = np.random.default_rng(batch * 10 + width)
    cache, held = empty_cache(batch, 64), [[] for _ in range(batch)]
    for _ in range(8):
        keys = generator.normal(size=(batch, width, HEADS, WIDTH)).astype(np.float32)
        position = generator.integers(0, 1000, (batch, width)).astype(np.int32)
        count = generator.integers(0, width + 1, batch).astype(np.int32)
        path = np.stack([generator.permutation(width) for _ in range(batch)]).astype(np.int32) if with_path else None
        entries = jnp.asarray(keys)
        cache = commit(
            cache,
            ((entries, entries + 1), (entries + 2, entries + 3)),
            jnp.asarray(position),
            jnp.asarray(count),
            None if path is None else jnp.asarray(path),
        )
        plain_commit(held, keys, position, count, path)
    for row, entries in enumerate(held):
        assert int(cache.slot_length[row]) == len(entries)
        for layer, offset in ((0, 0), (1, 2)):
            slots = cache.positions[layer].shape[1]
            expected = np.full(slots, EMPTY)
            for i, (at, key) in enumerate(entries):
                expected[i % slots] = at
                if i >= len(entries) - slots:
                    np.testing.assert_array_equal(cache.keys[layer][row, :, i % slots], key + np.float32(offset))
                    np.testing.assert_array_equal(cache.values[layer][row, :, i % slots], key + np.float32(offset + 1))
            np.testing.assert_array_equal(cache.positions[layer][row], expected)
    # The sliding layer has started over, or the test says nothing of it.
    assert cache.positions[1].shape[1] == 16
    assert width == 1 or max(map(len, held)) > (16 if width == BLOCK else 4)


def test_a_count_is_unchanged_by_its_evidence():
    count = jnp.asarray([1, 0, 5], jnp.int32)
    np.testing.assert_array_equal(after(count, jnp.asarray([0, 7, 9], jnp.int32)), count)
    np.testing.assert_array_equal(after(count, jnp.asarray([0.5, -7.0, 1e30])), count)
