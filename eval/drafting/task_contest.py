"""Contenders that continue the prompts of several tasks in turn, each knowing what the batches before have taught."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from eval.prompts.task_prompts import Task
from eval.timing.contest import take_turns
from eval.timing.measure import Contender, Ours, Sample
from jax_smash.shapes import bucket

SHORT_SLOTS = 512
"""Capacity of a cache whose prompts are short: one for all of them, so that little is compiled."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """Prompts of one task that are continued together."""

    task: str
    prompts: list[list[int]]


def batches_of(tasks: Sequence[Task], size: int) -> list[Batch]:
    """Returns batches of one task each, of each task in turn; the last of a task may be smaller than the others."""
    cut = [[Batch(t.name, t.prompts[i : i + size]) for i in range(0, len(t.prompts), size)] for t in tasks]
    return [mine[i] for i in range(max(map(len, cut))) for mine in cut if i < len(mine)]


class Learner:
    """One of our methods with one tree, in a cache of the capacity that a batch needs.

    Attributes:
      name: method and tree.
      method: its name.
      tree: its name; None in plain decoding.
      memory: what it has learned since it started over.
    """

    is_peer = False

    def __init__(
        self,
        method: str,
        tree: str | None,
        make: Callable[[int], Ours],
        capacities: Sequence[int],
        max_new_tokens: int,
        facts: Mapping[str, Any] = MappingProxyType({}),
    ):
        """Takes what is needed to make the method; makes nothing.

        Args:
          method, tree: as above.
          make: from a capacity, in slots a row, to the method; it carries what it learns.
          capacities: the smallest first.
          max_new_tokens: of each row.
          facts: that rows tell of it beside its tree.
        """
        self.name = method if tree is None else f"{method} {tree}"
        self.method, self.tree, self.memory = method, tree, None
        self._make: Callable[[int], Ours] = make
        self._made: dict[int, Ours] = {}
        self._capacities, self._new, self._facts = capacities, max_new_tokens, facts

    def start_over(self, *, keep_costs: bool = False) -> None:
        """Forgets what was learned, of what steps take too unless that is to be kept."""
        self.memory = None
        for ours in self._made.values():
            ours.start_over(keep_costs=keep_costs)

    def warm_up(self, batches: Sequence[list[list[int]]]) -> None:
        """Compiles a prefill for each length that occurs in a cache of the capacity that goes with it, and the loop."""
        kinds = {(self._capacity(prompts), bucket(max(map(len, prompts)))): prompts for prompts in batches}
        for capacity in self._capacities:
            if mine := [prompts for (slots, _), prompts in kinds.items() if slots == capacity]:
                self._ours(capacity).warm_up(mine)

    def run(self, prompts: list[list[int]]) -> Sample:
        """Continues one batch, knowing what the batches before have taught."""
        ours = self._ours(self._capacity(prompts))
        ours.memory = self.memory
        sample = ours.run(prompts)
        self.memory = ours.memory
        return sample

    def facts(self) -> dict[str, Any]:
        """Returns what it drafts."""
        ours = self._ours(self._capacities[0])
        return {"nodes": ours.method.nodes - 1, "tree_source": ours.method.source, **self._facts}

    def _ours(self, capacity: int) -> Ours:
        if capacity not in self._made:
            self._made[capacity] = self._make(capacity)
        return self._made[capacity]

    def _capacity(self, prompts: list[list[int]]) -> int:
        need = max(map(len, prompts)) + self._new
        return next(slots for slots in self._capacities if slots >= need)


def capacities_for(tasks: Sequence[Task], max_new_tokens: int, context: int) -> list[int]:
    """Returns the capacities, in slots a row, of short and long prompts, the smallest first; at most the context."""
    need = max(len(prompt) for task in tasks for prompt in task.prompts) + max_new_tokens
    return sorted({min(SHORT_SLOTS, context), min(bucket(need, least=SHORT_SLOTS), context)})


Runs = dict[str, list[list[Sample]]]
"""By contender: a list a repeat, with a sample a batch."""


def hold(
    contenders: Sequence[Contender],
    batches: Sequence[Batch],
    *,
    repeats: int,
    keep_costs: bool = False,
    settle_seconds: float,
    on_batch: Callable[[], None] = lambda: None,
) -> Runs:
    """Lets all contenders continue each batch in turn, `repeats` times over.

    What one repeat teaches the next does not know.

    Args:
      contenders: warmed up.
      batches: of prompts.
      repeats: of everything.
      keep_costs: but what was learned of what steps take.
      settle_seconds: pause before each run, in which the other framework's idle threads stop spinning.
      on_batch: called after each batch.
    """
    runs: Runs = {contender.name: [[] for _ in range(repeats)] for contender in contenders}
    for repeat in range(repeats):
        for contender in contenders:
            if isinstance(contender, Learner):
                contender.start_over(keep_costs=keep_costs)
        for batch in batches:
            once = take_turns(contenders, [batch.prompts], repeats=1, settle_seconds=settle_seconds)
            for name, samples in once.items():
                runs[name][repeat] += samples[0]
            on_batch()
    return runs
