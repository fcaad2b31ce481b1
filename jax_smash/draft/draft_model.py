"""Classic speculative decoding: a smaller model drafts a chain, the target checks it."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.cache import Block, after
from jax_smash.draft.tree import DraftTree, Topology, grow
from jax_smash.protocols import ModelDef, Params
from jax_smash.pytree import pytree, replace
from jax_smash.sampling import choose


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
    """Drafts a chain with another model, which has a cache of its own.

    A sampled row's drafts are drawn with the very noise that the target's choice at that place is made with, after the
    same processors: the likelier a token is to both, the likelier both choose it. What is emitted is the target's
    choice in any case.

    Source: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", section 2; Chen et al.
    2023, "Accelerating Large Language Model Decoding with Speculative Sampling".
    Differs: shared noise in place of rejection, so that sampled text is that of plain decoding, token for token.

    Attributes:
      model: that drafts; its parameters stand under `drafter`.
      sampled: some row may sample.
    """

    model: ModelDef
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
        rows = self._committed(rows, out.block_kv, position, behind, count, out.hidden[:, -1, 0])
        return _with(state, replace(rows, behind=rows.behind & (count == 0)))

    def propose(self, params: Params, state: Any, topology: Topology) -> tuple[DraftTree, Any]:
        """Returns the chain that the model continues the pending token with, as deep as the topology allows.

        Each forward reads the chain so far again, its keys and values being in no cache yet.
        """
        rows, nodes = state.rows.draft.drafter, topology.nodes
        model = self.model.bind(params["drafter"])
        entries = jnp.stack([rows.missed, state.rows.pending], axis=1)
        valid = jnp.stack([rows.behind, jnp.ones_like(rows.behind)], axis=1)
        length = state.rows.token_length[:, None]
        path = jnp.full((*rows.missed.shape, topology.levels), -1, jnp.int32)
        out = None
        for depth in range(topology.levels):
            position = length - 2 + jnp.arange(entries.shape[1], dtype=jnp.int32)[None]
            out = model.forward(model.embed(entries), jnp.maximum(position, 0), rows.cache, Block.causal(valid))
            logits = self._processed(state, model.unembed(out.hidden[:, -1:]), path[:, None])
            token = choose(logits, state.rows.key, length + depth, sampled=self.sampled)
            path = path.at[:, depth].set(token[:, 0])
            if depth + 1 < topology.levels:
                entries = jnp.concatenate([entries, token], axis=1)
                valid = jnp.concatenate([valid, jnp.ones_like(valid[:, :1])], axis=1)
        if out is None:
            raise ValueError("a draft model must draft at least one token a step: give it a tree of some levels")
        token = jnp.concatenate([state.rows.pending[:, None], path], axis=1)[:, :nodes]
        on_chain = (topology.rank == 0) & (topology.depth < nodes)
        drafted = jnp.take_along_axis(token, jnp.broadcast_to(topology.depth, (token.shape[0], nodes)), axis=1)
        return grow(topology, jnp.where(on_chain[None], drafted, -1)), (out.block_kv, position)

    def lesson(self, params: Params, state: Any, checked: Any) -> Any:
        """Returns the chain's keys and values, not yet in the model's cache, and their positions."""
        return checked.made

    def observe(self, params: Params, state: Any, verified: Any) -> Any:
        """Commits what was emitted of the chain."""
        rows, (block_kv, position) = state.rows.draft.drafter, verified.lesson
        read = verified.tree.levels - 1
        drafted = jnp.maximum(verified.count - 1, 0)
        running = verified.count > 0
        behind = rows.behind & running
        count = jnp.where(running, 1 + jnp.minimum(drafted, read), 0)
        rows = self._committed(rows, block_kv, position, behind, count, state.rows.pending)
        # The last drafted token was never read; if it was kept, the pending token stands behind it.
        last = jnp.take_along_axis(verified.accepted.path, drafted[:, None], axis=1)
        missed = jnp.take_along_axis(verified.tree.token, last, axis=1)[:, 0]
        return _with(
            state,
            replace(
                rows,
                missed=jnp.where(running, missed, rows.missed),
                behind=jnp.where(running, drafted > read, rows.behind),
            ),
        )

    def _committed(
        self,
        rows: DraftModelRows,
        block_kv: Any,
        position: Int[Array, "B E"],
        behind: Bool[Array, "B"],
        count: Int[Array, "B"],
        evidence: Array,
    ) -> DraftModelRows:
        """Writes the missed entry, where there is one, and `count` entries behind it."""
        first = 1 - behind.astype(jnp.int32)
        path = jnp.minimum(first[:, None] + jnp.arange(position.shape[1], dtype=jnp.int32)[None], position.shape[1] - 1)
        written = after(count + behind.astype(jnp.int32), evidence)
        return replace(rows, cache=rows.cache.commit(block_kv, position, written, path))

    def _processed(self, state: Any, logits: Float[Array, "B 1 V"], path: Int[Array, "B 1 P"]) -> Float[Array, "B 1 V"]:
        for processor, memory in zip(state.shared.processors, state.rows.processors, strict=True):
            logits = processor.apply(memory, logits, path)
        return logits


def _with(state: Any, rows: DraftModelRows) -> Any:
    return replace(state, rows=replace(state.rows, draft=replace(state.rows.draft, drafter=rows)))
