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
from jax_smash.draft.acceptance import observe, sibling_ranks
from jax_smash.draft.tree import DraftTree, Topology
from jax_smash.draft.verify import Accepted, accept
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
class Verified:
    """What one forward of the target said about a tree.

    Attributes:
      tree: what was proposed.
      target: the token that the target chose at each node.
      logits: the target's at each node, before any processor.
      hidden: its final hidden state at each node.
      taps: the residual that entered each layer, at each node.
      accepted: the path that was kept, before a stop cut it.
      count: tokens that were emitted, 0 for a row that had ended.
      running: rows that had not ended.
    """

    tree: DraftTree
    target: Int[Array, "B M"]
    logits: Float[Array, "B M V"]
    hidden: Float[Array, "B M D"]
    taps: tuple[Float[Array, "B M D"], ...]
    accepted: Accepted
    count: Int[Array, "B"]
    running: Bool[Array, "B"]


@dataclasses.dataclass(frozen=True)
class Speculative:
    """The strategy of drafted decoding: what it emits is what plain decoding emits.

    Attributes:
      target: the model.
      drafter: proposes the trees.
      levels: no tree of the ladder is deeper.
      sampled: some row may sample; False compiles a loop without noise.
      log_probs: likeliest tokens to record beside each emitted one; None records nothing.
    """

    target: ModelDef
    drafter: Drafter
    levels: int
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
        steps = [functools.partial(self._step, rung) for rung in range(len(memory.ladder))]
        return jax.lax.switch(memory.choice, steps, params, state)

    def _step(self, rung: int, params: Params, state: DecodeState) -> DecodeState:
        rows, topology = state.rows, state.shared.memory.ladder[rung]
        shadow = self._shadow(rung, params, state)
        running = running_rows(state)
        model = self.target.bind(params["target"])
        tree, state = self.drafter.propose(params, state, topology)
        position = rows.token_length[:, None] - 1 + tree.depth
        out = model.forward(model.embed(tree.token), position, rows.cache, tree.block)
        # The vocabulary in one place: what follows is every row's own affair.
        logits = constrain(model.unembed(out.hidden), "batch")
        # A node's noise is that of the place behind it, so nodes of one depth share it.
        depth = jnp.arange(tree.levels + 1, dtype=jnp.int32)[None]
        target = choose(
            processed_logits(state, logits, tree.paths()),
            rows.key,
            rows.token_length[:, None] + depth,
            sampled=self.sampled,
            place=tree.depth,
        )
        accepted = accept(tree, target)
        path = accepted.path
        emitted = self._emit(
            state,
            jnp.take_along_axis(target, path, axis=1),
            jnp.take_along_axis(logits, path[:, :, None], axis=1),
            accepted.count,
        )
        count = emitted.rows.output_length - rows.output_length
        cache = rows.cache.commit(out.block_kv, position, after(count, emitted.rows.pending), path)
        verified = Verified(
            tree=tree,
            target=target,
            logits=logits,
            hidden=out.hidden,
            taps=out.taps,
            accepted=accepted,
            count=count,
            running=running,
        )
        state = replace(
            emitted,
            rows=replace(
                emitted.rows,
                cache=cache,
                forwards=rows.forwards + running.astype(jnp.int32),
                draft=self._counted(emitted.rows.draft, verified),
            ),
        )
        return self.drafter.observe(params, self._learned(state, verified, shadow), verified)

    def _shadow(self, rung: int, params: Params, state: DecodeState) -> Int[Array, "B M"] | None:
        """Returns the tokens of a draft that nobody checks, where the rung drafts nothing; −1 where it is not due."""
        memory = state.shared.memory
        if memory.sizing is None or memory.ladder[rung].levels or len(memory.ladder) == 1:
            return None
        smallest = memory.ladder[rung + 1]

        def draft() -> Int[Array, "B M"]:
            tree, _ = self.drafter.propose(params, state, smallest)
            return jnp.where(tree.valid, tree.token, -1)

        absent = jnp.full((state.rows.pending.shape[0], smallest.nodes), -1, jnp.int32)
        return jax.lax.cond(memory.sizing.steps % SHADOW_STEPS == 0, draft, lambda: absent)

    def _learned(self, state: DecodeState, verified: Verified, shadow: Int[Array, "B M"] | None) -> DecodeState:
        memory = state.shared.memory
        sizing = memory.sizing
        if sizing is None or (shadow is None and not verified.tree.levels):
            return state
        if shadow is None:
            tree = verified.tree
            rank = sibling_ranks(tree) if tree.rank is None else tree.rank
            known = observe(sizing.known, tree, verified.accepted, rank, verified.running)
        else:
            due = verified.running & (sizing.steps % SHADOW_STEPS == 0)
            known = seen_in_shadow(sizing.known, shadow, memory.ladder[1], verified.target[:, 0], due)
        memory = replace(memory, sizing=replace(sizing, known=known))
        return replace(state, shared=replace(state.shared, memory=memory))

    def _emit(
        self,
        state: DecodeState,
        token: Int[Array, "B P"],
        logits: Float[Array, "B P V"],
        count: Int[Array, "B"] | None = None,
    ) -> DecodeState:
        chosen = jnp.take_along_axis(logits, token[:, :, None], axis=2)[:, :, 0]
        log_probs = None if self.log_probs is None else log_probabilities(logits, token, self.log_probs)
        return emit(state, token, chosen, count, log_probs=log_probs)

    def _counted(self, draft: DraftRows, verified: Verified) -> DraftRows:
        tree, levels = verified.tree, verified.tree.levels
        if not levels:
            return draft
        depth = jnp.arange(1, levels + 1, dtype=jnp.int32)[None]
        # A child was tried at this depth if one hangs below the node kept at the depth before.
        parent = verified.accepted.path[:, :-1]
        below = (tree.parent[:, None] == parent[:, :, None]) & tree.valid[:, None]
        has_child = (below & (tree.depth[:, None] == depth[:, :, None])).any(-1)
        reached = (depth <= verified.accepted.count[:, None]) & verified.running[:, None]
        kept = (depth < verified.accepted.count[:, None]) & verified.running[:, None]
        room = ((0, 0), (0, self.levels - levels))
        return replace(
            draft,
            tried=draft.tried + jnp.pad((has_child & reached).astype(jnp.int32), room),
            kept=draft.kept + jnp.pad(kept.astype(jnp.int32), room),
        )
