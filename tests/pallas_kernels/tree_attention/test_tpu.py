"""The TPU kernel, interpreted here and compiled for chips that are not at hand."""

import functools
import importlib.util
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from jax_smash.chips import TPUS
from jax_smash.planning.topology import devices
from pallas_kernels.tree_attention import Inputs, tpu, tree_attention
from pallas_kernels.tree_attention.cases import BENCHMARKS, TESTS, Case, make, random_case
from tests.kernels import attended, compiled, expected, flip, parametrised, scribble, tolerance

TOPOLOGIES = ("v4:2x2x1", "v5e:1x1", "v5p:2x2x1", "v6e:1x1", "tpu7x:2x2x1")
COMPILED = (
    *(case for case in BENCHMARKS if case.name in ("llama-8b-80", "llama-1b-64")),
    Case("float32, one KV head", 129, 16384, (900,), heads=16, kv_heads=1, head_width=256, window=64),
    Case("many entries", 600, 20001, (900,), heads=8, head_width=96, softcap=9.0, dtype="bfloat16"),
)


@pytest.mark.parametrize("case", parametrised([*TESTS, *map(random_case, range(2))]))
def test_the_kernel_agrees_with_the_reference(case):
    np.testing.assert_allclose(attended(make(case), case, "tpu"), expected(case), **tolerance(case))


def test_a_flipped_bit_changes_its_entry_alone():
    case = next(case for case in TESTS if case.nodes == 40)
    inputs = make(case)
    before, after = attended(inputs, case, "tpu"), attended(flip(inputs, 35, 34), case, "tpu")
    assert np.abs(before - after)[:, 35].max() > 0.01
    np.testing.assert_array_equal(np.delete(before, 35, axis=1), np.delete(after, 35, axis=1))


def test_bits_without_meaning_change_nothing():
    case = next(case for case in TESTS if case.padding < 0)
    inputs = make(case)
    np.testing.assert_array_equal(attended(inputs, case, "tpu"), attended(scribble(inputs), case, "tpu"))


def test_what_lies_in_empty_slots_changes_nothing():
    case = next(case for case in TESTS if case.name == "ragged rows")
    inputs = make(case)
    empty = (inputs.slot_position == 2**30)[:, None, :, None]
    filled = inputs._replace(keys=jnp.where(empty, 1e4, inputs.keys), values=jnp.where(empty, 1e4, inputs.values))
    np.testing.assert_array_equal(attended(inputs, case, "tpu"), attended(filled, case, "tpu"))


def test_more_rows_than_fit_at_once_are_worked_on_in_tiles(monkeypatch):
    case = Case("", 21, 100, (90,), heads=6)
    whole = attended(make(case), case, "tpu")
    monkeypatch.setattr(tpu, "MOST_ROWS", 32)
    monkeypatch.setattr(tpu, "MOST_SLOTS", 128)
    compiled.cache_clear()
    np.testing.assert_allclose(attended(make(case), case, "tpu"), whole, **tolerance(case))


def test_the_simulated_chip_finds_no_race_and_agrees():
    case = Case("", 5, 300, (290, 10), head_width=128)
    params = pltpu.InterpretParams(detect_races=True)
    out = jax.jit(functools.partial(tpu.attend, options=case.options, interpret=params))(make(case))
    np.testing.assert_allclose(out, expected(case), **tolerance(case))


def described(case: Case, sharding: jax.sharding.Sharding) -> Inputs:
    shapes = jax.eval_shape(lambda: make(Case(**(vars(case) | {"slots": 8}))))
    cached = (len(case.held), case.kv_heads, case.slots, case.head_width)
    shapes = shapes._replace(
        keys=jax.ShapeDtypeStruct(cached, case.dtype),
        values=jax.ShapeDtypeStruct(cached, case.dtype),
        slot_position=jax.ShapeDtypeStruct((cached[0], case.slots), jnp.int32),
    )
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="compiling for a TPU needs libtpu")
@pytest.mark.xdist_group("tpu")
@pytest.mark.parametrize(
    ("chip", "case"),
    # By default two cases a chip: the first, and another one from chip to chip.
    [
        pytest.param(chip, case, id=f"{chip}-{case.name}", marks=[] if j in (0, 1 + i % 3) else [pytest.mark.slow])
        for i, chip in enumerate(TOPOLOGIES)
        for j, case in enumerate(COMPILED)
    ],
)
@pytest.mark.usefixtures("optimised")
def test_it_compiles_for_a_chip_and_leaves_the_cache_where_it_is(chip, case):
    sharding = jax.sharding.SingleDeviceSharding(devices(chip)[0])

    def run(inputs):
        return tree_attention(
            inputs,
            scale=case.options.scale,
            window=case.window,
            softcap=case.softcap,
            implementation="kernel",
        )

    inputs = described(case, sharding)
    text = jax.jit(run).lower(inputs).compile().as_text()
    assert "tpu_custom_call" in text
    batch, heads, slots, width = inputs.keys.shape
    shapes = rf"(?:{batch},{heads},{slots},{width}|{batch},{heads},{width},{slots})"
    # Anything else that makes an array of the cache's shape would copy it.
    made = {*re.findall(rf"= \(?\w+\[{shapes}\]\S* .*?([\w-]+)\(", text)}
    assert {"parameter"} <= made <= {"parameter", "bitcast"}


def test_every_chip_that_is_known_is_compiled_for():
    assert {chip.split(":")[0] for chip in TOPOLOGIES} == {*TPUS}
