"""The GPU kernel, interpreted and lowered; `-m gpu` runs it."""

import dataclasses
import re

import jax
import numpy as np
import pytest
from jax import export
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.sharding import AbstractDevice, AbstractMesh

from pallas_kernels.tree_attention import gpu, kernel_here, tree_attention
from pallas_kernels.tree_attention.cases import BENCHMARKS, TESTS, Case, make, random_case
from tests.interpreter import run
from tests.kernels import attended, expected, flip, parametrised, scribble, tolerance

needs_a_simulated_gpu = pytest.mark.skipif(
    not hasattr(plgpu, "InterpretGPUParams"), reason="the GPU kernel needs jax 0.12 or newer"
)
CALL = "mosaic_gpu_v2"
NAMES = ("one entry", "ragged rows", "an empty cache", "a window over a cache gone round", "capped scores")
NAMES += ("padding between", "words that end in a block", "more entries than a tile", "wide heads")
CASES = [dataclasses.replace(case, head_width=max(64, case.head_width), dtype="bfloat16") for case in TESTS]
CASES = [case for case in CASES if case.name in NAMES]


@needs_a_simulated_gpu
@pytest.mark.parametrize(
    "case", parametrised([*CASES, *(random_case(seed, dtype="bfloat16", head_widths=(64, 128)) for seed in (0, 2))])
)
def test_the_kernel_agrees_with_the_reference(case):
    np.testing.assert_allclose(attended(make(case), case, "gpu"), expected(case), **tolerance(case))


@needs_a_simulated_gpu
def test_a_flipped_bit_changes_its_entry_alone():
    case = next(case for case in CASES if case.name == "words that end in a block")
    inputs = make(case)
    before, after = attended(inputs, case, "gpu"), attended(flip(inputs, 32, 31), case, "gpu")
    assert np.abs(before - after)[:, 32].max() > 0.01
    np.testing.assert_array_equal(np.delete(before, 32, axis=1), np.delete(after, 32, axis=1))


@needs_a_simulated_gpu
def test_bits_without_meaning_change_nothing():
    case = next(case for case in CASES if case.name == "padding between")
    inputs = make(case)
    np.testing.assert_array_equal(attended(inputs, case, "gpu"), attended(scribble(inputs), case, "gpu"))


WATCHED = """
import functools
import sys

import jax

jax.config.update("jax_num_cpu_devices", 8)  # So many threads has the simulation.

import numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.tree_attention import gpu
from pallas_kernels.tree_attention.cases import Case, make
from tests.kernels import expected, tolerance

case = Case("many blocks", 40, 320, (310, 150), heads=8, dtype="bfloat16")
gpu.MULTIPROCESSORS = 1
if sys.argv[1] == "left too early":
    gpu.plgpu.barrier_arrive = lambda barrier: None
    waits, wait = [], plgpu.barrier_wait
    # The first wait in the kernel's text is that of the warpgroup that fetches.
    gpu.plgpu.barrier_wait = lambda barrier: wait(barrier) if waits else waits.append(barrier)
watched = plgpu.InterpretGPUParams(detect_races=True)
out = jax.jit(functools.partial(gpu.attend, options=case.options, interpret=watched))(make(case))
np.testing.assert_allclose(np.float32(out), expected(case), **tolerance(case))
"""
"""Attends with three warpgroups and more blocks than buffers; a race raises."""


@needs_a_simulated_gpu
def test_a_buffer_is_filled_when_every_warpgroup_has_left_it():
    run(WATCHED, "as written")


@needs_a_simulated_gpu
def test_a_buffer_that_is_filled_too_early_is_noticed():
    with pytest.raises(AssertionError, match=r"RACE DETECTED|already at phase"):
        run(WATCHED, "left too early")


@needs_a_simulated_gpu
@pytest.mark.parametrize("case", [*BENCHMARKS[:3], *BENCHMARKS[-2:]], ids=lambda case: case.name)
def test_it_lowers_for_an_h100(case):
    shapes = jax.eval_shape(lambda: make(dataclasses.replace(case, slots=8)))
    cached = (len(case.held), case.kv_heads, case.slots, case.head_width)
    shapes = shapes._replace(
        keys=jax.ShapeDtypeStruct(cached, case.dtype),
        values=jax.ShapeDtypeStruct(cached, case.dtype),
        slot_position=jax.ShapeDtypeStruct((cached[0], case.slots), "int32"),
    )
    device = AbstractDevice(device_kind="NVIDIA H100 80GB HBM3", num_cores=132, platform="gpu")

    @jax.jit
    def run(inputs):
        options = {"scale": case.options.scale, "window": case.window, "softcap": case.softcap}
        return tree_attention(inputs, **options, implementation="kernel")

    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        lowered = export.export(run, platforms=["cuda"], disabled_checks=[export.DisabledSafetyCheck.custom_call(CALL)])
        text = lowered(shapes).mlir_module()
    assert re.findall(r"custom_call @(mosaic\w+)", text) == [CALL]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "float32"}, "needs bfloat16; got float32"),
        ({"head_width": 32}, "needs a head width of 64, 128, 192 or 256; got 32"),
        ({"slots": 300}, "needs slots in multiples of 8.*; got 300"),
    ],
)
def test_what_it_cannot_run_is_refused_by_name_and_left_to_xla_otherwise(changes, message):
    case = dataclasses.replace(CASES[0], **changes)
    assert re.search(message, gpu.unsupported(make(case)))
    with pytest.raises(ValueError, match=message):
        attended(make(case), case, "gpu")
    np.testing.assert_array_equal(attended(make(case), case, "kernel"), attended(make(case), case, "xla"))


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*CASES, *BENCHMARKS], ids=lambda case: case.name)
def test_the_kernel_agrees_with_the_reference_on_its_device(case: Case):
    inputs = make(case)
    if kernel_here(inputs) != "gpu":
        pytest.skip(gpu.unsupported(inputs) or "there is no GPU")
    options = {"scale": case.options.scale, "window": case.window, "softcap": case.softcap}
    ours, theirs = (tree_attention(inputs, **options, implementation=name) for name in ("gpu", "reference"))
    np.testing.assert_allclose(np.float32(ours), np.float32(theirs), **tolerance(case))
