"""Lookahead decoding: a window of guesses that the target corrects in every step, and the n-grams that come of it."""

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jax_smash.draft.context import Context, Outcome, Seen
from jax_smash.draft.text import NOTHING, largest
from jax_smash.draft.trees.tree import DraftTree, Topology, grow, topology
from jax_smash.protocols import Needs, Params
from jax_smash.pytree import pytree, replace

STRIDE = 7919
"""Prime step between the prompt tokens that the window begins with, so that neighbours there are no neighbours here."""


@pytree
class LookaheadRows:
    """The window and the pool of each row.

    Attributes:
      window: guesses, in order of the rounds in which they were made, the latest last. Entry [k, j] is a guess of the
        token k + j places after the pending one; entry [0, 0] is not used.
      pool: n-grams; `NOTHING` at the front of one that does not count.
      written: n-grams ever written; the next one replaces entry `written` modulo C.
    """

    window: Int[Array, "B levels columns"]
    pool: Int[Array, "B C N"]
    written: Int[Array, "B"]

    def put(self, ngram: Int[Array, "B P N"], valid: Bool[Array, "B P"]) -> "LookaheadRows":
        """Returns the rows with these n-grams as the latest of the pool, in which none stands twice."""
        capacity = self.pool.shape[1]
        after = jnp.cumsum(valid, axis=1, dtype=jnp.int32)
        count = after[:, -1]
        order = jnp.arange(ngram.shape[1], dtype=jnp.int32)
        same = (ngram[:, :, None] == ngram[:, None]).all(-1) & valid[:, None]
        repeated = (same & (order[:, None] < order[None])[None]).any(2)
        known = ((self.pool[:, :, None] == ngram[:, None]).all(-1) & valid[:, None]).any(2)
        pool = self.pool.at[:, :, 0].set(jnp.where(known, NOTHING, self.pool[:, :, 0]))
        # Of more n-grams than there is room for, the last are kept; past the end is dropped.
        kept = valid & (after > count[:, None] - capacity)
        entry = jnp.where(kept, (self.written[:, None] + after - 1) % capacity, capacity)
        ngram = ngram.at[:, :, 0].set(jnp.where(repeated, NOTHING, ngram[:, :, 0]))
        rows = jnp.arange(pool.shape[0], dtype=jnp.int32)[:, None]
        return replace(self, pool=pool.at[rows, entry].set(ngram, mode="drop"), written=self.written + count)

    def beginning_with(self, token: Int[Array, "B"], count: int) -> Int[Array, "B {count} rest"]:
        """Returns what follows in the latest n-grams that begin with a token, the latest first; else `NOTHING`."""
        capacity = self.pool.shape[1]
        age = (jnp.arange(capacity, dtype=jnp.int32)[None] - self.written[:, None]) % capacity
        found = largest(jnp.where(self.pool[:, :, 0] == token[:, None], age + 1, 0), count)
        entry = (found - 1 + self.written[:, None]) % capacity
        rest = jnp.take_along_axis(self.pool[:, :, 1:], entry[:, :, None], axis=1)
        return jnp.where((found > 0)[:, :, None], rest, NOTHING)


