"""Shapes and random contents for tests and benchmarks."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pallas_kernels.sparse_attention.inputs import Options, Pages
from pallas_kernels.tree_attention import cases as tree
from pallas_kernels.tree_attention.inputs import Inputs


@dataclasses.dataclass(frozen=True)
class Case(tree.Case):
    """One shape: that of tree attention, and which pages are chosen.

    Attributes:
      page_size: slots of a page: Z.
      most: pages of a set at the most: P.
      chosen: pages of each set, row by row and set by set; as many as there can be where it is empty.
      shared: whether all KV heads have one set.
      int8: the cache's keys and values are int8, with scales; `dtype` is that of all else.
    """

    page_size: int = 128
    most: int = 4
    chosen: tuple[int, ...] = ()
    shared: bool = False
    int8: bool = False

    @property
    def options(self) -> Options:
        """The numbers of the call."""
        return Options(**vars(super().options), page_size=self.page_size)

    @property
    def sets(self) -> int:
        """Sets of pages of a row."""
        return 1 if self.shared else self.kv_heads

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot's key and value in one KV head, their scales included."""
        return 2 * (self.head_width + 4) if self.int8 else super().slot_bytes


TESTS = (
    Case("one entry", 1, 512, (300,), page_size=16, most=5, head_width=128),
    Case("entries beside a page that is not full", 5, 256, (250, 70), page_size=32, most=2, head_width=128),
    Case("one page", 1, 64, (60,), page_size=64, most=1, head_width=128),
    Case("ragged rows", 7, 512, (500, 3), page_size=32, most=4, chosen=(4, 1, 0, 2), head_width=128),
    Case("no page at all", 6, 128, (100, 0), page_size=16, most=3, chosen=(0, 0, 0, 0), head_width=128),
    Case("a shared set", 9, 512, (500, 120, 0), page_size=64, most=5, chosen=(5, 2, 0), shared=True, head_width=128),
    Case("one KV head", 5, 512, (300, 64), heads=6, kv_heads=1, page_size=16, most=9, head_width=128),
    Case("a window", 9, 512, (400, 12), window=150, page_size=32, most=8, head_width=128),
    Case("a window over a cache gone round", 9, 256, (700, 90), window=200, page_size=16, most=12, head_width=128),
    Case("capped scores", 8, 256, (200, 40), softcap=5.0, page_size=64, most=3, head_width=128),
    Case("a capped window", 8, 256, (200, 40), window=64, softcap=5.0, page_size=32, most=3, head_width=128),
    Case("padding between", 12, 256, (200, 40), padding=-1, page_size=16, most=4, head_width=128),
    Case("words that end in a block", 33, 256, (70,), page_size=16, most=16, head_width=128),
    Case(
        "entries in two tiles",
        290,
        256,
        (200, 2),
        heads=2,
        kv_heads=1,
        padding=-1,
        page_size=64,
        most=2,
        head_width=128,
    ),
    Case("narrow heads", 5, 512, (500, 100), head_width=64, most=3, chosen=(3, 1, 1, 0)),
    Case("wide heads", 5, 512, (500, 100), head_width=256, page_size=32, most=6),
    Case("bfloat16", 20, 512, (500, 100), dtype="bfloat16", page_size=16, most=7, chosen=(7, 3, 5, 0), head_width=128),
    Case("bfloat16, narrow", 20, 512, (500, 100), dtype="bfloat16", most=2, shared=True, softcap=8.0),
    Case("int8", 7, 512, (500, 3), chosen=(4, 1, 0, 2), head_width=128, int8=True),
    Case("int8, narrow, a capped window", 9, 512, (500, 90), window=300, softcap=5.0, most=3, shared=True, int8=True),
    Case("int8 and bfloat16, wide", 20, 512, (500, 100), dtype="bfloat16", head_width=256, most=3, int8=True),
    Case("int8, entries in two tiles", 290, 256, (200, 2), heads=2, kv_heads=1, head_width=128, most=2, int8=True),
)

