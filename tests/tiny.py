"""A two-layer model with a byte tokenizer: small enough to compile in a second."""

import functools

import jax
import jax.numpy as jnp

from jax_smash.config import ModelConfig
from jax_smash.loading import Model
from jax_smash.models.definition import NnxModel
from jax_smash.models.transformer import random_params
from tests.tokenizers import byte_tokenizer


def tiny_config(**changes) -> ModelConfig:
    """Returns the configuration of a two-layer Llama, one layer sliding, with some fields changed."""
    fields = {
        "family": "llama",
        "vocab_size": len(byte_tokenizer()),
        "num_layers": 2,
        "d_model": 32,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_width": 8,
        "mlp_width": 48,
        "max_positions": 512,
        "layer_kinds": ("full", "sliding"),
        "window": 24,
    }
    return ModelConfig(**(fields | changes))


@functools.cache
def tiny_model(*, spread: float = 12.0, stop_tokens: tuple[int, ...] = (), **changes) -> Model:
    """Returns a random model whose weights are spread enough for its greedy text to vary."""
    config = tiny_config(**changes)
    graphdef, params = random_params(config, seed=1)
    params = jax.tree.map(lambda w: w * jnp.float32(spread) if w.ndim > 1 else w, params)
    return Model(
        name="two-layer",
        definition=NnxModel(graphdef),
        params={"target": params},
        config=config,
        tokenizer=byte_tokenizer(),
        stop_tokens=stop_tokens,
    )
