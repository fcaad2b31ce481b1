"""RULER's tasks by name, and the draw of their examples."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

from eval.tasks.ruler.counting import CommonWordsDraft, FrequentWordsDraft
from eval.tasks.ruler.example import Draft, Example, fitted
from eval.tasks.ruler.needles import NEEDLES
from eval.tasks.ruler.passages import chosen_questions, drawn_questions
from eval.tasks.ruler.question_files import read_questions
from eval.tasks.ruler.tracking import TrackingDraft
from jax_smash.tasks.dice import Dice


@dataclasses.dataclass(frozen=True)
class RulerTask:
    """A task by its name.

    Attributes:
      description: what it asks.
      new_tokens: that the model writes.
      draft: begins an example from random draws and a length in tokens.
      reads_files: its questions may come from a file.
    """

    description: str
    new_tokens: int
    draft: Callable[[Dice, int], Draft]
    reads_files: bool = False


_NEEDLES = {
    "niah_single_1": "A number in a filler that repeats.",
    "niah_single_2": "A number in small stories.",
    "niah_single_3": "A UUID in small stories.",
    "niah_multikey_1": "One of four numbers in small stories.",
    "niah_multikey_2": "One of nothing but numbers.",
    "niah_multikey_3": "One of nothing but UUIDs of UUIDs.",
    "niah_multivalue": "All four numbers of a key.",
    "niah_multiquery": "The numbers of four keys.",
}
RULER: dict[str, RulerTask] = {
    **{name: RulerTask(told, 128, NEEDLES[name].draft) for name, told in _NEEDLES.items()},
    "vt": RulerTask("The variables that a value is handed on to.", 30, TrackingDraft),
    "cwe": RulerTask("The ten words that are most common in a list.", 120, CommonWordsDraft),
    "fwe": RulerTask("The three words that are most frequent in a coded text.", 50, FrequentWordsDraft),
    "qa_1": RulerTask(
        "A question on one of many documents.", 32, lambda rng, length: drawn_questions(rng, hops=1), reads_files=True
    ),
    "qa_2": RulerTask(
        "A question on two of many documents.", 32, lambda rng, length: drawn_questions(rng, hops=2), reads_files=True
    ),
}


def ruler_examples(
    task: str,
    *,
    count: int,
    length: int,
    seed: int,
    size: Callable[[str], int],
    spare: int = 0,
    path: Path | None = None,
) -> Iterator[Example]:
    """Draws a task's examples; the same arguments always draw the same ones, and a smaller count the first of them.

    Source: Hsieh et al. 2024, "RULER: What's the Real Context Size of Your Long-Context Language Models?", section 3.
    Differs: words, sentences and the texts that needles lie in are ours.

    Args:
      task: a name in `RULER`.
      count: examples, 1 or more; of a file, at most its questions.
      length: tokens of prompt, answer's beginning and new tokens together: never more, and with one more unit of
        haystack (a sentence, a word or a document) it would be more.
      seed: any integer.
      size: counts a text's tokens.
      spare: tokens that come on top, such as a chat template's.
      path: file of questions in SQuAD's or HotpotQA's form, for `qa_1` and `qa_2`; None draws them.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the task is unknown or reads no file, the file is malformed or has too few questions or too little
        text, the count is less than 1, or the length is too small for an example.
    """
    if task not in RULER:
        raise ValueError(f"task must be one of {', '.join(RULER)}; got {task!r}")
    if count < 1:
        raise ValueError(f"count must be at least 1; got {count}")
    drafts = _drafts(RULER[task], f"ruler/{task}/{seed}/{length}", count, length, path, task)

    def tokens(example: Example) -> int:
        return size(example.text) + RULER[task].new_tokens + spare

    return (fitted(draft, length=length, size=tokens, what=f"ruler-{task}") for draft in drafts)


def _drafts(kind: RulerTask, seed: str, count: int, length: int, path: Path | None, name: str) -> Iterator[Draft]:
    if path is None:
        return (kind.draft(Dice(f"{seed}/{number}"), length) for number in range(count))
    if not kind.reads_files:
        raise ValueError(f"{name} draws its examples; it reads none from {path}")
    questions = read_questions(path)
    if count > len(questions):
        raise ValueError(f"count must be at most {len(questions)}, the questions of {path}; got {count}")
    places = Dice(seed).several(range(len(questions)), count)
    return (chosen_questions(questions, Dice(f"{seed}/{number}"), place) for number, place in enumerate(places))
