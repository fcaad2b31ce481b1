"""Bases of several families, and random modules grafted on them, small enough to compile in a second."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jax_smash.config import RopeConfig
from jax_smash.models.transformer import abstract_params
from jax_smash.smash.config import SmashConfig
from jax_smash.smash.smasher import abstract_smasher
from tests.tiny import tiny_config

BASES = {
    "llama": tiny_config(num_layers=4, layer_kinds=("full",) * 4, window=0),
    "llama-windows": tiny_config(num_layers=3, layer_kinds=("full", "sliding", "full"), window=3),
    "qwen2": tiny_config(family="qwen2", qkv_bias=True, tied_head=True, d_model=48, num_heads=6),
    "qwen3": tiny_config(family="qwen3", qk_norm=True, head_width=12),
    "gemma2": tiny_config(
        family="gemma2",
        norm_offset=True,
        post_norms=True,
        activation="gelu_tanh",
        embedding_scale=32**0.5,
        attention_softcap=20.0,
        final_softcap=15.0,
        tied_head=True,
    ),
    "olmo2": tiny_config(family="olmo2", pre_norms=False, post_norms=True, joint_qk_norm=True, late_rounding=True),
    "granite-smollm3": tiny_config(
        family="granite",
        unrotated_layers=(1,),
        rope=RopeConfig(partial=0.5),
        residual_scale=0.3,
        logits_divisor=3.0,
        query_scale=0.2,
    ),
    "all-sliding": tiny_config(layer_kinds=("sliding", "sliding"), rope_sliding=RopeConfig(base=500.0)),
}
"""Configurations by name."""


@functools.cache
def base_of(name: str = "llama"):
    """Returns a base bound to random weights that are spread enough to tell inputs apart."""
    return nnx.merge(*filled(abstract_params(BASES[name]), BASES[name].norm_offset))


@functools.cache
def smasher_of(name: str = "llama", *, dtype=jnp.float32, **sizes):
    """Returns modules for a base, bound to random weights; two micro layers, and sizes as `SmashConfig.for_base`."""
    base = BASES[name]
    config = SmashConfig.for_base(base, **({"micro_layers": 2} | sizes))
    return nnx.merge(*filled(abstract_smasher(base, config, dtype), base.norm_offset))


def filled(split, norm_offset=False, *, seed=0):
    """Fills parameters by numpy, which compiles nothing: matrices, and norms and biases too, that none goes unseen."""
    graphdef, params = split
    rng = np.random.default_rng(seed)

    def fill(path, leaf):
        noise = rng.normal(0, 0.12, leaf.shape)
        centre = 0 if norm_offset or "scale" not in jax.tree_util.keystr(path) else 1
        return jnp.asarray((centre + noise).astype(leaf.dtype))

    return graphdef, jax.tree_util.tree_map_with_path(fill, params)
