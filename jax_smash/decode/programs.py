"""Compiled programs, kept for reuse, and the time that compiling took."""

import time
from typing import Any

import jax

from jax_smash.platform import target_platform
from jax_smash.sharding import mesh_of, on_mesh

COMPILATION = ("/jax/core/compile/jaxpr_to_mlir_module_duration", "/jax/core/compile/backend_compile_duration")
"""The events that JAX reports for every compilation."""

COMPILER_OPTIONS = {"TPU7x": {"xla_tpu_control_large_2nd_minor_layout_for_x16": "false"}}
"""Settings of XLA for each kind of device. Without this one, a TPU7x tiles 16-bit arrays in one way at the start of a
program and in another inside it. It then copies weights and caches between the two, which is many times what a step
must read."""


def compile_lowered(lowered: Any, device_kind: str) -> Any:
    """Compiles what `jax.jit(f).lower(...)` returned, with the settings for this kind of device."""
    try:
        return lowered.compile(compiler_options=COMPILER_OPTIONS.get(device_kind))
    except jax.errors.JaxRuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        return lowered.compile()  # Another version of the compiler: slower, but right.


CONTEXT = ("jax_default_matmul_precision", "jax_enable_x64", "jax_debug_nans", "jax_threefry_partitionable")
"""Settings of JAX that change what a traced function computes."""


def _context() -> tuple[Any, ...]:
    return (*(getattr(jax.config, name) for name in CONTEXT), target_platform())


class Programs:
    """Compiles each function ahead of the call, once for each combination of argument shapes, dtypes, shardings and
    settings of JAX.

    Attributes:
      seconds: time spent on tracing and compiling so far, including single operations outside any program. A caller
        that reports speed subtracts it.
      compiled: number of programs made.
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
        key = (function, strategy, structure, tuple((x.shape, x.dtype, x.sharding) for x in leaves), _context())
        # Look up only once: comparing a key takes as long as making it.
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
        """Returns the number of programs that are kept."""
        return len(self._programs)

    def forget(self) -> None:
        """Releases all programs and the memory that they map. A program that is called again is compiled again.

        JAX also keeps every program that it lowered, so this clears all caches of JAX, those of other code included.
        """
        self._programs.clear()
        jax.clear_caches()

    def _heard(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event in COMPILATION and not self._compiling:
            self.seconds += duration_secs


PROGRAMS = Programs()
"""The programs of this process. A second session of the same shapes compiles nothing."""
