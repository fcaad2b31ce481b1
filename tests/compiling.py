"""How tests compile: programs this small run once, and most of a test's time would go into optimising them."""

import importlib.metadata
import os

FLAGS = "--xla_cpu_parallel_codegen_split_count=1"
if importlib.metadata.version("jaxlib").startswith("0.10."):
    # Half of the time of compiling. From 0.11 on fusion emitters cannot be turned off.
    FLAGS += " --xla_cpu_use_fusion_emitters=false"

QUICKLY = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "XLA_FLAGS": FLAGS}
"""The environment of a process that compiles as tests do, and so rounds alike. It must not compile for TPUs."""


def compile_quickly() -> None:
    """Compiles for CPUs by `FLAGS` in this process from now on.

    XLA reads its variable once, and ends a process at a flag that it does not know. libtpu has an XLA of its own, which
    knows others, so the variable does not stay.
    """
    import jax

    before = os.environ.get("XLA_FLAGS")
    os.environ["XLA_FLAGS"] = FLAGS
    jax.config.update("jax_disable_most_optimizations", True)
    jax.jit(lambda: 0).lower().compile()
    if before is None:
        del os.environ["XLA_FLAGS"]
    else:
        os.environ["XLA_FLAGS"] = before
