"""TOVA: the slots that the last entry attended to most."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jax_smash.attention import slot_probabilities
from jax_smash.cache import SelectedLayer, Selection, Step
from jax_smash.config import ModelConfig
from jax_smash.sparse.h2o import recorded
from jax_smash.sparse.selecting import Selecting


@dataclasses.dataclass(frozen=True, kw_only=True)
class TOVA(Selecting):
    """Keeps the entries that the last one attended to most, on average over all heads; evicts all others.

    Source: Oren et al. 2024, "Transformers are Multi-State RNNs", section 3.2 (TOVA); one set a layer.
    Differs: evicted entries are masked, so memory is not given back. The budget does not count the new entries of a
    step. Of entries that are accepted together the last decides.
    """

    evicts = True
    records = True
    keeps_queries = True

    def init(self, config: ModelConfig, layer: int, keys: Float[Array, "B K S H"]) -> Any:
        """Begins with an entry that attended to nothing."""
        return jnp.zeros((keys.shape[0], keys.shape[2]), jnp.float32)

    def scorer_bytes(self, config: ModelConfig, slots: int, itemsize: int) -> int:
        """Returns the bytes of the probabilities, and of the marks of what was evicted."""
        return slots * (4 + config.held_kv_heads)

    def select(self, view: SelectedLayer, query: Float[Array, "B N H"]) -> Selection:
        """Scores slots, for all heads alike, by the last entry's probabilities."""
        return self.best(view, jnp.broadcast_to(view.channels[:, None], view.layer.keys.shape[:3]))

    def committed(self, view: SelectedLayer, step: Step) -> Any:
        """Notes the last entry's probabilities, summed over all heads: sums order slots as averages do."""
        count = step.write.count
        last = jnp.maximum(count - 1, 0)[:, None]
        if step.note.selection is None:
            query = step.of(step.note.query)
            query = jnp.take_along_axis(query, last[:, :, None, None], axis=1)
            position = jnp.take_along_axis(step.of(step.write.position), last, axis=1)
            sums = slot_probabilities(query, position, view).sum((1, 2, 3))
        else:
            place = jnp.arange(step.kept.shape[1], dtype=jnp.int32)[None]
            sums = recorded(view, step, ((place == last) & step.kept).astype(jnp.float32)).sum(1)
        return jnp.where((count > 0)[:, None], sums, view.channels)
