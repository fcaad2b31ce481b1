"""What drafting takes, in plain steps of the target: a drafter's proposing and learning, timed in turn with these."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jax_smash.cache import Block
from jax_smash.decode.state import DecodeState, context
from jax_smash.draft.context import Outcome
from jax_smash.draft.verify.accept import accept
from jax_smash.loading import Model
from jax_smash.methods import Method
from jax_smash.pytree import replace
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.session import Session
from jax_smash.shapes import bucket

STEPS = 8
"""Steps of one timed call, so that calling it counts little."""

BEHIND = STEPS + 1
"""Tokens of a text that the timed steps draft behind: the root of each step's tree, and what the last one emits."""

Call = Callable[[], Any]
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Timed:
    """A method whose steps are timed within texts.

    Attributes:
      model: the target.
      method: plain decoding, or one that drafts.
      texts: of the rows that decode together, as tokens; more than `BEHIND` of each. The last `BEHIND` are what the
        target is taken to say, the others are the prompt.
    """

    model: Model
    method: Method
    texts: Sequence[list[int]]

    def call(self) -> Call:
        """Returns what makes `STEPS` steps: whole ones of plain decoding; of a drafter what it does in them alone."""
        state, params = self._state(), self.method.params
        if not hasattr(self.method.strategy, "drafter"):
            plain = jax.jit(plain_steps(self.method))
            return lambda: jax.block_until_ready(plain(params, state))
        drafted, read = jax.jit(drafted_steps(self.method)), jax.jit(read_once(self.model, self.method))(params, state)
        said = jnp.asarray([text[-BEHIND:] for text in self.texts], jnp.int32)
        return lambda: jax.block_until_ready(drafted(params, state, read, said))

    def _state(self) -> DecodeState:
        prompts = [text[:-BEHIND] for text in self.texts]
        rows, room = len(prompts), STEPS * self.method.strategy.block
        session = Session(
            self.model,
            self.method,
            slots=bucket(max(map(len, prompts)) + room),
            max_new_tokens=room,
            sampling=[SamplingOptions()] * rows,
            seeds=[0] * rows,
        )
        session.read(prompts)
        return session.state


def plain_steps(method: Method) -> Callable[[Any, DecodeState], DecodeState]:
    """Returns the function that makes `STEPS` steps of a method."""

    def steps(params: Any, state: DecodeState) -> DecodeState:
        return jax.lax.fori_loop(0, STEPS, lambda _, state: method.strategy.step(params, state), state)

    return steps


def read_once(model: Model, method: Method) -> Callable[[Any, DecodeState], Any]:
    """Returns the function in which the target reads a tree of as many nodes as a drafter's."""

    def read(params: Any, state: DecodeState) -> Any:
        rows, topology = state.rows, state.shared.memory["trees"].ladder[0]
        bound = model.definition.bind(params["target"])
        token = jnp.broadcast_to(rows.pending[:, None], (len(rows.pending), topology.nodes))
        position = rows.token_length[:, None] - 1 + topology.depth[None]
        block = Block.causal(jnp.ones(token.shape, bool))
        out = bound.forward(bound.embed(token), position, rows.cache, block)
        return {"hidden": out.hidden, "taps": out.taps}

    return read


def drafted_steps(method: Method) -> Callable[[Any, DecodeState, Any, Array], Any]:
    """Returns the function in which a drafter proposes `STEPS` trees, and learns from one emitted token of each.

    The tokens are a text's own, so that what a drafter keeps of a text comes again as often as it does in one. What the
    target makes of a tree is given, for what it says does not bear on what drafting takes.
    """
    drafter = method.strategy.drafter  # type: ignore[attr-defined]

    def steps(params: Any, state: DecodeState, read: Any, said: Array) -> Any:
        rows, topology = state.rows, state.shared.memory["trees"].ladder[0]
        # A row drafts, even if its model would have ended the text here.
        running = jnp.ones(rows.pending.shape, bool)
        told = replace(context(state, drafter.needs), running=running)

        def step(i: Array, carry: tuple[Any, Any, Array]) -> tuple[Any, Any, Array]:
            own, shared, pending = carry
            tree, made = drafter.propose(params, own, shared, replace(told, pending=pending), topology)
            following = jax.lax.dynamic_index_in_dim(said, i + 1, axis=1, keepdims=False)
            outcome = Outcome(
                tree=tree,
                target=jnp.broadcast_to(following[:, None], tree.token.shape),
                accepted=accept(tree, jnp.full(tree.token.shape, -1, jnp.int32)),
                count=running.astype(jnp.int32),
                running=running,
                pending=following,
                likeliest=None,
                **read,
            )
            own, shared = drafter.learn(params, own, shared, made, outcome)
            # The next tree hangs on this one, or nobody would have to draft it.
            following, _ = jax.lax.optimization_barrier((following, tree.token))
            return own, shared, following

        memory = rows.memory["drafter"], state.shared.memory["drafter"]
        return jax.lax.fori_loop(0, STEPS, step, (*memory, said[:, 0]))

    return steps


def taken(calls: Mapping[str, Call], *, repeats: int, settle_seconds: float = 0.0) -> dict[str, list[float]]:
    """Returns the seconds of a step of each call, `repeats` of them, all in turn.

    Args:
      calls: by name; each makes `STEPS` steps, and is called once before the clock starts.
      repeats: of all.
      settle_seconds: pause before each.
    """
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(repeats):
        for name, call in calls.items():
            time.sleep(settle_seconds)
            began = time.perf_counter()
            call()
            found[name].append((time.perf_counter() - began) / STEPS)
    return found


def cost_of(mine: Sequence[float], plain: Sequence[float]) -> Row:
    """Returns what a drafter's part of a step takes, and how many plain steps that is: medians over turns."""
    return {
        "draft_ms": 1e3 * statistics.median(mine),
        "plain_ms": 1e3 * statistics.median(plain),
        "base_forwards": statistics.median(a / b for a, b in zip(mine, plain, strict=True)),
        "base_forwards_by_repeat": [a / b for a, b in zip(mine, plain, strict=True)],
    }
