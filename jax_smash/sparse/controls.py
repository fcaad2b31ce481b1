"""Policies to compare others with: everything, the last entries, random ones, and those with the most attention."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jax_smash.attention import slot_probabilities
from jax_smash.cache import SelectedLayer, Selection
from jax_smash.config import ModelConfig
from jax_smash.sparse.selecting import Selecting


@dataclasses.dataclass(frozen=True)
class Dense:
    """Reads the whole cache, as a model without a policy does."""

    endless = False
    longest_block = None

    def check(self, model: Any) -> None:
        """Takes every model."""

    def init_cache(self, model: Any, batch: int, slots: int, block: int) -> Any:
        """Makes the model's own cache."""
        return model.init_cache(batch, slots, block)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recency(Selecting):
    """Reads the first entries and the last ones: a control that sees neither query nor keys.

    It reads what StreamingLLM keeps, but from the positions of the text.
    """

    sinks: int = 4

    def select(self, view: SelectedLayer, query: Float[Array, "B N H"]) -> Selection:
        """Prefers later slots."""
        slot = jnp.arange(view.layer.keys.shape[2], dtype=jnp.float32)
        return self.best(view, jnp.broadcast_to(slot[None, None], (view.layer.keys.shape[0], 1, slot.size)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Random(Selecting):
    """Reads slots at random, drawn anew at every step: a control that every other policy should beat.

    Attributes:
      seed: of the draws. They depend on it, the layer and the length of the row alone.
    """

    sinks: int = 4
    seed: int = 0

    def init(self, config: ModelConfig, layer: int, keys: Float[Array, "B K S H"]) -> Any:
        """Keeps the layer's index."""
        return jnp.full((keys.shape[0],), layer, jnp.int32)

    def select(self, view: SelectedLayer, query: Float[Array, "B N H"]) -> Selection:
        """Scores slots by noise."""

        def noise(layer: Array, filled: Array) -> Array:
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(self.seed), layer), filled)
            heads, slots = view.layer.keys.shape[1:3]
            # A key a head: the numbers of the first slots are the same however many there are.
            keys = jax.vmap(lambda head: jax.random.fold_in(key, head))(jnp.arange(heads, dtype=jnp.int32))
            return jax.vmap(lambda key: jax.random.uniform(key, (slots,), jnp.float32))(keys)

        return self.best(view, jax.vmap(noise)(view.channels, view.filled))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Oracle(Selecting):
    """Reads the slots that dense attention would give most to: the most that any choice by single slots may keep.

    It looks at every key to choose, so it saves nothing: an upper bound of quality, not a method.

    Source: Akhauri et al. 2025, "TokenButler", section 4 (the oracle baseline).
    Differs: slots are chosen by KV head, by the probabilities summed over its query heads, and the first 4 are kept.
    Probabilities are normalised over the committed slots, without the entry's own. So where a KV head has several query
    heads, the order of their sums may differ from that of dense attention.
    """

    sinks: int = 4

    def scorer_bytes(self, config: ModelConfig, slots: int, itemsize: int) -> int:
        """Returns the bytes of all keys."""
        return config.held_kv_heads * slots * config.head_width * itemsize

    def attention(self, view: SelectedLayer, query: Float[Array, "B N H"]) -> Float[Array, "B K S"]:
        """Returns what a layer attends to, summed over the query heads of each KV head."""
        latest = jnp.maximum(view.filled - 1, 0)
        position = jnp.take_along_axis(view.layer.position, latest[:, None], axis=1)
        return slot_probabilities(query[:, None], position, view)[:, :, :, 0].sum(2)

    def select(self, view: SelectedLayer, query: Float[Array, "B N H"]) -> Selection:
        """Scores slots by their probabilities."""
        return self.best(view, self.attention(view, query))
