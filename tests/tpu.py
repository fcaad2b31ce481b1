"""Programs for TPU devices that are not there."""

import dataclasses
import functools
import importlib.util
from typing import Any

import jax.numpy as jnp
import pytest

from eval.abstract import Abstract, abstract
from eval.compile import figures
from eval.program import Program
from eval.topology import first_device
from jax_smash.config import ModelConfig
from jax_smash.decode.programs import compile_lowered
from jax_smash.models.families.presets import preset
from tests.programs import optimised

CHIPS = ("v5e:2x2", "v6e:2x2", "tpu7x:2x2x1")
needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="compiling for a TPU needs the package libtpu"
)


def two_layers(name: str, **changes: Any) -> ModelConfig:
    """Returns a preset cut to its first two layers, with some fields changed."""
    config = preset(name)
    return dataclasses.replace(config, num_layers=2, layer_kinds=config.layer_kinds[:2], **changes)


SHAPES = {
    "llama-3.2-1b": two_layers("llama-3.2-1b"),
    # Sliding and full layers, soft caps, norms after each part; the vocabulary cut, which no layer sees.
    "gemma-2-2b": two_layers("gemma-2-2b", vocab_size=8192, window=512),
}


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A program for a chip, with what it was compiled from and what it needs."""

    program: Program
    arguments: Abstract
    figures: dict[str, Any]


@functools.cache
def arguments(chip: str, shape: str, *, sampled: bool = False) -> Abstract:
    """Returns abstract arguments: 8 rows of 1,024 slots, prompts by 64 entries, bfloat16."""
    return abstract(
        SHAPES[shape], first_device(chip), batch=8, slots=1024, chunk=64, sampled=sampled, dtype=jnp.bfloat16
    )


@functools.cache
def compiled(chip: str, shape: str, name: str, *, sampled: bool = False, strategy: Any = None) -> Compiled:
    """Compiles `prefill`, `start` or `decode` for a chip.

    Args:
      chip: a topology.
      shape: a name of `SHAPES`.
      name: of the program.
      sampled: rows sample.
      strategy: the class of another strategy than plain decoding.
    """
    args = arguments(chip, shape, sampled=sampled)
    if strategy is not None:
        args = dataclasses.replace(args, strategy=strategy(target=args.strategy.target))
    function, of_function = args.programs[name]
    with optimised():
        program = compile_lowered(function.lower(*of_function), first_device(chip).device_kind)
    return Compiled(program=Program.of(program), arguments=args, figures=figures(name, program, args))
