"""Bytes that a program holds beside its arguments, as compilers assign buffers.

A forward over many entries holds most while the MLP of a late layer runs: gate and up, the residual before and after,
and what the layers so far leave for the cache. On a TPU that is all heads of every entry, queries included, or keys and
values padded by their own width on both sides, as the one write at the end takes them. The rotary embedding's factors,
as wide as all heads, and the words that say who sees whom are held as long.
"""

import dataclasses
import math

from jax_smash.attention.formula import LEAST_TILE, SCORES_AT_ONCE
from jax_smash.planning.work import INT8_TERMS, LOGIT_BYTES, Sizes
from jax_smash.sampling.vocabulary import PIECE_LOGITS

HOLES = 1.13
"""Bytes of a TPU's heap over those of the arrays in it when it is fullest, gate and up left out: arrays that are held
for long leave holes. In ten programs for four kinds of chips it was from 1.0 to 1.27; `eval.plans` compiles such."""

FAST_SHARE = 7 / 8
"""Share of a TPU's fast memory that its compiler gives to arrays."""

ROW_BYTES = 512
"""Bytes of a row of a TPU's tile, which a position of an entry fills, and an entry's words of a tile of entries."""

KERNEL_ROWS, WORD = 512, 32
"""Rows of queries that the kernel of attention takes at once, and bits of a word; see `tree_attention.tpu`."""

SCORE_BYTES, TOTAL_BYTES = 4, 4
"""Bytes of a score, and of a sum of products of int8."""


@dataclasses.dataclass(frozen=True)
class Width:
    """What one device has of a forward.

    Attributes:
      rows: whose caches it has.
      entries: that it multiplies with its part of the weights, of all rows.
      width: entries a row.
    """

    rows: float
    entries: float
    width: int

    @classmethod
    def of(cls, sizes: Sizes, batch: int, width: int) -> "Width":
        """Returns that of a batch.

        Args:
          sizes: what work goes by.
          batch: rows on all devices.
          width: entries a row.
        """
        mesh = sizes.mesh
        return cls(batch / (mesh.data * mesh.fsdp), batch / mesh.data * width, width)


def prefill_bytes(sizes: Sizes, batch: int, width: int, slots: int) -> int:
    """Returns about how many bytes a piece of the prompts holds, what it returns beside the state included.

    Args:
      sizes: what work goes by.
      batch: rows on all devices.
      width: entries a row.
      slots: of a row's cache.
    """
    here = Width.of(sizes, batch, width)
    return int(_layers(sizes, here, slots) + _residual(sizes, here))


def decode_bytes(sizes: Sizes, batch: int, nodes: int, slots: int) -> int:
    """Returns about how many bytes a step holds.

    Args:
      sizes, batch, slots: as in `prefill_bytes`.
      nodes: entries a row, the root included; with more than one the vocabulary is read in pieces.
    """
    here = Width.of(sizes, batch, nodes)
    divided = sizes.config.vocab_size % sizes.mesh.tp == 0
    whole = here.entries * sizes.config.vocab_size
    logits = whole / (sizes.mesh.tp if divided else 1)
    if nodes > 1 and sizes.platform != "cpu":
        logits = min(logits, PIECE_LOGITS)
    elif divided and sizes.mesh.tp > 1:
        logits += whole
    return int(max(_layers(sizes, here, slots), LOGIT_BYTES * logits))


def _layers(sizes: Sizes, here: Width, slots: int) -> float:
    if sizes.platform == "cpu":
        return _on_cpu(sizes, here, slots)
    return _on_tpu(sizes, here) if sizes.platform == "tpu" else _by_kernel(sizes, here)


def _on_tpu(sizes: Sizes, here: Width) -> float:
    """Returns the most of what is held in the MLP of a late layer, and at the write of all layers."""
    layers, heads = sizes.config.num_layers, _heads(sizes, here)
    left = max(heads, (3 if here.width > 1 else 1) * _new(sizes, here))
    held = 2 * heads + (layers - 1) * left + here.rows * here.width * ROW_BYTES * (1 + word_tiles(sizes, here.width))
    return max(_mlp_on_tpu(sizes, here, held), layers * left)


def _mlp_on_tpu(sizes: Sizes, here: Width, held: float) -> float:
    """Returns what is in main memory while the MLP runs: fast memory has what fits beside the next weights.

    Args:
      sizes, here: as above.
      held: from layer to layer.
    """
    mesh, config = sizes.mesh, sizes.config
    int8 = sizes.weight_kind == "s8"
    gate_up, residual = _gate_up(sizes, here), _residual(sizes, here)
    weight = 2 * config.d_model / mesh.fsdp * config.mlp_width / mesh.tp * (1 if int8 else sizes.itemsize)
    room = FAST_SHARE * sizes.fast_memory - weight
    if int8:
        # Both terms' sums are there with what they become, and before anything is added to the residual.
        sums = gate_up / sizes.itemsize * INT8_TERMS * TOTAL_BYTES
        return gate_up + sums + HOLES * (held + residual)
    if 3 * residual + 2 * gate_up < room:
        return HOLES * held
    return gate_up + HOLES * (held if 3 * residual < room else held + 2 * residual)


def word_tiles(sizes: Sizes, width: int) -> int:
    """Returns into how many tiles the kernel divides the entries of a row."""
    group = sizes.config.num_heads // sizes.config.held_kv_heads
    return math.ceil(width / max(KERNEL_ROWS // group // WORD * WORD, WORD))


def _by_kernel(sizes: Sizes, here: Width) -> float:
    return sizes.config.num_layers * _new(sizes, here) + _gate_up(sizes, here) + 2 * _residual(sizes, here)


def _on_cpu(sizes: Sizes, here: Width, slots: int) -> float:
    """Returns what is held where XLA's own operations make attention's scores, a tile of a long cache at a time."""
    config = sizes.config
    at_once = here.rows * sizes.shares.kv_heads * (config.num_heads // config.held_kv_heads) * here.width
    tile = max(SCORES_AT_ONCE / at_once, LEAST_TILE)
    # Beside scores of a row's own entries stand those of its whole cache, or what they become before the first tile.
    scores = at_once * SCORE_BYTES * (here.width + (slots if slots <= tile else here.width))
    kept = config.num_layers * _new(sizes, here)
    mlp = _gate_up(sizes, here) + 2 * _residual(sizes, here)
    return kept + max(scores + _heads(sizes, here), mlp)


def _gate_up(sizes: Sizes, here: Width) -> float:
    return here.entries * 2 * sizes.config.mlp_width / sizes.mesh.tp * sizes.itemsize


def _residual(sizes: Sizes, here: Width) -> float:
    return here.entries * sizes.config.d_model / sizes.mesh.fsdp * sizes.itemsize


def _heads(sizes: Sizes, here: Width) -> float:
    """Returns the bytes of queries, keys and values of a layer."""
    config = sizes.config
    count = sizes.shares.kv_heads * (config.num_heads // config.held_kv_heads + 2)
    return here.rows * here.width * count * config.head_width * sizes.itemsize


def _new(sizes: Sizes, here: Width) -> float:
    """Returns the bytes of keys and values of a layer."""
    return here.rows * here.width * 2 * sizes.shares.kv_heads * sizes.config.head_width * sizes.itemsize
