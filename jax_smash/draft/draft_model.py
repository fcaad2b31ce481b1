"""Classic speculative decoding: a smaller model drafts, the target checks it."""

import dataclasses
import enum
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.cache import Block, after
from jax_smash.draft.children import Children, draw_independent, draw_without_replacement
from jax_smash.draft.tree import DraftTree, Topology, grow, pack, unpack
from jax_smash.protocols import ModelDef, Params
from jax_smash.pytree import pytree, replace
from jax_smash.sampling import gumbel_noise, likeliest


class Draws(enum.Enum):
    """How a draft model's distribution becomes the children of a node, where rows sample."""

    COUPLED = enum.auto()
    """The likeliest after the very noise that the target's choice at that place is made with, and to be compared with
    that choice: the likelier a token is to both models, the likelier both choose it."""
    LIKELIEST = enum.auto()
    """The likeliest, without noise."""
    INDEPENDENT = enum.auto()
    """Each drawn from the whole distribution, for verification by rejection."""
    DIFFERENT = enum.auto()
    """Each drawn from what its elder siblings leave, for verification by rejection."""


@pytree
class DraftModelRows:
    """What the draft model keeps of each row.

    Attributes:
      cache: its own; it holds what the target's holds, but for one token that it may not have read yet.
      missed: the last committed token, where the draft model has not read it: it drafted it last, and it was kept.
      behind: marks the rows of which a token is missed.
    """

    cache: Any
    missed: Int[Array, "B"]
    behind: Bool[Array, "B"]


