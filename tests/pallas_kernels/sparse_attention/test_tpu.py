"""The TPU kernel, interpreted here and compiled for chips that are not at hand."""

import dataclasses
import functools
import importlib.util
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from eval.chips.kernel_bytes import Blocks, kernel_bytes
from jax_smash.chips import TPUS
from jax_smash.planning.topology import devices
from pallas_kernels.sparse_attention import sparse_attention, tpu
from pallas_kernels.sparse_attention.cases import BENCHMARKS, TESTS, Case, described, make, random_case
from pallas_kernels.tree_attention import tpu as tree_tpu
from tests.kernels import flip, scribble, tolerance
from tests.sparse_kernels import attended, compiled, ending_in_the_newest_page, expected, named

TOPOLOGIES = ("v4:2x2x1", "v5e:1x1", "v5p:2x2x1", "v6e:1x1", "tpu7x:2x2x1")
COMPILED = tuple(case for case in BENCHMARKS if not case.name.endswith("8-rows"))
COVERED = (
    "one page",
    "a window",
    "capped scores",
    "a capped window",
    "padding between",
    "wide heads",
    "int8 and bfloat16, wide",
    "int8, entries in two tiles",
    "random 1",
    "random 0, int8",
    "random 1, int8",
    "random 2, int8",
)
"""Cases whose every feature another case has too."""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.name in COVERED else [])
        for case in (*TESTS, *map(random_case, range(3)), *(random_case(i, int8=True) for i in range(3)))
    ],
)
def test_the_kernel_agrees_with_the_reference(case):
    np.testing.assert_allclose(attended(*make(case), case, "tpu"), expected(case), **tolerance(case))


def test_slots_that_are_known_to_be_filled_give_what_their_positions_give():
    case = named("entries beside a page that is not full")
    inputs, pages = ending_in_the_newest_page(case)
    found = attended(inputs, pages, case, "tpu")
    np.testing.assert_allclose(found, attended(inputs, pages, case, "reference"), **tolerance(case))
    one_less = attended(inputs, pages._replace(filled=pages.filled - 1), case, "tpu")
    assert np.abs(found - one_less).max() > 1e-3


def test_a_flipped_bit_changes_its_entry_alone():
    case = named("ragged rows")
    inputs, pages = make(case)
    before, after = (attended(x, pages, case, "tpu") for x in (inputs, flip(inputs, 4, 0)))
    assert np.abs(before - after)[:, 4].max() > 0.01
    np.testing.assert_array_equal(np.delete(before, 4, axis=1), np.delete(after, 4, axis=1))


