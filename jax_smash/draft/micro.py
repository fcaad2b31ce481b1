"""HAMburger's micro-step decoder as a drafter: its groups are proposals, and tokens keep a slot each."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.draft.tree import DraftTree, Topology, grow
from jax_smash.finish import RUNNING
from jax_smash.protocols import CausalLM, ModelDef, Params
from jax_smash.pytree import pytree, replace
from jax_smash.sampling import choose, process
from jax_smash.sharding import constrain
from jax_smash.smash.entry import Entry, chosen_entry, empty_entry, last_entry
from jax_smash.smash.group_limits import GroupLimits
from jax_smash.smash.macro_step import Group, macro_step
from jax_smash.smash.micro_head import micro_logits, sure
from jax_smash.smash.smasher import Smasher, SmasherDef


@pytree
class Read:
    """What was computed for each node of a tree: an `Entry` a node.

    Attributes:
      prefix: tapped vectors.
      hidden: final hidden states.
    """

    prefix: Float[Array, "B M taps D"]
    hidden: Float[Array, "B M D"]


@dataclasses.dataclass(frozen=True)
class Micro:
    """Drafts a chain behind the pending token, from the entry that the pending token was read from.

    The text is plain decoding's, whatever the modules say. What the rows share is `GroupLimits`, what is kept of each
    an `Entry`.

    Differs from Liu and Zhang 2025, HAMburger, section 3: there groups are trusted, and share a slot.

    Attributes:
      target: the base.
      smasher: the grafted modules; their parameters stand under `smasher`.
      sampled: some row may sample.
    """

    target: ModelDef
    smasher: SmasherDef
    sampled: bool = False

    def init(self, params: Params, batch: int, slots: int) -> Entry:
        """Makes the entry of rows that have read nothing."""
        return empty_entry(self.target.bind(params["target"]), self.smasher.bind(params["smasher"]), batch)

    def prefill(self, params: Params, state: Any, chunk: Any, hidden: Any, taps: Any) -> Any:
        """Keeps the last entry of the prompt."""
        smasher = self.smasher.bind(params["smasher"])
        return _with(state, last_entry(smasher, state.rows.draft.drafter, chunk.valid, taps, hidden))

    def propose(self, params: Params, state: Any, topology: Topology) -> tuple[DraftTree, Any]:
        """Returns the chain that the modules would make a group of."""
        base, smasher = self.target.bind(params["target"]), self.smasher.bind(params["smasher"])
        limits, entry = state.shared.memory.drafter, state.rows.draft.drafter
        group, _ = drafted_group(base, smasher, params, state, entry, limits=limits, sampled=self.sampled)
        place = jnp.arange(topology.nodes, dtype=jnp.int32)[None]
        tokens = jnp.where(place < group.count[:, None], group.tokens[:, : topology.nodes], -1)
        return grow(topology, tokens.at[:, 0].set(state.rows.pending)), None

    def lesson(self, params: Params, state: Any, checked: Any) -> Read:
        """Returns what each node was computed to be."""
        smasher = self.smasher.bind(params["smasher"])
        return Read(prefix=smasher.prefix(checked.taps, checked.hidden), hidden=checked.hidden)

    def observe(self, params: Params, state: Any, verified: Any) -> Any:
        """Keeps the node that the new pending token was read from."""
        last = jnp.maximum(verified.count - 1, 0)
        node = jnp.take_along_axis(verified.accepted.path, last[:, None], axis=1)
        read: Read = verified.lesson
        entry = Entry(
            prefix=jnp.take_along_axis(read.prefix, node[:, :, None, None], axis=1)[:, 0],
            hidden=jnp.take_along_axis(read.hidden, node[:, :, None], axis=1)[:, 0],
        )
        return _with(state, chosen_entry(verified.running, entry, state.rows.draft.drafter))


def drafted_group(
    base: CausalLM,
    smasher: Smasher,
    params: Params,
    state: Any,
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
      state: of decoding, the pending tokens said.
      entry: what the pending tokens were read from.
      limits: how far groups go.
      sampled: some row may sample.
    """
    rows = state.rows
    running = rows.finish == RUNNING
    Path = Int[Array, "B P"]  # The tokens behind the pending one, padded with −1.

    def pending(path: Path, hidden: Array, index: Array, active: Bool[Array, "B"]) -> tuple[Path, Array, Array]:
        return path, rows.pending, active

    def drafted(path: Path, hidden: Array, index: Array, active: Bool[Array, "B"]) -> tuple[Path, Array, Array]:
        logits = constrain(micro_logits(base, params, hidden), "batch")[:, None]
        surely = sure(logits[:, 0], limits.token_confidence)
        logits = process(state.shared.processors, rows.processors, logits, path[:, None])
        place = rows.token_length[:, None] - 1 + index
        token = choose(logits, rows.key, place, sampled=sampled)[:, 0]
        token = jnp.where(active & surely & (logits.max(-1)[:, 0] > -jnp.inf), token, -1)
        return path.at[:, index - 1].set(token), token, active

    steps = smasher.config.micro_steps
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


def _with(state: Any, entry: Entry) -> Any:
    return replace(state, rows=replace(state.rows, draft=replace(state.rows.draft, drafter=entry)))
