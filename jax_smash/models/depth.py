"""A transformer's layers one after the other, as training runs them: remade in the backward pass, or as one loop."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jax_smash.cache import Block
from jax_smash.models.layers import Layer
from jax_smash.models.rope import longest, rotations
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
    return _through_layers(model, inputs, position, block, remat=remat, scan=scan, tapped=False)[0]


def tapped_without_cache(
    model: Transformer,
    inputs: Float[Array, "B T D"],
    position: Int[Array, "B T"],
    block: Block,
    *,
    remat: bool = False,
    scan: bool = False,
) -> tuple[Float[Array, "B T D"], tuple[Float[Array, "B T D"], ...]]:
    """Returns the hidden vectors and the taps that `Transformer.forward` returns for a block without a past.

    Arguments are those of `hidden_without_cache`.
    """
    return _through_layers(model, inputs, position, block, remat=remat, scan=scan, tapped=True)


def _through_layers(
    model: Transformer, inputs: Array, position: Array, block: Block, *, remat: bool, scan: bool, tapped: bool
) -> tuple[Array, tuple[Array, ...]]:
    config = model.config
    angles = rotations(config, position, longest(position, block.valid))

    def apply(graphdef: nnx.GraphDef, i: int, state: Any, x: Array) -> Array:
        layer: Layer = nnx.merge(graphdef, state)
        return layer(x, position, angles[i], None, block)[0]

    period = _period(tuple(zip(config.layer_kinds, config.rotated, strict=True))) if scan else config.num_layers
    split = [nnx.split(layer) for layer in model.layers]
    steps = [functools.partial(apply, split[i][0], i) for i in range(period)]
    steps = [jax.checkpoint(step) for step in steps] if remat else steps

    def one_period(x: Array, states: Sequence[Any]) -> tuple[Array, tuple[Array, ...]]:
        taps = []
        for step, state in zip(steps, states, strict=True):
            taps.append(x)
            x = step(state, x)
        # A loop would write them to memory, wanted or not.
        return x, tuple(taps) if tapped else ()

    states = [state for _, state in split]
    if period == config.num_layers:
        x, taps = one_period(inputs, states)
    else:
        stacked = [jax.tree.map(lambda *leaves: jnp.stack(leaves), *states[i::period]) for i in range(period)]
        x, by_period = jax.lax.scan(one_period, inputs, stacked)
        taps = tuple(by_period[i % period][i // period] for i in range(config.num_layers)) if tapped else ()
    return model.final_norm(x), (*taps, x)


def _period(kinds: Sequence[Any]) -> int:
    """Returns the smallest number of layers whose kinds, said again and again, are all the layers' kinds."""
    count = len(kinds)
    return next(p for p in range(1, count + 1) if count % p == 0 and list(kinds) == list(kinds[:p]) * (count // p))
