"""Word problems in GSM8K's format: a question, a worked answer, `#### N` at its end.

Source: Cobbe et al. 2021, Training Verifiers to Solve Math Word Problems.
"""

import re
from decimal import Decimal
from pathlib import Path

from eval.tasks.questions import Question, QuestionSet
from eval.tasks.records import Record, front, read_records

STOP = ("\nQuestion:",)
MAX_NEW_TOKENS = 256
_NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?")
_MARKED = re.compile(rf"####\s*({_NUMBER.pattern})")


def gsm8k_set(source: str, *, count: int | None, shots: int, chat: bool, max_new_tokens: int | None) -> QuestionSet:
    """Returns the questions of a file.

    Args:
      source: a JSON-lines file, a folder with `test.jsonl`, or a hub data set.
      count: questions, from the front; None takes all.
      shots: solved questions before each, from the front of `train.jsonl` beside the file, else from the file's own
        front, which are then not asked. Their answers stand as they are in the data, calculator marks included.
      chat: ask in the model's chat template.
      max_new_tokens: of a worked answer; None takes 256.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: an entry is malformed, which the message names, or fewer than `count` are left to ask.
    """
    path = Path(source)
    path = path / "test.jsonl" if path.is_dir() else path
    asked = read_records(path if path.exists() else source)
    training = path.with_name("train.jsonl")
    if path.exists() and training.exists() and training != path:
        solved = read_records(training)[:shots]
    else:
        solved, asked = asked[:shots], asked[shots:]
    if not asked or len(solved) < shots:
        raise ValueError(f"{source} must have questions beside {shots} solved ones; got {len(asked) + len(solved)}")
    before = "".join(f"{_prompt(r)} {r.text('answer')}\n\n" for r in solved)
    return QuestionSet(
        task="gsm8k",
        questions=tuple(_question(record, before) for record in front(asked, count, source)),
        settings={"shots": shots},
        chat=chat,
        max_new_tokens=max_new_tokens or MAX_NEW_TOKENS,
        stop=STOP,
    )


def final_number(text: str) -> Decimal | None:
    """Returns the number after the first `####`, or the last number where there is no such mark; None without one."""
    marked = _MARKED.search(text)
    numbers = [marked[1]] if marked else _NUMBER.findall(text)
    return Decimal(re.sub(r"[$,]", "", numbers[-1])) if numbers else None


def _prompt(record: Record) -> str:
    return f"Question: {record.text('question').strip()}\nAnswer:"


def _question(record: Record, before: str) -> Question:
    marked = _MARKED.search(record.text("answer"))
    if not marked:
        raise record.error('expected an "answer" that ends in "#### N"; there is no such mark')
    expected, prompt = final_number(marked[0]), before + _prompt(record)

    def is_correct(continuation: str) -> bool:
        return final_number(continuation) == expected

    return Question(name=record.where, prompt=prompt, message=prompt, answer=str(expected), is_correct=is_correct)
