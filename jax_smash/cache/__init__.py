"""What a model keeps of a text: blocks of new entries, the cache, its one write."""

from jax_smash.cache.block import Block, BlockKV, Earlier, KeyValue, Noted, SideBySide
from jax_smash.cache.held import HeldCache, HeldLayer
from jax_smash.cache.listening import Entering, Listening
from jax_smash.cache.selected import (
    AfterReading,
    ChosenPages,
    LayerPlan,
    Note,
    Recorded,
    SelectedCache,
    SelectedLayer,
    Selection,
    Step,
)
from jax_smash.cache.store import EMPTY, KVCache, LayerCache, Sinks, divided, init_cache, reaching, specs
from jax_smash.cache.write import Write, after

__all__ = [
    "EMPTY",
    "AfterReading",
    "Block",
    "BlockKV",
    "ChosenPages",
    "Earlier",
    "Entering",
    "HeldCache",
    "HeldLayer",
    "KVCache",
    "KeyValue",
    "LayerCache",
    "LayerPlan",
    "Listening",
    "Note",
    "Noted",
    "Recorded",
    "SelectedCache",
    "SelectedLayer",
    "Selection",
    "SideBySide",
    "Sinks",
    "Step",
    "Write",
    "after",
    "divided",
    "init_cache",
    "reaching",
    "specs",
]
