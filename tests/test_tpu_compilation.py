"""The decoding programs compile for TPUs, and do there what they should; no TPU is needed."""

import jax
import jax.numpy as jnp
import pytest

from eval.compile import Settings, measure
from eval.program import Program, copies, host_traffic
from jax_smash import cache
from jax_smash.plan import forward_bytes, tree_bytes
from tests.programs import Talkative, optimised
from tests.tpu import CHIPS, SHAPES, arguments, compiled, needs_compiler

pytestmark = needs_compiler

every_program = pytest.mark.parametrize("name", ["prefill", "decode"])
every_shape = pytest.mark.parametrize("shape", SHAPES)
every_chip = pytest.mark.parametrize("chip", CHIPS)


def cache_bytes(chip, shape):
    held = arguments(chip, shape).state.rows.cache
    return tree_bytes((held.keys, held.values))


@every_program
@every_shape
@every_chip
def test_the_caches_are_written_in_place(chip, shape, name):
    found = compiled(chip, shape, name)
    assert found.figures["cache_copies"] == 0
    assert found.figures["reused_mb"] * 1e6 >= cache_bytes(chip, shape)


@every_program
@every_shape
@every_chip
def test_nothing_leaves_the_chip(chip, shape, name):
    found = compiled(chip, shape, name)
    assert found.figures["host_transfers"] == found.figures["collectives"] == 0


@every_shape
@every_chip
def test_a_step_needs_less_room_than_one_cache(chip, shape):
    found = compiled(chip, shape, "decode")
    largest = max(x.size for x in found.arguments.state.rows.cache.keys) * 2
    assert (found.figures["temporary_mb"] - found.figures["weight_copies_mb"]) * 1e6 < largest


@every_shape
@every_chip
def test_prefill_needs_no_more_room_than_planned(chip, shape):
    found = compiled(chip, shape, "prefill")
    planned = forward_bytes(SHAPES[shape], batch=8, width=64, slots=1024, itemsize=2)
    assert (found.figures["temporary_mb"] - found.figures["weight_copies_mb"]) * 1e6 < planned


def test_one_loop_writes_the_entries_of_all_layers():
    assert compiled("v5e:2x2", "llama-3.2-1b", "decode").figures["inner_loops"] == 1


def test_sampling_compiles():
    found = compiled("v5e:2x2", "llama-3.2-1b", "decode", sampled=True)
    assert found.figures["cache_copies"] == found.figures["host_transfers"] == 0


def test_a_step_that_talks_to_the_host_is_seen():
    found = compiled("v5e:2x2", "llama-3.2-1b", "decode", strategy=Talkative)
    assert host_traffic(found.program.loop)


def test_caches_written_array_by_array_are_seen_to_be_copied():
    args = arguments("v5e:2x2", "llama-3.2-1b")

    def write_twice(keys):
        # In one program, as in a loop: the second write meets the layout that the first one left.
        entries = tuple(jnp.ones((8, 1, k.shape[1], k.shape[3]), k.dtype) for k in keys)
        for offset in range(2):
            length = jnp.arange(offset, 8 + offset, dtype=jnp.int32)
            keys = cache._write_by_array(keys, entries, length, jnp.ones(8, jnp.int32))
        return keys

    with optimised():
        program = jax.jit(write_twice, donate_argnums=0).lower(args.state.rows.cache.keys).compile()
    assert copies(Program.of(program).instructions(), args.cache_shapes)


FULL = {
    ("llama-3.2-1b", "v5e:2x2", 8): True,
    ("llama-3.1-8b", "v5e:2x2", 1): False,
    ("llama-3.1-8b", "v6e:2x2", 8): True,
    ("llama-3.1-8b", "tpu7x:2x2x1", 32): True,
}
"""Whether shape and rows of 4,096 slots fit one device, bfloat16. 8B parameters alone are more than a v5e's 16 GiB."""


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "chip", "batch"), FULL)
def test_whole_models_fit_where_they_should(shape, chip, batch):
    with optimised():
        report = measure(Settings(shape=shape, chip=chip, batch_size=batch, slots=4096))
    print(shape, chip, batch, report["model"], *report["rows"], sep="\n  ")
    fits = {row["program"]: row["fits"] for row in report["rows"]}
    assert (fits["prefill"], fits["decode"]) == (FULL[shape, chip, batch],) * 2
    for row in report["rows"]:
        if row["fits"]:
            assert row["total_mb"] * 1e6 < report["chip"]["memory_bytes"]
            assert row["cache_copies"] == row["host_transfers"] == 0
