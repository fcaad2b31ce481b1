"""Drafted decoding: a drafter proposes a tree, one forward checks it, and the accepted path is committed."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.cache import after
from jax_smash.decode.budget import ROUND_STEPS, Sizing, changed_if, resized, seen_in_shadow
from jax_smash.decode.state import DecodeState, Shared, emit, lay_out, processed_logits, running_rows
from jax_smash.draft.acceptance import Acceptance, observe, sibling_ranks
from jax_smash.draft.tree import DraftTree, Topology, at_nodes, grow
from jax_smash.draft.verification import COUPLING, Verification
from jax_smash.draft.verify import Accepted, accept
from jax_smash.draft.walk import NodeLogits
from jax_smash.protocols import CausalLM, Drafter, LateLearner, ModelDef, Params, learned_tokens, learned_totals
from jax_smash.pytree import pytree, replace
from jax_smash.sampling import Likeliest, choose, likeliest_tokens, log_probabilities
from jax_smash.sharding import constrain

NOTHING = -1
"""Marks a place of `DraftRows.missed` without a token."""

Steps = tuple[DecodeState, Int[Array, ""]]
"""What a loop of steps carries: the state and the number of steps made."""


@pytree
class DraftRows:
    """What drafted decoding keeps for each row.

    Attributes:
      drafter: the drafter's own state.
      tried: for each depth, from 1: steps with a node of this depth below a kept node, since the rows were made.
      kept: for each depth: steps in which such a node was kept.
      missed: tokens that were read while nothing was drafted and that the drafter has not learned from yet, in order,
        padded with −1.
    """

    drafter: Any
    tried: Int[Array, "B levels"]
    kept: Int[Array, "B levels"]
    missed: Int[Array, "B P"]


@pytree
class DraftMemory:
    """What the rows of drafted decoding share.

    Attributes:
      ladder: the tree of each budget, the smallest first; a root alone is plain decoding.
      choice: index of the budget in use.
      drafter: the drafter's own state.
      sizing: what the choice is based on; None where it is fixed.
    """

    ladder: tuple[Topology, ...]
    choice: Int[Array, ""]
    drafter: Any = None
    sizing: Sizing | None = None


@pytree
class Checked:
    """The result of one forward of the target over a tree.

    Attributes:
      tree: what was proposed.
      made: what the drafter returned beside the tree.
      likeliest: the target's likeliest tokens at each node, before any processor, as many as the drafter asks for or
        more; None where it asks for none.
      hidden: its final hidden state at each node.
      taps: the residual that entered each layer, at each node.
    """

    tree: DraftTree
    made: Any
    likeliest: Likeliest | None
    hidden: Float[Array, "B M D"]
    taps: tuple[Float[Array, "B M D"], ...]


@pytree
class Verified:
    """A tree after verification.

    Attributes:
      tree: what was proposed.
      target: the token that the target chose at each kept node; at others its likeliest or the one it would choose.
      accepted: the path that was kept, before a stop cuts it.
      lesson: what the drafter kept of `Checked`.
      count: number of tokens emitted; 0 for a row that had ended.
      running: rows that had not ended.
    """

    tree: DraftTree
    target: Int[Array, "B M"]
    accepted: Accepted
    lesson: Any
    count: Int[Array, "B"]
    running: Bool[Array, "B"]


LogProbsOf = tuple[Float[Array, "B P"], Float[Array, "B P n"], Int[Array, "B P n"]]
"""Log-probabilities as `sampling.log_probabilities` returns them."""


@pytree
class _Choice:
    """What the target says of a tree.

    Attributes:
      accepted: the path that is kept.
      target: the token chosen at each node; the likeliest at those that nobody looked at.
      logit: of the tokens chosen on the path.
      likeliest: as in `Checked`.
      log_probs: of the tokens chosen on the path; None where they are not recorded.
    """

    accepted: Accepted
    target: Int[Array, "B M"]
    logit: Float[Array, "B P"]
    likeliest: Likeliest | None
    log_probs: LogProbsOf | None = None


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
    """

    target: ModelDef
    drafter: Drafter
    levels: int
    verification: Verification = COUPLING
    sampled: bool = False
    log_probs: int | None = None
    tile: int = 1

    @property
    def block(self) -> int:
        """The most entries that one step commits."""
        return self.levels + 1

    @property
    def exact(self) -> bool:
        """The text does not depend on the trees."""
        return not self.sampled or self.verification == COUPLING

    def init(self, params: Params, batch: int, slots: int) -> DraftRows:
        """Makes what is kept for rows that have seen nothing."""
        return DraftRows(
            drafter=self.drafter.init(params, batch, slots),
            tried=jnp.zeros((batch, self.levels), jnp.int32),
            kept=jnp.zeros((batch, self.levels), jnp.int32),
            missed=jnp.full((batch, ROUND_STEPS), NOTHING, jnp.int32),
        )

    def prefill(self, params: Params, state: DecodeState, chunk: Any, hidden: Any, taps: Any) -> DecodeState:
        """Lets the drafter learn from a chunk of the prompt, after what it missed in the turn before."""
        if state.shared.memory.sizing is not None:
            missed = (state.rows.draft.missed != NOTHING).any()
            state = changed_if(missed, functools.partial(self._caught_up, params), state)
        return self.drafter.prefill(params, state, chunk, hidden, taps)

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
        (state, began), memory = carry, carry[0].shared.memory
        if memory.sizing is None:
            return self._turn(0, params, carry)

        def goes_on(rung: int, carry: Steps) -> Bool[Array, ""]:
            return unfinished(carry) & (memory.choice == rung) & (carry[1] < end)

        end = began + ROUND_STEPS - memory.sizing.steps % ROUND_STEPS
        pending, length = state.rows.pending, state.rows.output_length
        for rung, tree in enumerate(memory.ladder):
            turn = functools.partial(self._turn, rung, params)
            carry = jax.lax.while_loop(functools.partial(goes_on, rung), turn, carry)
            if not tree.levels:
                carry = _missed(carry[0], pending, length), carry[1]
        state = replace(carry[0], shared=_used(carry[0].shared, carry[1] - began))
        return lay_out(self._reviewed(params, state, over=~unfinished(carry)), constrain), carry[1]

    def _turn(self, rung: int, params: Params, carry: Steps) -> Steps:
        return lay_out(self._step(rung, params, carry[0]), constrain), carry[1] + 1

    def _step(self, rung: int, params: Params, state: DecodeState) -> DecodeState:
        rows, memory, running = state.rows, state.shared.memory, running_rows(state)
        topology = memory.ladder[rung]
        # While nothing is drafted, the drafter need not learn at once; it catches up before the next draft.
        undrafted = memory.sizing is not None and not topology.levels
        if undrafted:
            tree, made = grow(topology, rows.pending[:, None]), None
        else:
            with jax.named_scope("draft"):
                tree, made = self.drafter.propose(params, state, topology)
        read, nodes = tree.padded(self.tile), tree.token.shape[1]
        model = self.target.bind(params["target"])
        position = rows.token_length[:, None] - 1 + read.depth
        with jax.named_scope("verify"):
            out = model.forward(model.embed(read.token), position, rows.cache, read.block)
        with jax.named_scope("choose"):
            choice = self._choice(state, model, read, out.hidden)
        emitted = self._emit(state, choice)
        count = emitted.rows.output_length - rows.output_length
        written = after(count, emitted.rows.pending)
        path = None if nodes == 1 else choice.accepted.path
        kept = replace(
            emitted.rows,
            cache=rows.cache.commit(out.block_kv, position, written, path),
            forwards=rows.forwards + running.astype(jnp.int32),
        )
        emitted = replace(emitted, rows=kept)
        if undrafted:
            return emitted
        # The drafter knows nothing of padding.
        target, likeliest, hidden, taps = jax.tree.map(
            lambda x: x[:, :nodes], (choice.target, choice.likeliest, out.hidden, out.taps)
        )
        checked = Checked(tree=tree, made=made, likeliest=likeliest, hidden=hidden, taps=taps)
        with jax.named_scope("learn"):
            lesson = self.drafter.lesson(params, state, checked)
            verified = Verified(
                tree=tree, target=target, accepted=choice.accepted, lesson=lesson, count=count, running=running
            )
            return self._learned(params, emitted, verified)

    def _choice(self, state: DecodeState, model: CausalLM, tree: DraftTree, hidden: Float[Array, "B M D"]) -> "_Choice":
        """Returns what the target says of a tree. Greedy choices need no logits but the highest."""
        learned, totals = learned_tokens(self.drafter), learned_totals(self.drafter)
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

    def _learned(self, params: Params, state: DecodeState, verified: Verified) -> DecodeState:
        memory, tree = state.shared.memory, verified.tree
        if memory.sizing is not None:
            known = observe(memory.sizing.known, tree, verified.accepted, _ranks(tree), verified.running)
            memory = replace(memory, sizing=replace(memory.sizing, known=known))
        rows = replace(state.rows, draft=_counted(state.rows.draft, verified))
        state = replace(state, rows=rows, shared=replace(state.shared, memory=memory))
        return self.drafter.observe(params, state, verified)

    def _reviewed(self, params: Params, state: DecodeState, *, over: Bool[Array, ""]) -> DecodeState:
        """Lets the drafter learn what it missed and chooses the tree again, each when it is due.

        Args:
          over: the call ends here.
        """
        memory, missed = state.shared.memory, state.rows.draft.missed
        behind = (missed != NOTHING).any()
        due = (memory.sizing.steps % ROUND_STEPS == 0) & behind
        if len(memory.ladder) > 1:
            known = changed_if(due, functools.partial(self._in_shadow, params, state), memory.sizing.known)
            memory = replace(memory, sizing=replace(memory.sizing, known=known))
            # Always true, but known only once the drafter's arrays were read; else XLA would copy them to write them.
            due &= (known.trials >= 0).all()
        ladder, choice, sizing = resized(memory.ladder, memory.choice, memory.sizing)
        memory = replace(memory, ladder=ladder, choice=choice, sizing=sizing)
        state = replace(state, shared=replace(state.shared, memory=memory))
        if self.exact:
            # The host may have the next call draft. Where trees bear on the text, it must not matter where calls end.
            due |= over & behind
        return changed_if(due, functools.partial(self._caught_up, params), state)

    def _in_shadow(self, params: Params, state: DecodeState, known: Acceptance) -> Acceptance:
        """Returns what is known after an unchecked draft that follows the first token that the drafter missed."""
        rows, missed = state.rows, state.rows.draft.missed
        before = replace(state, rows=replace(rows, pending=jnp.maximum(missed[:, 0], 0)))
        shadow, _ = self.drafter.propose(params, before, state.shared.memory.ladder[1])
        then = jnp.where(missed[:, 1] == NOTHING, rows.pending, missed[:, 1])
        return seen_in_shadow(known, shadow, _ranks(shadow), then, missed[:, 0] != NOTHING)

    def _caught_up(self, params: Params, state: DecodeState) -> DecodeState:
        """Lets the drafter learn from what it missed."""
        missed = state.rows.draft.missed
        if not isinstance(self.drafter, LateLearner):
            raise TypeError(
                f"trees of {type(self.drafter).__name__} cannot be sized: it learns from checked trees alone"
            )
        state = self.drafter.follow(params, state, jnp.maximum(missed, 0), (missed != NOTHING).sum(1, dtype=jnp.int32))
        draft = replace(state.rows.draft, missed=jnp.full_like(missed, NOTHING))
        return replace(state, rows=replace(state.rows, draft=draft))

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


