"""The library's recall tasks as questions, at lengths in the model's own tokens."""

from collections.abc import Callable

from eval.tasks.questions import Question, QuestionSet
from jax_smash.tasks import examples


def recall_set(task: str, *, count: int, length: int, seed: int, size: Callable[[str], int], chat: bool) -> QuestionSet:
    """Draws a recall task's test questions. Outside chats an answer ends with its line: a model then asks the next.

    Args:
      task: a name in `jax_smash.tasks.TASKS`.
      count: questions.
      length: tokens of prompt and answer together, at most.
      seed: of the draw.
      size: counts a text's tokens.
      chat: ask in the model's chat template.

    Raises:
      ValueError: the task is unknown or the length too small for it.
    """
    drawn = examples(task, split="test", count=count, seed=seed, length=length, size=size)
    questions = tuple(
        Question(
            name=f"{task}/{length}/{seed}/{i}",
            prompt=example.prompt + example.separator,
            message=example.messages[0]["content"],
            answer=example.answer,
            is_correct=example.is_correct,
        )
        for i, example in enumerate(drawn)
    )
    settings, stop = {"length": length, "seed": seed}, () if chat else ("\n",)
    return QuestionSet(task=task, questions=questions, settings=settings, chat=chat, stop=stop)
