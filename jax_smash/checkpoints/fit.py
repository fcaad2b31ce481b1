"""Whether the tensors of a checkpoint are the ones that its configuration calls for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

SHOWN = 8
"""Names that an error lists of each kind, before it only counts."""

DTYPES = {"BF16": np.dtype(jnp.bfloat16), "F16": np.dtype(np.float16), "F32": np.dtype(np.float32)}
"""Supported dtypes of weights, by their safetensors code."""

Shape = tuple[int, ...]


def dotted(path: tuple[Any, ...]) -> str:
    """Returns the name of a parameter, as in `layers.0.attention.w_qkv`."""
    return ".".join(str(piece) for piece in path)


def check_fit(where: Path | str, expected: Mapping[str, Shape], found: Mapping[str, Shape]) -> None:
    """Checks that all tensors are there that should be, none besides, and each of the right shape.

    Args:
      where: the checkpoint or other place they are in, named in the error.
      expected: shape of each tensor that the configuration calls for.
      found: shape of each tensor that is there.

    Raises:
      ValueError: one message that names all differences.
    """
    complaints = [
        _listed("missing", [f"{n} {list(s)}" for n, s in expected.items() if n not in found]),
        _listed("unexpected", [f"{n} {list(s)}" for n, s in found.items() if n not in expected]),
        _listed(
            "of another shape",
            [
                f"{n} must be {list(s)}, got {list(found[n])}"
                for n, s in expected.items()
                if n in found and found[n] != s
            ],
        ),
    ]
    complaints = [c for c in complaints if c]
    if complaints:
        raise ValueError(f"the tensors in {where} do not fit its configuration: {'; '.join(complaints)}")


def one_dtype(where: Path, dtypes: Mapping[str, np.dtype], wanted: Any) -> np.dtype:
    """Returns the dtype that parameters get in memory.

    Args:
      where: the checkpoint, named in errors.
      dtypes: dtype of each tensor.
      wanted: the caller's choice; None keeps the checkpoint's own.

    Raises:
      ValueError: the choice is not a supported dtype, or there is none and the tensors' dtypes differ.
    """
    if wanted is not None:
        if jnp.dtype(wanted) not in DTYPES.values():
            names = ", ".join(str(d) for d in DTYPES.values())
            raise ValueError(f"dtype of weights must be one of {names}; got {jnp.dtype(wanted)}")
        return np.dtype(jnp.dtype(wanted))
    present = sorted(set(dtypes.values()), key=str)
    if len(present) > 1:
        examples = (next(n for n, d in dtypes.items() if d == p) + f" {p}" for p in present)
        raise ValueError(f"the tensors in {where} differ in dtype ({', '.join(examples)}); choose one with dtype")
    return present[0]


def _listed(kind: str, items: list[str]) -> str:
    if not items:
        return ""
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return f"{kind}: {', '.join(items[:SHOWN])}{more}"
