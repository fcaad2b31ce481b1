"""Faster language-model decoding in JAX, with proof that the output is right.

What most programs need is `load`, `generate` and `SamplingOptions`; `save` writes a model back. `rollout` samples texts
inside a training step of your own. Own models come in by `from_apply`, which takes any function from tokens to logits,
or as a `CausalLM` with `NnxModel`, `Block`, `KVCache` and `attend`. Own drafters and verifiers are made of trees
(`chain_tree`, `tree_from_ranks`, `grow_tree` …), `choose`, `accept` and `reject`. Importing this package starts no
device and changes no setting of JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax_smash.applied import from_apply
    from jax_smash.attention import attend
    from jax_smash.cache import Block, KVCache, init_cache
    from jax_smash.checkpoints.convert import convert
    from jax_smash.config import ModelConfig, RopeConfig
    from jax_smash.decode.autoregressive import Autoregressive
    from jax_smash.decode.rollout import Rollout, rollout
    from jax_smash.decode.state import DecodeState
    from jax_smash.draft.trees.templates import named_tree
    from jax_smash.draft.trees.tree import DraftTree, Topology, tree_from_ranks
    from jax_smash.draft.trees.tree import chain as chain_tree
    from jax_smash.draft.trees.tree import grow as grow_tree
    from jax_smash.draft.trees.tree import topology as tree_from_parents
    from jax_smash.draft.trees.tree import tree_of as tree_by_row
    from jax_smash.draft.verify.accept import Accepted, accept
    from jax_smash.draft.verify.rejection import reject
    from jax_smash.loading import Model, load, random_model
    from jax_smash.methods import METHODS, DraftOptions, SmashOptions, make_method
    from jax_smash.models.definition import NnxModel
    from jax_smash.models.transformer import Transformer
    from jax_smash.protocols import CausalLM, Drafter, Forward, LogitsProcessor, ModelDef, Strategy
    from jax_smash.sampling import SamplingOptions, choose, row_keys
    from jax_smash.saving import save
    from jax_smash.serve.generation import generate
    from jax_smash.serve.session import Session
    from jax_smash.serve.turn import Completion

# Names are imported when they are first used: `jax-smash --help` should not wait for every library.
_HOMES = {
    "METHODS": "methods",
    "Accepted": "draft.verify.accept",
    "Autoregressive": "decode.autoregressive",
    "Block": "cache",
    "CausalLM": "protocols",
    "Completion": "serve.turn",
    "DecodeState": "decode.state",
    "DraftOptions": "methods",
    "DraftTree": "draft.trees.tree",
    "Drafter": "protocols",
    "Forward": "protocols",
    "KVCache": "cache",
    "LogitsProcessor": "protocols",
    "Model": "loading",
    "ModelConfig": "config",
    "ModelDef": "protocols",
    "NnxModel": "models.definition",
    "Rollout": "decode.rollout",
    "RopeConfig": "config",
    "SamplingOptions": "sampling",
    "Session": "serve.session",
    "SmashOptions": "methods",
    "Strategy": "protocols",
    "Topology": "draft.trees.tree",
    "Transformer": "models.transformer",
    "accept": "draft.verify.accept",
    "attend": "attention",
    "chain_tree": "draft.trees.tree:chain",
    "choose": "sampling",
    "convert": "checkpoints.convert",
    "from_apply": "applied",
    "generate": "serve.generation",
    "grow_tree": "draft.trees.tree:grow",
    "init_cache": "cache",
    "load": "loading",
    "make_method": "methods",
    "named_tree": "draft.trees.templates",
    "random_model": "loading",
    "reject": "draft.verify.rejection",
    "rollout": "decode.rollout",
    "row_keys": "sampling",
    "save": "saving",
    "tree_by_row": "draft.trees.tree:tree_of",
    "tree_from_parents": "draft.trees.tree:topology",
    "tree_from_ranks": "draft.trees.tree",
}
"""Module of each public name; behind a colon its name there, where that says too little outside of its module."""

__all__ = list(_HOMES)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, _, own = _HOMES[name].partition(":")
    return getattr(importlib.import_module(f"{__name__}.{home}"), own or name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
