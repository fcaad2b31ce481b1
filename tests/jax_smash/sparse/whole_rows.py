"""What a predictor makes of a whole row, by the form that training reads rows with."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from jax_smash.cache import Block
from jax_smash.checkpoints.butler import ButlerModules
from jax_smash.models.attended import attended
from jax_smash.models.rope import longest
from tests.predictors import modules_of

READERS = {}
"""Functions that read whole rows, compiled before."""


def whole_rows(base, predictor, layer, taps):
    """Returns one layer's queries and keys of a row, of which some taps are given in full length.

    Args:
      base: bound to its parameters.
      predictor: modules, or the configuration of random ones.
      layer: its index. What other layers need is not computed.
      taps: residuals that enter the layers, as far as they are known.
    """
    key = id(base), id(predictor) if isinstance(predictor, ButlerModules) else predictor, layer
    if key not in READERS:
        if not isinstance(predictor, ButlerModules):
            predictor = modules_of(predictor)
        structure, weights = nnx.split(base)
        definition = predictor.definition

        # Weights are arguments: as constants they would be compiled in, layer after layer.
        def read(weights, params, taps):
            base, module = nnx.merge(structure, weights), definition.bind(params)
            position = jnp.arange(taps[0].shape[1], dtype=jnp.int32)[None]
            block = Block.causal(jnp.ones(position.shape, bool))
            heads = attended(base, taps, position, longest(position, block.valid))
            found = module.read(taps, heads, position, block)
            return found.queries[layer, 0], found.keys[layer, 0]

        READERS[key] = functools.partial(jax.jit(read), weights, predictor.params)
    return READERS[key](taps)
