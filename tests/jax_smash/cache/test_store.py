import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jax_smash import cpu
from jax_smash.cache import EMPTY, Sinks, Write, after, divided, init_cache, specs, store, write
from jax_smash.pytree import replace
from tests.meshes import sharing_slots

HEADS, WIDTH, WINDOW, BLOCK = 2, 4, 10, 6


def empty_cache(batch, slots, sinks=None):
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
        sinks=sinks,
    )


def plain_commit(held, keys, position, count, path):
    """Appends entries to a list a row: what each slot holds follows from the list."""
    for row, entries in enumerate(held):
        for i in range(count[row]):
            entry = path[row][i] if path is not None else i
            entries.append((position[row, entry], keys[row, entry]))


WRITERS = {
    "by array": write._write_by_array,
    "by entry": lambda *arrays, starts: cpu.write_by_entry(
        functools.partial(write._write_by_array, starts=starts), *arrays
    ),
    "by row": write._write_by_row,
}


def plain_slot(entry, slots, start):
    """Returns where an entry goes: into the next slot, and behind the last one into that at `start`."""
    slot = -1
    for _ in range(entry + 1):
        slot = start if slot + 1 == slots else slot + 1
    return slot


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(("batch", "width"), [(1, 1), (3, 1), (3, BLOCK), (9, 2)])
@pytest.mark.parametrize("with_path", [False, True])
@pytest.mark.parametrize("sinks", [None, Sinks(count=3, window=8)], ids=["", "sinks"])
def test_a_commit_appends_what_was_accepted(monkeypatch, writer, batch, width, with_path, sinks):
    # Which writer runs is the platform's choice; all must do the same.
    monkeypatch.setattr(store, "write_entries", WRITERS[writer])
    commit = jax.jit(lambda cache, entries, write: cache.commit(entries, write))
    generator = np.random.default_rng(batch * 10 + width)
    cache, held = empty_cache(batch, 64, sinks), [[] for _ in range(batch)]
    for _ in range(8):
        keys = generator.normal(size=(batch, width, HEADS, WIDTH)).astype(np.float32)
        position = generator.integers(0, 1000, (batch, width)).astype(np.int32)
        count = generator.integers(0, width + 1, batch).astype(np.int32)
        path = np.stack([generator.permutation(width) for _ in range(batch)]).astype(np.int32) if with_path else None
        entries = jnp.asarray(keys)
        cache = commit(
            cache,
            ((entries, entries + 1), (entries + 2, entries + 3)),
            Write(
                position=jnp.asarray(position),
                count=jnp.asarray(count),
                path=None if path is None else jnp.asarray(path),
            ),
        )
        plain_commit(held, keys, position, count, path)
    for row, entries in enumerate(held):
        assert int(cache.slot_length[row]) == len(entries)
        for layer, offset in ((0, 0), (1, 2)):
            slots = cache.positions[layer].shape[1]
            start = sinks.count if sinks and layer == 0 else 0
            last = {plain_slot(i, slots, start): entry for i, entry in enumerate(entries)}
            expected = [last[slot][0] if slot in last else EMPTY for slot in range(slots)]
            np.testing.assert_array_equal(cache.positions[layer][row], expected)
            for slot, (_, key) in last.items():
                np.testing.assert_array_equal(cache.keys[layer][row, :, slot], key + np.float32(offset))
                np.testing.assert_array_equal(cache.values[layer][row, :, slot], key + np.float32(offset + 1))
    # The sliding layer has started over, or the test says nothing of it; with sinks, the other one too.
    assert [p.shape[1] for p in cache.positions] == [16 if sinks else 64, 16]
    assert width == 1 or max(map(len, held)) > (16 if width == BLOCK else 4)


def test_a_count_is_unchanged_by_its_evidence():
    count = jnp.asarray([1, 0, 5], jnp.int32)
    np.testing.assert_array_equal(after(count, jnp.asarray([0, 7, 9], jnp.int32)), count)
    np.testing.assert_array_equal(after(count, jnp.asarray([0.5, -7.0, 1e30])), count)


@pytest.mark.parametrize("path", [None, [[1, 0, 3, 2], [0, 2, 1, 3], [3, 2, 1, 0]]])
def test_devices_that_share_the_slots_write_what_one_writes(path):
    """Entries of one write fall into the slots of several devices; a sliding layer starts over."""
    rng, whole = np.random.default_rng(0), empty_cache(3, 16)
    mesh = sharing_slots(4)
    apart = divided(whole, "seq", 4)

    def commit(cache, entries, write):
        return cache.commit(entries, write)

    sharded = jax.shard_map(
        commit, mesh=mesh, in_specs=(specs(apart), P(), P()), out_specs=specs(apart), check_vma=False
    )
    for counts in ([4, 1, 3], [2, 0, 4], [4, 4, 4], [3, 4, 4]):
        entries = tuple(
            tuple(jnp.asarray(rng.normal(size=(3, BLOCK, HEADS, WIDTH)), jnp.float32) for _ in "kv") for _ in range(2)
        )
        position = whole.slot_length[:, None] + jnp.arange(BLOCK, dtype=jnp.int32)[None]
        made = None if path is None else jnp.asarray(path, jnp.int32)
        write = Write(position=position, count=jnp.asarray(counts, jnp.int32), path=made)
        whole, apart = jax.jit(commit)(whole, entries, write), jax.jit(sharded)(apart, entries, write)
        jax.tree.map(np.testing.assert_array_equal, replace(apart, over=None), whole)
    assert whole.slot_length.max() == 15


def test_slots_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="slots must be divisible by the 5 devices of seq; got 16"):
        divided(empty_cache(1, 16), "seq", 5)
    with pytest.raises(ValueError, match="must keep no sinks"):
        divided(empty_cache(1, 64, sinks=Sinks(count=2, window=8)), "seq", 2)
