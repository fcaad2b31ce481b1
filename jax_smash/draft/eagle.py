"""EAGLE: a layer over the target's features drafts; kept tokens are then read again with the target's features."""

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.cache import Block, Earlier, KVCache, Write, after
from jax_smash.draft.context import Context, Outcome, Seen
from jax_smash.draft.trees.best_first import Found
from jax_smash.draft.trees.by_level import (
    ByLevel,
    ConfidentTrees,
    FixedTrees,
    Made,
    Reader,
    tokens_and_probabilities,
    where_wanted,
)
from jax_smash.draft.trees.tree import DraftTree, Topology
from jax_smash.models.definition import NnxModel
from jax_smash.models.pairs import EagleForward, PairLayer
from jax_smash.models.short_head import saying
from jax_smash.protocols import ModelDef, Needs, Params
from jax_smash.pytree import pytree, replace
from jax_smash.sampling import likeliest_of
from jax_smash.sharding import constrain


@pytree
class EagleRows:
    """What the drafter keeps of each row.

    A feature is paired with the token behind it, so the last one waits for that token. Those before it that came with
    the last tree have their tokens, and are read with the next.

    Attributes:
      cache: its own. It holds an entry for each token that the target has read but for the `waiting` ones and the last.
      waiting: features of the last tree that are in no entry yet.
      token: the token that each is paired with.
      count: how many are waiting, from the front.
      last: the feature of the last token that the target has read; anything where it has read nothing.
    """

    cache: KVCache
    waiting: Float[Array, "B W D"]
    token: Int[Array, "B W"]
    count: Int[Array, "B"]
    last: Float[Array, "B D"]


