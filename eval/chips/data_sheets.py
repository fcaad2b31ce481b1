"""What the data sheets say of chips.

Sources: Google Cloud's pages docs.cloud.google.com/tpu/docs/v4, v5e, v5p, v6e and tpu7x: bandwidth of the memory,
peaks, and the bidirectional bandwidth of all of a chip's links. A link has an even share of it, each direction a half
of that. The pages do not tell the links of v4 (50 GB/s each: Jouppi et al. 2023, "TPU v4: An Optically Reconfigurable
Supercomputer for Machine Learning with Hardware Support for Embeddings"), nor int8 of v5p (taken from JAX's table of
chips, `jax.experimental.pallas.tpu.get_tpu_info`), nor int8 of tpu7x (taken to be as fast as bfloat16). The clock
follows from the peak, with 131,072 operations a cycle and core up to v5p and 524,288 since.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Chip:
    """One chip, or one device of it.

    Attributes:
      bandwidth: of main memory, bytes a second.
      bf16_peak: operations a second of products of bfloat16; an addition and a multiplication are two.
      int8_peak: of products of int8, where the data sheet has them; else that of bfloat16.
      links: to other chips.
      link_bandwidth: of one link in one direction, bytes a second.
      clock: cycles a second of the matrix units.
      cores: that share all this.
    """

    bandwidth: float
    bf16_peak: float
    int8_peak: float
    links: int
    link_bandwidth: float
    clock: float
    cores: int = 1

    def peak(self, kind: str) -> float:
        """Returns operations a second of products of an element type."""
        return self.int8_peak if kind in ("s8", "u8", "s4", "u4") else self.bf16_peak

    def part(self, cores: int) -> "Chip":
        """Returns what a device of some of the cores has: an even share of everything."""
        share = cores / self.cores
        names = ("bandwidth", "bf16_peak", "int8_peak", "link_bandwidth")
        return dataclasses.replace(self, cores=cores, **{name: share * getattr(self, name) for name in names})


CHIPS = {
    "v4": Chip(1200e9, 275e12, 275e12, links=6, link_bandwidth=50e9, clock=1.05e9, cores=2),
    "v5e": Chip(819e9, 197e12, 393e12, links=4, link_bandwidth=50e9, clock=1.5e9),
    "v5p": Chip(2765e9, 459e12, 918e12, links=6, link_bandwidth=100e9, clock=1.75e9, cores=2),
    "v6e": Chip(1638e9, 918e12, 1836e12, links=4, link_bandwidth=100e9, clock=1.75e9),
    "tpu7x": Chip(7380e9, 2307e12, 2307e12, links=6, link_bandwidth=100e9, clock=2.2e9, cores=2),
}
"""By name, as topologies begin."""


def chip_of(topology: str, cores: int | None = None) -> Chip | None:
    """Returns what one device of a topology such as v5e:2x2 has; None where no data sheet is known.

    Args:
      topology: the device's.
      cores: of the device; None for all of a chip.
    """
    chip = CHIPS.get(topology.partition(":")[0])
    return chip if chip is None or cores is None else chip.part(cores)
