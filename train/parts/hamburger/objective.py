"""What a base and the modules grafted on it are trained on, together."""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jax_smash.cache import Block
from jax_smash.models.depth import hidden_without_cache, tapped_without_cache
from jax_smash.models.transformer import Transformer
from jax_smash.objectives import most_probable, summed_cross_entropy, summed_divergence
from jax_smash.pytree import pytree, replace
from jax_smash.smash.slots import Following, Slots, group_vectors
from jax_smash.smash.smasher import Smasher
from train.data.slot_rows import SlotBatch
from train.parts.hamburger.settings import SmashSettings
from train.parts.hamburger.start import base_params
from train.parts.language_model.objective import CHUNK
from train.run.step import Objective, Tally


@pytree
class Said:
    """Tokens, and the vectors that they are read from.

    Attributes:
      hidden: after the base's final norm, or behind the micro-step decoder's last layer.
      tokens: the targets.
      weights: what each counts; 0 where there is none.
      ends: the stop head's target: 1 at a group's last token, and before a token that the decoder gets wrong if asked.
      stop_weights: what it counts.
    """

    hidden: Float[Array, "B N D"]
    tokens: Int[Array, "B N"]
    weights: Float[Array, "B N"]
    ends: Float[Array, "B N"]
    stop_weights: Float[Array, "B N"]


def smash_objective(
    base: nnx.GraphDef, smasher: nnx.GraphDef, settings: SmashSettings, *, chunk: int = CHUNK
) -> Objective:
    """Returns the loss of every token of the group that follows each slot, in nats, over rows of slots.

    The first token of a group is read from the base's hidden vector of the slot before it, the others from the
    micro-step decoder's, through the base's own head. To a token's cross-entropy comes, in replies, the binary
    cross-entropy of whether the group ends with it and, if asked for, how far its prediction lies from that of a
    teacher, which reads every token in a slot of its own. A token's weight is that of all three.
    With `stop_target` "own" a group also counts as ended where the micro-step decoder's next token would be wrong.
    With a `beyond_weight` the micro-step decoder also learns the token behind a group that could have been longer.

    Source: Liu and Zhang 2025, HAMburger, section 3. Differs: prompts do not count for the stop head, since a model
    says none; a group's tokens weigh what they would in `train.base`; the token behind a group is not in the paper.

    Args:
      base: structure of the base.
      smasher: structure of the modules.
      settings: of the run.
      chunk: tokens whose logits are in memory at once.
    """

    def objective(params: Any, batch: SlotBatch) -> tuple[Array, Tally]:
        # Low-rank changes go into float32 weights: in fewer bits most of a change would be rounded away.
        wide = dict(params) | ({"base": _wide(params["base"])} if settings.base == "lora" else {})
        model: Transformer = nnx.merge(base, _cast(base_params(settings, wide), settings))
        modules: Smasher = nnx.merge(smasher, _cast(params["smasher"], settings))
        slots = Slots(
            tokens=batch.tokens,
            count=batch.count,
            position=batch.position,
            segments=batch.segments,
            weights=batch.weights,
        )
        parts = said(model, modules, slots, batch, settings)
        if settings.stop_target == "own" and len(parts) > 1:
            first, further = parts
            parts = _own_ends(model, first, further, batch, chunk)
        entropies = [summed_cross_entropy(model.unembed, p.hidden, p.tokens, p.weights, chunk=chunk) for p in parts]
        stops = [_stop_loss(modules, p) for p in parts]
        cross_entropy, stop = ([sum(column) for column in zip(*pairs, strict=True)] for pairs in (entropies, stops))
        total = cross_entropy[0] + jnp.float32(settings.stop_weight) * stop[0]
        means = {
            "cross_entropy": (cross_entropy[0], cross_entropy[1]),
            "stop_loss": (stop[0], stop[1]),
            "first_loss": entropies[0],
            "tokens_a_slot": tuple(x.sum(dtype=jnp.float32) for x in (batch.count, batch.count > 0)),
        }
        means |= {"further_loss": entropies[1]} if len(parts) > 1 else {}
        if settings.kl_weight:
            old = jax.lax.stop_gradient(params.get("teacher", params["base"]))
            teacher: Transformer = nnx.merge(base, _cast(old, settings))
            lost = _divergence(teacher, model, slots, batch, parts, settings, chunk)
            total += jnp.float32(settings.kl_weight) * lost
            means["divergence"] = (lost, cross_entropy[1])
        return total, Tally(count=cross_entropy[1], means=means)

    return objective


