"""Policies at budgets asked on tasks: what each found, now or in an earlier run, in rows beside dense decoding."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.exact.exactness_report import say
from eval.reports.report import commit
from eval.scores.engine import Engine
from eval.scores.finished import Finished, file_states
from eval.sparse.arms import BYTES, DENSE, OWN, Arm, beside, policy_of, settled
from eval.sparse.asked import Task
from eval.sparse.rows import rows_of, unmet_row
from eval.sparse.shared import SharedPrompts
from eval.tasks.outcome import Outcome
from jax_smash.decode.programs import PROGRAMS
from jax_smash.loading import Model
from jax_smash.protocols import SparsePolicy
from jax_smash.sparse import Dense, Selecting, SnapKV, named_files, sparsified

BASELINE = "dense"

MOST_ARMS = 12
"""Policies at a budget that are asked at once: each keeps a program. Of SmolLM2, 30 and more took 15 GB."""

Row = dict[str, Any]
ArmKey = tuple[str, float]


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

        Policies that read prompts by themselves come last.

        Prompts that are read densely are read once for up to `MOST_ARMS` policies at their budgets, which then answer
        one after the other.

        Args:
          tasks: with their examples.
          on_rows: called with the rows so far after each policy at a budget.

        Raises:
          ValueError: a task cannot be asked of the model.
        """
        plain = self._engine(self.model)
        lengths = [task.length(plain) for task in tasks]
        found: list[Row] = []
        for i, (task, length) in enumerate(zip(tasks, lengths, strict=True)):
            for rows in self._task_rows(task, length, plain):
                found += rows
                on_rows(found)
            if not all(one.written for one in tasks[i : i + 2]):  # Programs that write answers serve the next task.
                PROGRAMS.forget()
        return found

    def _task_rows(self, task: Task, length: int, plain: Engine) -> Iterator[list[Row]]:
        """Yields the rows of each policy at a budget, dense decoding's first."""
        told: Row = {"task": task.told, "length": length}
        dense = self._settled(BASELINE, Dense(), 1.0, length)
        held = task.prompt(plain) if task.prompt is not None else None
        arms = [self._arm(name, share, task, length, held) for name in self.models for share in self.shares]
        # First those that share prompts: their answers are kept only once each has had its turn.
        arms.sort(key=lambda arm: arm.policy is not None and not self._shares(arm))
        groups = self._groups(task, [dense, *arms])
        usual = [] if task.by_share else self._outcomes(dense, task, groups)
        yield rows_of(dense, usual, None, **told, protocol=task.protocol(self.protocol))
        last = groups.get(_key(dense))
        for arm in arms:
            told["protocol"] = self._read_by(arm, task)
            if arm.policy is None:
                say(f"{task.told}: {arm.name} at {arm.asked:.0%}: not met: {arm.unmet}")
                yield [unmet_row(arm, **told)]
                continue
            group = groups.get(_key(arm), last)
            if group is not last or not groups:
                PROGRAMS.forget()  # A process may map so many pieces of memory and no more.
            last = group
            against = task.sets(arm.asked).measure(plain) if task.by_share else usual
            yield rows_of(arm, self._outcomes(arm, task, groups), against, **told)

    def _arm(self, name: str, share: float, task: Task, length: int, held: int | None) -> Arm:
        """Returns a policy at a budget for a task, or why there is none."""
        policy = policy_of(self.models[name])
        by_steps = task.protocol(self.protocol) != DENSE
        arm = self._settled(name, policy, share, length, held=held, fixed=by_steps)
        if task.by_share and not isinstance(policy, Selecting):
            return dataclasses.replace(arm, policy=None, unmet="it keeps the last entries: see recency")
        if isinstance(policy, SnapKV) and not policy.rolling and by_steps and share < 1:
            reason = "it votes at the end of a prompt, and there is none: see snapkv:rolling=true"
            return dataclasses.replace(arm, policy=None, unmet=reason)
        return arm

    def _read_by(self, arm: Arm, task: Task) -> str:
        """Returns how an arm reads a task's prompts."""
        protocol, policy = task.protocol(self.protocol), policy_of(self.models[arm.name])
        return OWN if protocol == DENSE and not isinstance(policy, Selecting) else protocol

    def _groups(self, task: Task, arms: Sequence[Arm]) -> dict[ArmKey, SharedPrompts]:
        """Returns, by arm, those for which prompts are read once: arms that choose slots and have not been asked."""
        if task.by_share or task.protocol(self.protocol) != DENSE:
            return {}
        asked = [arm for arm in arms if self._shares(arm) and self._earlier(arm, task) is None]
        found: dict[ArmKey, SharedPrompts] = {}
        for first in range(0, len(asked), MOST_ARMS):
            models = {_key(arm): self._model(arm) for arm in asked[first : first + MOST_ARMS]}
            group = SharedPrompts(self.model, models, batch_size=self.batch_size)
            found |= dict.fromkeys(models, group)
        return found

    def _shares(self, arm: Arm) -> bool:
        """Returns whether an arm can go on from a prompt that dense decoding has read."""
        return arm.name == BASELINE or isinstance(arm.policy, Selecting)

    def _model(self, arm: Arm) -> Model:
        assert arm.policy is not None
        return self.model if arm.name == BASELINE else beside(self.models[arm.name], arm.policy)

    def _outcomes(self, arm: Arm, task: Task, groups: Mapping[ArmKey, SharedPrompts]) -> list[Outcome]:
        """Returns what an arm was found to do, now or by an earlier run."""
        earlier = self._earlier(arm, task)
        if earlier is not None:
            return earlier
        group, begun = groups.get(_key(arm)), time.monotonic()
        engine = self._engine(self._model(arm)) if group is None else group.engine(_key(arm))
        outcomes = task.sets(arm.asked).measure(engine)
        seconds = time.monotonic() - begun if group is None else group.seconds[_key(arm)]
        told = ", ".join(f"{one.metric} {one.score:.4f}" for one in outcomes)
        what = f"{task.told}: {arm.name} at {arm.asked:.0%} ({arm.slots} slots)"
        say(f"{what}: n {outcomes[0].n}, {told}, {seconds:.0f} s")
        more = {"seconds_per_example": seconds / outcomes[0].n, "commit": self._here and self._here["hash"]}
        outcomes = [dataclasses.replace(one, more=one.more | more) for one in outcomes]
        if self.kept is not None:
            self.kept.add(self._name_of(arm, task), 0, outcomes)
        return outcomes

    def _earlier(self, arm: Arm, task: Task) -> list[Outcome] | None:
        """Returns what an earlier run has found; None where it has not."""
        return None if self.kept is None else self.kept.get(self._name_of(arm, task), 0)

    def _name_of(self, arm: Arm, task: Task) -> dict[str, Any]:
        """Returns under what an arm's outcomes are kept."""
        source = Path(task.name.partition(":")[2])
        data = {"data": file_states(source)} if source.is_file() else {}
        return {"task": task.name, "policy": arm.name, "budget": arm.asked} | data | self._read_from(arm.name)

    def _read_from(self, name: str) -> dict[str, Any]:
        """Returns the states of the files that a policy is read from, where there are any."""
        states = file_states(*named_files(name, self.model.name).values())
        return {"files": states} if states else {}

    def _settled(
        self,
        name: str,
        policy: SparsePolicy,
        share: float,
        length: int,
        *,
        held: int | None = None,
        fixed: bool = False,
    ) -> Arm:
        config, params = self.model.config, self.model.params["target"]
        if config is None:
            raise ValueError(f"{self.model.name} must be a model of this package: its cache is counted")
        sizes = {"length": length, "held": held, "equal": self.equal, "fixed": fixed}
        return settled(name, policy, config, params, share=share, **sizes)

    def _engine(self, model: Model) -> Engine:
        return Engine(model, batch_size=self.batch_size, by_steps=self.protocol == DENSE)


def _key(arm: Arm) -> ArmKey:
    return arm.name, arm.asked
