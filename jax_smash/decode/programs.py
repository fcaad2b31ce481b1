"""Compiled programs, kept by what they were compiled for, with the time that compiling took."""

import time
from typing import Any

import jax


class Programs:
    """Compiles each function once for each shape of its arguments, ahead of the call.

    Attributes:
      seconds: spent on tracing and compiling so far; a caller that reports speed leaves these out.
      compiled: how many programs were made.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.compiled = 0
        self._programs: dict[Any, Any] = {}

    def call(self, function: Any, strategy: Any, *args: Any) -> Any:
        """Calls a jitted function whose first argument is static. Donated arguments are consumed."""
        return self.program(function, strategy, *args)(*args)

    def program(self, function: Any, strategy: Any, *args: Any) -> Any:
        """Returns the compiled program for these arguments."""
        leaves, structure = jax.tree.flatten(args)
        key = (function, strategy, structure, tuple((x.shape, x.dtype, x.sharding) for x in leaves))
        if key not in self._programs:
            began = time.perf_counter()
            self._programs[key] = function.lower(strategy, *args).compile()
            self.seconds += time.perf_counter() - began
            self.compiled += 1
        return self._programs[key]


PROGRAMS = Programs()
"""The process's programs: a second session of the same shapes compiles nothing."""
