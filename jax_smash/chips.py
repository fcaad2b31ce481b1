"""What the data sheets say of chips.

Sources: of TPUs, Google Cloud's pages docs.cloud.google.com/tpu/docs/v4, v5e, v5p, v6e and tpu7x: memory and its
bandwidth, peaks, and the bidirectional bandwidth of all of a chip's links. A link has an even share of it, each
direction a half of that. The pages do not tell the links of v4 (50 GB/s each: Jouppi et al. 2023, "TPU v4: An Optically
Reconfigurable Supercomputer for Machine Learning with Hardware Support for Embeddings"), nor int8 of v5p nor a core's
fast memory (taken from JAX's table of chips, `jax.experimental.pallas.tpu.get_tpu_info`), nor int8 of tpu7x (taken to
be as fast as bfloat16). The clock follows from the peak, with 131,072 operations a cycle and core up to v5p and 524,288
since. Of GPUs, NVIDIA's data sheets of the SXM modules, without sparsity; of the links' bandwidth in both directions a
half is one's.
"""

import dataclasses

GB, GIB, MIB = 10**9, 2**30, 2**20


@dataclasses.dataclass(frozen=True)
class Chip:
    """One chip, or one device of it.

    Attributes:
      bandwidth: of main memory, bytes a second.
      bf16_peak: operations a second of products of bfloat16; an addition and a multiplication are two.
      int8_peak: of products of int8, where the data sheet has them; else that of bfloat16.
      links: to other chips.
      link_bandwidth: of one link in one direction, bytes a second.
      clock: cycles a second of the matrix units; 0 where nothing is modelled by it.
      memory: bytes of main memory.
      kind: part of the name by which JAX knows its devices.
      cores: that share all this.
      devices: that JAX makes of a chip.
      axes: of the torus that links make of chips; 0 where a switch joins every chip to every other.
      most: chips that links join at most.
      f32_share: operations of products of float32 over those of bfloat16.
      fast_memory: bytes of a core's fast memory (VMEM); 0 where nothing is modelled by it.
      overlaps: memory, products and links work at the same time; if not, one waits for the other.
    """

    bandwidth: float
    bf16_peak: float
    int8_peak: float
    links: int
    link_bandwidth: float
    clock: float = 0.0
    memory: int = 0
    kind: str = ""
    cores: int = 1
    devices: int = 1
    axes: int = 0
    most: int = 1
    f32_share: float = 0.5
    fast_memory: int = 0
    overlaps: bool = True

    def peak(self, kind: str) -> float:
        """Returns operations a second of products of an element type, as in s8, bf16 and f32."""
        if kind in ("s8", "u8", "s4", "u4"):
            return self.int8_peak
        return self.bf16_peak * (self.f32_share if kind == "f32" else 1.0)

    @property
    def ridge(self) -> float:
        """Operations of bfloat16 a byte, from which on a program is limited by operations and not by bandwidth."""
        return self.bf16_peak / self.bandwidth

    @property
    def ring_bandwidth(self) -> float:
        """Bytes a second that a chip sends in a ring: both ways along an axis of a torus, by all links to a switch."""
        return self.link_bandwidth * (2 if self.axes else self.links)

    @property
    def device(self) -> "Chip":
        """What one of the devices has that JAX makes of it."""
        return self.part(self.cores // self.devices)

    def part(self, cores: int) -> "Chip":
        """Returns what a device of some of the cores has: an even share of everything."""
        share = cores / self.cores
        names = ("bandwidth", "bf16_peak", "int8_peak", "link_bandwidth")
        shares = {name: share * getattr(self, name) for name in names}
        return dataclasses.replace(self, cores=cores, devices=1, memory=int(share * self.memory), **shares)


TPUS = {
    "v4": Chip(
        1200e9, 275e12, 275e12, 6, 50e9, 1.05e9, 32 * GIB, "TPU v4", cores=2, axes=3, most=4096, fast_memory=16 * MIB
    ),
    "v5e": Chip(
        819e9, 197e12, 393e12, 4, 50e9, 1.5e9, 16 * GIB, "TPU v5 lite", axes=2, most=256, fast_memory=128 * MIB
    ),
    "v5p": Chip(
        2765e9, 459e12, 918e12, 6, 100e9, 1.75e9, 95 * GIB, "TPU v5", cores=2, axes=3, most=8960, fast_memory=64 * MIB
    ),
    "v6e": Chip(
        1638e9, 918e12, 1836e12, 4, 100e9, 1.75e9, 32 * GIB, "TPU v6 lite", axes=2, most=256, fast_memory=128 * MIB
    ),
    "tpu7x": Chip(
        7380e9,
        2307e12,
        2307e12,
        6,
        100e9,
        2.2e9,
        192 * GIB,
        "TPU7x",
        2,
        devices=2,
        axes=3,
        most=9216,
        fast_memory=64 * MIB,
    ),
}
"""TPUs by name, as topologies begin."""

GPUS = {
    "a100": Chip(2039e9, 312e12, 624e12, 12, 25e9, memory=80 * GB, kind="A100", most=8),
    "h100": Chip(3350e9, 989e12, 1979e12, 18, 25e9, memory=80 * GB, kind="H100", most=8),
    "h200": Chip(4800e9, 989e12, 1979e12, 18, 25e9, memory=141 * GB, kind="H200", most=8),
    "b200": Chip(8000e9, 2250e12, 4500e12, 18, 50e9, memory=180 * GB, kind="B200", most=8),
}
"""GPUs by name; those of one machine are joined by links."""

CHIPS = TPUS | GPUS
"""Chips by name."""


def chip_of(topology: str, cores: int | None = None) -> Chip | None:
    """Returns what one device of a topology such as v5e:2x2 has; None where no data sheet is known.

    Args:
      topology: the device's.
      cores: of the device; None for all of a chip.
    """
    chip = CHIPS.get(topology.partition(":")[0])
    return chip if chip is None or cores is None else chip.part(cores)
