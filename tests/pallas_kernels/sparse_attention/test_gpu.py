"""The GPU kernel, interpreted and lowered; `-m gpu` runs it."""

import dataclasses
import re

import jax
import numpy as np
import pytest
from jax import export
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.sharding import AbstractDevice, AbstractMesh

from pallas_kernels.sparse_attention import kernel_here, sparse_attention
from pallas_kernels.sparse_attention.cases import BENCHMARKS, TESTS, Case, described, make
from tests.kernels import tolerance
from tests.sparse_kernels import attended, expected, named

needs_a_simulated_gpu = pytest.mark.skipif(
    not hasattr(plgpu, "InterpretGPUParams"), reason="the GPU kernel needs jax 0.12 or newer"
)
CALL = "mosaic_gpu_v2"
SMALL = (
    Case("pages of 16", 3, 256, (250, 70), page_size=16, most=5, chosen=(5, 0, 3, 1), dtype="bfloat16"),
    Case("pages of 128, shared", 1, 384, (380,), most=2, shared=True, window=200, dtype="bfloat16"),
    Case("a page is a block", 5, 256, (200,), page_size=64, most=3, softcap=5.0, dtype="bfloat16"),
)


@needs_a_simulated_gpu
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_the_kernel_agrees_with_the_reference(case):
    np.testing.assert_allclose(attended(*make(case), case, "gpu"), expected(case), **tolerance(case))


@needs_a_simulated_gpu
@pytest.mark.parametrize("case", [case for case in BENCHMARKS if not case.int8], ids=lambda case: case.name)
def test_it_lowers_for_an_h100(case):
    device = AbstractDevice(device_kind="NVIDIA H100 80GB HBM3", num_cores=132, platform="gpu")

    @jax.jit
    def run(inputs, pages):
        return sparse_attention(inputs, pages, **vars(case.options), implementation="kernel")

    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        lowered = export.export(run, platforms=["cuda"], disabled_checks=[export.DisabledSafetyCheck.custom_call(CALL)])
        text = lowered(*described(case)).mlir_module()
    assert re.findall(r"custom_call @(mosaic\w+)", text) == [CALL]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("one entry", "the GPU kernel needs bfloat16; got float32"),
        ("int8 and bfloat16, wide", "the GPU kernel reads no cache of int8"),
    ],
)
def test_what_it_cannot_run_is_refused_by_name_and_left_to_xla_otherwise(name, message):
    case = named(name)
    with pytest.raises(ValueError, match=message):
        attended(*make(case), case, "gpu")
    np.testing.assert_array_equal(attended(*make(case), case, "kernel"), attended(*make(case), case, "xla"))


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*SMALL, *TESTS, *BENCHMARKS], ids=lambda case: case.name)
def test_the_kernel_agrees_with_the_reference_on_its_device(case: Case):
    case = dataclasses.replace(case, dtype="bfloat16")
    inputs, pages = make(case)
    if kernel_here(inputs, pages, page_size=case.page_size) != "gpu":
        pytest.skip("there is no GPU that the kernel runs on")
    ours, theirs = (
        sparse_attention(inputs, pages, **vars(case.options), implementation=name) for name in ("gpu", "reference")
    )
    np.testing.assert_allclose(np.float32(ours), np.float32(theirs), **tolerance(case))
