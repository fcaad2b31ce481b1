"""Policies at budgets asked on tasks: what each found, now or in an earlier run, in rows beside dense decoding."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from eval.exact.exactness_report import say
from eval.reports.report import commit
from eval.scores.engine import Engine
from eval.scores.finished import Finished, file_states
from eval.sparse.arms import BYTES, DENSE, OWN, Arm, beside, policy_of, settled
from eval.sparse.asked import Task
from eval.sparse.rows import rows_of, unmet_row
from eval.tasks.outcome import Outcome
from jax_smash.decode.programs import PROGRAMS
from jax_smash.loading import Model
from jax_smash.protocols import SparsePolicy
from jax_smash.sparse import Dense, Selecting, named_files, sparsified

BASELINE = "dense"

Row = dict[str, Any]


class Comparison:
    """A model, policies, and the shares of bytes that they may read."""

    def __init__(
        self,
        model: Model,
        policies: Mapping[str, SparsePolicy],
        shares: Sequence[float],
        *,
        protocol: str = DENSE,
        equal: str = BYTES,
        batch_size: int = 8,
        kept: Finished | None = None,
    ):
        """Takes what is compared; measures nothing.

        Args:
          model: a dense one.
          policies: by name, from `read_policy`; any names where no outcomes are kept.
          shares: of the bytes that dense decoding reads of its cache.
          protocol: how prompts are read.
          equal: `bytes` or `slots`.
          batch_size: texts that are read or decoded together.
          kept: outcomes of earlier runs; None for none.

        Raises:
          ValueError: a policy does not go with the model, or its predictor does not.
          FileNotFoundError: a predictor is missing.
        """
        self.model, self.shares = model, shares
        self.models = {name: sparsified(model, policy) for name, policy in policies.items()}
        self.protocol, self.equal, self.batch_size, self.kept = protocol, equal, batch_size, kept
        self._here = commit()

    def rows(self, tasks: Sequence[Task], on_rows: Callable[[list[Row]], None] = lambda rows: None) -> list[Row]:
        """Returns the rows of all tasks: of each dense decoding's, then each policy's by budget.

        A policy at a budget is asked on one task after the other, which share its compiled programs.

        Args:
          tasks: with their examples.
          on_rows: called with the rows so far after dense decoding and after each policy at a budget.

        Raises:
          ValueError: a task cannot be asked of the model.
        """
        plain = self._engine(self.model)
        lengths = [task.length(plain) for task in tasks]
        found: list[list[Row]] = []
        usual: list[list[Outcome]] = []
        for task, length in zip(tasks, lengths, strict=True):
            dense = self._settled(BASELINE, Dense(), 1.0, length)
            usual.append([] if task.by_share else self._outcomes(dense, self.model, task))
            told: Row = {"task": task.told, "length": length, "protocol": task.protocol(self.protocol)}
            found.append(rows_of(dense, usual[-1], None, **told))
        self._forget(on_rows, found)
        for name, sparse in self.models.items():
            for share in self.shares:
                for i, task in enumerate(tasks):
                    found[i] += self._arm_rows(name, sparse, share, task, lengths[i], usual[i], plain)
                self._forget(on_rows, found)
        return _flat(found)

    def _arm_rows(
        self,
        name: str,
        sparse: Model,
        share: float,
        task: Task,
        length: int,
        usual: list[Outcome],
        plain: Engine,
    ) -> list[Row]:
        protocol, policy = task.protocol(self.protocol), policy_of(sparse)
        arm = self._settled(name, policy, share, length)
        if protocol == DENSE and not isinstance(policy, Selecting):
            protocol = OWN
        if task.by_share and not isinstance(policy, Selecting):
            arm = dataclasses.replace(arm, policy=None, unmet="it keeps the last entries: see recency")
        told: Row = {"task": task.told, "length": length, "protocol": protocol}
        if arm.policy is None:
            say(f"{task.told}: {name} at {share:.0%}: not met: {arm.unmet}")
            return [unmet_row(arm, **told)]
        against = task.sets(share).measure(plain) if task.by_share else usual
        return rows_of(arm, self._outcomes(arm, beside(sparse, arm.policy), task), against, **told)

    def _outcomes(self, arm: Arm, model: Model, task: Task) -> list[Outcome]:
        """Returns what an arm was found to do, now or by an earlier run."""
        key: dict[str, Any] = {"task": task.name, "policy": arm.name, "budget": arm.asked}
        if self.kept is not None:
            key |= self._read_from(arm.name)
        earlier = None if self.kept is None else self.kept.get(key, 0)
        if earlier is not None:
            return earlier
        engine, begun = self._engine(model), time.monotonic()
        outcomes = task.sets(arm.asked).measure(engine)
        seconds = time.monotonic() - begun
        told = ", ".join(f"{one.metric} {one.score:.4f}" for one in outcomes)
        what = f"{task.told}: {arm.name} at {arm.asked:.0%} ({arm.slots} slots)"
        say(f"{what}: n {outcomes[0].n}, {told}, {seconds:.0f} s")
        more = {"seconds_per_example": seconds / outcomes[0].n, "commit": self._here and self._here["hash"]}
        outcomes = [dataclasses.replace(one, more=one.more | more) for one in outcomes]
        if self.kept is not None:
            self.kept.add(key, 0, outcomes)
        return outcomes

    def _read_from(self, name: str) -> dict[str, Any]:
        """Returns the states of the files that a policy is read from, where there are any."""
        states = file_states(*named_files(name, self.model.name).values())
        return {"files": states} if states else {}

    def _settled(self, name: str, policy: SparsePolicy, share: float, length: int) -> Arm:
        config, params = self.model.config, self.model.params["target"]
        if config is None:
            raise ValueError(f"{self.model.name} must be a model of this package: its cache is counted")
        return settled(name, policy, config, params, share=share, length=length, equal=self.equal)

    def _engine(self, model: Model) -> Engine:
        return Engine(model, batch_size=self.batch_size, by_steps=self.protocol == DENSE)

    def _forget(self, on_rows: Callable[[list[Row]], None], found: list[list[Row]]) -> None:
        # Of another policy nothing is called again, and a process may map so many pieces of memory and no more.
        PROGRAMS.forget()
        on_rows(_flat(found))


def _flat(found: list[list[Row]]) -> list[Row]:
    return [row for rows in found for row in rows]
