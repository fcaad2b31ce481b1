"""Roofline and memory arithmetic: what a step must read, and how much a forward may hold."""

import dataclasses
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_smash.config import ModelConfig
from jax_smash.quantise import activation_dtype

FORWARD_BYTES = 2**30
"""Memory that one prefill forward may take for temporaries where the device does not tell its own."""


def tree_bytes(tree: Any) -> int:
    """Returns the bytes of all arrays of a tree."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree) if hasattr(x, "dtype"))


@dataclasses.dataclass(frozen=True)
class StepBytes:
    """Bytes that one decode step reads from memory.

    Attributes:
      weights: every parameter once; an untied embedding is read a row a token and left out.
      cache: the keys and values of the slots that attention reads.
    """

    weights: int
    cache: int

    @property
    def total(self) -> int:
        """Weights and cache."""
        return self.weights + self.cache


def step_bytes(config: ModelConfig, params: Any, *, batch: int, slots: int) -> StepBytes:
    """Returns what one decode step reads when every layer reads `slots` slots of every row.

    Args:
      config: the model's sizes.
      params: the target's parameters, or their abstract shapes.
      batch: rows.
      slots: slots a row that the compiled step reads: the cache's capacity, not what it holds.
    """
    weights = tree_bytes(params)
    if not config.tied_head:
        weights -= tree_bytes(params["embedding"])
    entry = 2 * config.held_kv_heads * config.head_width * np.dtype(activation_dtype(params)).itemsize
    seen = sum(min(slots, config.window) if kind == "sliding" else slots for kind in config.layer_kinds)
    return StepBytes(weights=weights, cache=batch * seen * entry)


def forward_bytes(config: ModelConfig, *, batch: int, width: int, slots: int, itemsize: int) -> int:
    """Returns about how many bytes of temporaries a forward over `width` entries a row needs.

    Attention scores dominate: float32, over cache and block, before and after the exponential.
    """
    scores = 2 * 4 * batch * config.num_heads * width * (slots + width)
    activations = itemsize * batch * width * (2 * config.mlp_width + 4 * config.d_model)
    entries = 2 * itemsize * batch * width * config.num_layers * config.held_kv_heads * config.head_width
    return scores + activations + entries


def device_bytes(device: jax.Device | None = None) -> int | None:
    """Returns the memory that a device gives to arrays in bytes, taken or not; None where it does not tell."""
    stats = (device or jax.local_devices()[0]).memory_stats()
    return stats["bytes_limit"] if stats and "bytes_limit" in stats else None


def check_memory(*, rows: int, held: int, batch: int, slots: int, device: jax.Device | None = None) -> None:
    """Checks that weights and rows fit a device at all, whatever else is on it.

    Args:
      rows: bytes of the rows on a device, their caches included.
      held: bytes of the device that the weights take.
      batch, slots: rows, and slots of each.
      device: None for the first.

    Raises:
      MemoryError: they do not.
    """
    device = device or jax.local_devices()[0]
    total = device_bytes(device)
    if total is None and device.platform == "cpu":
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if total is not None and rows + held > total:
        raise MemoryError(
            f"{batch} rows of {slots} slots take {rows / 1e9:.1f} GB beside weights of {held / 1e9:.1f} GB; "
            f"the device has {total / 1e9:.1f} GB in all"
        )


def shard_bytes(params: Any) -> int:
    """Returns the bytes that parameters take of each device that they lie on; one that comes twice is there once."""
    arrays = {id(x): x for x in jax.tree.leaves(params) if isinstance(x, jax.Array)}
    return sum(x.addressable_shards[0].data.nbytes for x in arrays.values())


def prefill_chunk(
    config: ModelConfig | None,
    *,
    batch: int,
    slots: int,
    dtype: Any = jnp.float32,
    held: int = 0,
    budget: int | None = None,
) -> int:
    """Returns how many entries a row a prefill forward reads at most: the power of two that memory allows.

    It goes by the memory that a device has, not by what is free at the moment: so a second session of the same sizes
    compiles nothing, and all hosts choose alike.

    Args:
      config: the model's sizes; None for a model that does not tell them, which gets 256.
      batch: rows.
      slots: the cache's capacity a row.
      dtype: of the weights.
      held: bytes of the device that the weights take.
      budget: bytes of temporaries; None takes a quarter of the device's other memory, or 1 GiB where unknown.

    Returns:
      From 16 to 2048.
    """
    if config is None:
        return 256
    if budget is None:
        total = device_bytes()
        budget = FORWARD_BYTES if total is None else (total - held) // 4
    width = 2048
    itemsize = np.dtype(dtype).itemsize
    while width > 16 and forward_bytes(config, batch=batch, width=width, slots=slots, itemsize=itemsize) > budget:
        width //= 2
    return width
