"""Compiled programs, kept by what they were compiled for, with the time that compiling took."""

import time
from typing import Any

import jax

from jax_smash.sharding import mesh_of, on_mesh

COMPILATION = ("/jax/core/compile/jaxpr_to_mlir_module_duration", "/jax/core/compile/backend_compile_duration")
"""What JAX reports of every compilation."""

COMPILER_OPTIONS = {"TPU7x": {"xla_tpu_control_large_2nd_minor_layout_for_x16": "false"}}
"""Settings of XLA by kind of device. Without its own, a TPU7x tiles 16-bit arrays otherwise inside a program than where
it begins, and copies weights and caches from one to the other: many times what a step needs to read."""


def compile_lowered(lowered: Any, device_kind: str) -> Any:
    """Compiles what `jax.jit(f).lower(...)` returned, with the settings that the kind of device needs."""
    try:
        return lowered.compile(compiler_options=COMPILER_OPTIONS.get(device_kind))
    except jax.errors.JaxRuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        return lowered.compile()  # Another version of the compiler: slower, but right.


class Programs:
    """Compiles each function once for each shape of its arguments and each way they lie on devices, ahead of the call.

    Attributes:
      seconds: spent on tracing and compiling so far, single operations outside any program included; a caller that
        reports speed leaves these out.
      compiled: how many programs were made.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.compiled = 0
        self._programs: dict[Any, Any] = {}
        self._compiling = False
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def call(self, function: Any, strategy: Any, *args: Any) -> Any:
        """Calls a jitted function whose first argument is static. Donated arguments are consumed."""
        return self.program(function, strategy, *args)(*args)

    def program(self, function: Any, strategy: Any, *args: Any) -> Any:
        """Returns the compiled program for these arguments."""
        leaves, structure = jax.tree.flatten(args)
        key = (function, strategy, structure, tuple((x.shape, x.dtype, x.sharding) for x in leaves))
        # Once: to compare a key takes as long as to make it.
        program = self._programs.get(key)
        if program is None:
            began, self._compiling = time.perf_counter(), True
            try:
                kind = next(iter(leaves[0].sharding.device_set)).device_kind
                with on_mesh(mesh_of(args)):
                    program = self._programs[key] = compile_lowered(function.lower(strategy, *args), kind)
            finally:
                self.seconds += time.perf_counter() - began
                self._compiling = False
            self.compiled += 1
        return program

    def __len__(self) -> int:
        """How many programs are kept."""
        return len(self._programs)

    def forget(self) -> None:
        """Gives up all programs and the memory they map; what is called again is compiled again.

        JAX keeps every program that it lowered as well, so its caches are cleared, of functions of others too.
        """
        self._programs.clear()
        jax.clear_caches()

    def _heard(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event in COMPILATION and not self._compiling:
            self.seconds += duration_secs


PROGRAMS = Programs()
"""The process's programs: a second session of the same shapes compiles nothing."""
