"""What one device holds of a model, its drafter and its rows, read off the programs' arguments as shapes."""

import dataclasses
import math
from typing import Any

import jax
from flax import nnx

from jax_smash.cache import KVCache
from jax_smash.planning.abstract import Abstract, share, share_bytes
from jax_smash.quantise import has_int8

PROJECTIONS, MLP, HEAD, TABLE, OTHER = "projections", "mlp", "head", "embedding", "other"
"""What weights of a model are for: queries, keys, values and output; the MLP; logits; vectors of tokens that are looked
up, where the head is another matrix; and what is read once beside them."""

ONCE = ("medusa",)
"""Methods whose drafter is read once a step, not once for each level of its trees."""

OWN, OWN_SHARE = ("self-sparse",), 0.25
"""Methods that draft with the target's own weights, and the share of its cache that they read by default."""


@dataclasses.dataclass(frozen=True)
class Weights:
    """Weights that one device holds.

    Attributes:
      bytes: all of them, scales of quantised ones included.
      elements: of matrices, scales left out: an entry is multiplied with each once.
    """

    bytes: int = 0
    elements: int = 0

    def __add__(self, other: "Weights") -> "Weights":
        return Weights(self.bytes + other.bytes, self.elements + other.elements)


@dataclasses.dataclass(frozen=True)
class Shares:
    """What one device holds; rows are those of a device, of the mesh's data and fsdp.

    Attributes:
      target: the target's weights by what they are for.
      drafter: weights that draft.
      drafter_held: bytes of them that are not the target's own.
      drafter_int8: they are multiplied as 8-bit integers.
      drafter_forwards: how often a step reads them.
      kv_heads: of the cache.
      layer_slots: slots of each layer's cache.
      layer_slot_bytes: bytes of a slot of each layer's cache, keys and values, of a row.
      cache, scorer, memory, output: bytes of a row: the target's cache, what a policy keeps to choose slots, what the
        drafter keeps, and everything else.
      drafter_cache: bytes of a row that each forward of the drafter reads, its own cache.
      shared: bytes of what rows share.
      nodes: of the tree that a step checks, the root included.
      block: entries a row that a step writes at most.
      learns_prompt: the drafter reads logits of the prompt.
    """

    target: dict[str, Weights]
    drafter: Weights
    drafter_held: int
    drafter_int8: bool
    drafter_forwards: int
    kv_heads: int
    layer_slots: tuple[int, ...]
    layer_slot_bytes: tuple[int, ...]
    cache: int
    scorer: int
    memory: int
    output: int
    drafter_cache: int
    shared: int
    nodes: int
    block: int
    learns_prompt: bool

    @property
    def weights(self) -> Weights:
        """The target's, in all."""
        return sum(self.target.values(), Weights())

    @property
    def row(self) -> int:
        """Bytes of a row."""
        return self.cache + self.scorer + self.memory + self.output

    def arguments(self, rows: int) -> int:
        """Returns the bytes that a device holds when a step begins.

        Args:
          rows: of this device.
        """
        return self.weights.bytes + self.drafter_held + self.shared + rows * self.row


def shares_of(arguments: Abstract, method: str) -> Shares:
    """Returns what a device holds by the shapes of a program's arguments.

    Args:
      arguments: of programs in which every device has one row.
      method: that decodes.
    """
    rows, cache = arguments.state.rows, arguments.cache
    layers = list(zip(cache.keys, cache.values, strict=True))
    beside = {role: held for role, held in arguments.params.items() if role != "target"}
    memory = {role: held for role, held in rows.memory.items() if role != "target"}
    held = share_bytes(rows.memory["target"])
    scorer = share_bytes(arguments.channels)
    drafter = getattr(arguments.strategy, "drafter", None)
    drafting, int8 = weights_of(beside), has_int8(beside)
    return Shares(
        target=target_weights(arguments.params["target"]),
        drafter=drafting,
        drafter_held=0 if method in OWN and int8 == has_int8(arguments.params["target"]) else drafting.bytes,
        drafter_int8=int8,
        drafter_forwards=1 if method in ONCE else getattr(arguments.strategy, "levels", 1),
        kv_heads=share(cache.keys[0])[1],
        layer_slots=tuple(keys.shape[2] for keys in cache.keys),
        layer_slot_bytes=tuple(share_bytes(layer) // layer[0].shape[2] for layer in layers),
        cache=held - scorer,
        scorer=scorer,
        memory=share_bytes(memory),
        output=share_bytes(rows) - held - share_bytes(memory),
        drafter_cache=int(OWN_SHARE * (held - scorer)) if method in OWN else share_bytes(_caches(memory)),
        shared=share_bytes(arguments.state.shared),
        nodes=arguments.nodes,
        block=arguments.strategy.block,
        learns_prompt=bool(getattr(getattr(drafter, "tree", drafter), "learn_prompt", False)),
    )


def target_weights(params: Any) -> dict[str, Weights]:
    """Returns the weights that a device holds of a target, by what they are for."""
    found = {name: Weights() for name in (PROJECTIONS, MLP, HEAD, TABLE, OTHER)}
    untied = "head" in params
    for path, variable in nnx.to_flat_state(params):
        found[_purpose([str(name) for name in path], untied)] += weights_of(variable.get_value())
    return found


def weights_of(tree: Any) -> Weights:
    """Returns the weights of a tree of shapes that a device holds."""
    leaves = jax.tree.leaves(tree)
    matrices = [share(x) for x in leaves if x.ndim > 1 and min(x.shape) > 1]
    return Weights(share_bytes(leaves), sum(map(math.prod, matrices)))


def _purpose(path: list[str], untied: bool) -> str:
    if path[0] in ("head", "embedding"):
        return HEAD if path[0] == "head" or not untied else TABLE
    if "attention" in path:
        return PROJECTIONS
    return MLP if "mlp" in path else OTHER


def _caches(memory: Any) -> list[Any]:
    """Returns the keys and values among what a drafter keeps of a row."""
    nodes = jax.tree.leaves(memory, is_leaf=lambda x: isinstance(x, KVCache))
    return [(x.keys, x.values) for x in nodes if isinstance(x, KVCache)]
