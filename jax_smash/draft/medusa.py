"""Medusa: heads on the target's last hidden state draft a tree of fixed shape, or one that grows."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jax_smash.draft.context import Context, Outcome, Seen
from jax_smash.draft.trees.best_first import Beam, Found, grow_by
from jax_smash.draft.trees.confident import Confident
from jax_smash.draft.trees.tree import DraftTree, Topology, grow
from jax_smash.models.definition import NnxModel
from jax_smash.models.medusa import Medusa
from jax_smash.models.short_head import saying
from jax_smash.protocols import ModelDef, Needs, Params
from jax_smash.pytree import pytree, replace
from jax_smash.sampling import likeliest_of
from jax_smash.sharding import constrain


@pytree
class MedusaRows:
    """What the drafter keeps of each row.

    Attributes:
      last: the target's hidden state of the last token that it has read; anything where it has read nothing.
    """

    last: Float[Array, "B D"]


@dataclasses.dataclass(frozen=True)
class MedusaDrafter:
    """Drafts all levels of a tree at once: a node's tokens are the likeliest of its depth's head, whatever its parent.

    Nodes deeper than there are heads are not drafted.

    Source: Cai et al. 2024, "Medusa", sections 2.1 and 2.3.
    Differs: where rows sample, the noise of the target's choice is shared in place of typical acceptance, so that the
    text is plain decoding's, token for token (`--verify typical-lossy` has the paper's rule; the noise of the
    target's choice then remains for the first token of a reply alone). Logits processors see the text up to the pending
    token alone, for a head does not know the tokens between; beside a grammar they see the likeliest token of each head
    before.

    Attributes:
      target: the model that is drafted for, whose rows of tokens heads may share.
      model: the heads; their parameters stand under `drafter`.
      width: children that a node has at most.
      noisy: some row may sample, and children are the likeliest after the noise of the target's choice.
      confident: sizes of trees that grow by the heads' confidence; None for those of the shape that is asked for.
    """

    target: ModelDef
    model: NnxModel
    width: int = 1
    noisy: bool = False
    confident: Confident | None = None

    @property
    def least(self) -> float:
        """The probability below which nothing is drafted; 0 where trees have the nodes that are asked for."""
        return 0.0 if self.confident is None else self.confident.least

    @property
    def varies(self) -> bool:
        """Trees may have fewer valid nodes than are asked for."""
        return self.least > 0

    @property
    def branches(self) -> bool:
        """Drafts may branch, whatever the topology."""
        return self.confident is not None and self.confident.branches

    @property
    def needs(self) -> Needs:
        """Hidden states."""
        return Needs(hidden=True)

    def init(self, params: Params, batch: int, slots: int, block: int) -> MedusaRows:
        """Makes room for a hidden state for each row."""
        bound = self.target.bind(params["target"])
        vectors = bound.embed(jnp.zeros((1, 1), jnp.int32))
        return MedusaRows(last=jnp.zeros((batch, vectors.shape[-1]), vectors.dtype))

    def read(self, params: Params, own: MedusaRows, shared: Any, seen: Seen) -> tuple[MedusaRows, Any]:
        """Keeps the hidden state of the last token of a piece of the prompts."""
        return self._kept(own, seen.hidden, seen.count), shared

    def propose(
        self, params: Params, own: MedusaRows, shared: Any, context: Context, topology: Topology
    ) -> tuple[DraftTree, None]:
        """Returns the tree."""
        heads: Medusa = self.model.bind(params["drafter"])
        target = saying(self.target, params)
        # As the heads' weights are divided: with whole vectors, these would be gathered.
        vectors = heads.vectors(constrain(own.last[:, None], "rows", None, "embed"))
        if self.noisy or context.processors or self.confident is not None:
            logits = jnp.swapaxes(heads.unembed(vectors, target)[:, :, 0], 0, 1)
            place = context.token_length[:, None] + jnp.arange(logits.shape[1], dtype=jnp.int32)[None]
            noisy = place if self.noisy else None
            logits = context.ranked(logits, context.between(logits, noisy), noisy)
            found = likeliest_of(logits, self.width)
            value, child = found.values, found.tokens
            everything = jax.nn.logsumexp(logits, axis=-1)
        else:
            value, child = (jnp.swapaxes(x[:, :, 0], 0, 1) for x in heads.likeliest(vectors, self.width, target))
        child = jnp.where(value > -jnp.inf, child, -1)
        if self.confident is not None:
            probability = jnp.exp(value - everything[:, :, None])
            return self._grown(self.confident, topology, context.pending, (child, probability)), None
        return grow(topology, self._tokens(topology, context.pending, child)), None

    def learn(
        self, params: Params, own: MedusaRows, shared: Any, made: None, outcome: Outcome
    ) -> tuple[MedusaRows, Any]:
        """Keeps the hidden state of the last token on the path that was emitted."""
        return self._kept(own, outcome.along_path(outcome.hidden), outcome.count), shared

    def follow(
        self, params: Params, own: MedusaRows, shared: Any, seen: Seen, pending: Int[Array, "B"]
    ) -> tuple[MedusaRows, Any]:
        """Keeps what was read meanwhile."""
        return self.read(params, own, shared, seen)

    def _grown(
        self, sizes: Confident, topology: Topology, pending: Int[Array, "B"], by_head: tuple[Array, Array]
    ) -> DraftTree:
        """Returns the tree of the likeliest nodes: a head gives every node of its depth the same children."""
        heads = by_head[0].shape[1]

        def expand(carry: None, beam: Beam, depth: Int[Array, ""]) -> tuple[None, Found]:
            token, probability = (x[:, None, jnp.minimum(depth, heads - 1)] for x in by_head)
            wide = (*beam.token.shape, token.shape[2])
            token = jnp.where(depth < heads, token, -1)
            return None, (jnp.broadcast_to(token, wide), jnp.broadcast_to(probability, wide))

        first = by_head[0][:, :1], by_head[1][:, :1]
        nodes, levels = topology.nodes, topology.levels
        return grow_by(
            pending,
            first,
            expand,
            None,
            nodes=nodes,
            levels=levels,
            beam=sizes.width,
            chain=sizes.chain,
            least=sizes.least,
        )

    def _tokens(
        self, topology: Topology, pending: Int[Array, "B"], child: Int[Array, "B H width"]
    ) -> Int[Array, "B M"]:
        """Returns the tokens of a tree's nodes: by depth, and by rank among siblings."""
        heads, width = child.shape[1:]
        there = (topology.depth > 0) & (topology.depth <= heads) & (topology.rank < width)
        head, rank = jnp.clip(topology.depth - 1, 0, heads - 1), jnp.minimum(topology.rank, width - 1)
        token = jnp.where(there[None], child[:, head, rank], -1)
        return jnp.where((topology.depth == 0)[None], pending[:, None], token)

    def _kept(self, own: MedusaRows, hidden: Float[Array, "B T D"], count: Int[Array, "B"]) -> MedusaRows:
        """Returns the state of the last of so many entries; of rows with none, what was kept before."""
        last = jnp.take_along_axis(hidden, jnp.maximum(count - 1, 0)[:, None, None], axis=1)[:, 0]
        return replace(own, last=jnp.where((count > 0)[:, None], last.astype(own.last.dtype), own.last))
