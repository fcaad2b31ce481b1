"""SnapKV: the slots that the end of the prompt attends to."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.attention.selected import summed_probabilities
from jax_smash.cache import SelectedLayer, Selection, Step
from jax_smash.config import ModelConfig
from jax_smash.pytree import pytree
from jax_smash.sparse.selecting import Selecting


@pytree
class Votes:
    """What SnapKV keeps of a layer.

    Attributes:
      query: of the last entries that vote, the oldest first.
      position: of these; −1 where there was none.
      vote: for each slot.
      kept: the first of the slots that are kept by their place, not by votes.
    """

    query: Float[Array, "B W N H"]
    position: Int[Array, "B W"]
    vote: Float[Array, "B K S"]
    kept: Int[Array, "B"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SnapKV(Selecting):
    """Keeps what the last entries of the prompt attend to, its neighbours, and these last entries; evicts all others.

    vote(s) = pool over neighbours of s of the mean over observers and query heads of p(s)

    Source: Li et al. 2024, "SnapKV: LLM Knows What You are Looking for Before Generation", section 4; 32 observers, and
    pooling over 7 slots.
    Differs: votes are averaged over the query heads of a KV head, which share a set. Evicted entries are masked, so
    memory is not given back. The paper lets the cache grow with what is generated; here a generated entry takes the
    room of the prompt's entry with the fewest votes; when none is left, that of the oldest. With `rolling`, as in the
    comparisons of Akhauri et al. 2025 ("TokenButler", section 4.2), the last entries vote anew after each step, and are
    kept by votes alone.

    Attributes:
      observers: how many of the last entries vote.
      pool: slots that are pooled; odd.
      pooling: `average` or `max`.
      rolling: what is decoded votes too.
    """

    observers: int = 32
    pool: int = 7
    pooling: str = "average"
    rolling: bool = False

    evicts = True
    keeps_queries = True

    def __post_init__(self) -> None:
        if self.prompt == "stepwise" and not self.rolling:
            raise ValueError("prompt stepwise has no end of a prompt to vote: SnapKV takes it with rolling alone")
        if self.observers < 1 or (isinstance(self.budget, int) and self.observers >= self.budget and not self.rolling):
            raise ValueError(
                f"observers must be at least 1 and fewer than the budget {self.budget}; got {self.observers}"
            )
        if self.pool < 1 or self.pool % 2 == 0:
            raise ValueError(f"pool must be an odd number; got {self.pool}")
        if self.pooling not in ("average", "max"):
            raise ValueError(f"pooling must be average or max; got {self.pooling!r}")
        super().__post_init__()

    @property
    def least(self) -> int:
        """Slots that are always read; without `rolling` the observers are."""
        size = self.page_size
        pages = 0 if self.rolling else -(-self.observers // size) + (size > 1)
        return max(pages * size + size, super().least)

    def init(self, config: ModelConfig, layer: int, keys: Float[Array, "B K S H"]) -> Any:
        """Begins without votes."""
        rows, kv_heads, slots, width = keys.shape
        heads = config.num_heads
        return Votes(
            query=jnp.zeros((rows, self.observers, heads, width), keys.dtype),
            position=jnp.full((rows, self.observers), -1, jnp.int32),
            vote=jnp.zeros((rows, kv_heads, slots), jnp.float32),
            kept=jnp.zeros((rows,), jnp.int32),
        )

    def scorer_bytes(self, config: ModelConfig, slots: int, itemsize: int) -> int:
        """Returns the bytes of the votes, and of the marks of what was evicted; with `rolling` of all keys."""
        keys = config.head_width * itemsize if self.rolling else 0
        return config.held_kv_heads * slots * (4 + 1 + keys)

    def select(self, view: SelectedLayer, query: Float[Array, "B N H"]) -> Selection:
        """Scores slots by votes, and those that are kept by their place higher, the last highest."""
        slot = jnp.arange(view.layer.keys.shape[2], dtype=jnp.int32)[None, None]
        placed = slot >= view.channels.kept[:, None, None]
        # A vote is a mean of probabilities, so at most 1.
        return self.best(view, jnp.where(placed, 2.0 + slot.astype(jnp.float32), view.channels.vote))

    def committed(self, view: SelectedLayer, step: Step) -> Any:
        """Counts the votes of the last entries, after a piece of the prompt; with `rolling` after each step."""
        votes = view.channels
        if step.note.selection is not None and not self.rolling:
            return votes
        count = step.write.count
        latest = count[:, None] + jnp.arange(self.observers, dtype=jnp.int32)[None]
        query = jnp.concatenate([votes.query, step.of(step.note.query).astype(votes.query.dtype)], axis=1)
        position = jnp.concatenate([votes.position, step.of(step.write.position)], axis=1)
        query = jnp.take_along_axis(query, latest[:, :, None, None], axis=1)
        position = jnp.take_along_axis(position, latest, axis=1)
        kept = view.filled if self.rolling else jnp.maximum(view.filled - self.observers, 0)
        share = 1 / (self.observers * (query.shape[2] // view.layer.keys.shape[1]))
        vote = summed_probabilities(query, position, jnp.full(position.shape, share, jnp.float32), view)
        vote = self._pooled(jnp.where(_before(kept, vote), vote, 0.0))
        changed = count > 0
        return Votes(
            query=query,
            position=position,
            vote=jnp.where(changed[:, None, None], vote, votes.vote),
            kept=jnp.where(changed, kept, votes.kept),
        )

    def _pooled(self, vote: Float[Array, "B K S"]) -> Float[Array, "B K S"]:
        window, side = (1, 1, self.pool), self.pool // 2
        padding = ((0, 0), (0, 0), (side, side))
        if self.pooling == "max":
            return jax.lax.reduce_window(vote, jnp.float32(0), jax.lax.max, window, (1, 1, 1), padding)
        total = jax.lax.reduce_window(vote, jnp.float32(0), jax.lax.add, window, (1, 1, 1), padding)
        return total / self.pool


def _before(kept: Int[Array, "B"], vote: Float[Array, "B K S"]) -> Bool[Array, "B 1 S"]:
    return jnp.arange(vote.shape[2], dtype=jnp.int32)[None, None] < kept[:, None, None]
