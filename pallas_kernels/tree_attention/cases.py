"""Shapes and random contents for tests and benchmarks."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from pallas_kernels.tree_attention.inputs import WORD, Inputs, Options

EMPTY = 2**30
"""Position of an empty slot."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One shape.

    Attributes:
      name: of the case.
      nodes: entries of the block: T.
      slots: of the cache: S. Positions go round in it where a row holds more than fit.
      held: positions that each batch row has committed: as many as there are rows.
      heads, kv_heads, head_width: N, K, H.
      window, softcap: as of `Options`.
      padding: how many of each row's last entries are padding; negative takes every third entry.
      dtype: of queries, keys and values.
    """

    name: str
    nodes: int
    slots: int
    held: tuple[int, ...]
    heads: int = 4
    kv_heads: int = 2
    head_width: int = 64
    window: int = 0
    softcap: float = 0.0
    padding: int = 0
    dtype: str = "float32"

    @property
    def options(self) -> Options:
        """The numbers of the call."""
        return Options(scale=self.head_width**-0.5, window=self.window, softcap=self.softcap)

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot's key and value in one KV head."""
        return 2 * self.head_width * jnp.dtype(self.dtype).itemsize


TESTS = (
    Case("one entry", 1, 48, (17,)),
    Case("grouped heads", 7, 96, (50, 3)),
    Case("one KV head", 5, 64, (33, 64), heads=6, kv_heads=1),
    Case("a KV head a head", 9, 64, (10, 64), kv_heads=4),
    Case("an empty cache", 6, 32, (0, 0)),
    Case("a row's cache is empty", 6, 32, (0, 21)),
    Case("ragged rows", 13, 712, (1, 712, 257, 64), heads=2, kv_heads=1),
    Case("a window over a whole cache", 9, 700, (650, 12), window=20),
    Case("a window over a cache gone round", 9, 48, (131, 20, 50), window=24),
    Case("a window shorter than the tree is deep", 40, 64, (30,), window=3),
    Case("capped scores", 8, 64, (40, 9), softcap=5.0),
    Case("a capped window", 8, 64, (40, 9), window=16, softcap=5.0),
    Case("padding behind", 12, 64, (40, 9), padding=5),
    Case("padding between", 12, 64, (40, 9), padding=-1),
    Case("words that end in a block", 33, 80, (70,), head_width=32),
    Case("more entries than a tile", 129, 40, (35, 2), heads=2, kv_heads=1),
    Case("entries in two tiles", 290, 72, (60, 2), heads=2, kv_heads=1, window=30, padding=-1),
    Case("narrow heads", 5, 272, (272, 100), head_width=32),
    Case("wide heads", 5, 272, (272, 100), head_width=256),
    Case("a cache that no tile divides", 5, 301, (301, 100), dtype="bfloat16"),
    Case("bfloat16", 20, 304, (304, 100), dtype="bfloat16"),
    Case("bfloat16, a capped window", 20, 304, (500, 100), window=40, softcap=8.0, dtype="bfloat16"),
)

LLAMA: dict[str, Any] = {"heads": 32, "kv_heads": 8, "head_width": 128, "dtype": "bfloat16"}
"""Llama-3.1-8B's attention."""

GEMMA: dict[str, Any] = {"heads": 8, "kv_heads": 4, "head_width": 256, "dtype": "bfloat16"}
"""Gemma-2-2B's."""

RAGGED = (4000, 200, 1000, 500, 3000, 100, 50, 2000)
BENCHMARKS = (
    *(Case(f"llama-8b-{nodes}", nodes, 4096, (3000,), **LLAMA) for nodes in (1, 8, 64, 80)),
    Case("llama-8b-64-short", 64, 4096, (512,), **LLAMA),
    Case("llama-8b-64-long", 64, 32768, (30000,), **LLAMA),
    Case("llama-8b-64-ragged", 64, 4096, RAGGED, **LLAMA),
    *(Case(f"llama-1b-{nodes}", nodes, 4096, (3000,), **(LLAMA | {"head_width": 64})) for nodes in (64, 80)),
    Case("gemma-2b-64-window", 64, 4096, (9000,), window=4096, softcap=50.0, **GEMMA),
)


def make(case: Case, seed: int = 0) -> Inputs:
    """Returns random arrays of a case: a random tree a row, behind the positions that the row holds."""
    rng = np.random.default_rng(seed)
    batch, width = len(case.held), case.nodes
    own, cached = (batch, width, case.kv_heads, case.head_width), (batch, case.kv_heads, case.slots, case.head_width)

    def normal(shape: tuple[int, ...]) -> Any:
        return jnp.asarray(rng.standard_normal(shape, np.float32).astype(jnp.dtype(case.dtype)))

    trees = [random_tree(width, rng) for _ in case.held]
    held = np.asarray(case.held, np.int32)[:, None]
    entry = np.arange(width)
    padded = entry % 3 == 2 if case.padding < 0 else entry >= width - case.padding
    return Inputs(
        query=normal((batch, width, case.heads, case.head_width)),
        key=normal(own),
        value=normal(own),
        position=jnp.asarray(held + np.stack([depth for _, depth in trees])),
        valid=jnp.asarray(np.broadcast_to(~padded, (batch, width))),
        ancestors=jnp.asarray(np.stack([pack(seen) for seen, _ in trees])),
        keys=normal(cached),
        values=normal(cached),
        slot_position=jnp.asarray(slot_positions(held, case.slots)),
    )


def random_case(seed: int, *, dtype: str = "float32", head_widths: tuple[int, ...] = (32, 64, 96, 128)) -> Case:
    """Returns a random shape, with up to 129 entries, more where the cache is small."""
    rng = np.random.default_rng(seed)
    kv_heads, slots = int(rng.integers(1, 4)), 8 * int(rng.integers(2, 80))
    return Case(
        name=f"random {seed}",
        nodes=int(rng.integers(1, 130)),
        slots=slots,
        held=tuple(rng.integers(0, 2 * slots, rng.integers(1, 4)).tolist()),
        heads=kv_heads * int(rng.integers(1, 4)),
        kv_heads=kv_heads,
        head_width=int(rng.choice(head_widths)),
        window=int(rng.choice([0, 1, 40])),
        softcap=float(rng.choice([0, 3])),
        padding=int(rng.choice([0, -1])),
        dtype=dtype,
    )


def random_tree(width: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Returns which entries each sees, `[T, T]`, and each one's depth, of a random tree."""
    seen, depth = np.eye(width, dtype=bool), np.zeros(width, np.int32)
    for i in range(1, width):
        parent = rng.integers(max(0, i - 8), i)
        seen[i] |= seen[parent]
        depth[i] = depth[parent] + 1
    return seen, depth


def pack(seen: np.ndarray) -> np.ndarray:
    """Packs booleans `[T, T]` into words `[T, W]`."""
    words = -(-seen.shape[1] // WORD)
    bits = np.zeros((seen.shape[0], words * WORD), np.uint32)
    bits[:, : seen.shape[1]] = seen
    return (bits.reshape(-1, words, WORD) << np.arange(WORD, dtype=np.uint32)).sum(2, dtype=np.uint32)


def slot_positions(held: np.ndarray, slots: int) -> np.ndarray:
    """Returns the position of each slot, `[B, S]`, where positions go round: the latest that fell on it."""
    slot = np.arange(slots, dtype=np.int32)[None]
    latest = held - 1 - (held - 1 - slot) % slots
    return np.where(latest >= 0, latest, EMPTY).astype(np.int32)
