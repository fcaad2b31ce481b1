"""Plain decoding: one forward for each token. It is the baseline for every other method."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jax_smash.cache import Block
from jax_smash.decode.state import DecodeState, committed, emit, processed_logits, running_rows
from jax_smash.protocols import ModelDef, Params
from jax_smash.sampling import choose, log_probabilities
from jax_smash.sharding import constrain


@dataclasses.dataclass(frozen=True)
class Autoregressive:
    """The strategy of plain decoding.

    Attributes:
      target: the model.
      sampled: some row may sample; False compiles a loop without noise.
      log_probs: how many likeliest tokens to record beside each emitted one; None records nothing.
      as_chosen: log-probabilities are those of the distribution that tokens are drawn from, in place of the model's.
    """

    target: ModelDef
    sampled: bool = False
    log_probs: int | None = None
    as_chosen: bool = False

    block = 1
    """The most entries that one step commits."""

    def init(self, params: Params, batch: int, slots: int, block: int) -> dict[str, Any]:
        """Returns nothing: plain decoding keeps the cache alone."""
        return {}

    def prefill(self, params: Params, state: DecodeState, chunk: Any, hidden: Any, taps: Any) -> DecodeState:
        """Returns the state unchanged: there is no drafter."""
        return state

    def start(self, params: Params, state: DecodeState) -> DecodeState:
        """Emits the token after the prompt."""
        model = self.target.bind(params["target"])
        return self._emit(state, model.unembed(state.rows.last_hidden))

    def step(self, params: Params, state: DecodeState) -> DecodeState:
        """Reads the pending token and emits the next."""
        rows = state.rows
        model = self.target.bind(params["target"])
        running = running_rows(state)
        position = rows.token_length[:, None] - 1
        with jax.named_scope("forward"):
            block = Block.causal(jnp.ones_like(position, bool))
            out = model.forward(model.embed(rows.pending[:, None]), position, rows.cache, block)
        with jax.named_scope("choose"):
            emitted = self._emit(state, model.unembed(out.hidden[:, 0]))
        return committed(emitted, out.block_kv, position, running.astype(jnp.int32), ran=running)

    def _emit(self, state: DecodeState, logits: Float[Array, "B V"]) -> DecodeState:
        rows = state.rows
        logits = constrain(logits, "batch")  # Gather the vocabulary: what follows is separate for each row.
        path = jnp.zeros((logits.shape[0], 1, 0), jnp.int32)
        processed = processed_logits(state, logits[:, None], path)
        token = choose(processed, rows.key, rows.token_length[:, None], sampled=self.sampled)
        chosen = jnp.take_along_axis(logits, token, axis=1)
        told = processed if self.as_chosen else logits[:, None]
        log_probs = None if self.log_probs is None else log_probabilities(told, token, self.log_probs)
        return emit(state, token, chosen, log_probs=log_probs)
