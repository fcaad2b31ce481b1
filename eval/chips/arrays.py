"""Arrays of a compiled program: their bytes in memory, tiles filled up, and the memory that they are in."""

import dataclasses
import math
import re
from functools import cached_property

WIDTHS = {
    **dict.fromkeys(("s4", "u4", "f4e2m1fn"), 0.5),
    **dict.fromkeys(("pred", "s8", "u8"), 1),
    **dict.fromkeys(("bf16", "f16", "s16", "u16"), 2),
    **dict.fromkeys(("f32", "s32", "u32"), 4),
    **dict.fromkeys(("f64", "s64", "u64", "c64"), 8),
}
"""Bytes of an element by type. Types of 8-bit floats begin with f8; others take no memory."""

_ARRAY = re.compile(r"(\w+)\[([\d,]*)\](\{[^}]*\})?")
_TILE = re.compile(r"\(([\d,]+)\)")


@dataclasses.dataclass(frozen=True)
class Array:
    """One array of a compiled program.

    Attributes:
      kind: type of an element, as in bf16.
      sizes: of its axes.
      layout: order of the axes in memory, tiles and memory space, as text; "" for one without.
    """

    kind: str
    sizes: tuple[int, ...]
    layout: str = ""

    @property
    def width(self) -> float:
        """Bytes of an element."""
        return 1 if self.kind.startswith("f8") else WIDTHS.get(self.kind, 0)

    @property
    def elements(self) -> int:
        """Elements, padding left out."""
        return math.prod(self.sizes)

    @property
    def bytes(self) -> int:
        """Bytes, padding left out."""
        return math.ceil(self.elements * self.width)

    @cached_property
    def padded_bytes(self) -> int:
        """Bytes that it takes in memory, where tiles are filled up."""
        order, _, rest = self.layout.strip("{}").partition(":")
        axes = [int(axis) for axis in order.split(",") if axis]
        sizes = [self.sizes[axis] for axis in reversed(axes)] if axes else list(self.sizes)
        tiles = re.search(r"T((?:\([\d,]+\))+)", rest)
        for tile in _TILE.findall(tiles[1]) if tiles else ():
            sizes = _tiled(sizes, [int(n) for n in tile.split(",")])
        return math.ceil(math.prod(sizes) * self.width)

    @property
    def space(self) -> int:
        """Number of the memory that it is in: 0 is the device's main memory, 5 the host's; others are fast."""
        found = re.search(r"S\((\d+)\)", self.layout)
        return int(found[1]) if found else 0

    @property
    def order(self) -> str:
        """Layout without the memory space."""
        return re.sub(r":?S\(\d+\)", "", self.layout)

    @property
    def main_bytes(self) -> int:
        """Bytes that it takes of the device's main memory."""
        return 0 if self.space else self.padded_bytes

    def __str__(self) -> str:
        return f"{self.kind}[{','.join(map(str, self.sizes))}]"


def read_arrays(text: str) -> tuple[Array, ...]:
    """Returns the arrays that a shape or a tuple of shapes names, in order."""
    return tuple(
        Array(kind, tuple(int(n) for n in sizes.split(",") if n), layout)
        for kind, sizes, layout in _ARRAY.findall(text)
    )


def _tiled(sizes: list[int], tile: list[int]) -> list[int]:
    """Divides the last axes by a tile, rounded up: those that count tiles, then the tile's own."""
    sizes = [1] * (len(tile) - len(sizes)) + sizes
    kept, last = sizes[: -len(tile)], sizes[-len(tile) :]
    return [*kept, *(-(-n // t) for n, t in zip(last, tile, strict=True)), *tile]