def test_bits_without_meaning_change_nothing():
    case = named("padding between")
    inputs, pages = make(case)
    before, after = (attended(x, pages, case, "tpu") for x in (inputs, scribble(inputs)))
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("channel", [0, 1], ids=["key", "value"])
def test_a_slots_scale_counts_for_its_own_KV_head_alone(channel):
    case = named("int8")
    inputs, pages = make(case)
    slot = case.page_size * int(pages.table[0, 0, 0])
    changed = pages._replace(scales=pages.scales.at[0, 0, channel, slot].mul(3))
    differs = np.abs(attended(inputs, changed, case, "tpu") - attended(inputs, pages, case, "tpu")).max((1, 3))
    assert (differs[0, : case.heads // case.kv_heads] > 0.01).all()
    assert differs[0, case.heads // case.kv_heads :].max() == differs[1].max() == 0


@pytest.mark.parametrize("name", ["ragged rows", "int8"])
def test_what_is_not_chosen_is_not_read(name):
    case = named(name)
    inputs, pages = make(case)
    number = np.arange(case.slots) // case.page_size
    read = np.zeros((2, case.kv_heads, case.slots), bool)
    for row, sets in enumerate(np.asarray(pages.table)):
        for head, table in enumerate(sets):
            read[row, head] = np.isin(number, table[: pages.counts[row, head]])
    assert 0 < read.mean() < 0.5
    if case.int8:
        pages = pages._replace(scales=jnp.where(read[:, :, None], pages.scales, jnp.nan))
    else:
        poisoned = {name: jnp.where(read[..., None], getattr(inputs, name), jnp.nan) for name in ("keys", "values")}
        inputs = inputs._replace(**poisoned)
    found = attended(inputs, pages, case, "tpu")
    np.testing.assert_allclose(found, expected(case), **tolerance(case))


def test_pages_are_attended_to_in_blocks_where_they_do_not_fit_at_once(monkeypatch):
    case = Case("", 21, 512, (500, 300), heads=6, page_size=16, most=20, chosen=(20, 9, 17, 0), head_width=128)
    whole = attended(*make(case), case, "tpu")
    monkeypatch.setattr(tree_tpu, "MOST_ROWS", 32)
    monkeypatch.setattr(tree_tpu, "MOST_SLOTS", 128)
    compiled.cache_clear()
    np.testing.assert_allclose(attended(*make(case), case, "tpu"), whole, **tolerance(case))
    compiled.cache_clear()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_width": 64, "page_size": 64}, "needs pages of 128 slots at a head width of 64, .*; got 64"),
        ({"int8": True, "page_size": 64}, "needs pages of 128 slots where they are int8, .*; got 64"),
        ({"slots": 2**21, "most": 2**16}, "has 524288 bytes of scalar memory for page tables; they take 532480"),
    ],
)
def test_what_it_cannot_run_is_refused(changes, message):
    case = Case("", **({"nodes": 1, "slots": 128, "held": (9,), "page_size": 16, "head_width": 128} | changes))
    run = functools.partial(sparse_attention, **vars(case.options))
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(functools.partial(run, implementation="tpu"), *described(case))
    assert jax.eval_shape(functools.partial(run, implementation="kernel"), *described(case)).shape[1] == 1


RAGGED = Case("", 5, 512, (500, 10), page_size=32, most=5, chosen=(5, 2, 0, 3), head_width=128)
RAGGED_INT8 = dataclasses.replace(RAGGED, page_size=128, most=3, chosen=(3, 2, 0, 1), int8=True)


class Copy:
    """A copy that does as it is told, but for what a test replaces."""

    def __init__(self, copy):
        self.start, self.wait = copy.start, copy.wait


def replace_copies(monkeypatch, change):
    """Changes each copy before it is started or waited for."""
    make_copy = pltpu.make_async_copy

    def changed(source, target, semaphore):
        copy = Copy(make_copy(source, target, semaphore))
        change(copy, source)
        return copy

    monkeypatch.setattr(tpu.pltpu, "make_async_copy", changed)


def simulated(case):
    """What the kernel makes of a case on a simulated chip, whose copies begin at once and race with what reads them."""
    params = pltpu.InterpretParams(detect_races=True, dma_execution_mode="eager")
    return np.asarray(jax.jit(functools.partial(tpu.attend, options=case.options, interpret=params))(*make(case)))


@pytest.mark.parametrize("case", [RAGGED, RAGGED_INT8], ids=["float32", "int8"])
def test_the_simulated_chip_finds_no_race_and_agrees(case, capfd):
    np.testing.assert_allclose(simulated(case), expected(case), **tolerance(case))
    assert "RACE" not in "".join(capfd.readouterr())


def test_a_page_that_is_read_before_it_arrives_is_noticed(monkeypatch, capfd):
    replace_copies(monkeypatch, lambda copy, _: setattr(copy, "wait", lambda: None))
    raised = ""
    try:
        simulated(RAGGED)
    except jax.errors.JaxRuntimeError as error:  # A newer JAX raises what an older one prints.
        raised = str(error)
    finally:
        pltpu.reset_tpu_interpret_mode_state()
    assert "RACE DETECTED" in raised + "".join(capfd.readouterr())


def moved(case, monkeypatch):
    """Returns the bytes that the kernel moves: by its grid and index maps, and by the copies that it starts."""
    seen, copied, call = {}, [], pl.pallas_call

    def spy(kernel, **options):
        def called(*operands):
            seen.update(options, operands=operands)
            return call(kernel, **options)(*operands)

        return called

    def count(copy, source):
        size, start = int(np.prod(source.shape)) * source.dtype.itemsize, copy.start

        def begin():
            jax.debug.callback(lambda: copied.append(size))
            start()

        copy.start = begin

    with monkeypatch.context() as patched:
        patched.setattr(tpu.pl, "pallas_call", spy)
        replace_copies(patched, count)
        jax.block_until_ready(tpu.attend(*make(case), case.options, interpret=pltpu.InterpretParams()))
        jax.effects_barrier()
    spec = seen["grid_spec"]
    given = zip(spec.in_specs, seen["operands"][spec.num_scalar_prefetch :], strict=True)
    reads = [Blocks.of(s, x) for s, x in given if s.block_shape is not None]
    grid = tuple(int(n) for n in spec.grid)
    by_grid = kernel_bytes(grid, reads, [Blocks.of(spec.out_specs, seen["out_shape"])], seen["operands"][:4])
    return by_grid.read + by_grid.written, sum(copied)


BYTES = Case("", 8, 2048, (1500, 1500), page_size=64, most=8, chosen=(8, 3, 0, 5), head_width=128)
NEEDED = 1.15
"""Bytes that may be moved, over those of chosen pages, queries and results."""


def needed(case):
    """Bytes of the chosen pages' keys and values, and of the entries' queries, keys, values and results."""
    entry = case.head_width * jnp.dtype(case.dtype).itemsize
    own = len(case.held) * case.nodes * 2 * (case.heads + case.kv_heads) * entry
    return sum(case.chosen) * case.page_size * case.slot_bytes, own


BYTES_INT8 = dataclasses.replace(BYTES, page_size=128, dtype="bfloat16", int8=True)


@pytest.mark.parametrize("case", [BYTES, BYTES_INT8], ids=["float32", "int8"])
def test_it_moves_little_more_than_chosen_pages_queries_and_results(case, monkeypatch):
    by_grid, copied = moved(case, monkeypatch)
    pages, own = needed(case)
    assert copied == pages
    assert by_grid + copied < NEEDED * (pages + own)


def test_pages_of_int8_are_half_the_bytes_and_their_scales():
    pages, plain = needed(BYTES_INT8)[0], needed(dataclasses.replace(BYTES_INT8, int8=False))[0]
    assert pages / plain == pytest.approx(0.5 + 4 / (2 * BYTES.head_width))


def test_a_kernel_that_read_every_page_of_its_tables_would_move_too_much(monkeypatch):
    whole = tpu.tables.whole

    def every_page(pages, slots, size):
        made = whole(pages, slots, size)
        return made._replace(counts=jnp.full_like(made.counts, made.table.shape[2]))

    monkeypatch.setattr(tpu.tables, "whole", every_page)
    by_grid, copied = moved(BYTES, monkeypatch)
    assert by_grid + copied > NEEDED * sum(needed(BYTES))


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="compiling for a TPU needs libtpu")
@pytest.mark.xdist_group("tpu")
@pytest.mark.parametrize(
    ("chip", "case"),
    # By default two cases a chip: the first, and another one from chip to chip; for two chips one of int8, too.
    [
        pytest.param(
            chip,
            case,
            id=f"{chip}-{case.name}",
            marks=[] if j in (0, 1 + i % 4) or (case.int8 and i % 2 and j == 7 - i % 3) else [pytest.mark.slow],
        )
        for i, chip in enumerate(TOPOLOGIES)
        for j, case in enumerate(COMPILED)
    ],
)
@pytest.mark.usefixtures("optimised")
def test_it_compiles_for_a_chip_and_leaves_the_cache_where_it_is(chip, case):
    inputs, pages = described(case, jax.sharding.SingleDeviceSharding(devices(chip)[0]))
    run = functools.partial(sparse_attention, **vars(case.options), implementation="kernel")
    text = jax.jit(run).lower(inputs, pages).compile().as_text()
    assert "tpu_custom_call" in text
    batch, heads, slots, width = inputs.keys.shape
    shapes = rf"(?:{batch},{heads},{slots},{width}|{batch},{heads},{width},{slots}|{batch},{heads},2,{slots})"
    # Anything else that makes an array of the cache's shape, or of its scales', would copy it.
    made = {*re.findall(rf"= \(?\w+\[{shapes}\]\S* .*?([\w-]+)\(", text)}
    assert {"parameter"} <= made <= {"parameter", "bitcast"}


def test_every_chip_that_is_known_is_compiled_for():
    assert {chip.split(":")[0] for chip in TOPOLOGIES} == {*TPUS}
