"""What a model keeps of a text: blocks of new entries, the cache, its one write."""

from jax_smash.cache.block import Block, BlockKV, Earlier, KeyValue, SideBySide
from jax_smash.cache.store import EMPTY, KVCache, LayerCache, Sinks, init_cache
from jax_smash.cache.write import Write, after

__all__ = [
    "EMPTY",
    "Block",
    "BlockKV",
    "Earlier",
    "KVCache",
    "KeyValue",
    "LayerCache",
    "SideBySide",
    "Sinks",
    "Write",
    "after",
    "init_cache",
]
