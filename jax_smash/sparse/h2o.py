"""H2O: the slots that were attended to most so far, and the last ones."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jax_smash.attention.selected import summed_probabilities
from jax_smash.cache import SelectedLayer, Selection, Step
from jax_smash.cache.store import HEADS, ROWS
from jax_smash.config import ModelConfig
from jax_smash.sharding import on_each_device
from jax_smash.sparse.selecting import Selecting


@dataclasses.dataclass(frozen=True, kw_only=True)
class H2O(Selecting):
    """Keeps the entries with the highest sum of attention probabilities, and the last entries; evicts all others.

    score(s) = Σ over entries t so far of decay^(entries after t) · p_t(s)

    Source: Zhang et al. 2023, "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models",
    section 4; half of the budget for heavy hitters, half for the last entries.
    Differs: probabilities are summed over the query heads of a KV head, which share a set. Evicted entries are masked,
    so memory is not given back. The budget does not count the new entries of a step. Entries that are accepted together
    are evicted together, after all of them have been counted.

    Attributes:
      recent: what share of the budget is for the last entries.
      grace: so many of the last entries are kept even if that share is less; it changes nothing where the share is as
        much or more. Without either, a new entry leaves at once, for it has been seen by nothing.
      decay: what is left of a probability with each further entry; 1 forgets nothing.
    """

    recent: float = 0.5
    grace: int = 0
    decay: float = 1.0

    evicts = True
    records = True
    keeps_queries = True

    def __post_init__(self) -> None:
        if not 0 <= self.recent <= 1:
            raise ValueError(f"recent must be from 0 to 1; got {self.recent}")
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay must be over 0 and at most 1; got {self.decay}")
        if self.grace < 0 or (isinstance(self.budget, int) and self.grace + self.sinks > self.budget):
            raise ValueError(f"grace must be from 0 to {self.budget} slots less {self.sinks} sinks; got {self.grace}")
        super().__post_init__()

    @property
    def least(self) -> int:
        """Slots that are always read."""
        size = self.page_size
        pages = -(-self.sinks // size) + (-(-(self.grace - 1) // size) + 1 if self.grace else 0)
        return max(pages * size, super().least)

    def init(self, config: ModelConfig, layer: int, keys: Float[Array, "B K S H"]) -> Any:
        """Begins with sums of nothing."""
        return jnp.zeros(keys.shape[:3], jnp.float32)

    def last(self, limit: Int[Array, "B K"]) -> Int[Array, "B K"]:
        """Returns the last entries' share of the budget; their pages and those of the sinks are within it."""
        share = jnp.floor(limit.astype(jnp.float32) * jnp.float32(self.recent)).astype(jnp.int32)
        pages = limit // self.page_size - -(-self.sinks // self.page_size)
        most = jnp.maximum((pages - 1) * self.page_size + 1, 0)  # In the worst place for the bounds of pages.
        return jnp.minimum(jnp.maximum(share, max(self.grace, self.window)), most)

    def scorer_bytes(self, config: ModelConfig, slots: int, itemsize: int) -> int:
        """Returns the bytes of the sums, and of the marks of what was evicted."""
        return config.held_kv_heads * slots * (4 + 1)

    def select(self, view: SelectedLayer, query: Float[Array, "B N H"]) -> Selection:
        """Scores slots by their sums."""
        return self.best(view, view.channels)

    def committed(self, view: SelectedLayer, step: Step) -> Any:
        """Adds the probabilities of the entries that are kept."""
        count = step.write.count
        left = (count[:, None] - 1 - jnp.arange(step.kept.shape[1], dtype=jnp.int32)[None]).astype(jnp.float32)
        weight = jnp.where(step.kept, jnp.float32(self.decay) ** left, 0.0)
        sums = view.channels * (jnp.float32(self.decay) ** count.astype(jnp.float32))[:, None, None]
        if step.note.selection is None:
            query, position = step.of(step.note.query), step.of(step.write.position)
            return sums + summed_probabilities(query, position, weight, view)
        return sums + recorded(view, step, weight)


def recorded(view: SelectedLayer, step: Step, weight: Float[Array, "B P"]) -> Float[Array, "B K S"]:
    """Returns the probabilities that a decoding step noted, by slot, summed over the path's entries with weights."""
    chosen: Any = step.note.selection
    nothing = jnp.zeros(view.layer.keys.shape[:3], jnp.float32)
    past = jnp.einsum("BPKC,BP->BKC", step.of(step.note.past), weight)
    # Of the probabilities on new entries, those on the path: each entry sees itself and what is before it.
    own = step.of(step.of(step.note.own).transpose(0, 3, 2, 1))
    own = jnp.einsum("BPKU,BU->BPK", own, weight)

    def added(sums: Array, slots: Array, past: Array, slot: Array, own: Array) -> Array:
        row, head = (jnp.arange(n, dtype=jnp.int32) for n in sums.shape[:2])
        sums = sums.at[row[:, None, None], head[None, :, None], slots].add(past)
        return sums.at[row[:, None, None], head[None, None], slot[:, :, None]].add(own, mode="drop")

    slots, made = ((chosen.slots, HEADS), (past, HEADS)), (own, ("batch", None, "kv_heads"))
    return on_each_device(added, (nothing, HEADS), *slots, (step.slot(nothing.shape[2]), ROWS), made)
