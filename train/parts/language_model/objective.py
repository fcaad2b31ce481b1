"""What a language model is trained on."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jax_smash.cache import Block
from jax_smash.models.depth import hidden_without_cache
from jax_smash.objectives import summed_cross_entropy
from train.data.rows import Batch
from train.run.step import Objective

CHUNK = 2048


def language_model_objective(
    graphdef: nnx.GraphDef,
    *,
    dtype: str = "float32",
    remat: bool = False,
    scan: bool = False,
    chunk: int = CHUNK,
) -> Objective:
    """Returns the cross-entropy of the next token, in nats, over packed documents that do not see each other.

    Args:
      graphdef: structure of a `Transformer`.
      dtype: of the products; gradients have the dtype of the parameters.
      remat, scan: as in `hidden_without_cache`.
      chunk: tokens whose logits are in memory at once.
    """

    def objective(params: Any, batch: Batch) -> Any:
        params = jax.tree.map(lambda x: x.astype(jnp.dtype(dtype)), params)
        model = nnx.merge(graphdef, params)
        block = Block.causal(batch.segments > 0, batch.segments)
        inputs = model.embed(batch.tokens)
        hidden = hidden_without_cache(model, inputs, batch.positions, block, remat=remat, scan=scan)
        return summed_cross_entropy(model.unembed, hidden, batch.targets, batch.weights, chunk=chunk)

    return objective
