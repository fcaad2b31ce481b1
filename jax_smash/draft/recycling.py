"""Token Recycling: the candidates that the target threw away, kept for the next time their token comes up."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from jax_smash import cpu
from jax_smash.draft.context import Context, Outcome, Seen
from jax_smash.draft.trees.acceptance import prior_rates
from jax_smash.draft.trees.best_first import grow_best_first
from jax_smash.draft.trees.tree import DraftTree, Topology, at_nodes, grow
from jax_smash.protocols import ModelDef, Needs, Params
from jax_smash.pytree import pytree, replace, static
from jax_smash.sampling import Likeliest, likeliest_tokens

UNKNOWN = -1
"""Successor of a token that was never read."""

WIDTH = 8
"""Successors kept of each token, in the paper."""

TRUST = 0.3
"""Weight, in the exponent, of a stored probability against what is kept of its rank: it was said in another context."""

RANK_FIRST, RANK_FALL = 0.6, 0.3
"""Share of first successors that are kept, about, and of each next rank over the one before."""

PROMPT_ENTRIES = 64
"""Prompt tokens whose logits are in memory at once, a row."""


@pytree
class ByToken:
    """As many values of every token, token behind token on one axis: a TPU stores a row of eight in the room of 128.

    Attributes:
      values: of all tokens.
      width: values of a token.
    """

    values: Shaped[Array, "*batch Vk"]
    width: int = static()

    @classmethod
    def of(cls, table: Shaped[Array, "*batch V k"]) -> "ByToken":
        """Holds the rows of a table."""
        return cls(values=table.reshape(*table.shape[:-2], -1), width=table.shape[-1])

    @property
    def table(self) -> Shaped[Array, "*batch V k"]:
        """The values as a row for each token."""
        return self.values.reshape(*self.values.shape[:-1], -1, self.width)

    def place(self, token: Int[Array, "..."], rank: Int[Array, "..."]) -> Int[Array, "..."]:
        """Returns where tokens' values of some ranks are; the shapes broadcast."""
        return token * self.width + rank

    def rows(self, token: Int[Array, "*entry"]) -> Int[Array, "*entry {self.width}"]:
        """Returns where the values of tokens are."""
        rank = jnp.arange(self.width, dtype=jnp.int32)
        return self.place(token[..., None], rank.reshape((1,) * token.ndim + (-1,)))


@pytree
class Successors:
    """What is known of which token follows which; of a batch's rows together, or of each row.

    Attributes:
      matrix: ids of each token's likeliest successors, likeliest first; −1 where none is known.
      count: how often each token was emitted. A prompt's tokens are not counted: its commonest are not the answer's.
      common: the tokens of the highest counts, the commonest first; −1 where fewer were seen.
      probability: of each successor under the target, before any processor; None where it is not kept.
    """

    matrix: ByToken
    count: Int[Array, "*batch V"]
    common: Int[Array, "*batch k"]
    probability: ByToken | None = None


@pytree
class Lesson:
    """What the target says may follow each entry.

    Attributes:
      token: its likeliest successors, likeliest first.
      probability: of each; None where it is not kept.
    """

    token: Int[Array, "*entry k"]
    probability: Float[Array, "*entry k"] | None = None


