"""Tree attention as callers use it: what is checked, and which implementation runs."""

import functools
from collections.abc import Callable

import jax
from jaxtyping import Array, Float

from pallas_kernels.tree_attention import gpu, reference, tpu, xla
from pallas_kernels.tree_attention.inputs import Inputs, Options, check

NAMES = ("kernel", "xla", "reference", "tpu", "gpu")
Attend = Callable[[Inputs], Float[Array, "B T N H"]]


def tree_attention(
    inputs: Inputs,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    implementation: str | None = None,
    interpret: bool = False,
) -> Float[Array, "B T N H"]:
    """Returns attention of each entry over the cache's slots before it and the block's entries that it may see.

    Equivalent formula: softmax(cap(scale · q kᵀ) + mask) v over cache and block side by side, in float32. An entry that
    is padding, or sees nothing, gets zeros. Not differentiable, but for the reference and the XLA path.

    Args:
      inputs: the arrays.
      scale: multiplies the scores.
      window: an entry sees positions later than its own minus this; 0 for no window.
      softcap: scores become cap · tanh(score / cap); 0 for none.
      implementation: None takes what is fastest as far as it was measured, which is the XLA path on every device so
        far. `kernel` takes the kernel of the platform that the program is compiled for, and the XLA path where there is
        none for these shapes; `tpu` and `gpu` insist on theirs; `xla` and `reference` need no device of their own.
      interpret: runs a kernel that is named, `tpu` or `gpu`, without its device, slowly.

    Raises:
      ValueError: shapes disagree, an option is out of range, or the kernel that is named cannot run these shapes.
      TypeError: an array has another type than it must.
    """
    options = Options(scale=scale, window=window, softcap=softcap)
    if implementation not in (None, *NAMES):
        raise ValueError(f"implementation must be one of {', '.join(NAMES)}; got {implementation!r}")
    if interpret and implementation not in ("tpu", "gpu"):
        raise ValueError(f"only implementation tpu or gpu can be interpreted; got {implementation!r}")
    check(inputs, options)
    if implementation == "kernel":
        return jax.lax.platform_dependent(inputs, default=_named("xla", options, False), **_kernels(inputs, options))
    if implementation == "gpu" and (why := gpu.unsupported(inputs)):
        raise ValueError(why)
    return _named(implementation or "xla", options, interpret)(inputs)


def kernel_here(inputs: Inputs) -> str | None:
    """Returns which kernel runs these inputs on the device at hand; None where none does, or only interpreted."""
    platform = jax.default_backend()
    if platform == "tpu":
        return "tpu"
    return "gpu" if platform == "gpu" and not gpu.unsupported(inputs) else None


def _named(name: str, options: Options, interpret: bool) -> Attend:
    if name == "xla":
        return functools.partial(xla.attend, options=options)
    if name == "reference":
        return functools.partial(reference.attend, options=options)
    kernel = tpu.attend if name == "tpu" else gpu.attend
    return functools.partial(kernel, options=options, interpret=interpret)


def _kernels(inputs: Inputs, options: Options) -> dict[str, Attend]:
    """Returns the kernels that can run these shapes, by the platform's name."""
    found = {"tpu": _named("tpu", options, False)}
    return found if gpu.unsupported(inputs) else found | {"cuda": _named("gpu", options, False)}
