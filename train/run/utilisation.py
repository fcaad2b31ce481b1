"""How much of what the devices could do a training run does."""

from __future__ import annotations

import functools
import time

import jax
import jax.numpy as jnp

from jax_smash.config import ModelConfig

PEAKS = {
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA A100": 312e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5p": 459e12,
    "TPU v5": 459e12,
    "TPU v6": 918e12,
    "TPU7x": 2307e12,
}
"""Dense bfloat16 operations a second of a device whose kind begins so. Source: the makers' data sheets."""


def token_flops(config: ModelConfig, length: int) -> float:
    """Returns the operations of one token's forward and backward pass, without what remat does again.

    Equivalent formula: 6 · (parameters that multiply) + 12 · L · N · H · (keys seen, on average). A multiplication
    and its addition are two. Documents within a row, which see fewer keys, are not looked at.
    """
    d, h = config.d_model, config.head_width
    layer = d * h * (2 * config.num_heads + 2 * config.num_kv_heads) + 3 * d * config.mlp_width
    seen = sum(min(length, config.window_of(kind) or length) / 2 for kind in config.layer_kinds)
    products = config.num_layers * layer + config.vocab_size * d
    return 6.0 * products + 12.0 * config.num_heads * h * seen


def peak_flops(dtype: str = "bfloat16") -> float:
    """Returns the operations a second that all devices together could do.

    Of a known accelerator it is the data sheet's bfloat16 figure, whatever the dtype; of any other device, a CPU's
    cores taken together, the fastest of a few large products is measured, once a process, for about a second.
    """
    kind = jax.devices()[0].device_kind
    known = [PEAKS[name] for name in sorted(PEAKS, key=len, reverse=True) if kind.startswith(name)]
    if known:
        return known[0] * jax.device_count()
    measured = _product_flops(dtype)
    # Virtual devices of a CPU share its cores, which one product already takes all of.
    return measured if jax.devices()[0].platform == "cpu" else measured * jax.device_count()


@functools.cache
def _product_flops(dtype: str, width: int = 2048, repeats: int = 5) -> float:
    x = jnp.ones((width, width), jnp.dtype(dtype))
    product = jax.jit(jnp.matmul).lower(x, x).compile()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        product(x, x).block_until_ready()
        seconds.append(time.perf_counter() - began)
    return 2 * width**3 / min(seconds)