@dataclasses.dataclass(frozen=True)
class Recycling:
    """Drafts from a matrix of each token's likeliest successors, as last seen.

    The matrix is shared by the rows of a batch, or each row has its own. It holds token ids, likeliest first. Where a
    token is read at several nodes of a step, the last of the last row counts.

    Source: Luo et al. 2024, "Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token
    Recycling", section 3.
    Differs: the prompt is learned from while it is read. In place of unknown successors stand the commonest tokens, not
    token 0: they are right more often, and checking them teaches the rows that will be asked for next. With
    probabilities a tree has its topology's nodes and levels, but its own shape, made anew each step: the nodes of the
    highest product of likelihoods, their ranks at most the topology's highest, so that a chain stays one. A successor's
    likelihood is the weighted geometric mean of its probability, where it was last read, and of what is kept of its
    rank. In text, first successors were kept equally often whether their stored probability was 0.05 or 0.6.

    Attributes:
      target: the model that is drafted for.
      width: successors kept of each token.
      own: each row has a matrix of its own.
      learn_prompt: the prompt's logits are read too; they cost one pass of the LM head over the prompt.
      probabilities: each successor's probability is kept too, and the tree grows by them.
    """

    target: ModelDef
    width: int = WIDTH
    own: bool = False
    learn_prompt: bool = True
    probabilities: bool = False

    @property
    def needs(self) -> Needs:
        """The likeliest tokens at each node, with their probabilities if they are kept."""
        return Needs(likeliest=self.width, totals=self.probabilities)

    def init(self, params: Params, batch: int, slots: int, block: int) -> Successors | None:
        """Makes what is known of each row; None where the rows share it."""
        return self.empty(params, batch) if self.own else None

    def empty(self, params: Params, *batch: int) -> Successors:
        """Makes what nothing is known in, for all rows or one for each."""
        vocab_size = self.target.bind(params["target"]).vocab_size
        return Successors(
            matrix=ByToken.of(jnp.full((*batch, vocab_size, self.width), UNKNOWN, jnp.int32)),
            count=jnp.zeros((*batch, vocab_size), jnp.int32),
            common=jnp.full((*batch, self.width), UNKNOWN, jnp.int32),
            probability=ByToken.of(jnp.zeros((*batch, vocab_size, self.width), jnp.float32))
            if self.probabilities
            else None,
        )

    def warmed(
        self,
        known: Successors,
        matrix: Int[np.ndarray, "V {self.width}"],
        probability: Float[np.ndarray, "V {self.width}"] | None,
    ) -> Successors:
        """Returns what is known with an earlier run's matrix in place of its own.

        Probabilities that this drafter does not keep are left; those that it misses are guessed by rank.
        """
        known = replace(known, matrix=ByToken.of(jnp.asarray(matrix)))
        if not self.probabilities:
            return known
        guessed = np.broadcast_to(prior_rates(1, self.width), matrix.shape)
        probability = guessed if probability is None else probability
        return replace(known, probability=ByToken.of(jnp.asarray(probability, jnp.float32)))

    def read(self, params: Params, own: Any, shared: Any, seen: Seen) -> tuple[Any, Any]:
        """Reads the successors of the prompt's tokens."""
        if not self.learn_prompt:
            return own, shared
        model, known = self.target.bind(params["target"]), self._known(own, shared)
        for start in range(0, seen.token.shape[1], PROMPT_ENTRIES):
            piece = slice(start, start + PROMPT_ENTRIES)
            found = likeliest_tokens(model, seen.hidden[:, piece], self.width, total=self.probabilities)
            known = self._each(_written, known, seen.token[:, piece], self._lesson(found), seen.valid[:, piece])
        return self._kept(known, own, shared)

    def propose(
        self, params: Params, own: Any, shared: Any, context: Context, topology: Topology
    ) -> tuple[DraftTree, None]:
        """Returns the tree that grows from the pending token by the matrix."""
        known, pending = self._known(own, shared), context.pending
        if self.probabilities:
            tree = grow_best_first(
                pending,
                lambda token: self._children(known, token),
                nodes=topology.nodes,
                levels=topology.levels,
                most_rank=topology.rank.max(),
            )
            return tree, None
        parent = jnp.broadcast_to(topology.parent, (pending.shape[0], topology.nodes))

        def level(token: Int[Array, "B M"], depth: Int[Array, ""]) -> tuple[Array, None]:
            above = jnp.maximum(at_nodes(token, parent), 0)
            found = self._successor(known, above, topology.rank)
            return jnp.where((topology.depth == depth)[None], found, token), None

        token = jnp.broadcast_to(pending[:, None], parent.shape)
        token, _ = jax.lax.scan(level, token, jnp.arange(1, topology.levels + 1, dtype=jnp.int32))
        return grow(topology, token), None

    def learn(self, params: Params, own: Any, shared: Any, made: Any, outcome: Outcome) -> tuple[Any, Any]:
        """Writes the successors of every node's token, rejected nodes included, and counts what was emitted."""
        tree, path = outcome.tree, outcome.accepted.path
        assert outcome.likeliest is not None
        seen = tree.valid & outcome.running[:, None]
        emitted = at_nodes(outcome.target, path)
        kept = jnp.arange(path.shape[1], dtype=jnp.int32)[None] < outcome.count[:, None]
        known = self._each(_written, self._known(own, shared), tree.token, self._lesson(outcome.likeliest), seen)
        return self._kept(self._each(_counted, known, emitted, kept), own, shared)

    def follow(
        self,
        params: Params,
        own: Any,
        shared: Any,
        seen: Seen,
        pending: Int[Array, "B"],
    ) -> tuple[Any, Any]:
        """Puts the token that followed each first among its successors, as if it were the likeliest, and counts it.

        Of greedy text that is what a lesson would put there; the other successors are those known before.
        """
        token, count = seen.token, seen.count
        place = jnp.arange(token.shape[1], dtype=jnp.int32)[None]
        then = jnp.pad(token[:, 1:], ((0, 0), (0, 1)))
        then = jnp.where(place == count[:, None] - 1, pending[:, None], then)
        known = self._each(_followed, self._known(own, shared), token, then, seen.valid)
        return self._kept(self._each(_counted, known, then, seen.valid), own, shared)

    def _successor(self, known: Successors, token: Int[Array, "B M"], rank: Int[Array, "M"]) -> Int[Array, "B M"]:
        # A topology made for a wider matrix has ranks that nothing is known of.
        place = jnp.minimum(rank, self.width - 1)[None]
        held, wanted = known.matrix.values, known.matrix.place(token, place)
        if self.own:
            row = jnp.arange(token.shape[0], dtype=jnp.int32)[:, None]
            found, common = held[row, wanted], known.common[row, place]
        else:
            found, common = held[wanted], known.common[place]
        return jnp.where((rank < self.width)[None], jnp.where(found == UNKNOWN, common, found), UNKNOWN)

    def _children(
        self, known: Successors, token: Int[Array, "B A"]
    ) -> tuple[Int[Array, "B A {self.width}"], Float[Array, "B A {self.width}"]]:
        """Returns what may follow each token, and how likely each is; a common token has its share of what was said."""
        assert known.probability is not None
        wanted, tables = known.matrix.rows(token), (known.matrix.values, known.probability.values)
        if self.own:
            row = jnp.arange(token.shape[0], dtype=jnp.int32)[:, None, None]
            (found, probability), common = (held[row, wanted] for held in tables), known.common[:, None]
            times = jnp.take_along_axis(known.count, jnp.maximum(known.common, 0), axis=1)[:, None]
            total = known.count.sum(1, dtype=jnp.int32)[:, None, None]
        else:
            (found, probability), common = (held[wanted] for held in tables), known.common[None, None]
            times, total = known.count[jnp.maximum(known.common, 0)][None, None], known.count.sum(dtype=jnp.int32)
        often = times.astype(jnp.float32) / jnp.maximum(total, 1).astype(jnp.float32)
        unknown = found == UNKNOWN
        kept = jnp.asarray(RANK_FIRST * RANK_FALL ** np.arange(self.width), jnp.float32)[None, None]
        likelihood = jnp.where(unknown, often, probability) ** TRUST * kept ** (1 - TRUST)
        return jnp.where(unknown, common, found), likelihood

    def _lesson(self, found: Likeliest) -> Lesson:
        token = found.tokens[..., : self.width]
        if found.total is None:
            return Lesson(token=token)
        values = found.values[..., : self.width].astype(jnp.float32)
        return Lesson(token=token, probability=jnp.exp(values - found.total[..., None]))

    def _each(self, change: Any, known: Successors, *entries: Any) -> Successors:
        """Returns what is known after a change: by a row's own entries where each has its own, else by all entries."""
        if self.own:
            return jax.vmap(change)(known, *entries)
        return change(known, *jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), entries))

    def _known(self, own: Any, shared: Any) -> Successors:
        return own if self.own else shared

    def _kept(self, known: Successors, own: Any, shared: Any) -> tuple[Any, Any]:
        return (known, shared) if self.own else (own, known)


