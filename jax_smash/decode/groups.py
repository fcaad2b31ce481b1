"""What decoding with fused slots keeps of each row, and what is told of it at the end."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jax_smash.decode.state import DecodeState
from jax_smash.protocols import CausalLM, ModelDef, Params
from jax_smash.pytree import pytree, replace
from jax_smash.smash.entry import Entry, empty_entry, last_entry
from jax_smash.smash.macro_step import Group
from jax_smash.smash.smasher import Smasher, SmasherDef


@pytree
class SmashRows:
    """What decoding with fused slots keeps of each row.

    Attributes:
      entry: what the micro-step decoder goes on from.
      group: emitted tokens that are to become one slot; of no meaning where groups are checked first.
      lengths: groups of each number of tokens, 1 first, since the rows were made. One that is trusted is counted when
        it is said, one that is checked when it gets its slot.
      micro_steps: of the micro-step decoder while the row ran, whether the row's own group went on or another's, and
        whether or not it found a token to say.
    """

    entry: Entry
    group: Group
    lengths: Int[Array, "B J"]
    micro_steps: Int[Array, "B"]

    @classmethod
    def empty(cls, base: CausalLM, smasher: Smasher, batch: int) -> "SmashRows":
        """Makes what is kept of rows that have read nothing."""
        steps = smasher.config.micro_steps
        return cls(
            entry=empty_entry(base, smasher, batch),
            group=Group.empty(batch, steps),
            lengths=jnp.zeros((batch, steps), jnp.int32),
            micro_steps=jnp.zeros((batch,), jnp.int32),
        )

    def counted(self, fused: Int[Array, "B"], micro_steps: Int[Array, ""], running: Bool[Array, "B"]) -> "SmashRows":
        """Returns what is kept after a macro-step.

        Args:
          fused: tokens that a row's slot gets; 0 for none.
          micro_steps: that were made.
          running: rows that took part.
        """
        length = jnp.arange(1, self.lengths.shape[1] + 1, dtype=jnp.int32)[None]
        return replace(
            self,
            lengths=self.lengths + (fused[:, None] == length).astype(jnp.int32),
            micro_steps=self.micro_steps + jnp.where(running, micro_steps, 0),
        )


@dataclasses.dataclass(frozen=True)
class FusedDecoding:
    """What the strategies whose tokens share slots have in common; each makes `start` and `step` of it.

    Attributes:
      target: the base.
      smasher: the grafted modules; their parameters stand under `smasher`.
      sampled: some row may sample; False compiles a loop without noise.
      log_probs: likeliest tokens to record beside each emitted one, by whichever said it; None records nothing.
    """

    target: ModelDef
    smasher: SmasherDef
    sampled: bool = False
    log_probs: int | None = None

    block = 1
    """Entries that one step commits at most."""

    def init(self, params: Params, batch: int, slots: int) -> SmashRows:
        """Makes what is kept of rows that have read nothing."""
        return SmashRows.empty(*self._bound(params), batch)

    def prefill(self, params: Params, state: DecodeState, chunk: Any, hidden: Any, taps: Any) -> DecodeState:
        """Keeps the last entry of the prompt, which the first group is said from."""
        kept = state.rows.draft
        entry = last_entry(self._bound(params)[1], kept.entry, chunk.valid, taps, hidden)
        return replace(state, rows=replace(state.rows, draft=replace(kept, entry=entry)))

    def _bound(self, params: Params) -> tuple[CausalLM, Smasher]:
        return self.target.bind(params["target"]), self.smasher.bind(params["smasher"])


@dataclasses.dataclass(frozen=True)
class Smashed:
    """What became of one row's tokens in slots.

    A group takes its slot when the next is made. Of groups that are trusted all are counted, the last one too, which
    nothing follows; of groups that are checked those in the cache, so the last token is in none.

    Attributes:
      lengths: groups of one token, of two, and so on.
      micro_steps: of the micro-step decoder while the row ran; a forward of the base is none.
    """

    lengths: list[int]
    micro_steps: int

    @property
    def tokens(self) -> int:
        """Tokens of all groups."""
        return sum(length * groups for length, groups in enumerate(self.lengths, 1))

    @property
    def slots(self) -> int:
        """Slots that they take: one a group."""
        return sum(self.lengths)

    @property
    def output_compression(self) -> float | None:
        """Tokens a slot, the prompt left out; None where no slot was made."""
        return self.tokens / self.slots if self.slots else None


def smashed_rows(state: DecodeState) -> list[Smashed] | None:
    """Returns what became of each row's tokens; None where each has a slot of its own."""
    kept = state.rows.draft
    if not isinstance(kept, SmashRows):
        return None
    rows = zip(np.asarray(kept.lengths).tolist(), np.asarray(kept.micro_steps).tolist(), strict=True)
    return [Smashed(lengths=lengths, micro_steps=steps) for lengths, steps in rows]
