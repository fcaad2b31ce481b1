"""Drafted decoding: a drafter proposes a tree, one forward checks it, and the accepted path is committed."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.decode.budget import ROUND_STEPS, changed_if, resized, seen_in_shadow
from jax_smash.decode.drafts import (
    DraftRows,
    memory_of,
    noted,
    notes_of,
    ranks_of,
    trees_of,
    with_memory,
    with_notes,
    with_trees,
    with_used,
)
from jax_smash.decode.missed import nothing_missed
from jax_smash.decode.state import DecodeState, committed, context, emit, lay_out, processed_logits, running_rows
from jax_smash.draft.context import Outcome, Seen
from jax_smash.draft.trees.acceptance import Acceptance
from jax_smash.draft.trees.tree import DraftTree, at_nodes, grow
from jax_smash.draft.verify.accept import Accepted, accept
from jax_smash.draft.verify.named import COUPLING, Verification
from jax_smash.draft.verify.walk import NodeLogits
from jax_smash.protocols import CausalLM, Drafter, LateLearner, ModelDef, Params
from jax_smash.pytree import pytree, replace
from jax_smash.sampling import Likeliest, choose, likeliest_tokens, log_probabilities
from jax_smash.sharding import constrain

Steps = tuple[DecodeState, Int[Array, ""]]
"""What a loop of steps carries: the state and the number of steps made."""

LogProbsOf = tuple[Float[Array, "B P"], Float[Array, "B P n"], Int[Array, "B P n"]]
"""Log-probabilities as `sampling.log_probabilities` returns them."""


@pytree
class _Choice:
    """What the target says of a tree.

    Attributes:
      accepted: the path that is kept.
      target: the token chosen at each node; the likeliest at those that nobody looked at.
      logit: of the tokens chosen on the path.
      likeliest: as in `Outcome`.
      log_probs: of the tokens chosen on the path; None where they are not recorded.
    """

    accepted: Accepted
    target: Int[Array, "B M"]
    logit: Float[Array, "B P"]
    likeliest: Likeliest | None
    log_probs: LogProbsOf | None = None


@pytree
class _Checked:
    """A tree that the target has read.

    Attributes:
      choice: what the target says of it.
      block_kv, hidden, taps: what its forward made of the nodes, as in `Forward`.
    """

    choice: _Choice
    block_kv: Any
    hidden: Float[Array, "B M D"]
    taps: tuple[Float[Array, "B M D"], ...]


@dataclasses.dataclass(frozen=True)
class Speculative:
    """The strategy of drafted decoding. It emits what plain decoding emits, unless `verification` promises less.

    Attributes:
      target: the model.
      drafter: proposes the trees.
      levels: the depth of the deepest tree of the ladder.
      verification: how proposals are checked.
      sampled: some row may sample; False compiles a loop without noise.
      log_probs: how many likeliest tokens to record beside each emitted one; None records nothing.
      tile: a tree's forward has a multiple of so many entries; plain steps have one.
      narrows: where drafts have fewer nodes than were asked for, the forward is narrower: a half or a quarter as wide,
        or as a plain one.
    """

    target: ModelDef
    drafter: Drafter
    levels: int
    verification: Verification = COUPLING
    sampled: bool = False
    log_probs: int | None = None
    tile: int = 1
    narrows: bool = False

    @property
    def block(self) -> int:
        """The most entries that one step commits."""
        return self.levels + 1

    @property
    def exact(self) -> bool:
        """The text does not depend on the trees."""
        return not self.sampled or self.verification == COUPLING

    def init(self, params: Params, batch: int, slots: int, block: int) -> dict[str, Any]:
        """Makes what is kept of rows that have seen nothing: the drafter's own, and notes on the drafts."""
        notes = DraftRows(
            tried=jnp.zeros((batch, self.levels), jnp.int32),
            kept=jnp.zeros((batch, self.levels), jnp.int32),
            missed=nothing_missed(self.target.bind(params["target"]), self.drafter.needs, batch),
        )
        # What was missed is read at once, too.
        block = max(block, ROUND_STEPS) if isinstance(self.drafter, LateLearner) else block
        return {"drafter": self.drafter.init(params, batch, slots, block), "drafts": notes}

    def prefill(self, params: Params, state: DecodeState, chunk: Any, hidden: Any, taps: Any) -> DecodeState:
        """Lets the drafter learn from a chunk of the prompt, after what it missed in the turn before."""
        width = chunk.tokens.shape[1]
        # The target has read the chunk: its tokens are counted.
        first = state.rows.token_length - chunk.valid.sum(1, dtype=jnp.int32)
        if trees_of(state).sizing is not None:
            late = functools.partial(self._caught_up, params, read=first)
            state = changed_if(notes_of(state).missed.some, late, state)
        position = first[:, None] + jnp.arange(width, dtype=jnp.int32)[None]
        seen = Seen(token=chunk.tokens, valid=chunk.valid, position=position, hidden=hidden, taps=taps)
        return with_memory(state, *self.drafter.read(params, *memory_of(state), seen))

    def start(self, params: Params, state: DecodeState) -> DecodeState:
        """Emits the token after the prompt."""
        rows = state.rows
        model = self.target.bind(params["target"])
        logits = constrain(model.unembed(rows.last_hidden), "batch")[:, None]
        path = jnp.zeros((*logits.shape[:2], 0), jnp.int32)
        target = choose(
            processed_logits(state, logits, path), rows.key, rows.token_length[:, None], sampled=self.sampled
        )
        logit, log_probs = self._told(logits, target, jnp.zeros_like(target))
        return emit(state, target, logit, log_probs=log_probs)

    def step(self, params: Params, state: DecodeState) -> DecodeState:
        """Drafts the first tree of the ladder, checks it, and emits the accepted tokens and one more."""
        return self._step(0, params, state)

    def round(self, params: Params, unfinished: Callable[[Steps], Bool[Array, ""]], carry: Steps) -> Steps:
        """Makes at least one step with the tree in use, until the end of a round; then chooses the tree again.

        Each tree of the ladder has a loop of its own, so a step without drafts is a step of plain decoding. It has no
        array as wide as the widest tree. It also copies nothing that it leaves unchanged, which the branch of a
        conditional would do.

        Args:
          unfinished: says whether there is another step to make.
        """
        (state, began), trees = carry, trees_of(carry[0])
        if trees.sizing is None:
            return self._turn(0, params, carry)

        def goes_on(rung: int, carry: Steps) -> Bool[Array, ""]:
            return unfinished(carry) & (trees.choice == rung) & (carry[1] < end)

        first, end = carry[0], began + ROUND_STEPS - trees.sizing.steps % ROUND_STEPS
        for rung in range(len(trees.ladder)):
            turn = functools.partial(self._turn, rung, params)
            carry = jax.lax.while_loop(functools.partial(goes_on, rung), turn, carry)
        state = with_trees(carry[0], with_used(trees_of(carry[0]), carry[1] - began))
        return lay_out(self._reviewed(params, state, first, over=~unfinished(carry)), constrain), carry[1]

    def _turn(self, rung: int, params: Params, carry: Steps) -> Steps:
        return lay_out(self._step(rung, params, carry[0]), constrain), carry[1] + 1

    def _step(self, rung: int, params: Params, state: DecodeState) -> DecodeState:
        rows, trees, running = state.rows, trees_of(state), running_rows(state)
        topology = trees.ladder[rung]
        # While nothing is drafted, the drafter need not learn at once; it catches up before the next draft.
        undrafted = trees.sizing is not None and not topology.levels
        if undrafted:
            tree, made = grow(topology, rows.pending[:, None]), None
        else:
            with jax.named_scope("draft"):
                tree, made = self.drafter.propose(
                    params, *memory_of(state), context(state, self.drafter.needs), topology
                )
            tree = tree.valid_first() if self.narrows else tree
        read, nodes = tree.padded(self.tile), tree.token.shape[1]
        checked = self._checked(params, state, read)
        choice, hidden = checked.choice, checked.hidden
        emitted = self._emit(state, choice)
        count = emitted.rows.output_length - rows.output_length
        path = None if nodes == 1 else choice.accepted.path
        position = rows.token_length[:, None] - 1 + read.depth
        emitted = committed(emitted, checked.block_kv, position, count, path, ran=running)
        if undrafted:
            notes = notes_of(emitted)
            missed = notes.missed.with_read(
                rows.pending, count > 0, hidden[:, :1], tuple(tap[:, :1] for tap in checked.taps)
            )
            return with_notes(emitted, replace(notes, missed=missed))
        # The drafter knows nothing of padding.
        target, likeliest, hidden, taps = jax.tree.map(
            lambda x: x[:, :nodes], (choice.target, choice.likeliest, hidden, checked.taps)
        )
        outcome = Outcome(
            tree=tree,
            target=target,
            accepted=choice.accepted,
            count=count,
            running=running,
            pending=emitted.rows.pending,
            likeliest=likeliest,
            hidden=hidden,
            taps=taps,
        )
        with jax.named_scope("learn"):
            learned = self.drafter.learn(params, *memory_of(emitted), made, outcome)
            return with_memory(noted(emitted, outcome), *learned)

    def _checked(self, params: Params, state: DecodeState, tree: DraftTree) -> _Checked:
        """Lets the target read a tree, in a forward that is no wider than the rows' valid nodes need."""
        model, nodes = self.target.bind(params["target"]), tree.token.shape[1]

        def read(tree: DraftTree) -> _Checked:
            position = state.rows.token_length[:, None] - 1 + tree.depth
            with jax.named_scope("verify"):
                out = model.forward(model.embed(tree.token), position, state.rows.cache, tree.block)
            with jax.named_scope("choose"):
                choice = self._choice(state, model, tree, out.hidden)
            return _Checked(choice=choice, block_kv=out.block_kv, hidden=out.hidden, taps=out.taps)

        if not self.narrows or nodes == 1:
            return read(tree)
        wide = jax.eval_shape(read, tree)

        def narrowed(width: int) -> Callable[[], _Checked]:
            def as_wide(found: Array, whole: Any) -> Array:
                return jnp.pad(found, [(0, n - m) for m, n in zip(found.shape, whole.shape, strict=True)])

            return lambda: jax.tree.map(as_wide, read(tree.first(width)), wide)

        half = -(-nodes // 2)
        widths = tuple(dict.fromkeys((1, -(-half // 2), half, nodes)))
        drafted = tree.valid & running_rows(state)[:, None]
        needed = jnp.where(drafted, jnp.arange(1, nodes + 1, dtype=jnp.int32)[None], 1).max()
        width = (needed > jnp.asarray(widths[:-1], jnp.int32)).sum(dtype=jnp.int32)
        return jax.lax.switch(width, [narrowed(w) for w in widths])

    def _choice(self, state: DecodeState, model: CausalLM, tree: DraftTree, hidden: Float[Array, "B M D"]) -> "_Choice":
        """Returns what the target says of a tree. Greedy choices need no logits but the highest."""
        learned, totals = self.drafter.needs.likeliest, self.drafter.needs.totals
        if not (self.sampled or state.shared.processors) and self.log_probs is None:
            found = likeliest_tokens(model, hidden, max(learned, 1), total=totals)
            accepted = accept(tree, found.tokens[..., 0])
            chosen = at_nodes(found.values[..., 0], accepted.path)
            return _Choice(
                accepted=accepted, target=found.tokens[..., 0], logit=chosen, likeliest=found if learned else None
            )
        found = likeliest_tokens(model, hidden, max(learned, 1), total=totals, keep=True)
        logits: Any = found.logits
        node_logits = NodeLogits(logits, tree.paths(), functools.partial(_processed, state))
        keys, length = state.rows.key, state.rows.token_length
        accepted, token = self.verification.check(tree, node_logits, keys, length, sampled=self.sampled)
        chosen, log_probs = self._told(logits, token, accepted.path)
        # Where nobody looked, the target would have chosen this or another likely one.
        target = found.tokens[..., 0]
        row = jnp.arange(len(token), dtype=jnp.int32)[:, None]
        kept = jnp.arange(token.shape[1], dtype=jnp.int32)[None] < accepted.count[:, None]
        target = target.at[row, jnp.where(kept, accepted.path, target.shape[1])].set(token, mode="drop")
        learnt = replace(found, logits=None) if learned else None
        return _Choice(accepted=accepted, target=target, logit=chosen, likeliest=learnt, log_probs=log_probs)

    def _reviewed(
        self, params: Params, state: DecodeState, first: DecodeState, *, over: Bool[Array, ""]
    ) -> DecodeState:
        """Lets the drafter learn what it missed and chooses the tree again, each when it is due.

        Args:
          first: the state that the round began with.
          over: the call ends here.
        """
        trees, missed = trees_of(state), notes_of(state).missed
        behind = missed.some
        due = (trees.sizing.steps % ROUND_STEPS == 0) & behind
        # A drafter that reads the target's cache is told nothing of it as it was.
        if len(trees.ladder) > 1 and not self.drafter.needs.cache:
            known = changed_if(due, functools.partial(self._in_shadow, params, state, first), trees.sizing.known)
            trees = replace(trees, sizing=replace(trees.sizing, known=known))
            # Always true, but known only once the drafter's arrays were read; else XLA would copy them to write them.
            due &= (known.trials >= 0).all()
        ladder, choice, sizing = resized(trees.ladder, trees.choice, trees.sizing)
        state = with_trees(state, replace(trees, ladder=ladder, choice=choice, sizing=sizing))
        if self.exact:
            # The host may have the next call draft. Where trees bear on the text, it must not matter where calls end.
            due |= over & behind
        return changed_if(due, functools.partial(self._caught_up, params, read=state.rows.token_length - 1), state)

    def _in_shadow(self, params: Params, state: DecodeState, first: DecodeState, known: Acceptance) -> Acceptance:
        """Returns what is known after an unchecked draft that follows the first token that the drafter missed."""
        missed, now = notes_of(state).missed, context(state)
        token, count = missed.seen(now.token_length).token, missed.count
        # Processors that have read later tokens would rule out what may follow this one. Where it was missed in an
        # earlier round, nobody kept what they knew then.
        before = replace(
            now, pending=token[:, 0], token_length=now.token_length - count, processed=first.rows.processors
        )
        tried = count > 0
        if jax.tree.leaves(first.rows.processors):
            tried &= notes_of(first).missed.count == 0
        # Only children of the root are compared: deeper levels are not drafted, and anything may stand there.
        topology = replace(trees_of(state).ladder[1], levels=1)
        shadow, _ = self.drafter.propose(params, *memory_of(state), before, topology)
        then = jnp.where(count == 1, state.rows.pending, token[:, 1])
        return seen_in_shadow(known, shadow, ranks_of(shadow), then, tried)

    def _caught_up(self, params: Params, state: DecodeState, *, read: Int[Array, "B"]) -> DecodeState:
        """Lets the drafter learn from what it missed.

        Args:
          read: tokens that the target had read of each row then.
        """
        notes, drafter = notes_of(state), self.drafter
        if not isinstance(drafter, LateLearner):
            raise TypeError(f"trees of {type(drafter).__name__} cannot be sized: it learns from checked trees alone")
        state = with_memory(
            state, *drafter.follow(params, *memory_of(state), notes.missed.seen(read), state.rows.pending)
        )
        return with_notes(state, replace(notes, missed=notes.missed.emptied()))

    def _emit(self, state: DecodeState, choice: "_Choice") -> DecodeState:
        """Emits what the target chose on the accepted path."""
        token = at_nodes(choice.target, choice.accepted.path)
        return emit(state, token, choice.logit, choice.accepted.count, log_probs=choice.log_probs)

    def _told(
        self, logits: Float[Array, "B M V"], token: Int[Array, "B P"], node: Int[Array, "B P"]
    ) -> tuple[Float[Array, "B P"], LogProbsOf | None]:
        """Returns the logits of tokens that were chosen at these nodes, and their log-probabilities if asked for."""
        row = jnp.arange(token.shape[0], dtype=jnp.int32)[:, None]
        log_probs = None if self.log_probs is None else log_probabilities(logits[row, node], token, self.log_probs)
        return logits[row, node, token], log_probs


def _processed(
    state: DecodeState, logits: Float[Array, "B M V"], path: Int[Array, "B M levels"]
) -> Float[Array, "B M V"]:
    # Gather the vocabulary: what follows is separate for each row.
    return processed_logits(state, constrain(logits, "batch"), path)