def _written(known: Successors, token: Int[Array, "n"], lesson: Lesson, seen: Bool[Array, "n"]) -> Successors:
    """Writes the successors of each seen token; of several entries for one token the last is written."""
    tables, rows = (known.matrix, known.probability), (lesson.token, lesson.probability)
    matrix, probability = jax.lax.platform_dependent(tables, rows, token, seen, cpu=_in_order, default=_last_ones)
    return replace(known, matrix=matrix, probability=probability)


def _followed(known: Successors, token: Int[Array, "n"], then: Int[Array, "n"], seen: Bool[Array, "n"]) -> Successors:
    """Writes each seen token's successors with the one that followed it first."""
    index = jnp.where(seen, token, 0)
    held = known.matrix.values[known.matrix.rows(index)]
    width = held.shape[1]
    place = jnp.arange(width, dtype=jnp.int32)[None]
    # Where it stood before, else last: those that stood before it move on by one place.
    stood = jnp.where(held == then[:, None], place, width - 1).min(1, keepdims=True)
    source = jnp.where(place <= stood, jnp.maximum(place - 1, 0), place)
    moved = jnp.where(place == 0, then[:, None], jnp.take_along_axis(held, source, axis=1))
    probability = None
    if known.probability is not None:
        old = known.probability.values[known.probability.rows(index)]
        first = jnp.take_along_axis(old, stood, axis=1)
        fresh = (held != then[:, None]).all(1, keepdims=True)
        first = jnp.where(fresh, jnp.float32(RANK_FIRST), first)
        probability = jnp.where(place == 0, first, jnp.take_along_axis(old, source, axis=1))
    matrix, probability = _last_ones((known.matrix, known.probability), (moved, probability), token, seen)
    return replace(known, matrix=matrix, probability=probability)


