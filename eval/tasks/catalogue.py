"""The tasks by name: what each asks, and where its examples come from."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from eval.tasks.babi import babi_sets
from eval.tasks.choice_formats import choice_set
from eval.tasks.documents import document_set
from eval.tasks.gsm8k import gsm8k_set
from eval.tasks.locations import location_set
from eval.tasks.outcome import TaskSet
from eval.tasks.recall import recall_set
from eval.tasks.ruler.catalogue import RULER as RULER_TASKS
from eval.tasks.ruler.measured import PREFIX, ruler_set
from eval.tasks.ruler.question_files import read_questions
from eval.tasks.variety import variety_set
from eval.tasks.wikitext import wikitext_set
from jax_smash.tasks import TASKS as RECALL

DATA = Path(__file__).parent / "data"
DRAWN = 100
"""Examples of a task that draws them, where no number is given."""

SHOTS = {"babi": 2, "gsm8k": 5}
"""Solved questions before each, where no number is given; the other tasks have none."""


@dataclasses.dataclass(frozen=True)
class TaskOptions:
    """What the examples depend on.

    Attributes:
      size: counts the tokens of a text.
      lengths: of drawn examples, in tokens.
      count: examples of a set, at most those of a file; None takes a file whole and draws 100.
      seed: of drawn examples.
      shots: solved questions before each; None takes the task's own number.
      chat: ask in the model's chat template, where the model writes the answer.
      max_new_tokens: of a GSM8K answer or a continuation of `variety`; None takes the task's own number.
      stride: new tokens of each window of a text longer than the context; None takes half a window.
      template: tokens of the chat template around a message, 0 outside chats.
    """

    size: Callable[[str], int]
    lengths: tuple[int, ...] = (128,)
    count: int | None = None
    seed: int = 0
    shots: int | None = None
    chat: bool = False
    max_new_tokens: int | None = None
    stride: int | None = None
    template: int = 0


@dataclasses.dataclass(frozen=True)
class Task:
    """A task by its name.

    Attributes:
      description: what it asks.
      sets: makes its examples from a source and options; a drawn task's source is empty.
      shipped: where a small set comes with the project; None where it does not; empty where examples are drawn.
      long: takes so long that `all` leaves it out.
      decoded: reads given text by steps of plain decoding.
      given: scores given text that is read as a prompt is.
      reads_files: examples may be given as data.
    """

    description: str
    sets: Callable[[str, TaskOptions], Sequence[TaskSet]]
    shipped: str | None = None
    long: bool = False
    decoded: bool = False
    given: bool = False
    reads_files: bool = True


def _recall(name: str) -> Task:
    def sets(source: str, options: TaskOptions) -> Sequence[TaskSet]:
        return [
            recall_set(
                name,
                count=DRAWN if options.count is None else options.count,
                length=length,
                seed=options.seed,
                size=options.size,
                chat=options.chat,
            )
            for length in options.lengths
        ]

    return Task(description=RECALL[name].description, sets=sets, shipped="", reads_files=False)


def _ruler(name: str) -> Task:
    def sets(source: str, options: TaskOptions) -> Sequence[TaskSet]:
        path = Path(source) if source else None
        count = options.count
        if count is None:
            count = DRAWN if path is None else len(read_questions(path))
        return [
            ruler_set(
                name,
                count=count,
                length=length,
                seed=options.seed,
                size=options.size,
                chat=options.chat,
                spare=options.template,
                path=path,
            )
            for length in options.lengths
        ]

    kind = RULER_TASKS[name]
    return Task(description=kind.description, sets=sets, shipped="", long=True, reads_files=kind.reads_files)


def _locations(source: str, options: TaskOptions) -> Sequence[TaskSet]:
    count = DRAWN if options.count is None else options.count
    return [location_set(count=count, length=n, seed=options.seed, size=options.size) for n in options.lengths]


def _choices(name: str, description: str) -> Task:
    def sets(source: str, options: TaskOptions) -> Sequence[TaskSet]:
        return [choice_set(name, source, count=options.count, shots=options.shots or 0)]

    return Task(description=description, sets=sets, shipped=_shipped(f"{name}.jsonl"), given=True)


def _babi(source: str, options: TaskOptions) -> Sequence[TaskSet]:
    shots = SHOTS["babi"] if options.shots is None else options.shots
    return babi_sets(Path(source), count=options.count, shots=shots, chat=options.chat)


def _gsm8k(source: str, options: TaskOptions) -> Sequence[TaskSet]:
    shots = SHOTS["gsm8k"] if options.shots is None else options.shots
    new = options.max_new_tokens
    return [gsm8k_set(source, count=options.count, shots=shots, chat=options.chat, max_new_tokens=new)]


def _perplexity(source: str, options: TaskOptions) -> Sequence[TaskSet]:
    return [document_set(source, count=options.count, stride=options.stride)]


def _decoded_perplexity(source: str, options: TaskOptions) -> Sequence[TaskSet]:
    found = document_set(source, count=options.count, stride=options.stride)
    return [dataclasses.replace(found, task="perplexity_decoded", decoded=True)]


def _wikitext(source: str, options: TaskOptions) -> Sequence[TaskSet]:
    return [wikitext_set(source, count=options.count, stride=options.stride)]


def _variety(source: str, options: TaskOptions) -> Sequence[TaskSet]:
    return [variety_set(source, count=options.count, chat=options.chat, max_new_tokens=options.max_new_tokens)]


def _shipped(name: str) -> str | None:
    return str(DATA / name) if (DATA / name).exists() else None


RULER = {f"{PREFIX}{name}": _ruler(name) for name in RULER_TASKS}
TASKS: dict[str, Task] = {
    **{name: _recall(name) for name in RECALL},
    **RULER,
    "babi": Task("Questions on stories of people, places and things.", _babi, _shipped("babi")),
    "gsm8k": Task("Word problems with worked answers.", _gsm8k, _shipped("gsm8k")),
    "perplexity": Task("Perplexity a token of held-out text.", _perplexity, _shipped("perplexity.jsonl"), given=True),
    "perplexity_decoded": Task(
        "Perplexity a token where each is read by a decode step.",
        _decoded_perplexity,
        _shipped("perplexity.jsonl"),
        long=True,
        decoded=True,
    ),
    "locations": Task(
        "A made-up place, told first, comes back at the end.",
        _locations,
        shipped="",
        long=True,
        decoded=True,
        reads_files=False,
    ),
    "wikitext": Task("Perplexity a token and a word of WikiText's articles.", _wikitext, given=True),
    "variety": Task("Whether continuations go in circles.", _variety, _shipped("variety.jsonl")),
    "piqa": _choices("piqa", "How things are done, two choices."),
    "arc_easy": _choices("arc_easy", "School science, the easy set."),
    "arc_challenge": _choices("arc_challenge", "School science, the hard set."),
    "openbookqa": _choices("openbookqa", "School science that takes a step of thought."),
    "winogrande": _choices("winogrande", "Whom or what a sentence means, two choices."),
    "hellaswag": _choices("hellaswag", "How a description goes on, four choices."),
}


def chosen_tasks(names: Sequence[str], data: dict[str, str]) -> dict[str, str]:
    """Returns where the examples of each chosen task come from, by task.

    Args:
      names: of tasks; `all` stands for every task whose examples are at hand, `recall` for the recall tasks, `ruler`
        for those of RULER; `all` leaves out what takes long.
      data: sources given by task.

    Raises:
      ValueError: a name is unknown, no task is chosen, or a task's examples neither come with the project nor are
        given.
    """
    wanted: list[str] = []
    for name in names:
        if name == "all":
            wanted += [n for n, task in TASKS.items() if (task.shipped is not None and not task.long) or n in data]
        elif name == "recall":
            wanted += RECALL
        elif name == "ruler":
            wanted += RULER
        else:
            wanted.append(name)
    for name in (*wanted, *data):
        if name not in TASKS:
            raise ValueError(f"task must be one of {', '.join(TASKS)}, recall, ruler, all; got {name!r}")
    if not wanted:
        raise ValueError("tasks must name at least one task; got none")
    for name in data:
        if name not in wanted:
            raise ValueError(f"data is given for {name}, which is not among the tasks {', '.join(wanted)}")
        if not TASKS[name].reads_files:
            raise ValueError(f"data is given for {name}, whose examples are drawn")
    sources = {}
    for name in wanted:
        shipped = TASKS[name].shipped
        if name not in data and shipped is None:
            raise ValueError(f"{name} does not come with the project: give --data {name}=FILE or {name}=OWNER/NAME")
        # Examples are named by their file, and names should not depend on where the project lies.
        sources[name] = data[name] if name in data else shipped and os.path.relpath(shipped)
    return {name: source or "" for name, source in sources.items()}
