"""Many policies asked on the same examples at once, behind prompts that are read once for all of them."""

import functools
import time
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from eval.reports.report import progress
from eval.scores.engine import Engine
from eval.sparse.arms import policy_of
from eval.sparse.together import Together, reading_together
from jax_smash.decode.forced import Prompts, log_probs_behind, read_prompts
from jax_smash.decode.state import LogProbs, Rows, lay_out
from jax_smash.loading import Model
from jax_smash.methods import make_method
from jax_smash.pytree import replace
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.generation import QUIET_STEPS
from jax_smash.serve.request import Request, make_request
from jax_smash.serve.session import Session
from jax_smash.serve.turn import Completion, Turn
from jax_smash.shapes import rows_for
from jax_smash.sharding import mesh_of, put
from jax_smash.sparse import Dense, SparseDef

ROOM = 128
"""Tokens that a row has room for at least, so that tasks with shorter answers share the programs."""


class SharedPrompts:
    """Policies that are asked the same, and what they answered.

    Attributes:
      arms, batch_size: as they were given.
      seconds: that each arm took behind the prompts.
      waiting: by question, the answers that were not yet told, by arm.
    """

    def __init__(self, model: Model, arms: Mapping[Hashable, Model], *, batch_size: int):
        """Takes the arms by whatever names them; reads nothing.

        Args:
          model: without a policy.
          arms: the model itself, or from `sparsified` with a policy that chooses slots and reads prompts densely.
          batch_size: texts that are read or decoded together.
        """
        self.arms, self.batch_size = dict(arms), batch_size
        self.seconds = dict.fromkeys(self.arms, 0.0)
        self._dense = model
        self._reader = reading_together(model, [arm for arm in arms.values() if isinstance(arm.definition, SparseDef)])
        self.waiting: dict[Hashable, dict[Hashable, Any]] = {}
        self._behind = {
            name: jax.jit(functools.partial(log_probs_behind, arm.definition, n=1)) for name, arm in arms.items()
        }

    def engine(self, arm: Hashable) -> Engine:
        """Returns what asks one of the arms. The first that is asked something has all others asked the same."""
        return _ArmEngine(self, arm)

    def told(self, arm: Hashable, question: Hashable, ask: Any) -> Any:
        """Returns an arm's answer to a question; `ask` gives those of all arms, which wait for their turn."""
        if arm not in self.waiting.get(question, ()):
            self.waiting[question] = ask()
        answer = self.waiting[question].pop(arm)
        if not self.waiting[question]:
            del self.waiting[question]
        return answer

    def continued(
        self,
        prompts: Sequence[list[int]],
        *,
        max_new_tokens: int,
        stop: Sequence[str],
        min_new_tokens: int,
        what: str,
    ) -> dict[Hashable, list[Completion]]:
        """Returns each arm's continuations; arguments are those of `Engine.continuations`."""
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        request = make_request(
            self._dense,
            [prompts[i] for i in order],
            max_new_tokens=max_new_tokens,
            sampling=SamplingOptions(min_new_tokens=min_new_tokens),
            stop=tuple(stop),
            json_schema=None,
            regex=None,
            seed=0,
            chat=False,
            slots=None,
        )
        size = rows_for(len(prompts), most=self.batch_size)
        found: dict[Hashable, dict[int, Completion]] = {arm: {} for arm in self.arms}
        with progress(what, len(prompts) * len(self.arms)) as advance:
            for first in range(0, len(prompts), size):
                batch = range(first, min(first + size, len(prompts)))
                reader = _session(self._reader, request, size, max_new_tokens)
                texts = [request.tokens[i] for i in batch] + [[]] * (size - len(batch))  # Other rows sit out.
                reader.read(texts, limits=[max_new_tokens] * size)
                for name, arm in self.arms.items():
                    began = time.monotonic()
                    session = _session(arm, request, size, max_new_tokens)
                    turn = Turn(arm, session, request, batch)
                    turn.begin(functools.partial(_go_on, session, self.rows_of(arm, reader.state.rows)))
                    for i, completion in zip(batch, turn.decode(QUIET_STEPS)[0], strict=True):
                        found[name][order[i]] = completion
                        advance()
                    self.seconds[name] += time.monotonic() - began
        return {name: [made[i] for i in range(len(prompts))] for name, made in found.items()}

    def records(self, tokens: jax.Array, lengths: jax.Array, prompts: Prompts) -> dict[Hashable, LogProbs]:
        """Returns each arm's records of given texts; arguments are those of `forced_log_probs`."""
        texts = tokens, lengths, prompts
        rows = self._read(self._reader.params["target"], *texts)
        found = {}
        for name, arm in self.arms.items():
            began = time.monotonic()
            made = self._behind[name](arm.params["target"], *texts, self.rows_of(arm, rows))
            found[name] = jax.block_until_ready(made)
            self.seconds[name] += time.monotonic() - began
        return found

    def rows_of(self, arm: Model, rows: Rows) -> Rows:
        """Returns rows that have been read as an arm would have them; they may be donated."""
        policy = policy_of(arm) if isinstance(arm.definition, SparseDef) else Dense()
        together: Any = policy_of(self._reader)
        assert isinstance(together, Together)
        cache = together.of_policy(rows.cache, policy, self._dense)
        return jax.tree.map(jnp.copy, rows.remembering(target=cache))

    @functools.cached_property
    def _read(self) -> Any:
        return jax.jit(functools.partial(read_prompts, self._reader.definition, n=1))


class _ArmEngine(Engine):
    """Asks one of many arms: see `SharedPrompts.engine`."""

    def __init__(self, shared: SharedPrompts, arm: Hashable):
        super().__init__(shared.arms[arm], batch_size=shared.batch_size, by_steps=True)
        self._shared, self._arm = shared, arm

    def continuations(
        self,
        prompts: Sequence[list[int]],
        *,
        max_new_tokens: int,
        stop: Sequence[str] = (),
        min_new_tokens: int = 0,
        what: str = "prompts",
    ) -> list[Completion]:
        asked = {"max_new_tokens": max_new_tokens, "stop": tuple(stop), "min_new_tokens": min_new_tokens}
        question = tuple(map(tuple, prompts)), *asked.values()
        ask = functools.partial(self._shared.continued, prompts, what=what, **asked)
        answer: list[Completion] = self._shared.told(self._arm, question, ask)
        return answer

    def _records(self, tokens: jax.Array, lengths: jax.Array, prompts: Prompts | None) -> LogProbs:
        if prompts is None:
            return super()._records(tokens, lengths, prompts)
        question = tuple(bytes(leaf) for leaf in jax.device_get(jax.tree.leaves((tokens, lengths, prompts))))
        answer: LogProbs = self._shared.told(
            self._arm, question, lambda: self._shared.records(tokens, lengths, prompts)
        )
        return answer


def _session(model: Model, request: Request, rows: int, max_new_tokens: int) -> Session:
    return Session(
        model,
        make_method(model, "ar"),
        slots=request.slots,
        max_new_tokens=max(max_new_tokens, ROOM),
        sampling=[request.sampling[0]] * rows,
        seeds=[0] * rows,
        stops=request.stops,
    )


def _go_on(session: Session, rows: Rows) -> None:
    """Lets a session go on from rows that another has read."""
    mesh = mesh_of(session.model.params)
    session.state = lay_out(replace(session.state, rows=rows), lambda x, *axes: put(x, mesh, *axes))