def _last_ones(tables: Any, rows: Any, token: Int[Array, "n"], seen: Bool[Array, "n"]) -> Any:
    """Writes the last row of each seen token, all at once: a scatter with an index twice has no order on a GPU."""
    entry = jnp.arange(token.shape[0], dtype=jnp.int32)
    later = (token[:, None] == token[None]) & seen[None] & (entry[:, None] < entry[None])

    def write(table: ByToken, row: Array) -> ByToken:
        behind = table.values.shape[0] // table.width
        place = table.rows(jnp.where(seen & ~later.any(1), token, behind))
        return replace(table, values=table.values.at[place].set(row, mode="drop"))

    return _each_table(write, tables, rows)


def _in_order(tables: Any, rows: Any, token: Int[Array, "n"], seen: Bool[Array, "n"]) -> Any:
    """Does the same where entries are written one after the other."""

    def write(table: ByToken, row: Array, i: Array) -> ByToken:
        place = table.place(token[i], jnp.int32(0))
        return replace(table, values=jax.lax.dynamic_update_slice_in_dim(table.values, row[i], place, 0))

    return cpu.for_each(lambda i, tables: _each_table(functools.partial(write, i=i), tables, rows), seen, tables)


def _each_table(change: Any, tables: Any, rows: Any) -> Any:
    return jax.tree.map(change, tables, rows, is_leaf=lambda x: isinstance(x, ByToken))


def _counted(known: Successors, token: Int[Array, "n"], seen: Bool[Array, "n"]) -> Successors:
    """Counts each seen token. Counts only grow, so the commonest are among those that were and those that came."""
    count = known.count.at[jnp.where(seen, token, known.count.shape[0])].add(1, mode="drop")
    candidate = jnp.concatenate([known.common, jnp.where(seen, token, UNKNOWN)])
    entry = jnp.arange(candidate.shape[0], dtype=jnp.int32)
    again = ((candidate[:, None] == candidate[None]) & (entry[None] < entry[:, None])).any(1)
    weight = jnp.where((candidate == UNKNOWN) | again, 0, count[jnp.maximum(candidate, 0)])
    times, place = jax.lax.top_k(weight, known.common.shape[0])
    return replace(known, count=count, common=jnp.where(times > 0, candidate[place], UNKNOWN))
