"""The least that a program must do, from the configuration alone: bytes to move, operations to make."""

import dataclasses
from typing import Any

import jax

from eval.chips.abstract import Abstract, share, share_bytes
from eval.chips.data_sheets import Chip
from jax_smash.config import ModelConfig
from jax_smash.protocols import Strategy


@dataclasses.dataclass(frozen=True)
class Ideal:
    """The least that a device does for a program; for `decode`, of a step.

    Attributes:
      weights, cache, written: bytes of weights and cache, each read once, and of new entries of the cache.
      operations: of matrix products, an addition and a multiplication each.
    """

    weights: int
    cache: int = 0
    written: int = 0
    operations: int = 0

    @property
    def bytes(self) -> int:
        """All bytes."""
        return self.weights + self.cache + self.written

    def ms(self, chip: Chip, kind: str) -> float:
        """Returns the roofline: the longer of bytes over bandwidth and operations over the peak.

        Args:
          chip: that runs the program.
          kind: element type of the weights, as in bf16 and s8.
        """
        return 1e3 * max(self.bytes / chip.bandwidth, self.operations / chip.peak(kind))


def ideal(name: str, config: ModelConfig, arguments: Abstract) -> Ideal:
    """Returns the least that one of the decoding programs does.

    A step reads every weight and every slot of the cache once, and writes the entries that it can accept. A draft model
    is read for each level of the tree; other modules are read once. Embeddings that are looked up are left out.

    Args:
      name: prefill, start or decode.
      config: the target's sizes.
      arguments: of the program.
    """
    target, cache = arguments.params["target"], arguments.state.rows.cache
    # A policy's cache holds one, and its channels beside it.
    cache = getattr(cache, "cache", cache)
    batch, chunk = arguments.chunk.tokens.shape
    head = target["head" if "head" in target else "embedding"]
    if name == "start":
        return Ideal(share_bytes(head), operations=2 * batch * _elements(head))
    layers, held = target["layers"], (cache.keys, cache.values)
    logits = name == "decode" or _learns_prompt(arguments.strategy)
    width, kept = (chunk, chunk) if name == "prefill" else (arguments.nodes, arguments.strategy.block)
    weights = share_bytes(layers) + (share_bytes(head) if logits else 0)
    products = _elements(layers) + (_elements(head) if logits else 0)
    return Ideal(
        weights=weights + _beside(name, arguments),
        cache=share_bytes(held),
        written=sum(share_bytes(x) // x.shape[2] * kept for x in jax.tree.leaves(held)),
        operations=2 * batch * width * products + _attention(held, config, width),
    )


def _attention(held: Any, config: ModelConfig, width: int) -> int:
    """Returns the operations of scores and of their mixtures, of new entries with the cache and with each other."""
    group = config.num_heads // config.held_kv_heads
    entries = (share(x) for x in jax.tree.leaves(held))
    return sum(2 * width * group * rows * heads * (slots + width) * size for rows, heads, slots, size in entries)


def _learns_prompt(strategy: Strategy) -> bool:
    """Whether the drafter reads the logits of the prompt."""
    drafter = getattr(strategy, "drafter", None)
    return getattr(getattr(drafter, "tree", drafter), "learn_prompt", False)


def _beside(name: str, arguments: Abstract) -> int:
    """Returns the bytes of the weights beside the target's: a draft model's for each forward, other modules' once."""
    others = {role: share_bytes(x) for role, x in arguments.params.items() if role != "target"}
    forwards = getattr(arguments.strategy, "levels", 1) if name == "decode" else 1
    return sum(size * (forwards if role == "drafter" else 1) for role, size in others.items())


def _elements(params: Any) -> int:
    """Returns a device's part of the elements of matrices; the scales of quantised ones are left out."""
    matrices = [x for x in jax.tree.leaves(params) if x.ndim > 1 and min(x.shape) > 1]
    return sum(x.size // len(x.sharding.device_set) for x in matrices)
