"""Prompts by task: what every contender of a comparison continues."""

import dataclasses
from collections.abc import Iterator, Sequence

from eval.drafting.acceptance_runs import Asking
from eval.prompts.question_sets import Question, by_task, fitting
from jax_smash.methods import Method
from jax_smash.shapes import bucket


@dataclasses.dataclass(frozen=True)
class Task:
    """Prompts of one kind.

    Attributes:
      name: of the task.
      prompts: tokens of each. That of a later turn holds plain decoding's answers to the turns before it.
      too_long: questions that were left out for their length.
      in_circles: prompts left out for an answer that goes in circles, which any drafter guesses.
      too_short: prompts left out for an answer of one token, which no forward decodes.
    """

    name: str
    prompts: list[list[int]]
    too_long: int = 0
    in_circles: int = 0
    too_short: int = 0


def task_prompts(
    asking: Asking, plain: Method, questions: Sequence[Question], *, count: int, longest: int | None = None
) -> Iterator[Task]:
    """Yields each task, in the order in which the questions name them, with as many of the prompts asked for as it has.

    Args:
      asking: answers the questions; what it answers together is of one task.
      plain: plain decoding.
      questions: of all tasks.
      count: prompts of a task at most.
      longest: tokens of a question's turns at most; None where the context alone is the limit.

    Raises:
      ValueError: no prompt of a task is left, or no question fits at all.
    """
    kept, need = fitting(
        asking.model, questions, max_new_tokens=asking.max_new_tokens, chat=asking.chat, longest=longest
    )
    context = asking.model.config.max_positions if asking.model.config else need
    asking = dataclasses.replace(asking, slots=min(bucket(need, least=64), context))
    usable = by_task(kept)
    for name, mine in by_task(questions).items():
        task = _task(asking, plain, name, usable.get(name, []), count=count)
        task = dataclasses.replace(task, too_long=len(mine) - len(usable.get(name, [])))
        if not task.prompts:
            raise ValueError(
                f"no prompt of {name} is left: of {len(mine)} questions {task.too_long} are too long, "
                f"{task.in_circles} answers go in circles, {task.too_short} have one token"
            )
        yield task


def _task(asking: Asking, plain: Method, name: str, questions: Sequence[Question], *, count: int) -> Task:
    prompts: list[list[int]] = []
    in_circles = too_short = 0
    for first in range(0, len(questions), asking.batch_size):
        if len(prompts) >= count:
            break
        for answer in asking.answers(plain, questions[first : first + asking.batch_size])[0]:
            in_circles += answer.degenerate
            too_short += not answer.forwards
            if answer.forwards and not answer.degenerate:
                prompts.append(answer.prompt)
    return Task(name=name, prompts=prompts[:count], in_circles=in_circles, too_short=too_short)