def _used(shared: Shared, made: Int[Array, ""]) -> Shared:
    """Counts steps with the chosen tree."""
    memory = shared.memory
    used = memory.sizing.used.at[memory.choice].add(made)
    return replace(
        shared, memory=replace(memory, sizing=replace(memory.sizing, steps=memory.sizing.steps + made, used=used))
    )


def _missed(state: DecodeState, pending: Int[Array, "B"], length: Int[Array, "B"]) -> DecodeState:
    """Records what was read without a draft, for the drafter to learn from later.

    Args:
      state: the state after some steps.
      pending, length: the pending token and the number of emitted tokens before these steps.
    """
    rows, missed = state.rows, state.rows.draft.missed
    before = (missed != NOTHING).sum(1, keepdims=True, dtype=jnp.int32)
    place = jnp.arange(missed.shape[1], dtype=jnp.int32)[None] - before
    # The last emitted token is pending.
    index = jnp.clip(length[:, None] + place - 1, 0, rows.output.shape[1] - 1)
    token = jnp.where(place == 0, pending[:, None], jnp.take_along_axis(rows.output, index, axis=1))
    read = (place >= 0) & (place < (rows.output_length - length)[:, None])
    return replace(state, rows=replace(rows, draft=replace(rows.draft, missed=jnp.where(read, token, missed))))


def _counted(draft: DraftRows, verified: Verified) -> DraftRows:
    """Counts at which depths a node was tried and at which one was kept."""
    tree = verified.tree
    if not tree.levels:
        return draft
    depth = jnp.arange(1, tree.levels + 1, dtype=jnp.int32)[None]
    # A child was tried at this depth if the node kept at the depth before has one.
    parent = verified.accepted.path[:, :-1]
    below = (tree.parent[:, None] == parent[:, :, None]) & tree.valid[:, None]
    has_child = (below & (tree.depth[:, None] == depth[:, :, None])).any(-1)
    reached = (depth <= verified.accepted.count[:, None]) & verified.running[:, None]
    kept = (depth < verified.accepted.count[:, None]) & verified.running[:, None]
    return replace(
        draft,
        tried=draft.tried.at[:, : tree.levels].add((has_child & reached).astype(jnp.int32)),
        kept=draft.kept.at[:, : tree.levels].add(kept.astype(jnp.int32)),
    )


def _ranks(tree: DraftTree) -> Int[Array, "B M"]:
    return sibling_ranks(tree) if tree.rank is None else tree.rank
