"""Training-time test: a drafter reads what it made itself, as it will while decoding."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.cache import Block
from jax_smash.models.pairs import PairLayer
from jax_smash.models.projection import project
from jax_smash.models.rope import longest, rotate_beside, rotation


@dataclasses.dataclass(frozen=True)
class Past:
    """What the entries of later steps attend to.

    Attributes:
      key, value: of step 0, made from the target's features.
      own_keys, own_values: of steps 1 to R, each entry's for itself alone.
      visible: which entry (last axis) of step 0 an entry (middle axis) sees.
    """

    key: Float[Array, "B T K H"]
    value: Float[Array, "B T K H"]
    own_keys: Float[Array, "R B T K H"]
    own_values: Float[Array, "R B T K H"]
    visible: Bool[Array, "B T T"]


def unrolled(
    model: PairLayer,
    features: Float[Array, "B T D"],
    vectors: Float[Array, "B T D"],
    position: Int[Array, "B T"],
    segments: Int[Array, "B T"],
    steps: int,
) -> Float[Array, "S B T D"]:
    """Returns what the head reads, of every step of every entry.

    In step 0 entry i has the target's feature of token i beside token i + 1. In step s it has what the drafter made of
    step s − 1 beside token i + s + 1, at position + s, and tells of token i + s + 2. There it sees the entries up to i
    of step 0, and itself in steps 1 to s: the path that decoding would have drafted behind token i.

    Where token i + s + 1 is not in the row any more, the step is made of nothing and counts for nothing.

    Source: Li et al. 2025, "EAGLE-3", section 3.2.

    Args:
      model: the drafter.
      features: of the target, from `PairLayer.features`.
      vectors: of the token behind each entry, from the target's `embed`.
      position: of each entry.
      segments: entries see only those of their own; 0 is padding.
      steps: S, at least 1.
    """
    length, block = features.shape[1], Block.causal(segments > 0, segments)
    first = model.forward(vectors, features, position, None, block)
    ((key, value),) = first.block_kv
    if steps == 1:
        return first.hidden[None]
    shifted = jnp.pad(vectors, ((0, 0), (0, steps - 1), (0, 0)))
    own = jnp.zeros((steps - 1, *key.shape), key.dtype)
    visible, reach = block.mask(), longest(position, block.valid)

    @jax.checkpoint
    def step(carry: tuple[Array, Array, Array], number: Int[Array, ""]) -> tuple[tuple[Array, Array, Array], Array]:
        feature, own_keys, own_values = carry
        vector = jax.lax.dynamic_slice_in_dim(shifted, number, length, axis=1)
        start, read = model.entries(vector, feature)
        query, new_key, new_value = _heads(model, read, position + number, reach)
        own_keys, own_values = own_keys.at[number - 1].set(new_key), own_values.at[number - 1].set(new_value)
        past = Past(key, value, own_keys, own_values, visible)
        x = start + _outputs(model, attended(query, past, number))
        x = x + model.mlp(model.mlp_norm(x))
        hidden, feature = model.made_of(x)
        return (feature, own_keys, own_values), hidden

    _, later = jax.lax.scan(step, (first.feature, own, own), jnp.arange(1, steps, dtype=jnp.int32))
    return jnp.concatenate([first.hidden[None], later])


def attended(query: Float[Array, "B T K G H"], past: Past, number: Int[Array, ""]) -> Float[Array, "B T K G H"]:
    """Returns attention of a step's entries over those of step 0 before them, and their own of steps 1 to `number`.

    Equivalent formula: softmax(q kᵀ / √H + mask) v in float32, over the T + R entries of both.
    """
    scale, lowest = query.shape[-1] ** -0.5, jnp.float32(-1e30)
    wide = {"preferred_element_type": jnp.float32}
    before = jnp.einsum("BTKGH,BSKH->BKGTS", query, past.key, **wide) * scale
    before = jnp.where(past.visible[:, None, None], before, lowest)
    own = jnp.einsum("BTKGH,RBTKH->BKGTR", query, past.own_keys, **wide) * scale
    made = jnp.arange(own.shape[-1], dtype=jnp.int32) < number
    own = jnp.where(made[None, None, None, None], own, lowest)
    weights = jax.nn.softmax(jnp.concatenate([before, own], axis=-1), axis=-1).astype(query.dtype)
    length = before.shape[-1]
    return jnp.einsum("BKGTS,BSKH->BTKGH", weights[..., :length], past.value) + jnp.einsum(
        "BKGTR,RBTKH->BTKGH", weights[..., length:], past.own_values
    )


def _heads(
    model: PairLayer, read: Float[Array, "B T I"], position: Int[Array, "B T"], reach: Int[Array, "B"]
) -> tuple[Float[Array, "B T K G H"], Float[Array, "B T K H"], Float[Array, "B T K H"]]:
    """Returns queries and keys, rotated, and values."""
    config = model.config
    angles = rotation(config.rope, config.head_width, position, reach)
    rotated, value = rotate_beside(*model.attention.heads(read), angles)
    return rotated[..., :-1, :], rotated[..., -1, :], value


def _outputs(model: PairLayer, out: Float[Array, "B T K G H"]) -> Float[Array, "B T D"]:
    config = model.config
    matrix = model.attention.w_o[...].reshape(config.num_heads * config.head_width, config.d_model)
    return project(out.reshape(*out.shape[:2], -1), matrix)