@dataclasses.dataclass(frozen=True)
class EagleDrafter(ByLevel):
    """Drafts with the layer of EAGLE-3 or EAGLE-1, level by level; a level's forward reads its own nodes alone.

    Below the root, a node's feature is what the drafter itself made of its parent. What is kept of a tree is read again
    at the next step, with the features that the target made meanwhile.

    Source: Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time
    Test", section 3; Li et al. 2024, "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty", section 4.
    Differs: where rows sample, the noise of the target's choice is shared in place of a rejection rule, so that the
    text is plain decoding's, token for token.

    Attributes:
      target: the model that is drafted for, whose vectors of tokens are used.
      model: the layer; its parameters stand under `drafter`.
      taps: the target's, of which a feature is made; none where its last hidden state is the feature.
      levels: the depth of the deepest tree.
      trees: how trees get their shape.
      noisy: some row may sample, and children are the likeliest after the noise of the target's choice.
    """

    target: ModelDef
    model: NnxModel
    taps: tuple[int, ...]
    levels: int
    trees: FixedTrees | ConfidentTrees = FixedTrees()  # noqa: RUF009 - frozen
    noisy: bool = False

    @property
    def needs(self) -> Needs:
        """The taps of which a feature is made, or hidden states."""
        return Needs(taps=self.taps, hidden=not self.taps)

    def init(self, params: Params, batch: int, slots: int, block: int) -> EagleRows:
        """Makes an empty cache for each row."""
        model = self._model(params)
        width = model.config.d_model
        return EagleRows(
            # What waits is written with the next block.
            cache=model.init_cache(batch, slots, block + self.levels),
            waiting=jnp.zeros((batch, self.levels, width), model.dtype),
            token=jnp.zeros((batch, self.levels), jnp.int32),
            count=jnp.zeros((batch,), jnp.int32),
            last=jnp.zeros((batch, width), model.dtype),
        )

    def read(self, params: Params, own: EagleRows, shared: Any, seen: Seen) -> tuple[EagleRows, Any]:
        """Reads a piece of the prompts, its last feature left waiting, behind what was waiting before."""
        features, count, first = self._model(params).features(seen.hidden, seen.taps), seen.count, seen.position[:, 0]
        some = count > 0
        # The first token is paired with the last feature of what was read before.
        began = some & (first > 0)
        token = jnp.concatenate([own.token, seen.token], axis=1)
        feature = jnp.concatenate([own.waiting, own.last[:, None], features[:, :-1]], axis=1)
        valid = jnp.concatenate([_waiting(own) & some[:, None], began[:, None], seen.valid[:, 1:]], axis=1)
        position = jnp.concatenate([_positions(own, first), seen.position - 1], axis=1)
        # Only keys and values are used, so nothing reads the cache, and the layer's other products are not made.
        out = self._forward(params, own, token, feature, position, Block.causal(valid))
        path = _without_gap(own, token.shape[1], ~began)
        write = Write(position=position, count=valid.sum(axis=1, dtype=jnp.int32), path=path)
        last = jnp.take_along_axis(features, jnp.maximum(count - 1, 0)[:, None, None], axis=1)[:, 0]
        own = replace(
            own,
            cache=own.cache.commit(out.block_kv, write),
            count=jnp.where(some, 0, own.count),
            last=jnp.where(some[:, None], last, own.last),
        )
        return own, shared

    def propose(
        self, params: Params, own: EagleRows, shared: Any, context: Context, topology: Topology
    ) -> tuple[DraftTree, Earlier]:
        """Returns the tree, and the waiting entries and the root's as they were read."""
        top, made = self._read_root(params, own, context)
        reader = Reader(
            pending=context.pending,
            before=jnp.pad(_waiting(own), ((0, 0), (0, 1)), constant_values=True),
            top=Made(hidden=top.hidden, feature=top.feature),
            entries=made,
            levels=topology.levels,
            read=functools.partial(self._read_level, params, own, context),
            children=functools.partial(self._children, params, context),
        )
        return self.trees.grow(reader, topology), made

    def learn(
        self, params: Params, own: EagleRows, shared: Any, made: Earlier, outcome: Outcome
    ) -> tuple[EagleRows, Any]:
        """Commits what had been emitted before the tree, and has the features of what was emitted of it wait."""
        running = outcome.count > 0
        path = _without_gap(own, made.position.shape[1], jnp.zeros_like(running))
        # Nothing is written before the tree was drafted, and so the cache read.
        written = after(jnp.where(running, own.count + 1, 0), outcome.pending)
        write = Write(position=made.position, count=written, path=path)
        hidden, *taps = map(outcome.along_path, (outcome.hidden, *outcome.taps))
        said, features = outcome.said_tokens, self._model(params).features(hidden, tuple(taps))
        last = jnp.take_along_axis(features, jnp.maximum(outcome.count - 1, 0)[:, None, None], axis=1)[:, 0]
        # A tree with fewer levels than the deepest leaves places free.
        free = own.token.shape[1] - (said.shape[1] - 1)
        waiting = jnp.pad(features[:, :-1], ((0, 0), (0, free), (0, 0)))
        token = jnp.pad(said[:, :-1], ((0, 0), (0, free)))
        own = EagleRows(
            cache=own.cache.commit(made.block_kv, write),
            waiting=jnp.where(running[:, None, None], waiting, own.waiting),
            token=jnp.where(running[:, None], token, own.token),
            count=jnp.where(running, outcome.count - 1, own.count),
            last=jnp.where(running[:, None], last, own.last),
        )
        return own, shared

    def follow(
        self, params: Params, own: EagleRows, shared: Any, seen: Seen, pending: Int[Array, "B"]
    ) -> tuple[EagleRows, Any]:
        """Keeps what was read meanwhile."""
        return self.read(params, own, shared, seen)

    def _read_root(self, params: Params, own: EagleRows, context: Context) -> tuple[EagleForward, Earlier]:
        """Reads the waiting entries and the root's, and returns what was made of the root's and of all."""
        token = jnp.concatenate([own.token, context.pending[:, None]], axis=1)
        feature = jnp.concatenate([own.waiting, own.last[:, None]], axis=1)
        last = context.token_length - 1
        position = jnp.concatenate([_positions(own, last), last[:, None] - 1], axis=1)
        valid = jnp.pad(_waiting(own), ((0, 0), (0, 1)), constant_values=True)
        out = self._forward(params, own, token, feature, position, Block.causal(valid), num_queries=1)
        return out, Earlier(block_kv=out.block_kv, position=position)

    def _read_level(
        self,
        params: Params,
        own: EagleRows,
        context: Context,
        path: Int[Array, "B A levels"],
        feature: Float[Array, "B A D"],
        depth: Int[Array, ""],
        block: Block,
    ) -> tuple[Made, Earlier]:
        """Reads nodes of one depth. Returns what was made of them, and what they are to later ones."""
        token = jnp.maximum(path[:, :, depth - 1], 0)
        position = jnp.broadcast_to(context.token_length[:, None] - 2 + depth, token.shape)
        out = self._forward(params, own, token, feature, position, block)
        made = Made(hidden=out.hidden, feature=out.feature)
        return made, Earlier(block_kv=out.block_kv, position=position)

    def _children(
        self,
        params: Params,
        context: Context,
        hidden: Float[Array, "B A D"],
        path: Int[Array, "B A levels"],
        depth: Int[Array, ""],
    ) -> Found:
        """Returns the likeliest tokens behind nodes of one depth, and their probabilities."""
        model, target = self._model(params), saying(self.target, params)
        width, total = self.trees.width, self.trees.weighed
        within = context.token_length - 2 + depth < model.config.max_positions
        if self.varies:
            within &= context.running  # Rows that have ended propose nothing.

        def make() -> Found:
            if self.noisy or context.processors:
                # Gather the vocabulary: what follows is separate for each row.
                logits = constrain(model.logits(hidden, target), "batch")
                place = jnp.broadcast_to(context.token_length[:, None] + depth, logits.shape[:2])
                logits = context.ranked(logits, path, place if self.noisy else None)
                found = likeliest_of(logits, width, total=total)
            else:
                found = model.guesses(hidden, width, target, total=total)
            return tokens_and_probabilities(found, within)

        return where_wanted(within, make) if self.varies else make()

    def _forward(
        self,
        params: Params,
        own: EagleRows,
        token: Int[Array, "B T"],
        feature: Float[Array, "B T D"],
        position: Int[Array, "B T"],
        block: Block,
        num_queries: int | None = None,
    ) -> EagleForward:
        vectors = self.target.bind(params["target"]).embed(token)
        return self._model(params).forward(vectors, feature, jnp.maximum(position, 0), own.cache, block, num_queries)

    def _model(self, params: Params) -> PairLayer:
        return self.model.bind(params["drafter"])


def _waiting(own: EagleRows) -> Bool[Array, "B W"]:
    """Marks the features that are waiting."""
    return jnp.arange(own.token.shape[1], dtype=jnp.int32)[None] < own.count[:, None]


def _positions(own: EagleRows, length: Int[Array, "B"]) -> Int[Array, "B W"]:
    """Returns the position of each waiting feature.

    Args:
      length: tokens that the target has read: the last feature stands behind the waiting ones.
    """
    place = jnp.arange(own.token.shape[1], dtype=jnp.int32)[None]
    return (length - 1 - own.count)[:, None] + place


def _without_gap(own: EagleRows, entries: int, skip: Bool[Array, "B"]) -> Int[Array, "B P"]:
    """Returns the order in which entries are committed: those that are waiting, then those behind them.

    Args:
      own: says how many of the first entries are waiting.
      entries: the waiting ones' places included.
      skip: the first entry behind the waiting ones' places is none.
    """
    place = jnp.arange(entries, dtype=jnp.int32)[None]
    gap = (own.token.shape[1] - own.count + skip.astype(jnp.int32))[:, None]
    return jnp.minimum(place + jnp.where(place < own.count[:, None], 0, gap), entries - 1)
