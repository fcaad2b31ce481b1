"""How often the target's token is among a drafter's likeliest, by depth, over held-out texts."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from eval.drafting.forced import Forced
from eval.drafting.held_out import Text
from eval.scores.intervals import ratio_bootstrap
from jax_smash.cache import Block
from jax_smash.draft.context import Seen
from jax_smash.loading import Model
from jax_smash.protocols import Params
from jax_smash.sampling import likeliest_tokens
from jax_smash.shapes import bucket

RANKS = 5
"""Places among a drafter's likeliest tokens that are counted."""

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Read:
    """A batch of texts as the target has read them, on the host.

    Attributes:
      tokens: padded with 0.
      length: tokens of each.
      counted: how much the guess of the token behind each token counts, 0 or 1.
      best: what the target would say behind each token.
      hidden, taps: of the target; of its taps those that some drafter reads, and None for each of the others.
    """

    tokens: Int[np.ndarray, "B T"]
    length: Int[np.ndarray, "B"]
    counted: Float[np.ndarray, "B T"]
    best: Int[np.ndarray, "B T"]
    hidden: Float[np.ndarray, "B T D"]
    taps: tuple[Float[np.ndarray, "B T D"] | None, ...]


def read_by_target(model: Model, texts: Sequence[Text], taps: Sequence[int], *, batch_size: int) -> Iterator[Read]:
    """Yields batches of texts with what the target makes of them, short texts beside short ones.

    Args:
      model: the target.
      texts: that drafters are judged on.
      taps: that are kept.
      batch_size: texts that are read together.
    """

    @jax.jit
    def read(params: Any, tokens: Int[Array, "B T"], length: Int[Array, "B"]) -> Any:
        bound, place = model.definition.bind(params), jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        valid, position = place < length[:, None], jnp.broadcast_to(place, tokens.shape)
        cache = bound.init_cache(len(tokens), 1, 1)
        out = bound.forward(bound.embed(tokens), position, cache, Block.causal(valid))
        best = likeliest_tokens(bound, out.hidden, 1).tokens[..., 0]
        return best, out.hidden, tuple(tap if i in taps else None for i, tap in enumerate(out.taps))

    ordered = sorted(texts, key=lambda text: len(text.tokens))
    for first in range(0, len(ordered), batch_size):
        some = ordered[first : first + batch_size]
        tokens = np.zeros((batch_size, bucket(max(len(text.tokens) for text in some))), np.int32)
        counted, length = np.zeros(tokens.shape, np.float32), np.zeros(batch_size, np.int32)
        for row, text in enumerate(some):
            length[row] = len(text.tokens)
            tokens[row, : length[row]] = text.tokens
            counted[row, : length[row] - 1] = text.said[1:]
        best, hidden, kept = jax.tree.map(np.asarray, read(model.params["target"], tokens, length))
        yield Read(tokens, length, counted, best, hidden, kept)


def ranker(drafting: Forced, depths: int) -> Callable[[Params, Read], Int[np.ndarray, "B T depths"]]:
    """Returns the function from a batch to the rank of the target's token among a drafter's, at each root and depth.

    The guess at root t and depth d, from the chain t, t + 1, … t + d of the text's own tokens, is of what the target
    says behind token t + d. Roots are tokens whose target has read one at least; what stands at root 0, and where the
    text ends before, means nothing.

    Args:
      drafting: the drafter, forced.
      depths: that are judged.
    """

    @jax.jit
    def ranks(
        params: Params, tokens: Array, length: Array, best: Array, hidden: Array, taps: tuple[Array | None, ...]
    ) -> Any:
        batch, width = tokens.shape
        ahead, wanted = (jnp.pad(x, ((0, 0), (0, depths))) for x in (tokens, best))
        # Nobody reads taps that are not kept.
        every = tuple(hidden if tap is None else tap for tap in taps)

        def read(own: Any, place: Array) -> Any:
            token, state, *more = (jax.lax.dynamic_slice_in_dim(x, place, 1, axis=1) for x in (tokens, hidden, *every))
            at = jnp.broadcast_to(place, (batch, 1))
            seen = Seen(token=token, valid=at < length[:, None], position=at, hidden=state, taps=tuple(more))
            return drafting.read(params, own, seen)

        def step(own: Any, place: Array) -> tuple[Any, Array]:
            chain, target = (jax.lax.dynamic_slice_in_dim(x, place, depths, axis=1) for x in (ahead, wanted))
            logits = drafting.logits(params, drafting.chain(params, own, chain, jnp.broadcast_to(place, (batch,))))
            its = jnp.take_along_axis(logits, target[:, :, None], axis=2)
            rank = jnp.where(its[..., 0] > -jnp.inf, jnp.sum(logits > its, axis=2, dtype=jnp.int32), RANKS)
            return read(own, place), rank

        own = read(drafting.begin(params, batch, width), jnp.int32(0))
        _, found = jax.lax.scan(step, own, jnp.arange(1, width, dtype=jnp.int32))
        return jnp.pad(jnp.moveaxis(found, 0, 1), ((0, 0), (1, 0), (0, 0)))

    def of_batch(params: Params, read: Read) -> Int[np.ndarray, "B T depths"]:
        return np.asarray(ranks(params, read.tokens, read.length, read.best, read.hidden, read.taps))

    return of_batch


@dataclasses.dataclass
class Counts:
    """What became of guesses, a row a text.

    Attributes:
      tried: guesses of each depth.
      hits: of how many of them the target's token was among the likeliest, so many of them.
    """

    tried: Float[np.ndarray, "texts depths"]
    hits: Float[np.ndarray, "texts depths ranks"]

    @classmethod
    def of(cls, read: Read, ranks: Int[np.ndarray, "B T depths"]) -> "Counts":
        """Counts the guesses of a batch that its replies have."""
        width, depths = ranks.shape[1:]
        counted = np.stack([np.pad(read.counted, ((0, 0), (0, d)))[:, d : d + width] for d in range(depths)], axis=2)
        counted[:, 0] = 0
        within = (ranks[..., None] < np.arange(1, RANKS + 1)) * counted[..., None]
        there = read.length > 0
        return cls(tried=counted.sum(1)[there], hits=within.sum(1)[there])

    @classmethod
    def all(cls, parts: Sequence["Counts"]) -> "Counts":
        """Returns the counts of several batches."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("tried", "hits")))


def accuracy_rows(counts: Counts) -> list[Row]:
    """Returns a row a depth, from 1: accuracies among the 1 to 5 likeliest, with their intervals over texts."""
    rows = []
    for depth in range(counts.tried.shape[1]):
        tried = counts.tried[:, depth]
        row: Row = {"depth": depth + 1, "tokens": int(tried.sum()), "texts": int((tried > 0).sum())}
        for rank in range(RANKS):
            hits = counts.hits[:, depth, rank]
            # Of texts without a guess of this depth nothing is told.
            interval = ratio_bootstrap(hits[tried > 0], tried[tried > 0])
            row[f"top{rank + 1}"] = float(hits.sum() / tried.sum()) if tried.any() else None
            row[f"top{rank + 1}_interval"] = None if interval is None else dataclasses.asdict(interval)
        rows.append(row)
    return rows
