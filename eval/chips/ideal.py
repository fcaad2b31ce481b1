"""The least that a program must do, from the configuration alone: bytes to move, operations to make."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from jax_smash.cache import LayerPlan, SelectedCache
from jax_smash.chips import Chip
from jax_smash.config import ModelConfig
from jax_smash.models.chimera_config import ChimeraConfig
from jax_smash.models.predictors import without_predictor
from jax_smash.plan import tree_bytes
from jax_smash.planning.abstract import Abstract, share, share_bytes
from jax_smash.planning.drafting import OWN, drafter_of
from jax_smash.planning.weights import matrices
from jax_smash.protocols import Strategy


@dataclasses.dataclass(frozen=True)
class Ideal:
    """The least that a device does for a program; for `decode`, of a step.

    Attributes:
      weights, cache, written: bytes of weights and cache, each read once, and of new entries of the cache. Weights of
        a policy's predictor are among them.
      operations: of matrix products, an addition and a multiplication each.
      scorer: bytes of what a policy chooses slots by, read once.
    """

    weights: int
    cache: int = 0
    written: int = 0
    operations: int = 0
    scorer: int = 0

    @property
    def bytes(self) -> int:
        """All bytes."""
        return self.weights + self.cache + self.scorer + self.written

    def parts(self) -> dict[str, int]:
        """Returns the bytes by what they are of."""
        return {"weights": self.weights, "cache": self.cache, "scorer": self.scorer, "written": self.written}

    def ms(self, chip: Chip, kind: str) -> float:
        """Returns the roofline: the longer of bytes over bandwidth and operations over the peak.

        Args:
          chip: that runs the program.
          kind: element type of the weights, as in bf16 and s8.
        """
        return 1e3 * max(self.bytes / chip.bandwidth, self.operations / chip.peak(kind))


def ideal(name: str, config: ModelConfig, arguments: Abstract) -> Ideal:
    """Returns the least that one of the decoding programs does.

    A step reads every weight and every slot of the cache once, and writes the entries that it can accept. Under a
    policy it reads the budget of slots, and what they are chosen by. A drafter's weights and cache are read for each
    of its forwards, HAMburger's modules once. Embeddings that are looked up are left out, and what a model that drafts
    for itself reads of its own cache to draft.

    Args:
      name: prefill, start or decode.
      config: the target's sizes.
      arguments: of the program.
    """
    (target, predictor), cache = without_predictor(arguments.params["target"]), arguments.cache
    batch, chunk = arguments.chunk.tokens.shape
    head = target["head" if "head" in target else "embedding"]
    if name == "start":
        return Ideal(share_bytes(head), operations=2 * batch * _elements(head))
    layers, held = target["layers"], (cache.keys, cache.values)
    logits = name == "decode" or _learns_prompt(arguments.strategy)
    width, kept = (chunk, chunk) if name == "prefill" else (arguments.nodes, arguments.strategy.block)
    read = (layers, predictor, head if logits else None)
    weights, products = share_bytes(read), _elements(read)
    slots, drafter = _slots_read(name, arguments), _drafter_read(name, config, arguments)
    return Ideal(
        weights=weights + drafter.weights,
        cache=sum(n * share_bytes((k, v)) // k.shape[2] for n, k, v in zip(slots, *held, strict=True)) + drafter.cache,
        scorer=_scorer(name, config, arguments),
        written=sum(share_bytes(x) // x.shape[2] * kept for x in jax.tree.leaves(held)),
        operations=2 * batch * width * products + _attention(slots, cache.keys, config, width),
    )


def _slots_read(name: str, arguments: Abstract) -> list[int]:
    """Returns how many slots a program reads of each layer's cache: all of them, or a policy's budget."""
    held = arguments.state.rows.cache
    slots = [keys.shape[2] for keys in arguments.cache.keys]
    if name != "decode" or not isinstance(held, SelectedCache):
        return slots
    return [n if plan is None else _of_heads(plan) for n, plan in zip(slots, held.plans, strict=True)]


def _of_heads(plan: LayerPlan) -> int:
    """Returns the slots that a layer's KV heads read on average."""
    shares = plan.by_head or (1.0,)
    return int(plan.slots * sum(shares) / len(shares))


def _scorer(name: str, config: ModelConfig, arguments: Abstract) -> int:
    """Returns the bytes that a device reads to choose slots, in all layers."""
    held = arguments.state.rows.cache
    if name != "decode" or not isinstance(held, SelectedCache):
        return 0
    first = held.cache.keys[0]
    total = first.shape[0] * held.policy.beside_bytes(first.shape[2], first.dtype.itemsize)
    for keys, plan in zip(held.cache.keys, held.plans, strict=True):
        if plan is not None:
            rows, slots = keys.shape[0], keys.shape[2]
            by_row = held.policy.scorer_bytes(config, slots, keys.dtype.itemsize)
            total += rows * by_row * share_bytes(keys) // tree_bytes(keys)
    return total


def _attention(slots: Sequence[int], keys: Sequence[Any], config: ModelConfig, width: int) -> int:
    """Returns the operations of scores and of their mixtures, of new entries with the cache and with each other."""
    group = config.num_heads // config.held_kv_heads
    sizes = ((n, *share(x)) for n, x in zip(slots, keys, strict=True))
    return sum(4 * width * group * rows * heads * (n + width) * size for n, rows, heads, _, size in sizes)


def _learns_prompt(strategy: Strategy) -> bool:
    """Whether the drafter reads the logits of the prompt."""
    drafter = getattr(strategy, "drafter", None)
    return getattr(getattr(drafter, "tree", drafter), "learn_prompt", False)


def _drafter_read(name: str, config: ModelConfig, arguments: Abstract) -> Ideal:
    """Returns the bytes of the weights beside the target's, and of what a drafter keeps of a row."""
    beside = share_bytes([held for role, held in arguments.params.items() if role != "target"])
    if not beside or arguments.method == "hamburger":
        return Ideal(beside)
    drafter = drafter_of(arguments, config)
    if name == "prefill":
        return Ideal(drafter.prompt.bytes)
    forwards = arguments.levels if drafter.entries is None else 1
    if arguments.kind == "chimera":
        forwards = min(forwards, ChimeraConfig.decoding_heads)
    cache = 0 if arguments.method == OWN else drafter.cache
    return Ideal(drafter.once.bytes + forwards * drafter.forward.bytes, forwards * cache)


def _elements(params: Any) -> int:
    """Returns a device's part of the elements of matrices; the scales of quantised ones are left out."""
    return sum(x.size // len(x.sharding.device_set) for x in matrices(params))
