"""The tasks by name, and the stream of a task's examples."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median_low

from jax_smash.tasks.arithmetic import ArithmeticDraft
from jax_smash.tasks.copying import CopyingDraft
from jax_smash.tasks.coreference import CoreferenceDraft
from jax_smash.tasks.dice import Dice
from jax_smash.tasks.draft import Draft, fill, full_size
from jax_smash.tasks.example import Example
from jax_smash.tasks.key_value import KeyValueDraft
from jax_smash.tasks.state import StateDraft
from jax_smash.tasks.words import SPLITS

_PROBES = 65
"""How many drafts are measured to find a task's smallest length."""


@dataclass(frozen=True)
class Task:
    """A kind of question and how its examples are drawn."""

    name: str
    description: str
    draft: Callable[[Dice, str], Draft]


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("coreference", "An invented place name, told once, is asked for after distractors.", CoreferenceDraft),
        Task("key_value", "The value of one of many keys is asked for.", KeyValueDraft),
        Task("copying", "A sequence is repeated, or reversed.", CopyingDraft),
        Task("arithmetic", "Sums, differences, products and word problems, with worked steps.", ArithmeticDraft),
        Task("state", "People move and hand things over; where things and people are is asked.", StateDraft),
    )
}


def word_count(text: str) -> int:
    """Returns the number of words between white space."""
    return len(text.split())


def smallest_length(task: str, *, split: str, size: Callable[[str], int] | None = None) -> int:
    """Returns the smallest length that `examples` takes: half of a task's questions fit in it.

    Raises:
      ValueError: the task or the split is unknown.
    """
    _check(task, split)
    rng = Dice(f"{task}/{split}/smallest")
    sizes = [full_size(TASKS[task].draft(rng, split).finish(), size or word_count) for _ in range(_PROBES)]
    return median_low(sizes)


def examples(
    task: str,
    *,
    split: str,
    count: int,
    seed: int,
    length: int = 128,
    size: Callable[[str], int] | None = None,
) -> Iterator[Example]:
    """Draws a task's examples; the same arguments always draw the same ones, and a smaller count the first of them.

    Training and test examples have no people, things, places, keys and invented names in common, no operands of column
    problems and no copied sequences; they share the sentences' templates and the small numbers of word problems.

    Args:
      task: a name in `TASKS`.
      split: `train` or `test`.
      count: how many; 0 or more.
      seed: any integer.
      length: the size of prompt and answer together, in units of `size`: never more, and from about 100 words on
        seldom less than 85% of it. Near the smallest length, long questions do not fit and are not drawn.
      size: measures a text; a count of words if None. A tokenizer's beginning token is counted once.

    Raises:
      ValueError: the task or split is unknown, the count is negative, or the length is too small.
    """
    _check(task, split)
    size = size or word_count
    if count < 0:
        raise ValueError(f"count must be 0 or more; got {count}")
    smallest = smallest_length(task, split=split, size=size)
    if length < smallest:
        raise ValueError(f"length must be at least {smallest} for {task} examples of the {split} split; got {length}")
    rng = Dice(f"{task}/{split}/{seed}/{length}")
    return _draw(TASKS[task], split, rng, count, length, size)


def _draw(task: Task, split: str, rng: Dice, count: int, length: int, size: Callable[[str], int]) -> Iterator[Example]:
    drawn = 0
    while drawn < count:
        example = fill(task.draft(rng, split), length=length, size=size)
        if example is not None:
            drawn += 1
            yield example


def _check(task: str, split: str) -> None:
    if task not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}; got {task!r}")
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}; got {split!r}")
