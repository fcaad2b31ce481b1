"""Token Recycling: the candidates that the target threw away, kept for the next time their token comes up."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jax_smash.draft.tree import DraftTree, Topology, grow
from jax_smash.protocols import ModelDef, Params
from jax_smash.pytree import replace
from jax_smash.sampling import likeliest

UNKNOWN = -1
"""Successor of a token that was never read."""

WIDTH = 8
"""Successors kept of each token, in the paper."""

PROMPT_ENTRIES = 64
"""Prompt tokens whose logits are in memory at once, a row."""


@dataclasses.dataclass(frozen=True)
class Recycling:
    """Drafts from a matrix of each token's likeliest successors, as last seen.

    The matrix is shared by the rows of a batch, or each row has its own. It holds token ids, likeliest first. Where a
    token is read at several nodes of a step, the last of the last row counts.

    Source: Luo et al. 2024, "Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token
    Recycling", section 3.
    Differs: an unknown successor is no proposal, and the prompt is learned from while it is read.

    Attributes:
      target: the model that is drafted for.
      width: successors kept of each token.
      own: each row has a matrix of its own.
      learn_prompt: the prompt's logits are read too; they cost one pass of the LM head over the prompt.
    """

    target: ModelDef
    width: int = WIDTH
    own: bool = False
    learn_prompt: bool = True

    def init(self, params: Params, batch: int, slots: int) -> Int[Array, "B V k"] | None:
        """Makes each row's matrix; None where the rows share one."""
        return self.empty(params, batch) if self.own else None

    def empty(self, params: Params, *batch: int) -> Int[Array, "*batch V k"]:
        """Makes a matrix, or one for each row, that knows nothing."""
        vocab_size = self.target.bind(params["target"]).vocab_size
        return jnp.full((*batch, vocab_size, self.width), UNKNOWN, jnp.int32)

    def prefill(self, params: Params, state: Any, chunk: Any, hidden: Any, taps: Any) -> Any:
        """Reads the successors of the prompt's tokens."""
        if not self.learn_prompt:
            return state
        model = self.target.bind(params["target"])
        matrix = self._matrix(state)
        for start in range(0, chunk.tokens.shape[1], PROMPT_ENTRIES):
            piece = slice(start, start + PROMPT_ENTRIES)
            successors = likeliest(model.unembed(hidden[:, piece]), self.width)[1]
            matrix = self._learn(matrix, chunk.tokens[:, piece], successors, chunk.valid[:, piece])
        return self._with(state, matrix)

    def propose(self, params: Params, state: Any, topology: Topology) -> tuple[DraftTree, Any]:
        """Returns the tree that grows from the pending token by the matrix."""
        matrix = self._matrix(state)
        token = jnp.broadcast_to(state.rows.pending[:, None], (state.rows.pending.shape[0], topology.nodes))
        for depth in range(1, topology.levels + 1):
            above = jnp.maximum(token[:, topology.parent], 0)
            token = jnp.where((topology.depth == depth)[None], self._successor(matrix, above, topology.rank), token)
        return grow(topology, token), None

    def lesson(self, params: Params, state: Any, checked: Any) -> Int[Array, "B M k"]:
        """Returns the successors of every checked node's token, rejected nodes included."""
        return likeliest(checked.logits, self.width)[1]

    def observe(self, params: Params, state: Any, verified: Any) -> Any:
        """Writes them into the matrix."""
        tree = verified.tree
        seen = tree.valid & verified.running[:, None]
        return self._with(state, self._learn(self._matrix(state), tree.token, verified.lesson, seen))

    def _successor(self, matrix: Array, token: Int[Array, "B M"], rank: Int[Array, "M"]) -> Int[Array, "B M"]:
        # A topology made for a wider matrix has ranks that nothing is known of.
        place = jnp.minimum(rank, self.width - 1)[None]
        if self.own:
            found = matrix[jnp.arange(token.shape[0])[:, None], token, place]
        else:
            found = matrix[token, place]
        return jnp.where((rank < self.width)[None], found, UNKNOWN)

    def _learn(
        self, matrix: Array, token: Int[Array, "B M"], successors: Int[Array, "B M k"], seen: Bool[Array, "B M"]
    ) -> Array:
        if not self.own:
            return _write(matrix, token.reshape(-1), successors.reshape(-1, self.width), seen.reshape(-1))
        return jax.vmap(_write)(matrix, token, successors, seen)

    def _matrix(self, state: Any) -> Array:
        return state.rows.draft.drafter if self.own else state.shared.memory.drafter

    def _with(self, state: Any, matrix: Array) -> Any:
        if self.own:
            return replace(state, rows=replace(state.rows, draft=replace(state.rows.draft, drafter=matrix)))
        return replace(state, shared=replace(state.shared, memory=replace(state.shared.memory, drafter=matrix)))


def _write(
    matrix: Int[Array, "V k"], token: Int[Array, "n"], successors: Int[Array, "n k"], seen: Bool[Array, "n"]
) -> Int[Array, "V k"]:
    """Writes the successors of each seen token; of several entries for one token the last is written.

    A scatter with an index twice has no order of its own on a GPU, so only the last entry of a token gets an index.
    """
    entry = jnp.arange(token.shape[0], dtype=jnp.int32)
    later = (token[:, None] == token[None]) & seen[None] & (entry[:, None] < entry[None])
    place = jnp.where(seen & ~later.any(1), token, matrix.shape[0])
    return matrix.at[place].set(successors, mode="drop")
