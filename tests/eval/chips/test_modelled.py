import dataclasses

import pytest

from eval.chips.data_sheets import CHIPS, chip_of
from eval.chips.modelled import link_bytes, modelled
from eval.chips.program import Program
from eval.chips.topology import MEMORY

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


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("f32[8,4]{1,0} all-reduce(%x), replica_groups={{0,1,2,3}}", 2 * 128 * 3 // 4),
        ("f32[8,4]{1,0} all-gather(%x), replica_groups=[2,4]<=[8]", 128 * 3 // 4),
        ("f32[8,4]{1,0} reduce-scatter(%x), replica_groups={{0,1}}", 128),
        ("f32[8,4]{1,0} collective-permute(%x), source_target_pairs={{0,1}}", 128),
        ("f32[8,4]{1,0} negate(%x)", 0),
    ],
)
def test_a_collective_sends_what_a_ring_needs(line, expected):
    program = Program.read(f"ENTRY %main (x: f32[8,4]) -> f32[8,4] {{\n  ROOT %r = {line}\n}}\n")
    assert link_bytes(program.named("main")["r"]) == expected


def test_every_chip_that_programs_compile_for_has_a_data_sheet():
    assert {*CHIPS} == {*MEMORY}
    assert chip_of("v6e:2x2") == CHIPS["v6e"]
    assert chip_of("cpu") is None


def test_a_device_of_one_of_two_cores_has_half_a_chip():
    chip, half = CHIPS["tpu7x"], chip_of("tpu7x:2x2x1", 1)
    assert (2 * half.bandwidth, 2 * half.bf16_peak, half.clock) == (chip.bandwidth, chip.bf16_peak, chip.clock)
    assert chip_of("v5p:2x2x1", 2) == CHIPS["v5p"]
