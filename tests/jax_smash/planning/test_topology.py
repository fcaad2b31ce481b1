import pytest

from jax_smash.chips import CHIPS
from jax_smash.planning.topology import parse_topology


@pytest.mark.parametrize(
    ("name", "devices", "chip"),
    [
        ("v5e:4x4", 16, "v5e"),
        ("v5p:4x4x4", 64, "v5p"),
        ("v6e:8x8", 64, "v6e"),
        ("tpu7x:2x2x1", 8, "tpu7x"),
        ("v5e", 1, "v5e"),
        ("h100x8", 8, "h100"),
        ("h100", 1, "h100"),
    ],
)
def test_devices_are_counted(name, devices, chip):
    found = parse_topology(name)
    assert (found.devices, found.chip) == (devices, CHIPS[chip])
    assert found.chips * found.chip.devices == devices
    assert found.is_tpu is (chip != "h100")


def test_this_machine_has_memory_and_as_many_virtual_devices_as_are_asked_for():
    found = parse_topology("cpux4")
    assert found.devices == 4
    assert found.device.memory > 2**28
    assert not found.is_tpu


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v9:2x2", "a device must be of a known chip"),
        ("tesla", "a device must be of a known chip"),
        ("", "a device must be of a known chip"),
        ("v5e:3x5", "must be one of 1x1, 2x2"),
        ("v5e:4x4x4", "must have 2 axes; got 3"),
        ("v5p:4x4", "must have 3 axes; got 2"),
        ("v5p:3x4x4", "must be 1, 2 or multiples of 4"),
        ("v6e:32x32", "at most 256 chips; got 1024"),
        ("v5ex4", "a device must be of a known chip"),
        ("v5e:ax2", "devices of v5e are named v5e:AxB"),
        ("h100:8", "devices of h100 are named h100xN"),
        ("h100x9", "from 1 to 8, those of a machine; got 9"),
        ("cpux0", "a device must be of a known chip"),
    ],
)
def test_what_is_no_topology_is_refused(name, message):
    with pytest.raises(ValueError, match=message):
        parse_topology(name)
