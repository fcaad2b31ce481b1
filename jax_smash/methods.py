"""Decoding methods by name. A new method is one line here."""

from collections.abc import Callable
from typing import Any

from jax_smash.decode.autoregressive import Autoregressive

METHODS: dict[str, Callable[..., Any]] = {
    "ar": Autoregressive,
}


def strategy_for(method: str) -> Callable[..., Any]:
    """Returns the strategy that a method's name stands for.

    Raises:
      ValueError: no method has this name.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {method!r}")
    return METHODS[method]
