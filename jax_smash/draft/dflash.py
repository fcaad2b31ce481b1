"""DFlash: a block of masked tokens behind the pending one is filled in one pass, and drafts a chain or a tree."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.cache import Block, KVCache, Write
from jax_smash.draft.context import Context, Outcome, Seen
from jax_smash.draft.draft_model import Draws
from jax_smash.draft.trees.best_first import grow_best_first
from jax_smash.draft.trees.tree import DraftTree, Topology, grow, pack
from jax_smash.draft.verify.children import draw_independent, draw_without_replacement
from jax_smash.models.definition import NnxModel
from jax_smash.models.dflash import DFlash
from jax_smash.models.short_head import saying
from jax_smash.protocols import ModelDef, Needs, Params
from jax_smash.pytree import pytree, replace
from jax_smash.sampling import Likeliest, likeliest_of, likeliest_tokens
from jax_smash.sharding import constrain


@pytree
class DFlashRows:
    """What the drafter keeps of each row.

    Attributes:
      cache: the context: a key and a value a layer of each token that the target has read.
    """

    cache: KVCache


@dataclasses.dataclass(frozen=True)
class DFlashDrafter:
    """Drafts all levels of a tree at once: a node's tokens are the likeliest of its place in the block.

    What is proposed for a place knows nothing of what is proposed for the places before it. Nodes deeper than the block
    is long are not drafted, and none at a position that the drafter does not have.

    Only what the target has read is kept, by the taps of the accepted path; a block's own keys and values never are. So
    a rejected node leaves nothing behind.

    Source: Chen et al. 2026, "DFlash: Block Diffusion for Flash Speculative Decoding" (arXiv 2602.06036).
    Differs: where rows sample, the noise of the target's choice is shared in place of a rejection rule, so that the
    text is plain decoding's, token for token; drawn drafts are for the other rules. Beside the paper's chain there are
    trees. Logits processors see the text up to the pending token alone, for a place does not know the tokens between;
    beside a grammar they see the likeliest token of each place before.

    Attributes:
      target: the model that is drafted for, whose vectors and rows of tokens are used.
      model: the drafter's layers; their parameters stand under `drafter`.
      taps: the target's, of which the context is made.
      width: children that a node has at most.
      grows: a tree has the nodes of the highest products of probabilities, a chain among them where nothing else is
        likely, and of the topology that is asked for only the size.
      draws: how tokens become children where rows sample.
      sampled: some row may sample.
    """

    target: ModelDef
    model: NnxModel
    taps: tuple[int, ...]
    width: int = 1
    grows: bool = False
    draws: Draws = Draws.COUPLED
    sampled: bool = False

    @property
    def branches(self) -> bool:
        """Drafts may branch, whatever the topology."""
        return self.grows and self.width > 1

    @property
    def needs(self) -> Needs:
        """The taps of which the context is made."""
        return Needs(taps=self.taps)

    def init(self, params: Params, batch: int, slots: int, block: int) -> DFlashRows:
        """Makes an empty context for each row."""
        return DFlashRows(cache=self._model(params).init_cache(batch, slots, block))

    def read(self, params: Params, own: DFlashRows, shared: Any, seen: Seen) -> tuple[DFlashRows, Any]:
        """Keeps the context of a piece of the prompts."""
        return self._kept(params, own, seen.taps, seen.position, seen.count), shared

    def propose(
        self, params: Params, own: DFlashRows, shared: Any, context: Context, topology: Topology
    ) -> tuple[DraftTree, Int[Array, "B"]]:
        """Returns the tree, and the position of each row's root."""
        root, config = context.token_length - 1, self._model(params).config
        levels = min(topology.levels, config.block_size - 1)
        if not levels or topology.nodes == 1:
            return grow(topology, jnp.broadcast_to(context.pending[:, None], (len(root), topology.nodes))), root
        hidden = self._filled(params, own, context)[:, 1 : 1 + levels]
        place = jnp.arange(levels, dtype=jnp.int32)[None]
        # Behind the positions that there are, nothing is drafted.
        within = root[:, None] + 1 + place < config.max_positions
        if self.sampled and self.draws in (Draws.INDEPENDENT, Draws.DIFFERENT):
            logits = self._logits(params, hidden)
            return self._drawn(context, topology, context.process(logits, context.between(logits)), within), root
        found = self._likeliest(params, context, hidden)
        child = jnp.where((found.values > -jnp.inf) & within[:, :, None], found.tokens, -1)
        if self.grows:
            assert found.total is not None
            probability = jnp.exp(found.values - found.total[..., None])
            return _grown(topology, context.pending, child, probability), root
        return grow(topology, _tokens(topology, context.pending, child)), root

    def learn(
        self, params: Params, own: DFlashRows, shared: Any, made: Int[Array, "B"], outcome: Outcome
    ) -> tuple[DFlashRows, Any]:
        """Keeps the context of the tokens on the path that was emitted."""
        taps = tuple(outcome.along_path(tap) for tap in outcome.taps)
        position = made[:, None] + jnp.arange(outcome.accepted.path.shape[1], dtype=jnp.int32)[None]
        return self._kept(params, own, taps, position, outcome.count), shared

    def follow(
        self, params: Params, own: DFlashRows, shared: Any, seen: Seen, pending: Int[Array, "B"]
    ) -> tuple[DFlashRows, Any]:
        """Keeps what was read meanwhile."""
        return self.read(params, own, shared, seen)

    def _kept(
        self,
        params: Params,
        own: DFlashRows,
        taps: tuple[Float[Array, "B T _"], ...],
        position: Int[Array, "B T"],
        count: Int[Array, "B"],
    ) -> DFlashRows:
        """Returns the rows with the first so many of the tokens whose taps these are."""
        there = jnp.arange(position.shape[1], dtype=jnp.int32)[None] < count[:, None]
        read, block, cache = [taps[i] for i in self.taps], Block.causal(there), own.cache
        made = self._model(params).context(read, position, block, reach=cache.reach, rows="rows")
        return replace(own, cache=cache.commit(made, Write(position=position, count=count)))

    def _filled(self, params: Params, own: DFlashRows, context: Context) -> Float[Array, "B block D"]:
        """Returns what the layers make of each row's block."""
        model, target = self._model(params), self.target.bind(params["target"])
        vectors = model.masked(context.pending[:, None], target)[:, 0]
        batch, length = vectors.shape[:2]
        position = context.token_length[:, None] - 1 + jnp.arange(length, dtype=jnp.int32)[None]
        everything = jnp.ones((batch, length, length), bool)
        block = Block(valid=everything[:, 0], ancestors=pack(everything))
        return model.filled(vectors, position, own.cache, block)

    def _logits(self, params: Params, hidden: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Returns the logits of each place."""
        # Gather the vocabulary: what follows is separate for each row.
        return constrain(saying(self.target, params).unembed(hidden), "batch")

    def _likeliest(self, params: Params, context: Context, hidden: Float[Array, "B T D"]) -> Likeliest:
        """Returns the likeliest tokens of each place, where rows share the noise of the target's choice after it."""
        noisy = self.sampled and self.draws is Draws.COUPLED
        if not (noisy or context.processors):
            target = saying(self.target, params)
            return likeliest_tokens(target, hidden, self.width, total=self.grows)
        logits = self._logits(params, hidden)
        place = context.token_length[:, None] + jnp.arange(logits.shape[1], dtype=jnp.int32)[None]
        noise = place if noisy else None
        logits = context.ranked(logits, context.between(logits, noise), noise)
        return likeliest_of(logits, self.width, total=self.grows)

    def _drawn(
        self,
        context: Context,
        topology: Topology,
        logits: Float[Array, "B T V"],
        within: Bool[Array, "B T"],
    ) -> DraftTree:
        """Returns a tree of which each node has drawn its own children from the distribution of their place."""
        depth = jnp.minimum(topology.depth, logits.shape[1] - 1)
        position = context.token_length[:, None] + topology.depth[None]
        node = jnp.broadcast_to(jnp.arange(topology.nodes, dtype=jnp.int32), position.shape)
        draw = draw_independent if self.draws is Draws.INDEPENDENT else draw_without_replacement
        children = draw(logits[:, depth], context.key, position, node, count=self.width)
        there = (topology.depth < logits.shape[1])[None] & within[:, depth]
        token = jnp.where(there[:, :, None], children.token, -1)[:, topology.parent, topology.rank]
        token = jnp.where((topology.depth == 0)[None], context.pending[:, None], token)
        return replace(grow(topology, token), proposal=children.proposal)

    def _model(self, params: Params) -> DFlash:
        return self.model.bind(params["drafter"])


def _tokens(topology: Topology, pending: Int[Array, "B"], child: Int[Array, "B T width"]) -> Int[Array, "B M"]:
    """Returns the tokens of a tree's nodes: by depth, and by rank among siblings."""
    levels, width = child.shape[1:]
    there = (topology.depth > 0) & (topology.depth <= levels) & (topology.rank < width)
    place, rank = jnp.clip(topology.depth - 1, 0, levels - 1), jnp.minimum(topology.rank, width - 1)
    token = jnp.where(there[None], child[:, place, rank], -1)
    return jnp.where((topology.depth == 0)[None], pending[:, None], token)


def _grown(
    topology: Topology,
    pending: Int[Array, "B"],
    child: Int[Array, "B T width"],
    probability: Float[Array, "B T width"],
) -> DraftTree:
    """Returns the tree of the nodes of the highest products of probabilities, as many as a topology has.

    While it grows, a node's name is its place and rank in one number: all nodes of one depth have the same children.
    """
    batch, levels, width = child.shape
    names = jnp.arange(levels * width, dtype=jnp.int32).reshape(levels, width)
    known = jnp.where(child >= 0, names[None], -1)

    def children(name: Int[Array, "B A"]) -> tuple[Array, Array]:
        # The root's name is the one before the first, so that its children are those of the first place.
        place = jnp.minimum((name + width) // width, levels - 1)
        at = jnp.broadcast_to(place[:, :, None], (*name.shape, width))
        return jnp.take_along_axis(known, at, axis=1), jnp.take_along_axis(probability, at, axis=1)

    root = jnp.full((batch,), -1, jnp.int32)
    tree = grow_best_first(root, children, nodes=topology.nodes, levels=levels, most_rank=jnp.int32(width - 1))
    token = jnp.take_along_axis(child.reshape(batch, -1), tree.token, axis=1)
    return replace(tree, token=token.at[:, 0].set(pending))
