"""Long prompts from a file, each with an answer that the continuation must hold, or come near to."""

import functools
from pathlib import Path

from eval.sparse.meetings import asked, is_meeting
from eval.tasks.questions import ACCURACY, GRADES, Question, QuestionSet
from eval.tasks.records import front, read_records

NEW_TOKENS = 64


def path_set(path: Path, *, count: int | None, new_tokens: int | None = None) -> QuestionSet:
    """Returns the prompts of a file, right where the greedy continuation holds the answer, case aside.

    Where the records say `"metric": "rouge_l"`, as for summaries, a continuation is graded by `rouge_l` instead. A
    meeting of QMSum gives such a record for each of its queries.

    Args:
      path: file of one {"context": …, "answer": …} a line, all of them with the same `metric` or without, or of a
        meeting a line.
      count: prompts, from the front; None takes all.
      new_tokens: that the model writes; None for 64.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: an entry is malformed, which the message names, or there are fewer than `count`.
    """
    questions: list[Question] = []
    metrics: set[str] = set()
    records = [one for record in read_records(path) for one in (asked(record) if is_meeting(record) else [record])]
    for record in front(records, count, path):
        context, answer = record.text("context"), record.text("answer")
        if not context.strip() or not answer.strip():
            raise record.error("expected a context and an answer that are not empty")
        metric = record.fields.get("metric", ACCURACY)
        if metric not in (ACCURACY, *GRADES) or metric not in (metrics or {metric}):
            known = " or ".join((ACCURACY, *GRADES))
            raise record.error(f"metric must be {known}, the same in all records; got {metric!r}")
        metrics.add(metric)
        holds = functools.partial(_holds, answer)
        questions.append(Question(record.where, prompt=context, message=context, answer=answer, is_correct=holds))
    return QuestionSet(
        task=f"path:{path.name}",
        questions=tuple(questions),
        settings={"file": path.name},
        max_new_tokens=new_tokens or NEW_TOKENS,
        metric=metrics.pop(),
    )


def _holds(answer: str, continuation: str) -> bool:
    return answer.casefold() in continuation.casefold()
