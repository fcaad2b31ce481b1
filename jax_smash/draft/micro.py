"""HAMburger's micro-step decoder as a drafter: its groups are proposals, and tokens keep a slot each."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jax_smash.draft.context import Context, Outcome, Seen
from jax_smash.draft.trees.tree import DraftTree, Topology, at_nodes, grow
from jax_smash.protocols import CausalLM, ModelDef, Needs, Params
from jax_smash.sampling import choose
from jax_smash.sharding import constrain
from jax_smash.smash.entry import Entry, chosen_entry, empty_entry, entry_at, last_entry
from jax_smash.smash.group_limits import GroupLimits
from jax_smash.smash.macro_step import Group, macro_step
from jax_smash.smash.micro_head import micro_logits, sure
from jax_smash.smash.smasher import Smasher, SmasherDef


@dataclasses.dataclass(frozen=True)
class Micro:
    """Drafts a chain behind the pending token, from the entry that the pending token was read from.

    The text is plain decoding's, whatever the modules say. What the rows share is `GroupLimits`, what is kept of each
    an `Entry`.

    Differs from Liu and Zhang 2025, HAMburger, section 3: there groups are trusted, and share a slot.

    Attributes:
      target: the base.
      smasher: the grafted modules; their parameters stand under `smasher`.
      taps: of the base that they continue from.
      sampled: some row may sample.
    """

    target: ModelDef
    smasher: SmasherDef
    taps: tuple[int, ...] = ()
    sampled: bool = False

    @property
    def needs(self) -> Needs:
        """The taps that the modules continue from."""
        return Needs(taps=self.taps)

    def init(self, params: Params, batch: int, slots: int, block: int) -> Entry:
        """Makes the entry of rows that have read nothing."""
        return empty_entry(self.target.bind(params["target"]), self.smasher.bind(params["smasher"]), batch)

    def read(self, params: Params, own: Entry, shared: GroupLimits, seen: Seen) -> tuple[Entry, GroupLimits]:
        """Keeps the last entry of the prompt."""
        smasher = self.smasher.bind(params["smasher"])
        return last_entry(smasher, own, seen.valid, seen.taps, seen.hidden), shared

    def propose(
        self, params: Params, own: Entry, shared: GroupLimits, context: Context, topology: Topology
    ) -> tuple[DraftTree, None]:
        """Returns the chain that the modules would make a group of."""
        base, smasher = self.target.bind(params["target"]), self.smasher.bind(params["smasher"])
        group, _ = drafted_group(base, smasher, params, context, own, limits=shared, sampled=self.sampled)
        place = jnp.arange(topology.nodes, dtype=jnp.int32)[None]
        tokens = jnp.where(place < group.count[:, None], group.tokens[:, : topology.nodes], -1)
        return grow(topology, tokens.at[:, 0].set(context.pending)), None

    def learn(
        self, params: Params, own: Entry, shared: GroupLimits, made: Any, outcome: Outcome
    ) -> tuple[Entry, GroupLimits]:
        """Keeps the node that the new pending token was read from."""
        smasher = self.smasher.bind(params["smasher"])
        node = at_nodes(outcome.accepted.path, jnp.maximum(outcome.count - 1, 0))
        entry = entry_at(smasher, outcome.taps, outcome.hidden, node)
        return chosen_entry(outcome.running, entry, own), shared


def drafted_group(
    base: CausalLM,
    smasher: Smasher,
    params: Params,
    context: Context,
    entry: Entry,
    *,
    limits: GroupLimits,
    sampled: bool,
) -> tuple[Group, Int[Array, ""]]:
    """Returns the group that the modules make of each running row's pending token and what they would say behind it.

    Beside it stands how many micro-steps that took.

    Where rows sample, a token is the likeliest after the very noise that the base's own choice at that place is made
    with: the likelier it is to both, the likelier both choose it.

    Args:
      base: bound to its parameters.
      smasher: the grafted modules, likewise.
      params: of every module that decodes, by role.
      context: the rows, the pending tokens said.
      entry: what the pending tokens were read from.
      limits: how far groups go.
      sampled: some row may sample.
    """
    Path = Int[Array, "B P"]  # The tokens behind the pending one, padded with −1.

    def pending(path: Path, hidden: Array, index: Array, active: Bool[Array, "B"]) -> tuple[Path, Array, Array]:
        return path, context.pending, active

    def drafted(path: Path, hidden: Array, index: Array, active: Bool[Array, "B"]) -> tuple[Path, Array, Array]:
        logits = constrain(micro_logits(base, params, hidden), "batch")[:, None]
        surely = sure(logits[:, 0], limits.token_confidence)
        logits = context.process(logits, path[:, None])
        place = context.token_length[:, None] - 1 + index
        token = choose(logits, context.key, place, sampled=sampled)[:, 0]
        token = jnp.where(active & surely & (logits.max(-1)[:, 0] > -jnp.inf), token, -1)
        return path.at[:, index - 1].set(token), token, active

    steps, running = smasher.config.micro_steps, context.running
    _, group, micro_steps = macro_step(
        base,
        smasher,
        entry.prefix,
        entry.hidden,
        choose_first=pending,
        choose_next=drafted,
        carry=jnp.full((running.shape[0], max(steps - 1, 1)), -1, jnp.int32),
        running=running,
        confidence=jnp.broadcast_to(limits.confidence, running.shape),
        limit=jnp.broadcast_to(limits.longest, running.shape),
        least_rows=limits.least(running),
    )
    return group, micro_steps
