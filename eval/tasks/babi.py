"""bAbI's files: numbered lines of a story, questions among them with tab, answer and supporting lines.

Source: Weston et al. 2015, Towards AI-Complete Question Answering: A Set of Prerequisite Toy Tasks.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from eval.tasks.questions import Question, QuestionSet
from eval.tasks.records import front, read_lines

_LINE = re.compile(r"(\d+) (.*)")


def babi_sets(source: Path, *, count: int | None, shots: int, chat: bool) -> list[QuestionSet]:
    """Returns a set for each file of questions.

    Args:
      source: a file, or a folder whose files that end in `_test.txt` are taken.
      count: questions of each file, from its front; None takes all.
      shots: solved questions before each, from `…_train.txt` beside a `…_test.txt`, else from the file's own front,
        which are then not asked.
      chat: ask in the model's chat template.

    Raises:
      FileNotFoundError: there is no such file, or none in the folder.
      ValueError: a line is malformed, which the message names, or fewer than `count` are left to ask.
    """
    # qa2 before qa11.
    found = sorted(source.glob("*_test.txt"), key=lambda p: [int(n) for n in re.findall(r"\d+", p.name)])
    files = found if source.is_dir() else [source]
    if not files or not files[0].exists():
        raise FileNotFoundError(f"bAbI needs a file, or a folder of files *_test.txt; got {source}")
    return [_set(file, count=count, shots=shots, chat=chat) for file in files]


def read_babi(path: Path) -> list[tuple[str, str, str]]:
    """Returns where each question of a file stands, its story with the question, and its answer.

    A story holds the statements before the question, earlier questions left out.

    Raises:
      ValueError: a line is malformed, which the message names.
    """
    return list(_questions(path))


def _questions(path: Path) -> Iterator[tuple[str, str, str]]:
    story: list[str] = []
    for number, line in read_lines(path):
        where = f"{path}, line {number}"
        found = _LINE.fullmatch(line)
        if not found:
            raise ValueError(f'{where}: expected a number and a sentence; got "{line[:60]}"')
        text, *answer = found[2].split("\t")
        if int(found[1]) == 1:
            story = []
        if not answer:
            story.append(text.strip())
        elif not text.strip().endswith("?") or not answer[0].strip():
            raise ValueError(f'{where}: expected a question, a tab and its answer; got "{line[:60]}"')
        else:
            yield where, f"{' '.join(story)}\nQuestion: {text.strip()}\nAnswer:", answer[0].strip()


def _set(path: Path, *, count: int | None, shots: int, chat: bool) -> QuestionSet:
    asked = read_babi(path)
    training = path.with_name(path.name.replace("_test.txt", "_train.txt"))
    if training != path and training.exists():
        solved = read_babi(training)[:shots]
    else:
        solved, asked = asked[:shots], asked[shots:]
    if not asked or len(solved) < shots:
        raise ValueError(f"{path} must have questions beside {shots} solved ones; got {len(asked) + len(solved)}")
    before = "".join(f"{text} {answer}\n\n" for _, text, answer in solved)
    questions = tuple(_question(where, before + text, answer) for where, text, answer in front(asked, count, path))
    # The story after the next one would begin behind an empty line.
    return QuestionSet(
        task="babi", questions=questions, settings={"file": path.name, "shots": shots}, chat=chat, stop=("\n",)
    )


def _question(where: str, prompt: str, answer: str) -> Question:
    def is_correct(continuation: str) -> bool:
        """The first line is the answer, case and a full stop aside."""
        return continuation.strip().split("\n")[0].strip(" .").casefold() == answer.casefold()

    return Question(name=where, prompt=prompt, message=prompt, answer=answer, is_correct=is_correct)
