"""What one device holds of a drafter with weights, and what a step does with it."""

import dataclasses
from typing import Any

import jax

from jax_smash.cache import KVCache
from jax_smash.config import ModelConfig
from jax_smash.models.chimera_config import ChimeraConfig
from jax_smash.models.dflash_config import DFlashConfig
from jax_smash.planning.abstract import Abstract, share_bytes
from jax_smash.planning.weights import HEAD, MLP, PROJECTIONS, TABLE, Weights, target_weights, weights_of
from jax_smash.quantise import has_int8

OWN = "self-sparse"
"""The method that drafts with the target's own weights and a part of its cache."""

WHOLE = ("draft-model", OWN)
"""Methods that draft with a whole model."""

BORROWS = ("chimera", "dflash", "eagle1", "hamburger")
"""Kinds of drafters that have no head of their own and use the target's."""


@dataclasses.dataclass(frozen=True)
class Drafter:
    """What one device holds of a drafter.

    Attributes:
      held: bytes of its weights that are not the target's own.
      forward: weights that one of its forwards reads, a head that it borrows included; none where drafts are looked up.
      once: weights that a step reads once, however many forwards it has.
      entries: a row that its only forward of a step reads, whatever the tree; None where each level of a tree has a
        forward, which reads the level's nodes.
      int8: they are multiplied as 8-bit integers.
      cache: bytes that each forward reads, of the rows that a device has in the arguments.
      prompt: weights that each token of a prompt is multiplied with.
    """

    held: int = 0
    forward: Weights = Weights()  # noqa: RUF009 - frozen
    once: Weights = Weights()  # noqa: RUF009 - frozen
    entries: int | None = None
    int8: bool = False
    cache: int = 0
    prompt: Weights = Weights()  # noqa: RUF009 - frozen


def drafter_of(arguments: Abstract, config: ModelConfig) -> Drafter:
    """Returns what a device holds of a method's drafter.

    Args:
      arguments: of the programs.
      config: the target's sizes.
    """
    kind = arguments.kind or arguments.method
    beside = {role: held for role, held in arguments.params.items() if role != "target"}
    if not beside:
        return Drafter()
    (params,) = beside.values()
    target = target_weights(arguments.params["target"])
    memory = {role: held for role, held in arguments.state.rows.memory.items() if role != "target"}
    entries = {"medusa": 1, "dflash": DFlashConfig.for_target(config).block_size}
    return Drafter(
        held=0 if kind == OWN else weights_of(params).bytes,
        forward=_forward(params, kind) + (target[HEAD] if kind in BORROWS else Weights()),
        once=_once(params, kind),
        entries=entries.get(kind),
        int8=has_int8(params),
        cache=share_bytes(_caches(memory))
        if kind != OWN
        else share_bytes((arguments.cache.keys, arguments.cache.values)),
        prompt=_of_prompts(params, kind, config),
    )


def _forward(params: Any, kind: str) -> Weights:
    """Returns the drafter's own weights that one of its forwards reads."""
    if kind in WHOLE:
        return sum((part for name, part in target_weights(params).items() if name != TABLE), Weights())
    if kind == "chimera":  # Of the heads, a level reads its own.
        unread = weights_of(params["heads"]).times(1 / ChimeraConfig.decoding_heads - 1)
        return weights_of(params) + unread
    if kind == "eagle":
        return weights_of(params) + weights_of(params["w_join"]).times(-1.0)
    if kind == "hamburger":
        return weights_of((params["micro_decoder"], params["stop_head"]))
    return weights_of(params)


def _once(params: Any, kind: str) -> Weights:
    """Returns the drafter's own weights that a step reads once."""
    if kind == "eagle":  # Taps are joined once, of the tokens that were accepted.
        return weights_of(params["w_join"])
    if kind == "hamburger":  # What places in a group add is made once for all steps.
        embedder = params["embedder"]
        return weights_of([embedder[name] for name in embedder if name not in ("place", "w_kv_place")])
    return Weights()


def _of_prompts(params: Any, kind: str, config: ModelConfig) -> Weights:
    """Returns the weights that each token of a prompt is multiplied with; of most drafters only keys and values."""
    if kind == "draft-model":
        parts = target_weights(params)
        return parts[PROJECTIONS] + parts[MLP]
    if kind not in ("eagle", "eagle1", "chimera", "dflash"):
        return Weights()
    heads = config.num_heads + 2 * config.num_kv_heads
    layers = {"chimera": [params.get("layer")], "dflash": params.get("layers")}.get(kind, [params])
    layers = layers.values() if hasattr(layers, "values") else layers
    made = sum((weights_of(x["attention"]["w_qkv"]) for x in layers), Weights()).times(2 * config.num_kv_heads / heads)
    if kind != "chimera":
        return weights_of(params["w_join"]) + made
    # A token has two entries.
    return Weights(made.bytes, 2 * made.elements) + weights_of(params["grams"])


def _caches(memory: Any) -> list[Any]:
    """Returns the keys and values among what a drafter keeps of a row."""
    nodes = jax.tree.leaves(memory, is_leaf=lambda x: isinstance(x, KVCache))
    return [(x.keys, x.values) for x in nodes if isinstance(x, KVCache)]
