"""The slots with most attention, and what share of them a choice holds, within a compiled step."""

import functools
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eval.sparse.watched import Rule
from eval.tasks.selection import SINKS
from jax_smash.attention import slot_probabilities
from jax_smash.cache import SelectedLayer, Selection
from jax_smash.pytree import pytree, replace
from jax_smash.threshold import mark_highest


@pytree
class Held:
    """What a choice of one layer holds of the slots with most attention, 0 … 1.

    Attributes:
      by_head: of those with most attention of each query head.
      by_group: of those with most attention of the query heads of a KV head together.
      recent: by query head, of as many last slots as were chosen: a control.
      kept: share of the candidates that was chosen.
    """

    by_head: Float[Array, "B N"]
    by_group: Float[Array, "B K"]
    recent: Float[Array, "B N"]
    kept: Float[Array, "B K"]


@functools.cache
def held_of_top(share: float, sinks: int = SINKS) -> Rule:
    """Returns the rule that compares a choice with the true attention of the query that it was made for.

    held = |chosen ∩ top k| / k,  k = ⌈share · slots⌉ − sinks

    Candidates are the committed slots behind the sinks, evicted ones among them. k is what a budget of `share` leaves
    beside the sinks, and of equal probabilities the earlier slot comes first. So the `by_group` of an oracle is 1.

    Source: TokenButler, section 4.1, top-k recall.
    Differs: sinks, which every policy keeps, and the new entry, which every step reads, are left out. Probabilities are
    normalised without the new entry's own. So where a KV head has several query heads, the order of their sums may
    differ from that of dense attention.

    Args:
      share: of the slots, over 0 and at most 1.
      sinks: first slots, which are left out.
    """

    def rule(view: SelectedLayer, query: Float[Array, "B N H"], chosen: Selection) -> Held:
        slots = view.layer.keys.shape[2]
        candidate = candidates(view, sinks)
        read = marked(chosen.slots, chosen.valid, slots) & candidate
        mass = true_attention(view, query)
        count = wanted(view.filled, share, sinks)
        groups = mass.shape[2]
        of_heads = mark_highest(mass.reshape(mass.shape[0], -1, slots), candidate, count[:, None])
        of_groups = mark_highest(mass.sum(2), candidate, count[:, None])
        by_head = jnp.repeat(read, groups, axis=1)
        latest = jnp.arange(slots, dtype=jnp.int32)[None, None] >= view.filled[:, None, None] - read.sum(2)[:, :, None]
        total = jnp.maximum(count, 1).astype(jnp.float32)[:, None]

        def share_of(found: Bool[Array, "B X S"], truth: Bool[Array, "B X S"]) -> Float[Array, "B X"]:
            return (found & truth).sum(2).astype(jnp.float32) / total

        seen = jnp.maximum(candidate.sum(2), 1).astype(jnp.float32)
        return Held(
            by_head=share_of(by_head, of_heads),
            by_group=share_of(read, of_groups),
            recent=share_of(jnp.repeat(latest & candidate, groups, axis=1), of_heads),
            kept=read.sum(2).astype(jnp.float32) / seen,
        )

    return rule


def true_attention(view: SelectedLayer, query: Float[Array, "B N H"]) -> Float[Array, "B K G S"]:
    """Returns what a query attends to among all committed slots, whether a policy has evicted them or not."""
    latest = jnp.maximum(view.filled - 1, 0)
    position = jnp.take_along_axis(view.layer.position, latest[:, None], axis=1)
    return slot_probabilities(query[:, None], position, replace(view, alive=None))[:, :, :, 0]


def candidates(view: SelectedLayer, sinks: int) -> Bool[Array, "B 1 S"]:
    """Marks the committed slots behind the sinks."""
    slot = jnp.arange(view.layer.keys.shape[2], dtype=jnp.int32)[None, None]
    return (slot >= sinks) & (slot < view.filled[:, None, None])


def wanted(filled: Int[Array, "B"], share: float, sinks: int) -> Int[Array, "B"]:
    """Returns k, the slots that a budget leaves beside the sinks."""
    count = jnp.ceil(filled.astype(jnp.float32) * jnp.float32(share)).astype(jnp.int32)
    return jnp.maximum(count - sinks, 0)


def marked(slots: Int[Array, "B X C"], valid: Bool[Array, "B X C"], width: int) -> Bool[Array, "B X S"]:
    """Returns chosen slots as a mask over all."""
    rows, heads, _ = slots.shape
    row: Any = jnp.arange(rows, dtype=jnp.int32)[:, None, None]
    head: Any = jnp.arange(heads, dtype=jnp.int32)[None, :, None]
    return jnp.zeros((rows, heads, width), bool).at[row, head, slots].max(valid)
