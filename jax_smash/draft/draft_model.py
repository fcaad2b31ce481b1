"""Classic speculative decoding: a smaller model drafts, the target checks it."""

import dataclasses
import enum
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.cache import Block, Earlier, Write, after
from jax_smash.draft.context import Context, Outcome, Seen
from jax_smash.draft.trees.levels import Levels
from jax_smash.draft.trees.tree import DraftTree, Topology, at_nodes, grow, pack, unpack
from jax_smash.draft.verify.children import Children, draw_independent, draw_without_replacement
from jax_smash.protocols import CausalLM, Forward, ModelDef, Needs, Params, continues_blocks, honours_trees
from jax_smash.pytree import pytree, replace
from jax_smash.sampling import likeliest
from jax_smash.sharding import constrain


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


@pytree
class Past:
    """What stands before the root of a tree.

    Attributes:
      cache: what the model has read.
      token: the tokens behind that, which it has not, in order.
      there: marks the rows that have each of them.
    """

    cache: Any
    token: Int[Array, "B n"]
    there: Bool[Array, "B n"]


@pytree
class Growing:
    """A tree while it is drafted.

    Attributes:
      token: of each node; −1 where nothing is drafted yet.
      proposal: as in `DraftTree`.
      read: what the model made of unread tokens before the root, and of the nodes behind them, by `Levels.place`;
        None before the root was read.
    """

    token: Int[Array, "B M"]
    proposal: Float[Array, "B M V"] | None
    read: Earlier | None


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
      room: nodes of one depth at most, the deepest left out; None leaves room for all.
      draws: how children are drawn; another way than `COUPLED` is for another verification.
      sampled: some row may sample.
      positions: that the model has; behind them nothing is drafted. None where it does not say.
    """

    model: ModelDef
    width: int = 1
    room: int | None = None
    draws: Draws = Draws.COUPLED
    sampled: bool = False
    positions: int | None = None

    @property
    def needs(self) -> Needs:
        """Nothing but the tokens."""
        return Needs()

    def init(self, params: Params, batch: int, slots: int, block: int) -> DraftModelRows:
        """Makes an empty cache for each row."""
        zeros = jnp.zeros((batch,), jnp.int32)
        # A missed token is written with the others.
        cache = self.model.bind(params["drafter"]).init_cache(batch, slots, block + 1)
        return DraftModelRows(cache=cache, missed=zeros, behind=zeros > 0)

    def read(self, params: Params, own: DraftModelRows, shared: Any, seen: Seen) -> tuple[DraftModelRows, Any]:
        """Reads a piece of the prompt, behind a token that was missed in the turn before."""
        model, count = self.model.bind(params["drafter"]), seen.count
        # A row's first piece of a turn also takes what the turn before left unread.
        behind = own.behind & (count > 0)
        tokens = jnp.concatenate([own.missed[:, None], seen.token], axis=1)
        valid = jnp.concatenate([behind[:, None], seen.valid], axis=1)
        position = jnp.concatenate([seen.position[:, :1] - 1, seen.position], axis=1)
        block = Block.causal(valid, prompt=True)
        out = model.forward(model.embed(tokens), jnp.maximum(position, 0), own.cache, block)
        entry = jnp.broadcast_to(1 + jnp.arange(seen.token.shape[1], dtype=jnp.int32), seen.token.shape)
        own = self._committed(own, out.block_kv, position, entry, behind, count, out.hidden[:, -1, 0])
        return replace(own, behind=own.behind & (count == 0)), shared

    def propose(
        self, params: Params, own: DraftModelRows, shared: Any, context: Context, topology: Topology
    ) -> tuple[DraftTree, Any]:
        """Returns the tree that the model continues the pending token with, level by level.

        A forward reads one level's nodes; those before it are in no cache yet, and are told it as earlier entries. A
        model that cannot be told of them reads the whole tree at every level.
        """
        past = Past(cache=own.cache, token=own.missed[:, None], there=own.behind[:, None])
        whole, read = self.drafted(params, past, context, topology)
        place = Levels.of(topology, 1).place
        return whole, (read, jnp.broadcast_to(place, whole.token.shape))

    def drafted(
        self, params: Params, past: Past, context: Context, topology: Topology
    ) -> tuple[DraftTree, Earlier | None]:
        """Returns the tree, and what the model has read to draft it: unread tokens first, then nodes by their place."""
        nodes = topology.nodes
        model = self.model.bind(params["drafter"])
        forwards = _forwards(topology.levels, nodes)
        if not forwards:
            raise ValueError("a draft model must draft at least one token a step: give it a tree of some levels")
        levels = Levels.of(topology, 1 if self.width == 1 else min(self.room or nodes, nodes))
        continues = continues_blocks(model)

        def grown(growing: Growing, depth: Int[Array, ""], past: Past) -> tuple[Growing, Past]:
            tree = grow(topology, growing.token)
            if not continues:
                hidden, read = _read_all(model, context, past, tree, levels, depth)
            elif growing.read is None:
                hidden, read, out = _read_root(model, context, past, tree, levels)
                past = self._behind_root(past, out)
            else:
                hidden, read = _read_level(model, context, past, tree, levels, depth, growing.read)
            # Gather the vocabulary: what follows is separate for each row.
            logits = constrain(model.unembed(hidden), "batch")
            return self._with_children(context, topology, levels, depth, logits, replace(growing, read=read)), past

        token = jnp.broadcast_to(context.pending[:, None], (len(context.pending), nodes))
        token = jnp.where((topology.depth > 0)[None], -1, token)
        root, behind = grown(Growing(token=token, proposal=None, read=None), jnp.int32(0), past)
        whole, _ = jax.lax.scan(
            lambda growing, depth: (grown(growing, depth, behind)[0], None),
            root,
            jnp.arange(1, forwards, dtype=jnp.int32),
        )
        return replace(grow(topology, whole.token), proposal=whole.proposal), whole.read

    def _behind_root(self, past: Past, out: Forward) -> Past:
        """Returns what stands before the root for the levels behind it, which has been read."""
        return past

    def _with_children(
        self,
        context: Context,
        topology: Topology,
        levels: Levels,
        depth: Int[Array, ""],
        logits: Float[Array, "B A V"],
        growing: Growing,
    ) -> Growing:
        """Returns the tree with the children of a depth's nodes, from the logits at these."""
        tree = grow(topology, growing.token)
        node, there = levels.at(depth)
        node, there = node[: logits.shape[1]], there[: logits.shape[1]]
        children = self._children(context, logits, tree.paths()[:, node], node, depth)
        drafted = children.token
        if self.positions is not None:
            within = context.token_length - 1 + depth < self.positions
            drafted = jnp.where(within[:, None, None], drafted, -1)
        token = levels.with_children(topology, growing.token, depth, drafted)
        proposal = growing.proposal
        if children.proposal is not None:
            if proposal is None:
                proposal = jnp.zeros((*tree.token.shape, logits.shape[-1]), jnp.float32)
            proposal = proposal.at[:, jnp.where(there, node, topology.nodes)].set(children.proposal, mode="drop")
        return replace(growing, token=token, proposal=proposal)

    def learn(
        self, params: Params, own: DraftModelRows, shared: Any, made: Any, outcome: Outcome
    ) -> tuple[DraftModelRows, Any]:
        """Commits what was emitted of the tree.

        `propose` has returned the entries that the model has read and that are not in its cache, and which of them each
        node is.
        """
        (entries, place), tree, path = made, outcome.tree, outcome.accepted.path
        read = _forwards(tree.levels, tree.token.shape[1]) - 1
        drafted = jnp.maximum(outcome.count - 1, 0)
        running = outcome.count > 0
        behind = own.behind & running
        count = jnp.where(running, 1 + jnp.minimum(drafted, read), 0)
        entry = 1 + at_nodes(place, path)
        own = self._committed(own, entries.block_kv, entries.position, entry, behind, count, outcome.pending)
        # The last drafted token was never read; if it was kept, the pending token stands behind it.
        missed = at_nodes(tree.token, at_nodes(path, drafted))
        own = replace(
            own,
            missed=jnp.where(running, missed, own.missed),
            behind=jnp.where(running, drafted > read, own.behind),
        )
        return own, shared

    def _children(
        self,
        context: Context,
        logits: Float[Array, "B A V"],
        path: Int[Array, "B A levels"],
        node: Int[Array, "A"],
        depth: Int[Array, ""],
    ) -> Children:
        """Returns the children of nodes of one depth."""
        position = jnp.broadcast_to(context.token_length[:, None] + depth, logits.shape[:2])
        if self.sampled and self.draws in (Draws.INDEPENDENT, Draws.DIFFERENT):
            draw = draw_independent if self.draws is Draws.INDEPENDENT else draw_without_replacement
            chosen = context.process(logits, path)
            return draw(chosen, context.key, position, jnp.broadcast_to(node, position.shape), count=self.width)
        noisy = self.sampled and self.draws is Draws.COUPLED
        values, token = likeliest(context.ranked(logits, path, position if noisy else None), self.width)
        return Children(token=jnp.where(values > -jnp.inf, token, -1))

    def _committed(
        self,
        own: DraftModelRows,
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
        return replace(own, cache=own.cache.commit(block_kv, Write(position=position, count=written, path=path)))


def _forwards(levels: int, nodes: int) -> int:
    """Returns how many forwards draft a tree: one a level."""
    return min(levels, nodes - 1)


def _read_root(
    model: CausalLM, context: Context, past: Past, tree: DraftTree, levels: Levels
) -> tuple[Float[Array, "B 1 D"], Earlier, Forward]:
    """Reads unread tokens and the root. Returns the hidden state behind the root, room for entries, and the forward."""
    tokens = jnp.concatenate([past.token, tree.token[:, :1]], axis=1)
    valid = jnp.concatenate([past.there, tree.valid[:, :1]], axis=1)
    position = context.token_length[:, None] + jnp.arange(-tokens.shape[1], 0, dtype=jnp.int32)[None]
    out = model.forward(model.embed(tokens), jnp.maximum(position, 0), past.cache, Block.causal(valid))
    return out.hidden[:, -1:], levels.with_room(Earlier(block_kv=out.block_kv, position=position)), out


def _read_level(
    model: CausalLM,
    context: Context,
    past: Past,
    tree: DraftTree,
    levels: Levels,
    depth: Int[Array, ""],
    read: Earlier,
) -> tuple[Float[Array, "B room D"], Earlier]:
    """Reads one depth's nodes. Returns the hidden states behind them, and all entries."""
    node, _ = levels.at(depth)
    block = levels.block(tree, depth, past.there, read)
    position = jnp.broadcast_to(context.token_length[:, None] - 1 + depth, (len(past.there), levels.room))
    out = model.forward(model.embed(tree.token[:, node]), position, past.cache, block)
    return out.hidden, levels.with_level(read, Earlier(block_kv=out.block_kv, position=position), depth)


def _read_all(
    model: CausalLM, context: Context, past: Past, tree: DraftTree, levels: Levels, depth: Int[Array, ""]
) -> tuple[Float[Array, "B room D"], Earlier]:
    """Does what `_read_level` does for a model that cannot be told of earlier entries: reads the whole tree again."""
    order, unread = levels.order, past.token.shape[1]
    tokens = jnp.concatenate([past.token, tree.token[:, order]], axis=1)
    drafted = jnp.arange(len(order), dtype=jnp.int32) < tree.token.shape[1]
    valid = jnp.concatenate([past.there, tree.valid[:, order] & drafted[None]], axis=1)
    root = context.token_length[:, None] - 1
    before = root + jnp.arange(-unread, 0, dtype=jnp.int32)[None]
    position = jnp.concatenate([before, root + tree.depth[:, order]], axis=1)
    block = Block.causal(valid)
    if honours_trees(model):
        # A node sees what is unread and its own ancestors.
        seen = unpack(tree.ancestors, tree.token.shape[1])[:, order][:, :, order] & drafted[None, None]
        seen = jnp.pad(seen, ((0, 0), (unread, 0), (unread, 0)), constant_values=True)
        in_order = jnp.tril(jnp.ones(seen.shape[1:], bool))
        block = Block(valid=valid, ancestors=pack(seen & in_order[None]))
    out = model.forward(model.embed(tokens), jnp.maximum(position, 0), past.cache, block)
    hidden = jax.lax.dynamic_slice_in_dim(out.hidden, unread + levels.first[depth], levels.room, axis=1)
    return hidden, Earlier(block_kv=out.block_kv, position=position)
