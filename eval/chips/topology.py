"""Chips to compile for without having one."""

import importlib.util
import os
import re
from collections.abc import Sequence

import jax
from jax.experimental import topologies

MEMORY = {"v4": 32, "v5e": 16, "v5p": 95, "v6e": 32, "tpu7x": 96}
"""GiB of memory of one device, by the chip's name; a tpu7x chip is two devices."""

HOST = "cpu"
"""In place of a chip: this machine's processor."""


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
    if not re.fullmatch(r"\w+:\d+(x\d+){1,2}", chip) or chip.split(":")[0] not in MEMORY:
        raise ValueError(f"chip must be {HOST}, or NAME:SIZExSIZE with a name of {', '.join(MEMORY)}; got {chip!r}")
    if importlib.util.find_spec("libtpu") is None:
        raise ImportError("compiling for a TPU needs the package libtpu: pip install libtpu")


def memory_bytes(chip: str) -> int | None:
    """Returns the bytes of memory of one device of a topology; None for this machine."""
    return None if chip == HOST else MEMORY[chip.split(":")[0]] * 2**30


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
