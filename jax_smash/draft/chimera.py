"""Chimera: one layer over all that the target has read, and over short grams of what it has not, drafts a tree."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.cache import Block, Earlier, KVCache, Write
from jax_smash.draft.context import Context, Outcome, Seen
from jax_smash.draft.gram_cache import GramCache
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
from jax_smash.models.chimera import Chimera
from jax_smash.models.definition import NnxModel
from jax_smash.models.grams import NONE, grams_of
from jax_smash.models.short_head import saying
from jax_smash.protocols import ModelDef, Needs, Params
from jax_smash.pytree import pytree
from jax_smash.sampling import likeliest_of, likeliest_tokens
from jax_smash.sharding import constrain


@pytree
class ChimeraRows:
    """What the drafter keeps of each row.

    Attributes:
      cache: its own. It holds two entries for each token that the target has read: the target's hidden state, and the
        gram's code.
      recent: the last tokens that the target has read, as many as a gram has; `NONE` before the first.
      last: the target's hidden state of the last of them; anything where it has read nothing.
      grams: codes of the grams that were used last; None where none are kept.
    """

    cache: KVCache
    recent: Int[Array, "B g"]
    last: Float[Array, "B D"]
    grams: GramCache | None


@dataclasses.dataclass(frozen=True)
class ChimeraDrafter(ByLevel):
    """Drafts level by level: each depth has a head, and a node's children are guessed from the text up to that node.

    A level's forward reads the grams of its own nodes alone. Nodes deeper than there are heads are not drafted.

    Source: Zeng et al. 2024, "Chimera", sections 4.1 and 4.4.
    Differs: where rows sample, the noise of the target's choice is shared in place of typical acceptance, so that the
    text is plain decoding's, token for token (`--verify typical-lossy` has the paper's rule; the noise of the
    target's choice then remains for the first token of a reply alone). In the published code only the likeliest token
    of a depth is read by the next; here every node that has children is.

    Attributes:
      target: the model that is drafted for, whose vectors and rows of tokens are used.
      model: the drafter's modules; their parameters stand under `drafter`.
      trees: how trees get their shape.
      noisy: some row may sample, and children are the likeliest after the noise of the target's choice.
      gram_slots: grams whose codes each row keeps; 0 makes every code anew. Drafts do not depend on it.
    """

    target: ModelDef
    model: NnxModel
    trees: FixedTrees | ConfidentTrees = FixedTrees()  # noqa: RUF009 - frozen
    noisy: bool = False
    gram_slots: int = 0

    @property
    def needs(self) -> Needs:
        """Hidden states."""
        return Needs(hidden=True)

    def init(self, params: Params, batch: int, slots: int, block: int) -> ChimeraRows:
        """Makes an empty cache for each row."""
        model, kept = self._model(params), self.gram_slots
        gram, width = model.config.gram, model.config.d_model
        return ChimeraRows(
            cache=model.init_cache(batch, slots, block),
            recent=jnp.full((batch, gram), NONE, jnp.int32),
            last=jnp.zeros((batch, width), model.dtype),
            grams=GramCache.empty(batch, kept, gram, width, model.dtype) if kept else None,
        )

    def read(self, params: Params, own: ChimeraRows, shared: Any, seen: Seen) -> tuple[ChimeraRows, Any]:
        """Keeps both entries of each token of a piece of the prompts."""
        return self._kept(params, own, seen.token, seen.hidden, seen.position, seen.count), shared

    def propose(
        self, params: Params, own: ChimeraRows, shared: Any, context: Context, topology: Topology
    ) -> tuple[DraftTree, Int[Array, "B"]]:
        """Returns the tree, and the position of each row's root."""
        config = self._model(params).config
        root = jnp.full((len(context.pending), 1, topology.levels), -1, jnp.int32)
        read = functools.partial(self._read_level, params, own, context)
        before = jnp.ones((len(root), 1), bool)
        top, entries = read(root, None, jnp.int32(0), Block.causal(before))
        reader = Reader(
            pending=context.pending,
            before=before,
            top=top,
            entries=entries,
            levels=config.decoding_heads,
            read=read,
            children=functools.partial(self._children, params, own, context),
        )
        return self.trees.grow(reader, topology), context.token_length - 1

    def learn(
        self, params: Params, own: ChimeraRows, shared: Any, made: Int[Array, "B"], outcome: Outcome
    ) -> tuple[ChimeraRows, Any]:
        """Keeps both entries of each token on the path that was emitted."""
        token, hidden = outcome.kept_tokens, outcome.along_path(outcome.hidden)
        position = made[:, None] + jnp.arange(token.shape[1], dtype=jnp.int32)[None]
        return self._kept(params, own, token, hidden, position, outcome.count), shared

    def follow(
        self, params: Params, own: ChimeraRows, shared: Any, seen: Seen, pending: Int[Array, "B"]
    ) -> tuple[ChimeraRows, Any]:
        """Keeps what was read meanwhile."""
        return self.read(params, own, shared, seen)

    def _read_level(
        self,
        params: Params,
        own: ChimeraRows,
        context: Context,
        path: Int[Array, "B A levels"],
        feature: None,
        depth: Int[Array, ""],
        block: Block,
    ) -> tuple[Made, Earlier]:
        """Reads nodes of one depth. Returns what was made of them, and what they are to later ones."""
        model = self._model(params)
        before = jnp.concatenate([own.recent, context.pending[:, None]], axis=1)
        before = jnp.broadcast_to(before[:, None], (*path.shape[:2], before.shape[1]))
        text = jnp.concatenate([before, path], axis=2)
        grams = jax.lax.dynamic_slice_in_dim(text, depth + 1, model.config.gram, axis=2)
        position = jnp.broadcast_to(context.token_length[:, None] - 1 + depth, path.shape[:2])
        codes = self._codes(params, own, grams, block.valid[:, -path.shape[1] :] & context.running[:, None])
        out = model.forward(codes, position, own.cache, block)
        return Made(hidden=out.hidden, feature=None), Earlier(block_kv=out.block_kv, position=position)

    def _children(
        self,
        params: Params,
        own: ChimeraRows,
        context: Context,
        full: Float[Array, "B A D"],
        path: Int[Array, "B A levels"],
        depth: Int[Array, ""],
    ) -> Found:
        """Returns the likeliest tokens behind nodes of one depth, and their probabilities."""
        model, target = self._model(params), self._target(params)
        width, total = self.trees.width, self.trees.weighed
        within = context.token_length - 1 + depth < model.config.max_positions
        if self.varies:
            within &= context.running  # Rows that have ended propose nothing.

        def make() -> Found:
            # As the heads' weights are divided: with whole vectors, these would be gathered.
            last = constrain(jnp.broadcast_to(own.last[:, None], full.shape), "rows", None, "embed")
            vectors = model.vectors(last, full, depth)
            if self.noisy or context.processors:
                # Gather the vocabulary: what follows is separate for each row.
                logits = constrain(target.unembed(vectors), "batch")
                place = jnp.broadcast_to(context.token_length[:, None] + depth, logits.shape[:2])
                logits = context.ranked(logits, path, place if self.noisy else None)
                found = likeliest_of(logits, width, total=total)
            else:
                found = likeliest_tokens(target, vectors, width, total=total)
            return tokens_and_probabilities(found, within)

        return where_wanted(within, make) if self.varies else make()

    def _kept(
        self,
        params: Params,
        own: ChimeraRows,
        token: Int[Array, "B T"],
        hidden: Float[Array, "B T D"],
        position: Int[Array, "B T"],
        count: Int[Array, "B"],
    ) -> ChimeraRows:
        """Returns the rows with the first so many of these tokens."""
        model, length = self._model(params), token.shape[1]
        grams, valid = grams_of(own.recent, token), jnp.arange(length, dtype=jnp.int32)[None] < count[:, None]
        codes = self._codes(params, own, grams, valid)
        entries = jnp.concatenate([hidden.astype(codes.dtype), codes], axis=1)
        position, valid = (jnp.concatenate([x, x], axis=1) for x in (position, valid))
        # Only keys and values are used, so nothing reads the cache, and the layer's other products are not made.
        out = model.forward(entries, position, own.cache, Block.causal(valid))
        # The hidden states first, then the codes.
        place = jnp.arange(2 * length, dtype=jnp.int32)[None]
        path = jnp.where(place < count[:, None], place, jnp.minimum(place - count[:, None] + length, 2 * length - 1))
        write = Write(position=position, count=2 * count, path=path)
        recent = count[:, None] + jnp.arange(own.recent.shape[1], dtype=jnp.int32)[None]
        last = jnp.take_along_axis(hidden, jnp.maximum(count - 1, 0)[:, None, None], axis=1)[:, 0]
        return ChimeraRows(
            cache=own.cache.commit(out.block_kv, write),
            recent=jnp.take_along_axis(jnp.concatenate([own.recent, token], axis=1), recent, axis=1),
            last=jnp.where((count > 0)[:, None], last.astype(own.last.dtype), own.last),
            grams=None if own.grams is None else own.grams.learned(grams, codes, count),
        )

    def _codes(
        self, params: Params, own: ChimeraRows, grams: Int[Array, "B T g"], wanted: Bool[Array, "B T"]
    ) -> Float[Array, "B T D"]:
        """Returns the codes of grams, of those that are wanted."""
        model, target = self._model(params), self._target(params)
        if own.grams is None:
            return model.codes(grams, target)
        return own.grams.codes(grams, wanted, lambda grams: model.codes(grams, target))

    def _model(self, params: Params) -> Chimera:
        return self.model.bind(params["drafter"])

    def _target(self, params: Params) -> Any:
        return saying(self.target, params)
