"""A transformer's layers one after the other, as training runs them: remade in the backward pass, or as one loop."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jax_smash.cache import Block
from jax_smash.config import AttentionKind
from jax_smash.models.layers import Layer
from jax_smash.models.rope import rotation
from jax_smash.models.transformer import Transformer


def hidden_without_cache(
    model: Transformer,
    inputs: Float[Array, "B T D"],
    position: Int[Array, "B T"],
    block: Block,
    *,
    remat: bool = False,
    scan: bool = False,
) -> Float[Array, "B T D"]:
    """Returns the hidden vectors that `Transformer.forward` returns for a block without a past.

    Args:
      model: the transformer.
      inputs: vectors, from `embed`.
      position: rotary position of each entry.
      block: which entries see which.
      remat: keep each layer's input alone, and run the layer again for its gradient.
      scan: one loop over the layers in place of a copy of the program for each. It stacks the weights, so it takes
        their memory a second time.
    """
    config = model.config
    angles = {kind: rotation(config.rope_of(kind), config.head_width, position) for kind in config.kinds}

    def apply(graphdef: nnx.GraphDef, kind: AttentionKind, state: Any, x: Array) -> Array:
        layer: Layer = nnx.merge(graphdef, state)
        return layer(x, position, angles[kind], None, block)[0]

    period = _period(config.layer_kinds) if scan else config.num_layers
    split = [nnx.split(layer) for layer in model.layers]
    steps = [functools.partial(apply, split[i][0], config.layer_kinds[i]) for i in range(period)]
    steps = [jax.checkpoint(step) for step in steps] if remat else steps

    def one_period(x: Array, states: Sequence[Any]) -> tuple[Array, None]:
        for step, state in zip(steps, states, strict=True):
            x = step(state, x)
        return x, None

    states = [state for _, state in split]
    if period == config.num_layers:
        x, _ = one_period(inputs, states)
    else:
        stacked = [jax.tree.map(lambda *leaves: jnp.stack(leaves), *states[i::period]) for i in range(period)]
        x, _ = jax.lax.scan(one_period, inputs, stacked)
    return model.final_norm(x)


def _period(kinds: Sequence[AttentionKind]) -> int:
    """Returns the smallest number of layers whose kinds, said again and again, are all the layers' kinds."""
    count = len(kinds)
    return next(p for p in range(1, count + 1) if count % p == 0 and list(kinds) == list(kinds[:p]) * (count // p))
