"""HAMburger: a forward of the base is followed by a group of tokens, which the next forward reads as one slot."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.cache import Block
from jax_smash.decode.groups import FusedDecoding, kept_of
from jax_smash.decode.state import DecodeState, Rows, committed, emit, processed_logits, running_rows
from jax_smash.protocols import Params
from jax_smash.pytree import replace
from jax_smash.sampling import choose, log_probabilities
from jax_smash.sharding import constrain
from jax_smash.smash.entry import Entry, entry_at
from jax_smash.smash.group_limits import GroupLimits
from jax_smash.smash.macro_step import macro_step
from jax_smash.smash.micro_head import micro_logits, sure


@dataclasses.dataclass(frozen=True)
class SmashedDecoding(FusedDecoding):
    """The strategy that trusts the modules. Each row emits groups of its own length, and a group takes one slot.

    The base chooses the first token of a group and the micro-step decoder the others, which nothing checks. A slot has
    the position of its last token, so positions run ahead of slots. The rows share `GroupLimits`.

    Source: Liu and Zhang 2025, "HAMburger: Accelerating LLM Inference via Token Smashing", section 3.
    Differs: rows of a batch have groups of their own length, and end a macro-step together when few would go on.
    """

    def start(self, params: Params, state: DecodeState) -> DecodeState:
        """Emits the first group after the prompt."""
        entry = replace(kept_of(state).entry, hidden=state.rows.last_hidden)
        return self._said(params, state, entry)

    def step(self, params: Params, state: DecodeState) -> DecodeState:
        """Reads the pending group as one slot, and emits the next."""
        rows = state.rows
        base, smasher = self._bound(params)
        running, group = running_rows(state), kept_of(state).group
        inputs = smasher.fuse_some(base.embed(group.tokens), group.count)[:, None]
        # The position of the group's last token, however many slots lie before it.
        position = rows.token_length[:, None] - 1
        with jax.named_scope("forward"):
            out = base.forward(inputs, position, rows.cache, Block.causal(jnp.ones_like(position, bool)))
        said = self._said(params, state, entry_at(smasher, out.taps, out.hidden, jnp.zeros_like(rows.pending)))
        return committed(said, out.block_kv, position, running.astype(jnp.int32), ran=running)

    def _said(self, params: Params, state: DecodeState, entry: Entry) -> DecodeState:
        """Emits the next group of each running row, token by token, and nothing after a token that ends a text."""
        base, smasher = self._bound(params)
        limits: GroupLimits = state.shared.memory["limits"]
        rows, running = state.rows, running_rows(state)
        said, group, micro_steps = macro_step(
            base,
            smasher,
            entry.prefix,
            entry.hidden,
            choose_first=functools.partial(self._choose, state, base.unembed, None),
            choose_next=functools.partial(
                self._choose, state, functools.partial(micro_logits, base, params), limits.token_confidence
            ),
            # The memory stays outside the loop of micro-steps: none of them reads it.
            carry=replace(rows, memory={}),
            running=running,
            confidence=jnp.broadcast_to(limits.confidence, running.shape),
            limit=jnp.broadcast_to(limits.longest, running.shape),
            least_rows=limits.least(running),
        )
        kept = replace(kept_of(state), entry=entry, group=group).counted(group.count, micro_steps, running)
        unread = jnp.where(running, group.count, rows.unread)
        said = replace(said, memory=rows.memory, unread=unread).remembering(smasher=kept)
        return replace(state, rows=said)

    def _choose(
        self,
        state: DecodeState,
        head: Any,
        least: Float[Array, ""] | None,
        rows: Rows,
        hidden: Float[Array, "B D"],
        index: Int[Array, ""],
        active: Bool[Array, "B"],
    ) -> tuple[Rows, Int[Array, "B"], Bool[Array, "B"]]:
        """Chooses a token of a group and emits it if the head is sure enough of it; see `ChooseToken`."""
        state = replace(state, rows=rows)
        logits = constrain(head(hidden), "batch")  # Gather the vocabulary, as in plain decoding.
        path = jnp.zeros((logits.shape[0], 1, 0), jnp.int32)
        processed = processed_logits(state, logits[:, None], path)
        token = choose(processed, rows.key, rows.token_length[:, None], sampled=self.sampled)
        chosen = jnp.take_along_axis(logits, token, axis=1)
        log_probs = None if self.log_probs is None else log_probabilities(logits[:, None], token, self.log_probs)
        said = active
        if least is not None:
            # A reduced head may have no token that the processors permit; the base has one.
            said = active & (processed.max(-1)[:, 0] != -jnp.inf) & sure(logits, least)
        emitted = emit(state, token, chosen, said.astype(jnp.int32), log_probs=log_probs)
        return emitted.rows, jnp.where(said, token[:, 0], -1), running_rows(emitted)
