"""Sparse attention as callers use it: what is checked, and which implementation runs."""

import functools
from collections.abc import Callable

import jax
from jaxtyping import Array, Float

from pallas_kernels.sparse_attention import gpu, reference, tpu, xla
from pallas_kernels.sparse_attention.inputs import MOST_PAGE, Options, Pages, check, unfit
from pallas_kernels.tree_attention.inputs import Inputs

NAMES = ("kernel", "xla", "reference", "tpu", "gpu")
Attend = Callable[[Inputs, Pages], Float[Array, "B T N H"]]


def sparse_attention(
    inputs: Inputs,
    pages: Pages,
    *,
    scale: float,
    page_size: int = MOST_PAGE,
    window: int = 0,
    softcap: float = 0.0,
    implementation: str | None = None,
    interpret: bool = False,
) -> Float[Array, "B T N H"]:
    """Returns attention of each entry over its KV head's chosen slots before it and the entries that it may see.

    Equivalent formula: softmax(cap(scale · q kᵀ) + mask) v over chosen slots and block side by side, in float32. With
    every page chosen it is `tree_attention`. An entry that is padding, or sees nothing, gets zeros. Not differentiable,
    but for the reference and the XLA path.

    The cache may be int8, with a scale for each slot's key and value in a KV head: score s is multiplied by the scale
    of key s, and weight s of the softmax by that of value s. The block's own keys and values have the query's type.

    Args:
      inputs: the arrays of tree attention, the whole cache among them; its keys and values may be int8.
      pages: which pages of the cache are read, and its scales where it is int8.
      scale: multiplies the scores.
      page_size: slots of a page: a power of two from 16 to 128 that divides the cache's slots.
      window: an entry sees positions later than its own minus this; 0 for no window.
      softcap: scores become cap · tanh(score / cap); 0 for none.
      implementation: None takes the XLA path on every device. `kernel` takes the kernel of the platform that the
        program is compiled for, and the XLA path where there is none for these shapes. `tpu` and `gpu` insist on
        theirs; `jax_smash.attention.attend_pages` names them where they can run. `xla` and `reference` need no device
        of their own.
      interpret: runs a kernel that is named, `tpu` or `gpu`, without its device, slowly.

    Raises:
      ValueError: shapes disagree, an option is out of range, or the kernel that is named cannot run these shapes.
      TypeError: an array has another type than it must.
    """
    options = Options(scale=scale, window=window, softcap=softcap, page_size=page_size)
    if implementation not in (None, *NAMES):
        raise ValueError(f"implementation must be one of {', '.join(NAMES)}; got {implementation!r}")
    if interpret and implementation not in KERNELS:
        raise ValueError(f"only implementation tpu or gpu can be interpreted; got {implementation!r}")
    check(inputs, pages, options)
    if implementation == "kernel":
        kernels = {
            platform: _named(name, options, False)
            for platform, name in {"tpu": "tpu", "cuda": "gpu"}.items()
            if not KERNELS[name].unsupported(inputs, pages, options)
        }
        default = _named("xla", options, False)
        if not kernels:
            return default(inputs, pages)
        return jax.lax.platform_dependent(inputs, pages, default=default, **kernels)
    if implementation in KERNELS and (why := KERNELS[implementation].unsupported(inputs, pages, options)):
        raise ValueError(why)
    return _named(implementation or "xla", options, interpret)(inputs, pages)


def kernel_here(inputs: Inputs, pages: Pages, *, page_size: int) -> str | None:
    """Returns which kernel runs these inputs on the device at hand; None where none does, or only interpreted."""
    platform = jax.default_backend()
    options = Options(scale=1.0, page_size=page_size)
    runs = platform in KERNELS and not refusal(platform, inputs, pages, options)
    return platform if runs else None


def refusal(kernel: str, inputs: Inputs, pages: Pages, options: Options) -> str | None:
    """Returns why a kernel, `tpu` or `gpu`, cannot run inputs that belong together; None where it can."""
    why = unfit(options.page_size, inputs.keys.shape[2])
    return why or KERNELS[kernel].unsupported(inputs, pages, options)


KERNELS = {"tpu": tpu, "gpu": gpu}


def _named(name: str, options: Options, interpret: bool) -> Attend:
    if name in KERNELS:
        return functools.partial(KERNELS[name].attend, options=options, interpret=interpret)
    return functools.partial({"xla": xla, "reference": reference}[name].attend, options=options)