@dataclasses.dataclass(frozen=True)
class DraftModel:
    """Drafts with another model, which has a cache of its own.

    Source: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", section 2; Chen et al.
    2023, "Accelerating Large Language Model Decoding with Speculative Sampling".
    Differs: by default the noise is shared in place of rejection, so that sampled text is that of plain decoding, token
    for token; and a tree may have siblings.

    Attributes:
      model: that drafts; its parameters stand under `drafter`.
      width: children that a node has at most; 1 is a chain.
      draws: how children are drawn; another way than `COUPLED` is for another verification.
      sampled: some row may sample.
    """

    model: ModelDef
    width: int = 1
    draws: Draws = Draws.COUPLED
    sampled: bool = False

    def init(self, params: Params, batch: int, slots: int) -> DraftModelRows:
        """Makes an empty cache for each row."""
        zeros = jnp.zeros((batch,), jnp.int32)
        cache = self.model.bind(params["drafter"]).init_cache(batch, slots, slots)
        return DraftModelRows(cache=cache, missed=zeros, behind=zeros > 0)

    def prefill(self, params: Params, state: Any, chunk: Any, hidden: Any, taps: Any) -> Any:
        """Reads a chunk of the prompt, behind a token that was missed in the turn before."""
        rows = state.rows.draft.drafter
        model = self.model.bind(params["drafter"])
        count = chunk.valid.sum(axis=1, dtype=jnp.int32)
        # A row's first chunk of a turn also takes what the turn before left unread.
        behind = rows.behind & (count > 0)
        tokens = jnp.concatenate([rows.missed[:, None], chunk.tokens], axis=1)
        valid = jnp.concatenate([behind[:, None], chunk.valid], axis=1)
        offset = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None] - 1
        position = (state.rows.token_length - count)[:, None] + offset
        out = model.forward(model.embed(tokens), jnp.maximum(position, 0), rows.cache, Block.causal(valid))
        entry = jnp.broadcast_to(1 + jnp.arange(chunk.tokens.shape[1], dtype=jnp.int32), chunk.tokens.shape)
        rows = self._committed(rows, out.block_kv, position, entry, behind, count, out.hidden[:, -1, 0])
        return _with(state, replace(rows, behind=rows.behind & (count == 0)))

    def propose(self, params: Params, state: Any, topology: Topology) -> tuple[DraftTree, Any]:
        """Returns the tree that the model continues the pending token with, level by level.

        Each forward reads the tree so far again, its keys and values being in no cache yet. A chain's forward grows
        with it; in other trees it is traced which nodes make a level, so each forward has room for all.
        """
        rows, nodes = state.rows.draft.drafter, topology.nodes
        model = self.model.bind(params["drafter"])
        token = jnp.broadcast_to(state.rows.pending[:, None], (rows.missed.shape[0], nodes))
        token = jnp.where((topology.depth > 0)[None], -1, token)
        forwards = _forwards(topology.levels, nodes)
        if not forwards:
            raise ValueError("a draft model must draft at least one token a step: give it a tree of some levels")
        proposal, made = None, None
        for depth in range(forwards):
            # A chain's nodes stand by depth.
            asked = slice(depth, depth + 1) if self.width == 1 else slice(0, nodes)
            tree = grow(topology, token)
            block, position = _entries(tree, state.rows.token_length, rows.behind, asked.stop, chain=self.width == 1)
            tokens = jnp.concatenate([rows.missed[:, None], tree.token[:, : asked.stop]], axis=1)
            out = model.forward(model.embed(tokens), jnp.maximum(position, 0), rows.cache, block)
            logits = model.unembed(out.hidden[:, 1:][:, asked])
            children = self._children(state, self._processed(state, logits, tree.paths()[:, asked]), tree, asked)
            place = topology.parent - asked.start
            inside = (topology.depth == depth + 1) & (topology.rank < self.width)
            drawn = children.token[:, jnp.clip(place, 0, asked.stop - asked.start - 1), topology.rank % self.width]
            token = jnp.where(inside[None], drawn, token)
            if children.proposal is not None:
                if proposal is None:
                    proposal = jnp.zeros((*token.shape, logits.shape[-1]), jnp.float32)
                at_depth = (topology.depth[asked] == depth)[None, :, None]
                proposal = proposal.at[:, asked].set(jnp.where(at_depth, children.proposal, proposal[:, asked]))
            made = (out.block_kv, position)
        return replace(grow(topology, token), proposal=proposal), made

    def lesson(self, params: Params, state: Any, checked: Any) -> Any:
        """Returns the entries' keys and values, not yet in the model's cache, and their positions."""
        return checked.made

    def observe(self, params: Params, state: Any, verified: Any) -> Any:
        """Commits what was emitted of the tree."""
        rows, (block_kv, position) = state.rows.draft.drafter, verified.lesson
        path = verified.accepted.path
        read = _forwards(verified.tree.levels, verified.tree.token.shape[1]) - 1
        drafted = jnp.maximum(verified.count - 1, 0)
        running = verified.count > 0
        behind = rows.behind & running
        count = jnp.where(running, 1 + jnp.minimum(drafted, read), 0)
        rows = self._committed(rows, block_kv, position, path + 1, behind, count, state.rows.pending)
        # The last drafted token was never read; if it was kept, the pending token stands behind it.
        last = jnp.take_along_axis(path, drafted[:, None], axis=1)
        missed = jnp.take_along_axis(verified.tree.token, last, axis=1)[:, 0]
        return _with(
            state,
            replace(
                rows,
                missed=jnp.where(running, missed, rows.missed),
                behind=jnp.where(running, drafted > read, rows.behind),
            ),
        )

    def _children(self, state: Any, logits: Float[Array, "B A V"], tree: DraftTree, asked: slice) -> Children:
        """Returns the children of some of the nodes."""
        depth = tree.depth[:, asked]
        position = state.rows.token_length[:, None] + depth
        if self.sampled and self.draws in (Draws.INDEPENDENT, Draws.DIFFERENT):
            draw = draw_independent if self.draws is Draws.INDEPENDENT else draw_without_replacement
            node = jnp.broadcast_to(jnp.arange(tree.token.shape[1], dtype=jnp.int32)[asked], depth.shape)
            return draw(logits, state.rows.key, position, node, count=self.width)
        if self.sampled and self.draws is Draws.COUPLED:
            logits = logits.astype(jnp.float32) + gumbel_noise(state.rows.key, position, logits.shape[-1])
        values, token = likeliest(logits, self.width)
        return Children(token=jnp.where(values > -jnp.inf, token, -1))

    def _committed(
        self,
        rows: DraftModelRows,
        block_kv: Any,
        position: Int[Array, "B E"],
        entry: Int[Array, "B P"],
        behind: Bool[Array, "B"],
        count: Int[Array, "B"],
        evidence: Array,
    ) -> DraftModelRows:
        """Writes the missed entry, entry 0, where there is one, and the first `count` of these behind it."""
        last = entry[:, -1:]
        with_missed = jnp.concatenate([jnp.zeros_like(last), entry], axis=1)
        path = jnp.where(behind[:, None], with_missed, jnp.concatenate([entry, last], axis=1))
        path = jnp.minimum(path, position.shape[1] - 1)
        written = after(count + behind.astype(jnp.int32), evidence)
        return replace(rows, cache=rows.cache.commit(block_kv, position, written, path))

    def _processed(self, state: Any, logits: Float[Array, "B A V"], path: Int[Array, "B A P"]) -> Float[Array, "B A V"]:
        for processor, memory in zip(state.shared.processors, state.rows.processors, strict=True):
            logits = processor.apply(memory, logits, path)
        return logits


def _forwards(levels: int, nodes: int) -> int:
    """Returns how many forwards draft a tree: one a level."""
    return min(levels, nodes - 1)


def _entries(
    tree: DraftTree, token_length: Int[Array, "B"], behind: Bool[Array, "B"], nodes: int, *, chain: bool
) -> tuple[Block, Int[Array, "B E"]]:
    """Returns how a missed token and the first nodes behind it see each other, and their positions."""
    valid = jnp.concatenate([behind[:, None], tree.valid[:, :nodes]], axis=1)
    depth = jnp.concatenate([jnp.full_like(tree.depth[:, :1], -1), tree.depth[:, :nodes]], axis=1)
    position = token_length[:, None] - 1 + depth
    if chain:
        return Block.causal(valid), position
    # Every entry sees the missed one, which stands before all others.
    seen = jnp.pad(unpack(tree.ancestors, nodes), ((0, 0), (1, 0), (1, 0))).at[:, :, 0].set(True)
    return Block(valid=valid, ancestors=pack(seen)), position


def _with(state: Any, rows: DraftModelRows) -> Any:
    return replace(state, rows=replace(state.rows, draft=replace(state.rows.draft, drafter=rows)))
