"""What a predictor learns from a base's attention: of entries, or of pages of them."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.pytree import pytree
from train.parts.butler.recall import SINKS

HIDDEN = -1e30
"""Score of what a query does not see: finite, so that a query that sees nothing stays free of NaN."""


@pytree
class Seen:
    """Some queries of rows, and which entries they see.

    Attributes:
      entry: index of each query in its row.
      position: of each query in its document.
      visible: the entries that each sees; none for padding.
      key_position: of each entry in its document.
      segments: document of each entry, from 1; 0 for padding.
      query_segments: of each query.
    """

    entry: Int[Array, "B Q"]
    position: Int[Array, "B Q"]
    visible: Bool[Array, "B Q T"]
    key_position: Int[Array, "B T"]
    segments: Int[Array, "B T"]
    query_segments: Int[Array, "B Q"]


@pytree
class Lesson:
    """What is to be learned of some queries.

    Attributes:
      logits: the teacher's, softmax of which over `seen` is its distribution; HIDDEN elsewhere.
      seen: what each query may be told of.
      counted: 1 where there is something to learn, for each query.
    """

    logits: Float[Array, "B K G Q S"]
    seen: Bool[Array, "B Q S"]
    counted: Float[Array, "B Q"]


class Targets(Protocol):
    """Makes lessons of a teacher's scores."""

    def lesson(self, scores: Float[Array, "B K G Q T"], seen: Seen) -> Lesson:
        """Returns what a predictor should say of the queries."""

    def candidates(self, lesson: Lesson, seen: Seen) -> Bool[Array, "B Q S"]:
        """Returns what recall chooses from: without what is kept in any case."""


@dataclasses.dataclass(frozen=True)
class EntryTargets:
    """Every query head's attention to every entry that it sees, its own included."""

    def lesson(self, scores: Float[Array, "B K G Q T"], seen: Seen) -> Lesson:
        """Returns the scores themselves."""
        logits = jnp.where(seen.visible[:, None, None], scores, HIDDEN)
        return Lesson(logits=logits, seen=seen.visible, counted=seen.visible.any(-1).astype(jnp.float32))

    def candidates(self, lesson: Lesson, seen: Seen) -> Bool[Array, "B Q T"]:
        """Returns the entries without the sinks."""
        return lesson.seen & (seen.key_position >= SINKS)[:, None]


@dataclasses.dataclass(frozen=True)
class PageTargets:
    """The highest attention of a group to any entry of a page, for whole pages of the query's document before its own.

    Attributes:
      page: entries of a page.
    """

    page: int

    def lesson(self, scores: Float[Array, "B K G Q T"], seen: Seen) -> Lesson:
        """Returns the logarithms of the highest attention, one set for a group."""
        hidden = jnp.where(seen.visible[:, None, None], scores, HIDDEN)
        attention = jax.nn.log_softmax(hidden, axis=-1)
        highest = attention.reshape(*attention.shape[:4], -1, self.page).max(-1).max(2, keepdims=True)
        pages = self._pages(seen)
        logits = jnp.where(pages[:, None, None], jnp.maximum(highest, HIDDEN), HIDDEN)
        # Where all pages lie outside of a layer's window, none has any attention.
        counted = (pages.sum(-1) > 1) & (logits.max((1, 2, 4)) > HIDDEN / 2)
        return Lesson(logits=logits, seen=pages, counted=counted.astype(jnp.float32))

    def candidates(self, lesson: Lesson, seen: Seen) -> Bool[Array, "B Q P"]:
        """Returns the pages without those that hold sinks."""
        return lesson.seen & (seen.key_position[:, :: self.page] >= SINKS)[:, None]

    def _pages(self, seen: Seen) -> Bool[Array, "B Q P"]:
        by_page = seen.segments.reshape(seen.segments.shape[0], -1, self.page)
        whole = (by_page == by_page[:, :, :1]).all(-1) & (by_page[:, :, 0] > 0)
        same = by_page[:, None, :, 0] == seen.query_segments[:, :, None]
        before = jnp.arange(by_page.shape[1], dtype=jnp.int32)[None, None] < (seen.entry // self.page)[:, :, None]
        return whole[:, None] & same & before


def targets_of(page: int) -> Targets:
    """Returns what a predictor with pages of a size learns; pages of 1 are entries."""
    return EntryTargets() if page == 1 else PageTargets(page)
