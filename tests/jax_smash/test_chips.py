import pytest

from jax_smash.chips import CHIPS, GPUS, TPUS, chip_of
from jax_smash.costs.estimate import known_roofline


def test_a_topology_begins_with_its_chip():
    assert chip_of("v6e:2x2") == CHIPS["v6e"]
    assert chip_of("cpu") is None


def test_a_device_of_one_of_two_cores_has_half_a_chip():
    chip, half = CHIPS["tpu7x"], chip_of("tpu7x:2x2x1", 1)
    assert (2 * half.bandwidth, 2 * half.bf16_peak, half.clock) == (chip.bandwidth, chip.bf16_peak, chip.clock)
    assert (chip.device, chip.device.memory) == (half, 96 * 2**30)
    assert chip_of("v5p:2x2x1", 2) == CHIPS["v5p"] == CHIPS["v5p"].device


def test_the_ridge_of_an_h100_is_where_the_lecture_has_it():
    assert round(CHIPS["h100"].ridge) == 295


def test_a_ring_takes_both_ways_of_an_axis_and_all_links_to_a_switch():
    assert CHIPS["v5e"].ring_bandwidth == 2 * 50e9
    assert CHIPS["h100"].ring_bandwidth == 18 * 25e9


def test_wide_numbers_are_multiplied_more_slowly_and_narrow_ones_faster():
    chip = CHIPS["v5e"]
    assert chip.peak("f32") < chip.peak("bf16") < chip.peak("s8")


@pytest.mark.parametrize(
    ("kind", "name"),
    [("TPU v5 lite", "v5e"), ("TPU v5", "v5p"), ("TPU v6 lite", "v6e"), ("NVIDIA H100 80GB HBM3", "h100")],
)
def test_costs_are_estimated_by_the_same_sheets(kind, name):
    found = known_roofline(kind)
    assert (found.bytes_per_second, found.operations_per_second) == (CHIPS[name].bandwidth, CHIPS[name].bf16_peak)


def test_every_chip_has_what_a_plan_needs():
    assert {*CHIPS} == {*TPUS, *GPUS}
    for chip in CHIPS.values():
        assert min(chip.bandwidth, chip.bf16_peak, chip.int8_peak, chip.links, chip.link_bandwidth, chip.memory) > 0
        assert chip.kind
        assert chip.most > 1
    assert all(chip.clock for chip in TPUS.values())
