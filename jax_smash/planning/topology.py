"""Devices by name, as in `v5e:4x4` and `h100x8`: what they have, and how to compile for those that are not at hand."""

import dataclasses
import importlib.util
import math
import os
import re
from collections.abc import Sequence

import jax
from jax.experimental import topologies

from jax_smash.chips import CHIPS, GPUS, TPUS, Chip
from jax_smash.costs.estimate import CPU_BYTES_PER_SECOND, CPU_OPERATIONS_PER_CORE
from jax_smash.costs.store import cores

HOST = "cpu"
"""In place of a chip: this machine's processor."""

SQUARES = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
"""Chips along the axes of the slices that two-dimensional TPUs come in."""


@dataclasses.dataclass(frozen=True)
class Topology:
    """Devices that a model may be divided over.

    Attributes:
      name: as it was given.
      chip: what each of the chips has.
      sizes: chips along each axis of a torus; how many there are where they have none.
    """

    name: str
    chip: Chip
    sizes: tuple[int, ...] = (1,)

    @property
    def chips(self) -> int:
        """Chips along all axes."""
        return math.prod(self.sizes)

    @property
    def devices(self) -> int:
        """Devices that JAX makes of all chips."""
        return self.chips * self.chip.devices

    @property
    def device(self) -> Chip:
        """What one device has."""
        return self.chip.device

    @property
    def is_tpu(self) -> bool:
        """Whether libtpu compiles for it."""
        return self.name.partition(":")[0] in TPUS


def parse_topology(text: str) -> Topology:
    """Returns the devices that a text names: `v5e:4x4`, `v5p:2x2x1`, `h100x8`, `v6e` for one chip, `cpu` or `cpux8`.

    Raises:
      ValueError: the chip is unknown, or there are no such devices of it.
    """
    if match := re.fullmatch(r"([a-z]+?\d*)(?:x([1-9]\d*))?", text):
        name, count = match[1], int(match[2] or 1)
        if name == HOST:
            return Topology(text, host_chip(), (count,))
        if name in GPUS:
            if count > GPUS[name].most:
                raise ValueError(
                    f"{name} must be from 1 to {GPUS[name].most}, those of a machine; got {count} in {text}"
                )
            return Topology(text, GPUS[name], (count,))
    name, colon, shape = text.partition(":")
    if name not in CHIPS:
        known = ", ".join((*CHIPS, HOST))
        raise ValueError(f"a device must be of a known chip ({known}), as in v5e:4x4 or h100x8; got {text!r}")
    if name in GPUS or (colon and not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", shape)):
        form = f"{name}xN" if name in GPUS else f"{name}:{'x'.join('ABC'[: CHIPS[name].axes])}"
        raise ValueError(f"devices of {name} are named {form}; got {text!r}")
    chip = TPUS[name]
    sizes = tuple(map(int, shape.split("x"))) if colon else (1,) * chip.axes
    if len(sizes) != chip.axes:
        raise ValueError(f"a topology of {name} must have {chip.axes} axes; got {len(sizes)} in {text!r}")
    _check_slice(text, chip, sizes)
    return Topology(text, chip, sizes)


def host_chip() -> Chip:
    """Returns what is taken of this machine's processor where nobody has measured it: one of several virtual devices
    has all of it, as each computes alone.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    peak = CPU_OPERATIONS_PER_CORE * cores()
    bandwidth = CPU_BYTES_PER_SECOND
    return Chip(bandwidth, peak, peak, 1, bandwidth, memory=memory, kind=HOST, f32_share=1.0, overlaps=False)


def check_chip(chip: str) -> None:
    """Refuses what is no chip, or what nothing here compiles for.

    Args:
      chip: a topology, as in `v5e:2x2` or `tpu7x:2x2x1`, or `cpu`.

    Raises:
      ValueError: the name has another form, or the chip is unknown.
      ImportError: the package `libtpu` is missing.
    """
    if chip == HOST:
        return
    if not re.fullmatch(r"\w+:\d+(x\d+){1,2}", chip) or chip.split(":")[0] not in TPUS:
        raise ValueError(f"chip must be {HOST}, or NAME:SIZExSIZE with a name of {', '.join(TPUS)}; got {chip!r}")
    check_compiler()


def check_compiler() -> None:
    """Refuses to compile for TPUs where nothing that does is installed.

    Raises:
      ImportError: the package `libtpu` is missing.
    """
    if not has_compiler():
        raise ImportError("compiling for a TPU needs the package libtpu: pip install libtpu")


def has_compiler() -> bool:
    """Returns whether what compiles for TPUs is installed."""
    return importlib.util.find_spec("libtpu") is not None


def memory_bytes(chip: str) -> int | None:
    """Returns the bytes of memory of one device of a topology; None for this machine."""
    return None if chip == HOST else TPUS[chip.split(":")[0]].device.memory


def devices(chip: str) -> Sequence[jax.Device]:
    """Returns the devices of a topology. They can be compiled for, not run on.

    Raises:
      ValueError, ImportError: as `check_chip`, or the compiler does not know the topology.
    """
    check_chip(chip)
    if chip == HOST:
        return jax.devices(HOST)
    # Read when the library is loaded: no server is asked which chip this is, and other processes may have it loaded.
    os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=chip).devices
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(f"no topology {chip}: {error}") from error


def _check_slice(text: str, chip: Chip, sizes: tuple[int, ...]) -> None:
    """Refuses a slice that chips do not come in."""
    name = text.partition(":")[0]
    if math.prod(sizes) > chip.most:
        raise ValueError(
            f"a topology of {name} must have at most {chip.most} chips; got {math.prod(sizes)} in {text!r}"
        )
    if chip.axes == 2 and tuple(sorted(sizes)) not in SQUARES:
        known = ", ".join(f"{a}x{b}" for a, b in SQUARES)
        raise ValueError(f"a topology of {name} must be one of {known}; got {text!r}")
    if chip.axes == 3 and any(n > 2 and n % 4 for n in sizes):
        raise ValueError(f"sides of a topology of {name} must be 1, 2 or multiples of 4; got {text!r}")
