"""What the parts of a program do on one device: operations, bytes of memory, bytes over links; and the time they need.

A part takes as long as the slower of its operations and its bytes of memory, and parts follow each other. What devices
exchange is a part of its own. All of it is the least that there is to do: real programs take longer.

Source: the roofline, Williams, Waterman and Patterson 2009, "Roofline: An Insightful Visual Performance Model for
Multicore Architectures".
"""

import dataclasses
from collections.abc import Iterable

from jax_smash.chips import Chip
from jax_smash.config import ModelConfig
from jax_smash.planning.shares import Shares
from jax_smash.planning.weights import HEAD, MLP, OTHER, PROJECTIONS
from jax_smash.sharding import MeshShape

INT8_TERMS = 2
"""Products with an int8 weight that an entry takes: it is rounded to two terms, see `quantise.product`."""

LOGIT_BYTES = 4

Number = float | int


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a program, on one device.

    Attributes:
      name: what it is.
      operations: of products, an addition and a multiplication each.
      read: bytes of weights and cache, and of new entries of the cache.
      activations: bytes that go in and come out.
      sent: bytes over links.
      kind: element type of the products, as in bf16 and s8.
    """

    name: str
    operations: Number = 0.0
    read: Number = 0.0
    activations: Number = 0.0
    sent: Number = 0.0
    kind: str = "bf16"

    @property
    def bytes(self) -> Number:
        """Bytes of main memory."""
        return self.read + self.activations

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.operations / self.bytes if self.bytes else 0.0

    def times(self, chip: Chip) -> dict[str, float]:
        """Returns the seconds that each limit asks for, by its name."""
        return {
            "memory": self.bytes / chip.bandwidth,
            "operations": self.operations / chip.peak(self.kind),
            "links": self.sent / chip.ring_bandwidth,
        }

    def seconds(self, chip: Chip) -> float:
        """Returns the least time of a device: the longest of its limits, or their sum where they do not overlap."""
        times = self.times(chip).values()
        return max(times) if chip.overlaps else sum(times)

    def limit(self, chip: Chip) -> str:
        """Returns what takes longest: memory, operations or links."""
        times = self.times(chip)
        return max(times, key=times.__getitem__)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What work goes by.

    Attributes:
      config: the model's.
      mesh: devices along each axis.
      shares: what a device holds.
      itemsize: bytes of an element of activations and cache.
      kind, weight_kind: element type of activations, and of products with weights.
      read: share of the cache that attention reads; 1 without a policy.
      scorer: bytes that a step reads of each row to choose slots.
      platform: `tpu`, `gpu` or `cpu`.
      fast_memory: bytes that a device has of it.
    """

    config: ModelConfig
    mesh: MeshShape
    shares: Shares
    itemsize: int
    kind: str
    weight_kind: str
    read: Number = 1.0
    scorer: int = 0
    platform: str = "tpu"
    fast_memory: int = 0


