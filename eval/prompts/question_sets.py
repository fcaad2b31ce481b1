"""Questions by category, of one turn or several: a file of prompts, or Spec-Bench's."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from eval.tasks.records import Record, front, read_records
from jax_smash.loading import Model

SPEC_BENCH_TASKS = {
    "multi-turn": ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"),
    "translation": ("translation",),
    "summarization": ("summarization",),
    "qa": ("qa",),
    "math reasoning": ("math_reasoning",),
    "rag": ("rag",),
}
"""Spec-Bench's six tasks, by the categories that its file names. Those of multi-turn are MT-bench's.

Source: Xia et al. 2024, "Unlocking Efficiency in Large Language Model Inference", section 7.
"""

ROOM_BETWEEN_TURNS = 16
"""Tokens that a template may put around one more turn."""


@dataclasses.dataclass(frozen=True)
class Question:
    """What one user asks, turn by turn: at least one, and the category that it is reported under."""

    category: str
    turns: tuple[str, ...]


def read_questions(path: Path, *, count: int | None = None) -> list[Question]:
    """Returns the questions of a file.

    Args:
      path: one object a line, {"prompt": "…"} or {"turns": ["…", …]}, with or without a "category".
      count: questions to take, of each category in turn; None for all, in order.

    Raises:
      OSError: the file cannot be read.
      ValueError: a line is malformed, which the message names, or there are fewer questions.
    """
    questions = [_question(record, path.stem) for record in read_records(path)]
    return questions if count is None else list(front(_in_turn(questions), count, path))


def spec_bench_questions(path: Path, *, count: int | None = None, categories: bool = False) -> list[Question]:
    """Returns Spec-Bench's questions, each under the name of its task, or of its category.

    Args:
      path: its `question.jsonl`: {"question_id": …, "category": "…", "turns": ["…", …]} a line.
      count: of `read_questions`; of each task, or category, in turn.
      categories: each keeps the category that the file names, so that MT-bench's eight are told apart.

    Raises:
      OSError: the file cannot be read.
      ValueError: it is not Spec-Bench's.
    """
    tasks = {category: task for task, categories in SPEC_BENCH_TASKS.items() for category in categories}
    questions = read_questions(path)
    for question in questions:
        if question.category not in tasks:
            raise ValueError(f"{path} must have Spec-Bench's categories, {', '.join(tasks)}; got {question.category!r}")
    # By category first: a few questions of many are then of all kinds of a task.
    mixed = questions if count is None else _in_turn(questions)
    named = list(mixed) if categories else [dataclasses.replace(q, category=tasks[q.category]) for q in mixed]
    return named if count is None else list(front(_in_turn(named), count, path))


def by_task(questions: Sequence[Question]) -> dict[str, list[Question]]:
    """Returns the questions of each category, in the order in which categories first occur."""
    found: dict[str, list[Question]] = {}
    for question in questions:
        found.setdefault(question.category, []).append(question)
    return found


def fitting(
    model: Model, questions: Sequence[Question], *, max_new_tokens: int, chat: bool, longest: int | None = None
) -> tuple[list[Question], int]:
    """Returns the questions that fit the model's context with all their answers, and the slots that the longest needs.

    Args:
      model: whose tokenizer, chat template and context count.
      questions: to choose from.
      max_new_tokens: of each answer.
      chat: turns are put into the chat template.
      longest: tokens of a question's turns at most; by default the context alone is the limit.

    Raises:
      ValueError: none fits, or the model has no tokenizer or no template.
    """
    context = model.config.max_positions if model.config else 2**30
    extra = max_new_tokens + ROOM_BETWEEN_TURNS
    tokens = [sum(len(turn_tokens(model, [turn], [], chat=chat)) for turn in q.turns) for q in questions]
    needs = [n + extra * len(q.turns) for n, q in zip(tokens, questions, strict=True)]
    room = context if longest is None else longest
    kept = [(q, need) for q, n, need in zip(questions, tokens, needs, strict=True) if n <= room and need <= context]
    if not kept:
        limit = "" if longest is None else f"{longest} tokens and "
        raise ValueError(f"no question fits {limit}the model's context of {context} tokens with its answer")
    return [q for q, _ in kept], max(need for _, need in kept)


def turn_tokens(model: Model, turns: Sequence[str], answers: Sequence[str], *, chat: bool) -> list[int]:
    """Returns what the model reads before it answers the last of some turns.

    Args:
      model: whose tokenizer and chat template are used.
      turns: one more than there are answers.
      answers: of the turns before.
      chat: turns are put into the chat template; else turns and answers follow each other, a line each.

    Raises:
      ValueError: the model has no tokenizer or no template.
    """
    said = [text for pair in zip(turns, answers, strict=False) for text in pair] + [turns[-1]]
    if not chat:
        return model.encode("\n".join(said))
    return model.encode_chat([{"role": ("user", "assistant")[i % 2], "content": t} for i, t in enumerate(said)])


def _in_turn(questions: Sequence[Question]) -> list[Question]:
    """Returns questions so that each category has its turn, in the order in which categories first occur."""
    found = by_task(questions)
    longest = max(map(len, found.values()))
    return [mine[i] for i in range(longest) for mine in found.values() if i < len(mine)]


def _question(record: Record, stem: str) -> Question:
    category = record.text("category") if "category" in record.fields else stem
    if "turns" not in record.fields:
        turns = [record.text("prompt")]
    else:
        turns = record.fields["turns"]
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) and t.strip() for t in turns):
        raise record.error(f"expected one or more texts, none empty; got {str(turns)[:60]}")
    return Question(category=category, turns=tuple(turns))