BENCHMARKS = (
    *(Case(f"llama-8b-{nodes}-2k-of-32k", nodes, 32768, (30000,), most=16, **tree.LLAMA) for nodes in (1, 64)),
    Case("llama-8b-1-2k-of-32k-pages-16", 1, 32768, (30000,), page_size=16, most=128, **tree.LLAMA),
    Case("llama-8b-1-2k-of-32k-shared", 1, 32768, (30000,), most=16, shared=True, **tree.LLAMA),
    Case("llama-8b-1-2k-of-32k-8-rows", 1, 32768, (30000,) * 8, page_size=64, most=32, **tree.LLAMA),
    Case("llama-1b-64-2k-of-32k", 64, 32768, (30000,), most=16, **(tree.LLAMA | {"head_width": 64})),
    *(
        Case(f"llama-8b-{nodes}-2k-of-32k-int8", nodes, 32768, (30000,), most=16, int8=True, **tree.LLAMA)
        for nodes in (1, 64)
    ),
    Case("llama-1b-64-2k-of-32k-int8", 64, 32768, (30000,), most=16, int8=True, **(tree.LLAMA | {"head_width": 64})),
)


def make(case: Case, seed: int = 0) -> tuple[Inputs, Pages]:
    """Returns random arrays of a case: those of tree attention, and pages in random order, junk behind their count.

    Scales of int8 differ from slot to slot; keys and values times theirs are about as large as those of other cases.
    """
    rng = np.random.default_rng(seed)
    sets, there = (len(case.held), case.sets), case.slots // case.page_size
    numbers = rng.permuted(np.broadcast_to(np.arange(there), (*sets, there)), axis=2)[..., : case.most]
    count = np.asarray(case.chosen or (case.most,) * (sets[0] * sets[1])).reshape(sets)
    table = np.where(np.arange(case.most) < count[..., None], numbers, 10**6)
    inputs, pages = tree.make(case, seed), Pages(*(jnp.asarray(x.astype(np.int32)) for x in (table, count)))
    if not case.int8:
        return inputs, pages

    def numbers_of(cached: Array) -> Array:
        return jnp.asarray(rng.integers(-127, 128, cached.shape, np.int8))

    scales = rng.uniform(0.2, 1.8, (len(case.held), case.kv_heads, 2, case.slots)).astype(np.float32) / 73
    cached = {"keys": numbers_of(inputs.keys), "values": numbers_of(inputs.values)}
    return inputs._replace(**cached), pages._replace(scales=jnp.asarray(scales))


def described(case: Case, sharding: Any = None) -> tuple[Inputs, Pages]:
    """Returns the shapes of a case's arrays, without the arrays."""
    inputs = jax.eval_shape(lambda: tree.make(dataclasses.replace(case, slots=8)))
    batch, slots = len(case.held), case.slots
    cached = jax.ShapeDtypeStruct((batch, case.kv_heads, slots, case.head_width), "int8" if case.int8 else case.dtype)
    inputs = inputs._replace(keys=cached, values=cached, slot_position=jax.ShapeDtypeStruct((batch, slots), jnp.int32))
    sets = (batch, case.sets)

    def chosen() -> Pages:
        scales = jnp.zeros((batch, case.kv_heads, 2, slots)) if case.int8 else None
        return Pages(jnp.zeros((*sets, case.most), jnp.int32), jnp.zeros(sets, jnp.int32), scales=scales)

    pages = jax.eval_shape(chosen)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), (inputs, pages))


def random_case(
    seed: int, *, dtype: str = "float32", head_widths: tuple[int, ...] = (128, 256), int8: bool = False
) -> Case:
    """Returns a random shape, with up to 129 entries and up to 24 pages a set, of 128 slots where int8."""
    rng = np.random.default_rng(seed)
    page_size = 2 ** int(7 if int8 else rng.integers(4, 8))
    kv_heads, held, there = int(rng.integers(1, 4)), int(rng.integers(1, 4)), int(rng.integers(1, 25))
    most, shared = int(rng.integers(1, there + 1)), bool(rng.integers(2))
    slots: Any = page_size * there
    return Case(
        name=f"random {seed}, int8" if int8 else f"random {seed}",
        nodes=int(rng.integers(1, 130)),
        slots=slots,
        held=tuple(rng.integers(0, 2 * slots, held).tolist()),
        heads=kv_heads * int(rng.integers(1, 4)),
        kv_heads=kv_heads,
        head_width=int(rng.choice(head_widths)),
        window=int(rng.choice([0, 1, 40])),
        softcap=float(rng.choice([0, 3])),
        padding=int(rng.choice([0, -1])),
        dtype=dtype,
        page_size=page_size,
        most=most,
        chosen=tuple(rng.integers(0, most + 1, held * (1 if shared else kv_heads)).tolist()),
        shared=shared,
        int8=int8,
    )
