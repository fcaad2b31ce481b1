"""Faster language-model decoding in JAX, with proof that the output is right."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax_smash.checkpoints.convert import convert
    from jax_smash.config import ModelConfig, RopeConfig
    from jax_smash.decode.autoregressive import Autoregressive
    from jax_smash.decode.state import DecodeState
    from jax_smash.generation import Completion, generate
    from jax_smash.loading import Model, load, random_model
    from jax_smash.methods import METHODS, DraftOptions, SmashOptions
    from jax_smash.models.transformer import Transformer
    from jax_smash.protocols import CausalLM, Forward, LogitsProcessor, ModelDef, Strategy
    from jax_smash.sampling import SamplingOptions
    from jax_smash.session import Session

# Names are imported when they are first used: `jax-smash --help` should not wait for every library.
_HOMES = {
    "METHODS": "methods",
    "Autoregressive": "decode.autoregressive",
    "CausalLM": "protocols",
    "Completion": "generation",
    "DecodeState": "decode.state",
    "DraftOptions": "methods",
    "Forward": "protocols",
    "LogitsProcessor": "protocols",
    "Model": "loading",
    "ModelConfig": "config",
    "ModelDef": "protocols",
    "RopeConfig": "config",
    "SamplingOptions": "sampling",
    "Session": "session",
    "SmashOptions": "methods",
    "Strategy": "protocols",
    "Transformer": "models.transformer",
    "convert": "checkpoints.convert",
    "generate": "generation",
    "load": "loading",
    "random_model": "loading",
}

__all__ = list(_HOMES)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