@dataclasses.dataclass(frozen=True)
class Lookahead:
    """Drafts n-grams that the target itself made in a window of guesses, by Jacobi iteration.

    The window's guesses ride along in each forward. Its first row is a chain below the pending token, and from each
    entry of the first row hangs a chain of the guesses that later rounds made for the places after it: so every entry
    sees what the paper's mask lets it see, and the window is a tree like any other. What the target says at the end of
    a column completes an n-gram, which goes into the pool; drafts are the pool's n-grams that begin with the pending
    token, the latest first.

    Source: Fu et al. 2024, "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding".
    Differs: the window's own tokens are kept too where the target agrees with them; the window begins full of tokens
    of the prompt instead of filling row by row; the pool is one ring for all first tokens instead of a set for each;
    and guesses are the target's likeliest tokens, without noise or processors, but on the path that is kept.

    Attributes:
      window: W, columns of guesses.
      ngram: N, tokens of an n-gram, at least 2.
      guesses: G, n-grams proposed in a step.
      capacity: n-grams that the pool of a row holds.
      learn_prompt: the prompt's n-grams go into the pool.
    """

    window: int = 7
    ngram: int = 5
    guesses: int = 7
    capacity: int = 1024
    learn_prompt: bool = True

    branches = True
    """Drafts branch, whatever the topology."""

    def __post_init__(self) -> None:
        least = {"window": 1, "ngram": 2, "guesses": 1, "capacity": 1}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ValueError(f"{name} must be at least {low}; got {getattr(self, name)}")

    @property
    def topology(self) -> Topology:
        """The tree that has room for the whole window and all guesses."""
        nodes = (self.window + self.guesses) * (self.ngram - 1)
        return _layout(self, nodes, self.window + self.ngram - 3)[0]

    @property
    def needs(self) -> Needs:
        """Nothing but the tokens."""
        return Needs()

    def init(self, params: Params, batch: int, slots: int, block: int) -> LookaheadRows:
        """Makes rows that have read nothing."""
        return LookaheadRows(
            window=jnp.zeros((batch, self.ngram - 1, self.window), jnp.int32),
            pool=jnp.full((batch, self.capacity, self.ngram), NOTHING, jnp.int32),
            written=jnp.zeros((batch,), jnp.int32),
        )

    def read(self, params: Params, own: LookaheadRows, shared: Any, seen: Seen) -> tuple[LookaheadRows, Any]:
        """Fills the window with tokens of the prompt, and the pool with its n-grams."""
        count = seen.count[:, None]
        _, levels, columns = own.window.shape
        index = (jnp.arange(levels * columns, dtype=jnp.int32) * STRIDE)[None] % jnp.maximum(count, 1)
        drawn = jnp.take_along_axis(seen.token, index, axis=1).astype(jnp.int32).reshape(own.window.shape)
        own = replace(own, window=jnp.where((count > 0)[:, :, None], drawn, own.window))
        beginnings = seen.token.shape[1] - self.ngram + 1
        if self.learn_prompt and beginnings > 0:
            shifted = [seen.token[:, i : i + beginnings].astype(jnp.int32) for i in range(self.ngram)]
            own = own.put(jnp.stack(shifted, axis=2), seen.valid[:, self.ngram - 1 :])
        return own, shared

    def propose(
        self, params: Params, own: LookaheadRows, shared: Any, context: Context, topology: Topology
    ) -> tuple[DraftTree, None]:
        """Returns the tree of the window and of the pool's n-grams.

        What does not fit the topology's nodes and levels is left out: columns and guesses alike.
        """
        pending = context.pending[:, None]
        shape, columns, guesses, length = _layout(self, topology.nodes, topology.levels)
        parts = [pending]
        if columns:
            window = own.window[:, :, :columns].reshape(pending.shape[0], -1)
            parts.append(window[:, 1:])
        if guesses:
            found = own.beginning_with(pending[:, 0], guesses)[:, :, :length]
            parts.append(found.reshape(pending.shape[0], -1))
        token = jnp.concatenate(parts, axis=1)
        rest = topology.nodes - token.shape[1]
        return grow(shape, jnp.pad(token, ((0, 0), (0, rest)), constant_values=NOTHING)), None

    def learn(
        self, params: Params, own: LookaheadRows, shared: Any, made: Any, outcome: Outcome
    ) -> tuple[LookaheadRows, Any]:
        """Completes the window's n-grams and moves it one place on, whatever was kept."""
        tree = outcome.tree
        _, columns, _, _ = _layout(self, tree.token.shape[1], tree.levels)
        if not columns:
            return own, shared
        levels = self.ngram - 1
        window = tree.token[:, : levels * columns].reshape(-1, levels, columns)
        said = outcome.target[:, (levels - 1) * columns : levels * columns]
        complete = jnp.concatenate([window, said[:, None]], axis=1)
        running = outcome.running[:, None]
        own = own.put(complete.swapaxes(1, 2), jnp.broadcast_to(running, said.shape))
        moved = jnp.where(running[:, :, None], complete[:, 1:], own.window[:, :, :columns])
        return replace(own, window=own.window.at[:, :, :columns].set(moved)), shared


@functools.lru_cache(maxsize=64)
def _split(window: int, ngram: int, guesses: int, nodes: int, levels: int) -> tuple[int, int, int]:
    """Returns the columns and guesses that fit, and the tokens of a guess."""
    deep = ngram - 1
    columns = max(min(window, levels - deep + 2, nodes * window // ((window + guesses) * deep)), 0)
    length = min(deep, levels)
    free = nodes - max(columns * deep, 1)
    return columns, min(guesses, free // length) if length else 0, length


def _layout(drafter: Lookahead, nodes: int, levels: int) -> tuple[Topology, int, int, int]:
    """Returns the tree that is proposed, its columns and guesses, and the tokens of a guess.

    Entry [k, j] of the window is node k · columns + j; the guesses come behind it, one after the other.
    """
    columns, guesses, length = _split(drafter.window, drafter.ngram, drafter.guesses, nodes, levels)
    own = np.arange(1, nodes)
    parent = np.zeros(nodes, np.int64)
    inside = own[: max(columns * (drafter.ngram - 1) - 1, 0)]
    parent[inside] = np.where(inside < columns, inside - 1, inside - columns)
    start = len(inside) + 1
    guessed = np.arange(guesses * length)
    parent[start + guessed] = np.where(guessed % max(length, 1) == 0, 0, start + guessed - 1)
    return topology(parent.tolist(), levels=levels), columns, guesses, length
