"""What the data sheets say of chips, for one device of each.

Sources: Google Cloud's pages docs.cloud.google.com/tpu/docs/v4, v5e, v5p, v6e and tpu7x: bandwidth of the memory,
peaks, and the bidirectional bandwidth of all of a chip's links. A link has an even share of it, each direction a half
of that. The pages do not tell the links of v4 (50 GB/s each: Jouppi et al. 2023, "TPU v4: An Optically Reconfigurable
Supercomputer for Machine Learning with Hardware Support for Embeddings"), nor int8 of v5p (taken from JAX's table of
chips, `jax.experimental.pallas.tpu.get_tpu_info`), nor int8 of tpu7x (taken to be as fast as bfloat16). The clock
follows from the peak, with 131,072 operations a cycle and chip for v5e, as many a core for v4 and v5p, and 524,288 a
core since.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Chip:
    """One device of a chip; a tpu7x chip is two devices, which share its memory, peaks and links evenly.

    Attributes:
      bandwidth: of main memory, bytes a second.
      bf16_peak: operations a second of products of bfloat16; an addition and a multiplication are two.
      int8_peak: of products of int8, where the data sheet has them; else that of bfloat16.
      links: to other chips.
      link_bandwidth: of one link in one direction, bytes a second.
      clock: cycles a second of the matrix units.
    """

    bandwidth: float
    bf16_peak: float
    int8_peak: float
    links: int
    link_bandwidth: float
    clock: float

    def peak(self, kind: str) -> float:
        """Returns operations a second of products of an element type."""
        return self.int8_peak if kind in ("s8", "u8", "s4", "u4") else self.bf16_peak


CHIPS = {
    "v4": Chip(1200e9, 275e12, 275e12, links=6, link_bandwidth=50e9, clock=1.05e9),
    "v5e": Chip(819e9, 197e12, 393e12, links=4, link_bandwidth=50e9, clock=1.5e9),
    "v5p": Chip(2765e9, 459e12, 918e12, links=6, link_bandwidth=100e9, clock=1.75e9),
    "v6e": Chip(1638e9, 918e12, 1836e12, links=4, link_bandwidth=100e9, clock=1.75e9),
    "tpu7x": Chip(3690e9, 1153.5e12, 1153.5e12, links=6, link_bandwidth=50e9, clock=2.2e9),
}
"""By name, as topologies begin."""


def chip_of(topology: str) -> Chip | None:
    """Returns the chip of a topology such as v5e:2x2; None where no data sheet is known."""
    return CHIPS.get(topology.partition(":")[0])
