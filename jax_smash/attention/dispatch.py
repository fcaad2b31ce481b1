"""Attention as models call it: by a kernel where there is one, else by XLA's own operations."""

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
from jaxtyping import Array, Float, Int

from jax_smash.attention import formula
from jax_smash.cache import Block, LayerCache
from jax_smash.platform import target_platform

IMPLEMENTATIONS = ("xla", "tpu", "gpu")


def attend(
    query: Float[Array, "B Q N H"],
    key: Float[Array, "B T K H"],
    value: Float[Array, "B T K H"],
    position: Int[Array, "B T"],
    cache: LayerCache | None,
    block: Block,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    far_query: Float[Array, "B Q N H"] | None = None,
    implementation: str | None = None,
) -> Float[Array, "B Q N H"]:
    """Returns attention of each entry over the committed slots before it and the block's entries it may see.

    Equivalent formula: softmax(cap(scale · q kᵀ) + mask) v over the concatenation of cache and block, in float32.

    Args:
      query: of the last Q of the T new entries, the rotary embedding already in.
      key, value: of all of them.
      position: position of each new entry.
      cache: what the layer has committed; None where there is nothing.
      block: which new entries see which.
      scale: multiplies the scores.
      window: an entry sees positions later than its own minus this; 0 for no window.
      softcap: scores become cap · tanh(score / cap); 0 for none.
      far_query: the queries for a cache's sinks, rotated for their place among what they see; None without sinks.
      implementation: `tpu` or `gpu` insists on that kernel, `xla` on XLA's operations. None takes the kernel of the
        platform that the program is compiled for where it can run these shapes, and XLA's operations elsewhere.

    Raises:
      ValueError: there is no such implementation, or the kernel that is named cannot run here.
    """
    arrays = (query, key, value, position, cache, block)
    xla = functools.partial(formula.attend, scale=scale, window=window, softcap=softcap, far_query=far_query)
    if takes_xla(implementation):
        return xla(*arrays)
    from jax_smash.attention import kernels  # Importing Pallas takes most of a second.

    by_kernel = functools.partial(kernels.attend, scale=scale, window=window, softcap=softcap)
    return by_platform(arrays, xla, by_kernel, kernels.refusal, implementation)


def takes_xla(implementation: str | None) -> bool:
    """Whether no kernel is looked for: XLA's operations are asked for, or the platform is a CPU.

    Raises:
      ValueError: there is no such implementation.
    """
    if implementation not in (None, *IMPLEMENTATIONS):
        raise ValueError(f"implementation must be one of {', '.join(IMPLEMENTATIONS)}; got {implementation!r}")
    return implementation == "xla" or (implementation is None and target_platform() == "cpu")


def by_platform(
    arrays: tuple[Any, ...],
    xla: Callable[..., Float[Array, "B Q N H"]],
    by_kernel: Callable[..., Float[Array, "B Q N H"]],
    refusal: Callable[..., str | None],
    implementation: str | None,
    otherwise: Mapping[str, Callable[..., Float[Array, "B Q N H"]]] = MappingProxyType({}),
) -> Float[Array, "B Q N H"]:
    """Returns attention by the kernel that is named, or by that of the platform, and by XLA where there is none.

    Args:
      arrays: what is attended with.
      xla: takes the arrays.
      by_kernel: takes a kernel's name, `tpu` or `gpu`, and the arrays.
      refusal: takes the same, and returns why the kernel cannot run them; None where it can.
      implementation: `tpu`, `gpu`, or None.
      otherwise: by platform, what takes the arrays where the kernel cannot, in place of XLA's operations.

    Raises:
      ValueError: the kernel that is named cannot run here.
    """
    if implementation is not None:
        if (why := refusal(implementation, *arrays)) or (why := _elsewhere(implementation)):
            raise ValueError(f"attention by the {implementation} kernel cannot run: {why}")
        return by_kernel(implementation, *arrays)
    found = dict(otherwise)
    for platform, kernel in {"tpu": "tpu", "cuda": "gpu"}.items():
        if not refusal(kernel, *arrays):
            found[platform] = functools.partial(by_kernel, kernel)
    return jax.lax.platform_dependent(*arrays, default=xla, **found) if found else xla(*arrays)


def _elsewhere(kernel: str) -> str | None:
    """Returns why a kernel is none of the platform's; None where it is."""
    platform = target_platform()
    return None if platform == kernel else f"programs are made for the platform {platform}"
