"""Attention over the slots of a cache that a policy chooses."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jax_smash.attention.by_head import Gathered, attend_by_head, gather_pages
from jax_smash.attention.dispatch import attend, takes_xla
from jax_smash.attention.formula import MASKED, SCORES_AT_ONCE
from jax_smash.attention.pages import attend_pages
from jax_smash.cache import EMPTY, Block, ChosenPages, HeldLayer, Note, SelectedLayer, Selection
from jax_smash.cache.selected import take_slots
from jax_smash.pytree import replace


def attend_selected(
    query: Float[Array, "B Q N H"],
    key: Float[Array, "B T K H"],
    value: Float[Array, "B T K H"],
    position: Int[Array, "B T"],
    view: SelectedLayer,
    block: Block,
) -> tuple[Float[Array, "B Q N H"], Note]:
    """Returns attention of each entry over the slots that a policy chooses and the block's entries that it may see.

    All entries of a forward share one set of slots, which the query of the first valid one chooses: of a draft tree
    that is the pending token. A piece of a prompt reads everything that is kept, and so does every forward while all
    rows are shorter than what the plan `pays_from`.

    Returns:
      The output, and what the policy is told when entries are committed.

    Raises:
      ValueError: earlier forwards read entries of the block, and the policy must know what all of them attended to.
    """
    if block.earlier is not None:
        if view.policy.records:
            raise ValueError("this policy must read a block in one forward; got earlier entries")
        # Their keys and values are among the new ones.
        block = replace(block, earlier=None)
    plan, policy = view.plan, view.policy
    if view.holds and not block.prompt:
        held = _hold(view, _asking(query, block))
        return attend_held(query, key, value, position, held, block), Note(held=held)
    if plan.pays_from and not block.prompt:
        always = replace(view, plan=dataclasses.replace(plan, pays_from=0))

        def attending(*, whole: bool) -> Any:
            return lambda: attend_selected(query, key, value, position, always, replace(block, prompt=whole))

        return jax.lax.cond(view.filled.max() < plan.pays_from, attending(whole=True), attending(whole=False))
    scoring: Any = {"scale": plan.scale, "softcap": plan.softcap}
    kept = query if policy.keeps_queries else None
    new = (query, key, value, position)
    if block.prompt:
        if view.alive is None:
            return attend(*new, view.layer, block, **scoring), Note(query=kept)
        out = attend_by_head(*new, (view.layer.keys, view.layer.values, view.positions()), block, **scoring)
        return out, Note(query=kept)
    chosen = policy.select(view, _asking(query, block))
    if chosen.pages is not None and view.alive is None and not policy.records:
        out = attend_pages(*new, view.layer, chosen.pages, block, **scoring)
        return out, Note(selection=chosen if policy.remembers else None, query=kept)
    gathered = _gathered(view, chosen)
    if not policy.records:
        out = attend_by_head(*new, gathered, block, **scoring)
        return out, Note(selection=chosen if policy.remembers else None, query=kept)
    out, past, own = _attend_and_record(*new, *gathered, block, **scoring)
    return out, Note(selection=chosen, query=kept, past=past, own=own)


def attend_held(
    query: Float[Array, "B Q N H"],
    key: Float[Array, "B T K H"],
    value: Float[Array, "B T K H"],
    position: Int[Array, "B T"],
    view: HeldLayer,
    block: Block,
) -> Float[Array, "B Q N H"]:
    """Returns attention of each entry over slots that were chosen before, and the block's entries that it may see."""
    new, plan = (query, key, value, position), view.plan
    # Keys and values of entries that earlier forwards read are among the new ones.
    block = replace(block, earlier=None)
    scoring: Any = {"scale": plan.scale, "softcap": plan.softcap}

    def part() -> Array:
        if view.gathered is not None:
            return attend_by_head(*new, view.gathered, block, **scoring)
        assert view.pages is not None
        return attend_pages(*new, view.layer, view.pages, block, **scoring)

    if not plan.pays_from:
        return part()
    return jax.lax.cond(view.filled.max() < plan.pays_from, lambda: attend(*new, view.layer, block, **scoring), part)


def _hold(view: SelectedLayer, asking: Float[Array, "B N H"]) -> HeldLayer:
    """Returns the slots that a query chooses; arbitrary values where all slots are read."""

    def choose() -> tuple[ChosenPages | None, Gathered | None]:
        chosen = view.policy.select(view, asking)
        # A kernel reads pages where they lie.
        if chosen.pages is not None and not takes_xla(None):
            return chosen.pages, None
        return None, _gathered(view, chosen)

    def nothing() -> Any:
        return jax.tree.map(lambda made: jnp.zeros(made.shape, made.dtype), jax.eval_shape(choose))

    short = view.plan.pays_from
    pages, gathered = jax.lax.cond(view.filled.max() < short, nothing, choose) if short else choose()
    return HeldLayer(layer=view.layer, filled=view.filled, pages=pages, gathered=gathered, plan=view.plan)