def said(
    model: Transformer, modules: Smasher, slots: Slots, batch: SlotBatch, settings: SmashSettings
) -> tuple[Said, ...]:
    """Returns the first tokens of the groups that follow, one a slot, and the others of those that have several."""
    vectors = group_vectors(model, slots.tokens)
    inputs = modules.fuse(vectors, slots.count)
    hidden, taps = tapped_without_cache(
        model, inputs, slots.position, slots.block, remat=settings.remat, scan=settings.scan
    )
    following = slots.following()
    spoken, cut = (
        jnp.pad(x[:, 1:], ((0, 0), (0, 1))).astype(jnp.float32)[:, :, None] for x in (batch.spoken, batch.cut)
    )
    ends = following.ends()
    # Of an end that chance made nobody knows whether the group had better gone on.
    stop_weights = following.weights * spoken * (1 - cut * ends)
    first = Said(
        hidden=hidden,
        tokens=following.tokens[:, :, 0],
        weights=following.weights[:, :, 0],
        ends=ends[:, :, 0],
        stop_weights=stop_weights[:, :, 0],
    )
    if slots.tokens.shape[2] == 1:
        return (first,)
    # Of groups of one token nothing is left to say, so that the micro-step decoder need not read them.
    given = (batch.further >= 0).astype(jnp.float32)[:, :, None]
    prefix = _picked(modules.prefix(taps, hidden), batch.further)
    before = _picked(vectors, batch.further + 1)[:, :, :-1]
    others = modules.micro_decoder.taught(prefix, before, remat=settings.remat)

    def flat(x: Array) -> Array:
        """The group's tokens behind its first."""
        return _flat(_picked(x, batch.further)[:, :, 1:])

    asked = _with_beyond(following, spoken, settings.beyond_weight) if settings.beyond_weight else following
    further = Said(
        hidden=_flat(others),
        tokens=flat(asked.tokens),
        weights=flat(asked.weights) * _flat(jnp.broadcast_to(given, before.shape[:3])),
        ends=flat(ends),
        stop_weights=flat(stop_weights) * _flat(jnp.broadcast_to(given, before.shape[:3])),
    )
    return first, further


def _with_beyond(following: Following, spoken: Float[Array, "B S 1"], weight: float) -> Following:
    """Returns groups to which the token behind each is added as a target, where both are said and a slot has room."""
    behind, said, its_weight = (
        jnp.pad(x[:, 1:, :1], ((0, 0), (0, 1), (0, 0))) for x in (following.tokens, spoken, following.weights)
    )
    place = jnp.arange(following.tokens.shape[2], dtype=jnp.int32)[None, None]
    # Where the document ends nothing is behind the group, and its weight is 0.
    beyond = (place == following.count[:, :, None]) & (place > 0)
    return replace(
        following,
        tokens=jnp.where(beyond, behind, following.tokens),
        weights=jnp.where(beyond, jnp.float32(weight) * spoken * said * its_weight, following.weights),
    )


def _own_ends(model: Transformer, first: Said, further: Said, batch: SlotBatch, chunk: int) -> tuple[Said, Said]:
    """Returns both parts, with groups that also end before a token that the micro-step decoder would not say."""
    rows, groups = batch.further.shape
    slips = (most_probable(model.unembed, further.hidden, chunk=chunk) != further.tokens).astype(jnp.float32)
    slips = slips.reshape(rows, groups, -1)
    # A slot that is not there is behind the row, where nothing is written.
    slot = jnp.where(batch.further >= 0, batch.further, first.ends.shape[1])
    of_first = jax.vmap(lambda ends, at, slip: ends.at[at].max(slip, mode="drop"))(first.ends, slot, slips[:, :, 0])
    of_further = jnp.maximum(further.ends, _flat(jnp.pad(slips[:, :, 1:], ((0, 0), (0, 0), (0, 1)))))
    return replace(first, ends=of_first), replace(further, ends=of_further)


