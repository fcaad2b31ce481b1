"""What a language model is trained on."""

from __future__ import annotations

from typing import Any

from flax import nnx

from jax_smash.cache import Block
from jax_smash.objectives import summed_cross_entropy
from train.data import Batch
from train.loop import Objective


def language_model_objective(graphdef: nnx.GraphDef, *, chunk: int = 512) -> Objective:
    """Returns the cross-entropy of the next token, in nats, over packed documents that do not see each other.

    Args:
      graphdef: structure of the model.
      chunk: tokens whose logits are in memory at once.
    """

    def objective(params: Any, batch: Batch) -> Any:
        model = nnx.merge(graphdef, params)
        block = Block.causal(batch.segments > 0, batch.segments)
        hidden = model.forward(model.embed(batch.tokens), batch.positions, None, block).hidden
        return summed_cross_entropy(model.unembed, hidden, batch.targets, batch.weights, chunk=chunk)

    return objective
