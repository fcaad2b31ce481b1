import dataclasses

import pytest

from eval.chips.modelled import modelled
from eval.chips.program import Program
from jax_smash.chips import CHIPS

TEXT = """%product (p0: bf16[8,256], p1: bf16[256,512]) -> bf16[8,512] {
  %p0 = bf16[8,256]{1,0:S(1)} parameter(0)
  %p1 = bf16[256,512]{1,0:S(1)} parameter(1)
  ROOT %c = bf16[8,512]{1,0:S(1)} convolution(%p0, %p1), window={}, dim_labels=bf_io->bf
}

ENTRY %main (x: bf16[8,256], w: bf16[256,512]) -> bf16[8,512] {
  %x = bf16[8,256]{1,0:S(1)} parameter(0)
  %w = bf16[256,512]{1,0} parameter(1)
  %begin = (bf16[256,512]{1,0:S(1)}, bf16[256,512]{1,0}, u32[]) copy-start(%w)
  %busy = bf16[8,256]{1,0:S(1)} negate(%x), backend_config={"estimated_cycles":"900"}
  %there = bf16[256,512]{1,0:S(1)} copy-done(%begin)
  %y = bf16[8,512]{1,0:S(1)} fusion(%busy, %there), kind=kOutput, calls=%product, \
metadata={op_name="jit(f)/dot"}, backend_config={"estimated_cycles":"1000"}
  ROOT %out = bf16[8,512]{1,0} copy(%y)
}
"""


def times(**changes):
    program = Program.read(TEXT)
    chip = dataclasses.replace(CHIPS["v5e"], **changes)
    return modelled(program, "main", chip)


def test_an_operation_takes_as_long_as_the_slowest_of_three():
    weight, operations = 256 * 512 * 2, 2 * 8 * 256 * 512
    for changes, expected in (
        ({"clock": 1e6}, 1.0),  # A thousand cycles.
        ({"bandwidth": 1e6}, weight / 1e3),
        ({"bf16_peak": 1e9}, operations / 1e6),
    ):
        (product,) = (x for x in times(**changes).operations if x.name == "y")
        assert product.ms == pytest.approx(expected)


def test_a_fetch_is_charged_to_its_reader():
    bytes_ = {x.name: x.bytes for x in times().operations}
    assert (bytes_["begin"], bytes_["y"], bytes_["out"]) == (0, 256 * 512 * 2, 8 * 512 * 2)


def test_estimates_of_other_operations_are_no_schedule():
    found = times(clock=1e6)
    assert {x.name: x.schedule_ms for x in found.operations if x.schedule_ms} == {"y": pytest.approx(1.0)}
    assert 0.99 < found.scheduled_share < 1
    assert [x["name"] for x in found.dearest] == ["y", "out"]
    assert found.dearest[0]["op_name"] == "jit(f)/dot"