def _stop_loss(modules: Smasher, said: Said) -> tuple[Array, Array]:
    """Returns the weighted sum of the stop head's binary cross-entropies, in nats, and of the weights."""
    logits = modules.stop_logits(said.hidden)
    return jnp.sum(said.stop_weights * (jax.nn.softplus(logits) - said.ends * logits)), said.stop_weights.sum()


def _divergence(
    teacher: Transformer,
    model: Transformer,
    slots: Slots,
    batch: SlotBatch,
    parts: tuple[Said, ...],
    settings: SmashSettings,
    chunk: int,
) -> Array:
    """Returns the weighted sum of what is lost of the teacher's predictions, in nats."""
    hidden, entry = _read_alone(teacher, slots, settings)

    def at(entry: Int[Array, "B N"]) -> Float[Array, "B N D"]:
        return jnp.take_along_axis(hidden, entry[:, :, None], axis=1)

    last = jnp.maximum(slots.count - 1, 0)[:, :, None]
    before = [at(jnp.take_along_axis(entry, last, axis=2)[:, :, 0])]
    before += [at(_flat(_picked(entry, batch.further + 1)[:, :, :-1]))] if len(parts) > 1 else []
    pairs = zip(before, parts, strict=True)
    return sum(
        (summed_divergence(teacher.unembed, of, model.unembed, p.hidden, p.weights, chunk=chunk) for of, p in pairs),
        start=jnp.zeros((), jnp.float32),
    )


def _read_alone(
    teacher: Transformer, slots: Slots, settings: SmashSettings
) -> tuple[Float[Array, "B T D"], Int[Array, "B S J"]]:
    """Returns the hidden vectors of a row's tokens, each read in an entry of its own, and which entry a token has.

    The tokens of a row lie side by side: there are far fewer than its slots have places.
    """
    rows, _, places = slots.tokens.shape
    read = cast(int, settings.room.read)  # Rows are packed for it wherever the divergence counts.
    place = jnp.arange(places, dtype=jnp.int32)[None, None]
    inside = place < slots.count[:, :, None]
    entry = (jnp.cumsum(slots.count, axis=1) - slots.count)[:, :, None] + place
    # Of a place without a token it is behind the row, where nothing is written.
    target = jnp.where(inside, entry, read).reshape(rows, -1)

    def side_by_side(x: Int[Array, "B S J"]) -> Int[Array, "B T"]:
        write = jax.vmap(lambda values, at: jnp.zeros(read, jnp.int32).at[at].set(values, mode="drop"))
        return write(jnp.broadcast_to(x, slots.tokens.shape).reshape(rows, -1), target)

    position = side_by_side((slots.position - slots.count + 1)[:, :, None] + place)
    segments = side_by_side(slots.segments[:, :, None])
    block = Block.causal(segments > 0, segments)
    inputs = teacher.embed(side_by_side(slots.tokens))
    hidden = hidden_without_cache(teacher, inputs, position, block, remat=settings.remat, scan=settings.scan)
    return hidden, jnp.minimum(entry, read - 1)


def _wide(params: nnx.State) -> nnx.State:
    return jax.tree.map(lambda x: x.astype(jnp.float32), params)


def _cast(params: nnx.State, settings: SmashSettings) -> nnx.State:
    """Returns parameters in the dtype that the run computes in."""
    return jax.tree.map(lambda x: x.astype(jnp.dtype(settings.dtype)), params)


def _picked(x: Array, slot: Int[Array, "B M"]) -> Array:
    """Returns what stands at each row's slots; anything where there is no such slot."""
    return jax.vmap(lambda values, index: values[index])(x, jnp.clip(slot, 0, x.shape[1] - 1))


def _flat(x: Array) -> Array:
    """Lays the tokens of groups side by side."""
    return x.reshape(x.shape[0], -1, *x.shape[3:])
