"""What decoding with fused slots keeps for each row, and the report on it at the end."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jax_smash.decode.state import DecodeState
from jax_smash.protocols import CausalLM, ModelDef, Params
from jax_smash.pytree import pytree, replace
from jax_smash.sharding import on_host
from jax_smash.smash.entry import Entry, empty_entry, last_entry
from jax_smash.smash.macro_step import Group
from jax_smash.smash.smasher import Smasher, SmasherDef


@pytree
class SmashRows:
    """What decoding with fused slots keeps for each row.

    Attributes:
      entry: the entry that the micro-step decoder continues from.
      group: emitted tokens that will become one slot; unused where groups are checked first.
      lengths: number of groups by their number of tokens, from 1, since the rows were made. A trusted group is counted
        when it is emitted, a checked one when it gets its slot.
      micro_steps: steps of the micro-step decoder while the row ran. Steps made for the group of another row count too,
        and so do those that found no token to emit.
    """

    entry: Entry
    group: Group
    lengths: Int[Array, "B J"]
    micro_steps: Int[Array, "B"]

    @classmethod
    def empty(cls, base: CausalLM, smasher: Smasher, batch: int) -> "SmashRows":
        """Makes what is kept for rows that have read nothing."""
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
          fused: tokens that go into the slot of each row; 0 for no slot.
          micro_steps: number of micro-steps made.
          running: rows that took part.
        """
        length = jnp.arange(1, self.lengths.shape[1] + 1, dtype=jnp.int32)[None]
        return replace(
            self,
            lengths=self.lengths + (fused[:, None] == length).astype(jnp.int32),
            micro_steps=self.micro_steps + jnp.where(running, micro_steps, 0),
        )


def kept_of(state: DecodeState) -> SmashRows:
    """Returns what decoding with fused slots keeps of the rows."""
    return state.rows.memory["smasher"]


@dataclasses.dataclass(frozen=True)
class FusedDecoding:
    """The common part of the strategies whose tokens share slots. Each adds its own `start` and `step`.

    Attributes:
      target: the base.
      smasher: the grafted modules; their parameters stand under `smasher`.
      sampled: some row may sample; False compiles a loop without noise.
      log_probs: how many likeliest tokens to record beside each emitted one, by the head that chose it; None records
        nothing.
    """

    target: ModelDef
    smasher: SmasherDef
    sampled: bool = False
    log_probs: int | None = None

    block = 1
    """The most entries that one step commits."""

    def init(self, params: Params, batch: int, slots: int, block: int) -> dict[str, SmashRows]:
        """Makes what is kept of rows that have read nothing, under the role `smasher`."""
        return {"smasher": SmashRows.empty(*self._bound(params), batch)}

    def prefill(self, params: Params, state: DecodeState, chunk: Any, hidden: Any, taps: Any) -> DecodeState:
        """Keeps the last entry of the prompt, from which the first group is made."""
        kept = kept_of(state)
        entry = last_entry(self._bound(params)[1], kept.entry, chunk.valid, taps, hidden)
        return replace(state, rows=state.rows.remembering(smasher=replace(kept, entry=entry)))

    def _bound(self, params: Params) -> tuple[CausalLM, Smasher]:
        return self.target.bind(params["target"]), self.smasher.bind(params["smasher"])


@dataclasses.dataclass(frozen=True)
class Smashed:
    """How the tokens of one row were put into slots.

    A group takes its slot when the next group is made. Trusted groups are all counted, including the last one, which
    nothing follows. Checked groups are counted once they are in the cache, so the last token is in none.

    Attributes:
      lengths: number of groups of one token, of two, and so on.
      micro_steps: steps of the micro-step decoder while the row ran; forwards of the base are not counted.
    """

    lengths: list[int]
    micro_steps: int

    @property
    def tokens(self) -> int:
        """Number of tokens in all groups."""
        return sum(length * groups for length, groups in enumerate(self.lengths, 1))

    @property
    def slots(self) -> int:
        """Number of slots that the groups take, one each."""
        return sum(self.lengths)

    @property
    def output_compression(self) -> float | None:
        """Tokens per slot, without the prompt; None where no slot was made."""
        return self.tokens / self.slots if self.slots else None


def smashed_rows(state: DecodeState) -> list[Smashed] | None:
    """Returns how the tokens of each row were put into slots; None where each token has a slot of its own."""
    if "smasher" not in state.rows.memory:
        return None
    kept = kept_of(state)
    rows = zip(*(x.tolist() for x in on_host((kept.lengths, kept.micro_steps))), strict=True)
    return [Smashed(lengths=lengths, micro_steps=steps) for lengths, steps in rows]