def forward(
    sizes: Sizes, batch: int, width: int, slots: int, *, logits: int, drafting: bool = False, sparse: bool = False
) -> list[Part]:
    """Returns the parts of a forward.

    Args:
      sizes: what work goes by.
      batch: rows on all devices.
      width: entries a row.
      slots: that every row's cache holds.
      logits: entries a row of which logits are made.
      drafting: only the likeliest tokens are joined of what devices find in their parts of the vocabulary.
      sparse: attention reads what a policy chooses.
    """
    config, shares, item = sizes.config, sizes.shares, sizes.itemsize
    rows, entries = _rows(sizes, batch), _entries(sizes, batch) * width
    d, heads = config.d_model / sizes.mesh.fsdp, shares.kv_heads * (config.num_heads // config.held_kv_heads)
    f = config.mlp_width / sizes.mesh.tp
    qkv = heads + 2 * shares.kv_heads
    layers, group = config.num_layers, config.num_heads // config.held_kv_heads
    read, attended = _attended(sizes, slots, width, sparse=sparse)
    parts = [
        _product(
            sizes,
            PROJECTIONS,
            entries,
            layers * entries * item * (2 * d + (qkv + heads) * config.head_width),
            extra=OTHER,
        ),
        Part(
            "attention",
            operations=4 * rows * width * shares.kv_heads * group * config.head_width * attended,
            read=rows * (read + width * sum(shares.layer_slot_bytes)),
            activations=2 * rows * width * heads * config.head_width * layers * item,
            kind=sizes.kind,
        ),
        _product(sizes, MLP, entries, layers * entries * item * (2 * d + 2 * f)),
    ]
    if logits:
        parts.append(_product(sizes, HEAD, _entries(sizes, batch) * logits, _entries(sizes, batch) * logits * d * item))
    if sparse and sizes.scorer:
        parts.append(Part("scorer", read=rows * sizes.scorer, kind=sizes.kind))
    sent = exchanged(sizes, batch, width, logits=logits, drafting=drafting)
    return [*parts, Part("links", sent=sent, kind=sizes.kind)] if sent else parts


def exchanged(sizes: Sizes, batch: int, width: int, *, logits: int, drafting: bool = False) -> float:
    """Returns the bytes that a device sends in a forward, each exchange over a ring of those that take part.

    Over `tp` two products a layer and the embedding are added up, and logits are joined. Over `fsdp`, whose devices
    have a part of the model's width, two other products a layer and the logits are added up, and heads are joined. Of
    logits a device joins those of its own rows.

    Args:
      sizes, batch, width, logits, drafting: as in `forward`.
    """
    config, mesh, item = sizes.config, sizes.mesh, sizes.itemsize
    entries = _entries(sizes, batch) * width
    tp, fsdp = mesh.tp, mesh.fsdp
    divided = config.vocab_size % tp == 0
    vocabulary = _entries(sizes, batch) * logits * config.vocab_size * LOGIT_BYTES
    heads = sizes.shares.kv_heads * (config.num_heads // config.held_kv_heads)
    qkv = (heads + 2 * sizes.shares.kv_heads) * config.head_width
    sums = _ring(tp, 2 * (2 * config.num_layers + divided) * entries * config.d_model / fsdp * item)
    sums += _ring(fsdp, 2 * config.num_layers * entries * (qkv + 2 * config.mlp_width / tp) * item)
    sums += _ring(fsdp, 2 * vocabulary / (tp if divided else 1))
    joined = _ring(fsdp, config.num_layers * entries * heads * config.head_width * item)
    return sums + joined + (_ring(tp, vocabulary / fsdp) if divided and not drafting else 0.0)


def drafts(sizes: Sizes, batch: int, *, nodes: Number, levels: Number, sparse: bool = False) -> list[Part]:
    """Returns what a drafter with weights does in a step; nothing for one that looks up.

    Args:
      sizes: what work goes by.
      batch: rows on all devices.
      nodes: that it drafts a row.
      levels: of them.
      sparse: it reads what a policy chooses of its cache, once for all levels.
    """
    drafter, rows = sizes.shares.drafter, _rows(sizes, batch)
    if not drafter.forward.bytes or not nodes:
        return []
    forwards, entries = (levels, max(nodes, levels)) if drafter.entries is None else (1, drafter.entries)
    cache = drafter.cache * (sizes.read if sparse else 1.0)
    kind, terms = _drafting(sizes)
    return [
        Part(
            "drafter",
            operations=2 * terms * _entries(sizes, batch) * entries * (drafter.forward + drafter.once).elements,
            read=drafter.once.bytes
            + forwards * (drafter.forward.bytes + rows * cache)
            + (rows * sizes.scorer if sparse else 0),
            kind=kind,
        )
    ]


def drafter_reads(sizes: Sizes, batch: int, width: int) -> list[Part]:
    """Returns what a drafter does with a piece of the prompts; nothing for one that needs no weights for it.

    Args:
      sizes: what work goes by.
      batch: rows on all devices.
      width: tokens a row.
    """
    prompt = sizes.shares.drafter.prompt
    kind, terms = _drafting(sizes)
    operations = 2 * terms * _entries(sizes, batch) * width * prompt.elements
    return [Part("drafter", operations=operations, read=prompt.bytes, kind=kind)] if prompt.bytes else []


def together(parts: Iterable[Part]) -> list[Part]:
    """Returns the sums of parts of one name, in the order in which names first occur."""
    found: dict[str, Part] = {}
    for part in parts:
        before = found.get(part.name, Part(part.name, kind=part.kind))
        added = {n: getattr(before, n) + getattr(part, n) for n in ("operations", "read", "activations", "sent")}
        found[part.name] = dataclasses.replace(before, **added)
    return list(found.values())


def seconds(parts: Iterable[Part], chip: Chip) -> float:
    """Returns the least time of parts that follow each other."""
    return float(sum(part.seconds(chip) for part in parts))


def _product(sizes: Sizes, name: str, entries: Number, activations: Number, *, extra: str | None = None) -> Part:
    weights = sizes.shares.target[name]
    kind, terms = _kind_of(sizes)
    beside = sizes.shares.target[extra].bytes if extra else 0
    return Part(name, 2 * terms * entries * weights.elements, weights.bytes + beside, activations, kind=kind)


def _kind_of(sizes: Sizes) -> tuple[str, int]:
    return sizes.weight_kind, INT8_TERMS if sizes.weight_kind == "s8" else 1


def _drafting(sizes: Sizes) -> tuple[str, int]:
    return ("s8", INT8_TERMS) if sizes.shares.drafter.int8 else (sizes.kind, 1)


def _attended(sizes: Sizes, slots: int, width: int, *, sparse: bool) -> tuple[Number, Number]:
    """Returns the bytes of a row's cache that attention reads, and the entries that one attends to, in all layers."""
    held = [min(slots, most) for most in sizes.shares.layer_slots]
    share = sizes.read if sparse else 1.0
    bytes_ = share * sum(n * size for n, size in zip(held, sizes.shares.layer_slot_bytes, strict=True))
    return bytes_, share * sum(held) + width * len(held)


def _rows(sizes: Sizes, batch: int) -> float:
    """Rows whose caches a device has."""
    return batch / (sizes.mesh.data * sizes.mesh.fsdp)


def _entries(sizes: Sizes, batch: int) -> float:
    """Rows whose entries a device multiplies with its part of the weights."""
    return batch / sizes.mesh.data


def _ring(devices: int, bytes_: Number) -> float:
    return bytes_ * (devices - 1) / devices