def _asking(query: Float[Array, "B Q N H"], block: Block) -> Float[Array, "B N H"]:
    """Returns the query of each row's first valid entry."""
    first = jnp.argmax(block.valid[:, -query.shape[1] :], axis=1).astype(jnp.int32)
    return jnp.take_along_axis(query, first[:, None, None, None], axis=1)[:, 0]


def _gathered(view: SelectedLayer, chosen: Selection) -> Gathered:
    """Returns the chosen slots, in the order of the choice."""
    layer, position = view.layer, view.positions()
    if chosen.pages is not None:
        return gather_pages(layer.keys, layer.values, chosen.pages, position)
    keys, values = (take_slots(array, chosen.slots) for array in (layer.keys, layer.values))
    there = jnp.take_along_axis(position, chosen.slots, axis=2)
    return keys, values, jnp.where(chosen.valid, there, jnp.int32(EMPTY))


def slot_probabilities(
    query: Float[Array, "B T N H"], position: Int[Array, "B T"], view: SelectedLayer
) -> Float[Array, "B K G T S"]:
    """Returns what queries attend to among the slots that are kept, float32; zeros where there are none.

    Args:
      query: rotated.
      position: of each query; it sees no slot behind. −1 sees nothing.
      view: of the layer.
    """
    keys = view.layer.keys
    scores = jnp.einsum(
        "BTKGH,BKSH->BKGTS", _by_kv_head(query, keys.shape[1]), keys, preferred_element_type=jnp.float32
    )
    seen = view.positions()[:, :, None, None] <= position[:, None, None, :, None]
    weights = jax.nn.softmax(jnp.where(seen, _capped(scores, view.plan.scale, view.plan.softcap), MASKED), axis=-1)
    return jnp.where(seen, weights, 0.0)


def summed_probabilities(
    query: Float[Array, "B T N H"],
    position: Int[Array, "B T"],
    weight: Float[Array, "B T"],
    view: SelectedLayer,
) -> Float[Array, "B K S"]:
    """Returns `slot_probabilities` summed over queries, each with a weight, and over a KV head's query heads."""
    rows, width, heads, _ = query.shape
    piece = max(1, min(width, SCORES_AT_ONCE // (rows * heads * view.layer.keys.shape[2])))
    padding = -width % piece

    def pieces(array: Array) -> Array:
        padded = jnp.pad(array, ((0, 0), (0, padding)) + ((0, 0),) * (array.ndim - 2))
        return padded.reshape(rows, -1, piece, *array.shape[2:]).swapaxes(0, 1)

    def add(total: Array, queries: tuple[Array, Array, Array]) -> tuple[Array, None]:
        query, position, weight = queries
        found = slot_probabilities(query, position, view)
        return total + jnp.einsum("BKGTS,BT->BKS", found, weight), None

    empty = jnp.zeros(view.layer.keys.shape[:3], jnp.float32)
    return jax.lax.scan(add, empty, (pieces(query), pieces(position), pieces(weight)))[0]


def _capped(scores: Array, scale: float, softcap: float) -> Array:
    scores = scores * scale
    return softcap * jnp.tanh(scores / softcap) if softcap else scores


def _by_kv_head(query: Float[Array, "B T N H"], kv_heads: int) -> Float[Array, "B T K G H"]:
    rows, width, heads, size = query.shape
    return query.reshape(rows, width, kv_heads, heads // kv_heads, size)


def _attend_and_record(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B T K H"],
    value: Float[Array, "B T K H"],
    position: Int[Array, "B T"],
    keys: Float[Array, "B K C H"],
    values: Float[Array, "B K C H"],
    there: Int[Array, "B K C"],
    block: Block,
    *,
    scale: float,
    softcap: float,
) -> tuple[Float[Array, "B T N H"], Float[Array, "B T K C"], Float[Array, "B T K T"]]:
    """Does the same and also returns the probabilities on slots and entries, summed over a KV head's query heads."""
    grouped = _by_kv_head(query, key.shape[2])
    past = jnp.einsum("BTKGH,BKCH->BKGTC", grouped, keys, preferred_element_type=jnp.float32)
    own = jnp.einsum("BTKGH,BUKH->BKGTU", grouped, key, preferred_element_type=jnp.float32)
    visible = there[:, :, None, None] <= position[:, None, None, :, None]
    past = jnp.where(visible, _capped(past, scale, softcap), MASKED)
    own = jnp.where(block.mask()[:, None, None], _capped(own, scale, softcap), MASKED)
    weights = jax.nn.softmax(jnp.concatenate([past, own], axis=-1), axis=-1)
    past, own = jnp.split(weights, [keys.shape[2]], axis=-1)
    out = jnp.einsum("BKGTC,BKCH->BTKGH", past.astype(value.dtype), values, preferred_element_type=jnp.float32)
    out += jnp.einsum("BKGTU,BUKH->BTKGH", own.astype(value.dtype), value, preferred_element_type=jnp.float32)
    summed = [weights.sum(2).swapaxes(1, 2) for weights in (past, own)]
    return out.astype(value.dtype).reshape(query.shape), summed[0], summed[1]
