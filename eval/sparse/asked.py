"""The tasks of a comparison by name: their examples, how their texts are read, and how long these are."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from eval.scores.engine import Engine
from eval.sparse.arms import DENSE, STEPWISE
from eval.sparse.choice_recall import TASK as RECALL
from eval.sparse.choice_recall import RecallSet
from eval.sparse.long_paths import path_set
from eval.sparse.texts import TASK as PERPLEXITY
from eval.sparse.texts import TextSet
from eval.tasks.catalogue import TASKS, TaskOptions
from eval.tasks.choice_formats import FORMATS
from eval.tasks.choices import ChoiceSet
from eval.tasks.documents import document_set
from eval.tasks.locations import TASK as LOCATIONS
from eval.tasks.outcome import TaskSet
from eval.tasks.questions import QuestionSet
from eval.tasks.ruler.catalogue import RULER
from eval.tasks.ruler.measured import PREFIX, RulerSet

PATH = "path"
ASKED_PREFIX = "ruler_"
BY_STEPS = (PERPLEXITY, LOCATIONS)
"""Tasks whose whole text is decoded, whatever the protocol."""

NAMES = (PERPLEXITY, RECALL, LOCATIONS, *FORMATS, *(f"{ASKED_PREFIX}{name}" for name in RULER))


@dataclasses.dataclass(frozen=True)
class Drawn:
    """What the examples of tasks depend on.

    Attributes:
      size: counts the tokens of a text.
      count: examples of a task.
      length: tokens of a text of perplexity, recall and locations.
      ruler_length: of one of RULER, new tokens included.
      new_tokens: that the model writes; None takes the task's own number.
      seed: of drawn examples.
      shots: solved questions before each of multiple choice.
    """

    size: Callable[[str], int]
    count: int
    length: int
    ruler_length: int
    new_tokens: int | None
    seed: int
    shots: int = 0


@dataclasses.dataclass(frozen=True)
class Task:
    """A task of a comparison.

    Attributes:
      name: as it was asked for.
      sets: makes its examples for a share of bytes; only those of recall depend on it.
      length: slots of a row for which bytes are counted, by an engine that knows the tokens.
      prompt: the mean tokens that stand before an answer, likewise, where the model writes answers; None elsewhere.
    """

    name: str
    sets: Callable[[float], TaskSet]
    length: Callable[[Engine], int]
    prompt: Callable[[Engine], int] | None = None

    @property
    def told(self) -> str:
        """The name without the folders of its file."""
        task, colon, source = self.name.partition(":")
        return task + colon + Path(source).name

    @property
    def by_share(self) -> bool:
        """Whether the examples depend on the share of bytes."""
        return self.name.partition(":")[0] == RECALL

    @property
    def written(self) -> bool:
        """Whether the model writes answers, of which no tokens are given."""
        return self.prompt is not None

    def protocol(self, asked: str) -> str:
        """Returns how its prompts are read where the run asks for a protocol."""
        return STEPWISE if self.name.partition(":")[0] in BY_STEPS else asked


def check_task(name: str) -> None:
    """Refuses a task that there is not.

    Raises:
      ValueError: it is unknown, or needs a file that is not named.
      FileNotFoundError: its file does not exist.
    """
    task, _, source = name.partition(":")
    if task == PATH and not source:
        raise ValueError("path must name its file, as in path:FILE")
    if task != PATH and task not in NAMES:
        raise ValueError(f"tasks must be of {', '.join(NAMES)} or path:FILE; got {name!r}")
    if source and not Path(source).exists():
        raise FileNotFoundError(f"data file does not exist: {source}")
    if source and task != PATH and not TASKS[_known(task)].reads_files:
        raise ValueError(f"a file is given for {task}, whose examples are drawn")
    if not source and task != PATH and TASKS[_known(task)].shipped is None:
        raise ValueError(f"{task} does not come with the project: name its file, as in {task}:FILE")


def given_length(name: str, drawn: Drawn) -> int | None:
    """Returns the length of a task's texts where the options give it; None where its examples have their own."""
    task = name.partition(":")[0]
    if task.startswith(ASKED_PREFIX):
        return drawn.ruler_length
    return drawn.length if task in (PERPLEXITY, RECALL, LOCATIONS) else None


def read_task(name: str, drawn: Drawn) -> Task:
    """Returns a task with its examples.

    Raises:
      ValueError: an example is malformed, there are too few, or the length is too small for one.
      OSError: a file cannot be read.
    """
    task, _, source = name.partition(":")
    length = given_length(name, drawn)
    if task == PATH:
        found: Any = path_set(Path(source), count=drawn.count, new_tokens=drawn.new_tokens)
        new = found.max_new_tokens or 0
        whole = functools.partial(_mean_length, found)
        return Task(name, lambda share: found, whole, lambda engine: whole(engine) - new)
    if task in (PERPLEXITY, RECALL):
        documents = document_set(source or TASKS[PERPLEXITY].shipped or "", count=drawn.count).documents
        told = tuple(d.name for d in documents), tuple(d.text for d in documents)
        if task == RECALL:
            return Task(name, lambda share: RecallSet(*told, drawn.length, share), lambda engine: drawn.length)
        texts = TextSet(*told, drawn.length)
        return Task(name, lambda share: texts, lambda engine: _longest(texts, engine))
    options = TaskOptions(
        size=drawn.size, lengths=(length or drawn.length,), count=drawn.count, seed=drawn.seed, shots=drawn.shots
    )
    (made,) = TASKS[_known(task)].sets(source or TASKS[_known(task)].shipped or "", options)
    if isinstance(made, RulerSet) and drawn.new_tokens is not None:
        made = dataclasses.replace(made, new_tokens=drawn.new_tokens)
    if length is None:
        return Task(name, lambda share: made, lambda engine: _mean_length(made, engine))
    prompt = made.mean_prompt if isinstance(made, RulerSet) else None
    return Task(name, lambda share: made, lambda engine: length, prompt)


def protocols_of(tasks: Sequence[str], asked: str) -> set[str]:
    """Returns how the prompts of some tasks are read."""
    return {STEPWISE if task.partition(":")[0] in BY_STEPS else asked for task in tasks} or {DENSE}


def _known(task: str) -> str:
    """Returns a task's name in the catalogue of `eval.tasks`."""
    if task == RECALL:
        return PERPLEXITY
    return PREFIX + task.removeprefix(ASKED_PREFIX) if task.startswith(ASKED_PREFIX) else task


def _longest(texts: TextSet, engine: Engine) -> int:
    return max(min(len(engine.encode_whole(text)), texts.length) for text in texts.texts)


def _mean_length(made: Any, engine: Engine) -> int:
    """Returns the mean number of tokens of texts with what is written or scored behind them."""
    if isinstance(made, ChoiceSet):
        sizes = [
            len(engine.pair(a, b).tokens)
            for c in made.choices
            for a, b in zip(c.contexts, c.continuations, strict=True)
        ]
        return round(sum(sizes) / len(sizes))
    assert isinstance(made, QuestionSet)
    new = made.max_new_tokens or 0
    sizes = [min(len(engine.prompt(q.prompt)) + new, engine.context) for q in made.questions]
    return round(sum(sizes) / len(sizes))
