"""The decoding programs compile for TPUs that are not at hand, and fit them."""

import importlib.util

import jax
import pytest

from eval.compile import Settings, measure

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="compiling for a TPU needs libtpu"),
    pytest.mark.xdist_group("tpu"),
]

CHIPS = ("v5e:1x1", "v6e:1x1", "tpu7x:2x2x1")


@pytest.fixture(autouse=True)
def optimised():
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


def check(report):
    memory = report["chip"]["memory_bytes"]
    unread = []
    for row in report["rows"]:
        assert row["fits"], row
        assert row["total_mb"] * 1e6 < memory, row
        if row["host_transfers"] is None:
            unread.append(row["program"])
        else:
            assert row["host_transfers"] == 0, row
            assert row["cache_copies"] == 0, row
        if row["program"] != "start":
            assert row["reused_mb"] * 1e6 >= report["model"]["cache_bytes"], row
    # jaxlib reads the instructions of these chips' programs; those of a newer chip it may not know yet.
    assert not unread or report["chip"]["topology"].startswith("tpu7x")


@pytest.mark.parametrize(("shape", "chip"), [*(("llama-3.2-1b", c) for c in CHIPS), ("gemma-2-2b", "v5e:1x1")])
def test_two_layers_compile_and_fit(shape, chip):
    check(measure(Settings(shape, chip, num_layers=2, batch_size=2, slots=1024, prefill_chunk=128)))


@pytest.mark.slow
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize(("shape", "batch"), [("llama-3.2-1b", 8), ("llama-3.1-8b", 1)])
def test_whole_shapes_compile_and_fit(chip, shape, batch):
    if chip == "v5e:1x1" and shape == "llama-3.1-8b":
        pytest.skip("16 GB of weights and a cache are more than the chip's 16 GiB leave room for")
    check(measure(Settings(shape, chip, batch_size=batch, slots=2048, prefill_chunk=256)))
