"""Drafted decoding: a drafter proposes a tree, one forward of the target checks it, the agreed path is committed."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.cache import after
from jax_smash.decode.budget import SHADOW_STEPS, Sizing, resized, seen_in_shadow
from jax_smash.decode.state import DecodeState, emit, processed_logits, running_rows
from jax_smash.draft.acceptance import Acceptance, observe, sibling_ranks
from jax_smash.draft.tree import WORD, DraftTree, Topology
from jax_smash.draft.verification import COUPLING, Verification
from jax_smash.draft.verify import Accepted
from jax_smash.protocols import Drafter, ModelDef, Params
from jax_smash.pytree import pytree, replace
from jax_smash.sampling import choose, log_probabilities
from jax_smash.sharding import constrain


@pytree
class DraftRows:
    """What drafted decoding keeps of each row.

    Attributes:
      drafter: the drafter's own.
      tried: steps in which a node of this depth, 1 first, hung below a kept one; since the rows were made.
      kept: steps in which one was kept.
    """

    drafter: Any
    tried: Int[Array, "B levels"]
    kept: Int[Array, "B levels"]


@pytree
class DraftMemory:
    """What the rows of drafted decoding share.

    Attributes:
      ladder: the tree of each budget, the smallest first; a root alone is plain decoding.
      choice: index of the budget in use.
      drafter: the drafter's own.
      sizing: what the choice rests on; None where it is fixed.
    """

    ladder: tuple[Topology, ...]
    choice: Int[Array, ""]
    drafter: Any = None
    sizing: Sizing | None = None


@pytree
class Checked:
    """What one forward of the target said about a tree.

    Attributes:
      tree: what was proposed.
      made: what the drafter made of it besides.
      logits: the target's at each node, before any processor.
      hidden: its final hidden state at each node.
      taps: the residual that entered each layer, at each node.
    """

    tree: DraftTree
    made: Any
    logits: Float[Array, "B M V"]
    hidden: Float[Array, "B M D"]
    taps: tuple[Float[Array, "B M D"], ...]


@pytree
class Verified:
    """What became of a tree, in the same shapes for every budget of a ladder: M is that of the largest.

    Attributes:
      tree: what was proposed; nodes past the budget are not valid.
      target: the token that the target chose at each node; as `Verification.check` returns it.
      accepted: the path that was kept, before a stop cut it.
      lesson: what the drafter kept of `Checked`.
      count: tokens that were emitted, 0 for a row that had ended.
      running: rows that had not ended.
    """

    tree: DraftTree
    target: Int[Array, "B M"]
    accepted: Accepted
    lesson: Any
    count: Int[Array, "B"]
    running: Bool[Array, "B"]


@pytree
class Step:
    """What a budget leaves to be written: the same shapes for every budget, so that none writes into a cache itself.

    A compiler copies what several branches could write into.

    Attributes:
      tree, target, accepted, lesson: as in `Verified`.
      token: what may be emitted.
      logit: the target's of each.
      log_probs: of each, where they are recorded.
      entries: keys and values of the kept nodes.
      position: of the kept nodes.
      known: what is known of acceptance; None where the budget is fixed.
    """

    tree: DraftTree
    target: Int[Array, "B M"]
    accepted: Accepted
    lesson: Any
    token: Int[Array, "B P"]
    logit: Float[Array, "B P"]
    log_probs: tuple[Float[Array, "B P"], Float[Array, "B P n"], Int[Array, "B P n"]] | None
    entries: Any
    position: Int[Array, "B P"]
    known: Acceptance | None


@dataclasses.dataclass(frozen=True)
class Speculative:
    """The strategy of drafted decoding. What it emits is what plain decoding emits, unless `verification` says less.

    Attributes:
      target: the model.
      drafter: proposes the trees.
      levels: no tree of the ladder is deeper.
      verification: how what is proposed is checked.
      sampled: some row may sample; False compiles a loop without noise.
      log_probs: likeliest tokens to record beside each emitted one; None records nothing.
    """

    target: ModelDef
    drafter: Drafter
    levels: int
    verification: Verification = COUPLING
    sampled: bool = False
    log_probs: int | None = None

    @property
    def block(self) -> int:
        """Entries that one step commits at most."""
        return self.levels + 1

    def init(self, params: Params, batch: int, slots: int) -> DraftRows:
        """Makes what is kept of rows that have seen nothing."""
        return DraftRows(
            drafter=self.drafter.init(params, batch, slots),
            tried=jnp.zeros((batch, self.levels), jnp.int32),
            kept=jnp.zeros((batch, self.levels), jnp.int32),
        )

    def prefill(self, params: Params, state: DecodeState, chunk: Any, hidden: Any, taps: Any) -> DecodeState:
        """Lets the drafter learn from a chunk of the prompt."""
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
        return self._emit(state, target, logits)

    def step(self, params: Params, state: DecodeState) -> DecodeState:
        """Drafts a tree of the chosen budget, checks it and emits what was agreed on, and one token more."""
        memory = state.shared.memory
        if memory.sizing is not None:
            ladder, choice, sizing = resized(memory.ladder, memory.choice, memory.sizing)
            memory = replace(memory, ladder=ladder, choice=choice, sizing=sizing)
            state = replace(state, shared=replace(state.shared, memory=memory))
        budgets = [functools.partial(self._check, rung) for rung in range(len(memory.ladder))]
        return self._written(params, state, jax.lax.switch(memory.choice, budgets, params, state))

    def _check(self, rung: int, params: Params, state: DecodeState) -> Step:
        rows, topology = state.rows, state.shared.memory.ladder[rung]
        running = running_rows(state)
        model = self.target.bind(params["target"])
        tree, made = self.drafter.propose(params, state, topology)
        position = rows.token_length[:, None] - 1 + tree.depth
        out = model.forward(model.embed(tree.token), position, rows.cache, tree.block)
        # The vocabulary in one place: what follows is every row's own affair.
        logits = constrain(model.unembed(out.hidden), "batch")
        processed = processed_logits(state, logits, tree.paths())
        accepted, target = self.verification.check(tree, processed, rows.key, rows.token_length, sampled=self.sampled)
        path = accepted.path
        token = jnp.take_along_axis(target, path, axis=1)
        token_logits = jnp.take_along_axis(logits, path[:, :, None], axis=1)
        lesson = self.drafter.lesson(
            params, state, Checked(tree=tree, made=made, logits=logits, hidden=out.hidden, taps=out.taps)
        )
        room = max(tree.token.shape[1], *(t.nodes for t in state.shared.memory.ladder))
        space = self.block
        return Step(
            tree=_widened_tree(tree, room, self.levels),
            target=_widened(target, room),
            accepted=Accepted(path=_widened(path, space), count=accepted.count),
            lesson=jax.tree.map(lambda leaf: _widened(leaf, leaf.shape[1] + room - tree.token.shape[1]), lesson),
            token=_widened(token, space),
            logit=_widened(jnp.take_along_axis(token_logits, token[:, :, None], axis=2)[:, :, 0], space),
            log_probs=None
            if self.log_probs is None
            else jax.tree.map(
                lambda leaf: _widened(leaf, space), log_probabilities(token_logits, token, self.log_probs)
            ),
            entries=tuple(
                tuple(_widened(jnp.take_along_axis(x, path[:, :, None, None], axis=1), space) for x in pair)
                for pair in out.block_kv
            ),
            position=_widened(jnp.take_along_axis(position, path, axis=1), space),
            known=self._known(rung, params, state, tree, accepted, target[:, 0], running),
        )

    def _written(self, params: Params, state: DecodeState, step: Step) -> DecodeState:
        rows, running = state.rows, running_rows(state)
        emitted = emit(state, step.token, step.logit, step.accepted.count, log_probs=step.log_probs)
        count = emitted.rows.output_length - rows.output_length
        verified = Verified(
            tree=step.tree,
            target=step.target,
            accepted=step.accepted,
            lesson=step.lesson,
            count=count,
            running=running,
        )
        memory = state.shared.memory
        if step.known is not None:
            memory = replace(memory, sizing=replace(memory.sizing, known=step.known))
        state = replace(
            emitted,
            rows=replace(
                emitted.rows,
                cache=rows.cache.commit(step.entries, step.position, after(count, emitted.rows.pending)),
                forwards=rows.forwards + running.astype(jnp.int32),
                draft=self._counted(emitted.rows.draft, verified),
            ),
            shared=replace(emitted.shared, memory=memory),
        )
        return self.drafter.observe(params, state, verified)

    def _known(
        self,
        rung: int,
        params: Params,
        state: DecodeState,
        tree: DraftTree,
        accepted: Accepted,
        target: Int[Array, "B"],
        running: Bool[Array, "B"],
    ) -> Acceptance | None:
        """Returns what is known of acceptance after this step; of a draft that nobody checked, where none was made."""
        memory = state.shared.memory
        if memory.sizing is None:
            return None
        known = memory.sizing.known
        if tree.levels:
            return observe(known, tree, accepted, _ranks(tree), running)
        if rung + 1 == len(memory.ladder):
            return known
        smallest = memory.ladder[rung + 1]

        def in_shadow() -> Acceptance:
            shadow, _ = self.drafter.propose(params, state, smallest)
            return seen_in_shadow(known, shadow, _ranks(shadow), target, running)

        return jax.lax.cond(memory.sizing.steps % SHADOW_STEPS == 0, in_shadow, lambda: known)

    def _emit(self, state: DecodeState, token: Int[Array, "B P"], logits: Float[Array, "B P V"]) -> DecodeState:
        chosen = jnp.take_along_axis(logits, token[:, :, None], axis=2)[:, :, 0]
        log_probs = None if self.log_probs is None else log_probabilities(logits, token, self.log_probs)
        return emit(state, token, chosen, log_probs=log_probs)

    def _counted(self, draft: DraftRows, verified: Verified) -> DraftRows:
        tree = verified.tree
        if not tree.levels:
            return draft
        depth = jnp.arange(1, tree.levels + 1, dtype=jnp.int32)[None]
        # A child was tried at this depth if one hangs below the node kept at the depth before.
        parent = verified.accepted.path[:, :-1]
        below = (tree.parent[:, None] == parent[:, :, None]) & tree.valid[:, None]
        has_child = (below & (tree.depth[:, None] == depth[:, :, None])).any(-1)
        reached = (depth <= verified.accepted.count[:, None]) & verified.running[:, None]
        kept = (depth < verified.accepted.count[:, None]) & verified.running[:, None]
        return replace(
            draft,
            tried=draft.tried + (has_child & reached).astype(jnp.int32),
            kept=draft.kept + kept.astype(jnp.int32),
        )


def _ranks(tree: DraftTree) -> Int[Array, "B M"]:
    return sibling_ranks(tree) if tree.rank is None else tree.rank


def _widened(leaf: Array, width: int) -> Array:
    return jnp.pad(leaf, [(0, 0), (0, width - leaf.shape[1])] + [(0, 0)] * (leaf.ndim - 2))


def _widened_tree(tree: DraftTree, nodes: int, levels: int) -> DraftTree:
    """Returns a tree with room for more nodes and levels; the new nodes are not valid."""
    words = -(-nodes // WORD)
    ancestors = jnp.pad(_widened(tree.ancestors, nodes), ((0, 0), (0, 0), (0, words - tree.ancestors.shape[2])))
    return DraftTree(
        token=_widened(tree.token, nodes),
        parent=_widened(tree.parent, nodes),
        depth=_widened(tree.depth, nodes),
        valid=_widened(tree.valid, nodes),
        ancestors=ancestors,
        levels=levels,
    )
