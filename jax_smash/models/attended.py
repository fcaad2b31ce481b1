"""What attention works with in every layer, from the residuals that enter them."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jax_smash.models.layers import Layer
from jax_smash.models.rope import Angles, rotate, rotations
from jax_smash.models.transformer import Transformer
from jax_smash.pytree import pytree


@pytree
class Attended:
    """Queries and keys of every layer over a block of entries.

    Attributes:
      plain_queries, plain_keys: before the rotary embedding.
      queries, keys: behind it. In a layer without one they are the plain ones.
    """

    plain_queries: Float[Array, "L B T N H"]
    plain_keys: Float[Array, "L B T K H"]
    queries: Float[Array, "L B T N H"]
    keys: Float[Array, "L B T K H"]


def attended(
    model: Transformer,
    taps: Sequence[Float[Array, "B T D"]],
    position: Int[Array, "B T"],
    reach: Int[Array, "B"] | None = None,
) -> Attended:
    """Returns the queries and keys that a model's layers make of what enters them.

    Each layer's product is made a second time. What is not used of the result costs nothing in a compiled program.

    Args:
      model: the transformer.
      taps: residuals that enter its layers, as a forward returns them; those behind the last layer are not read.
      position: rotary position of each entry.
      reach: as in `models.rope`.
    """
    angles = rotations(model.config, position, reach)
    found = [turned_heads(layer, x, turn) for layer, x, turn in zip(model.layers, taps, angles, strict=False)]
    plain, turned = ([pair[i] for pair in found] for i in range(2))
    heads = model.config.num_heads

    def stacked(layers: list[Array]) -> tuple[Array, Array]:
        queries = [x[..., :-1, :].reshape(*x.shape[:2], heads, -1) for x in layers]
        return jnp.stack(queries), jnp.stack([x[..., -1, :] for x in layers])

    (plain_queries, plain_keys), (queries, keys) = stacked(plain), stacked(turned)
    return Attended(plain_queries=plain_queries, plain_keys=plain_keys, queries=queries, keys=keys)


def turned_heads(
    layer: Layer, x: Float[Array, "B T D"], angles: Angles | None
) -> tuple[Float[Array, "B T K X H"], Float[Array, "B T K X H"]]:
    """Returns a layer's queries and keys before and behind the rotary embedding, of each KV head its key the last.

    Args:
      layer: with its parameters.
      x: the residual that enters it.
      angles: of each entry; None for a layer without a rotary embedding.
    """
    return _heads(*nnx.split(layer), x, angles)


@functools.partial(jax.jit, static_argnums=0)
def _heads(graphdef: nnx.GraphDef, params: nnx.State, x: Array, angles: Angles | None) -> tuple[Array, Array]:
    """Returns what `turned_heads` does. Jitted to be traced once a kind."""
    layer: Layer = nnx.merge(graphdef, params)
    heads, _ = layer.attention.heads(x if layer.attention_norm is None else layer.attention_norm(x))
    if angles is None:
        return heads, heads
    return heads, rotate(heads, angles, late_rounding=layer.attention.config.late_rounding)
