"""Tasks whose answer the model writes: prompts, greedy continuations, a check of each."""

import dataclasses
from collections.abc import Callable
from typing import Any

from eval.scores.engine import Engine
from eval.tasks.outcome import Outcome, accuracy, mean_score
from eval.tasks.rouge import rouge_l

ACCURACY = "accuracy"

GRADES: dict[str, Callable[[str, str], float]] = {"rouge_l": rouge_l}
"""Metrics that say, from 0 to 1, how near a continuation comes to an answer: of the answer and the continuation."""

MARGIN = 8
"""Tokens that an answer may take beyond the longest right one."""


@dataclasses.dataclass(frozen=True)
class Question:
    """A prompt and what must follow it.

    Attributes:
      name: tells it apart.
      prompt: all text before the answer. Spaces at its end are the answer's: a tokenizer joins them to the next word.
      message: the user's turn of its chat form.
      answer: what is expected, as text.
      is_correct: whether a continuation answers it.
    """

    name: str
    prompt: str
    message: str
    answer: str
    is_correct: Callable[[str], bool]


@dataclasses.dataclass(frozen=True)
class QuestionSet:
    """Questions scored by the share of right continuations, or by how near continuations come to the answers.

    Attributes:
      task: its name.
      questions: at least one.
      settings: what the score depends on, for the row.
      chat: ask in the model's chat template.
      max_new_tokens: of a continuation; None lets it be a few tokens longer than the longest right answer.
      stop: strings that end a continuation.
      metric: `accuracy`, or one of `GRADES`.
    """

    task: str
    questions: tuple[Question, ...]
    settings: dict[str, Any]
    chat: bool = False
    max_new_tokens: int | None = None
    stop: tuple[str, ...] = ()
    metric: str = ACCURACY

    def measure(self, engine: Engine) -> list[Outcome]:
        """Returns the accuracy, or the mean grade, with every continuation.

        A prompt that does not fit beside its continuation loses tokens behind its beginning and is counted as
        truncated; it still counts.

        Raises:
          ValueError: the context has no room for a continuation, or there is no chat template.
        """
        limit = self.max_new_tokens or MARGIN + max(len(engine.model.encode(f" {q.answer}")) for q in self.questions)
        whole = [engine.prompt(q.message if self.chat else q.prompt, chat=self.chat) for q in self.questions]
        prompts = [engine.fit(tokens, engine.context - limit) for tokens in whole]
        completions = engine.continuations(prompts, max_new_tokens=limit, stop=self.stop, what=self.task)
        examples = [
            {
                "example": question.name,
                "score": self._score(question, completion.text),
                "answer": question.answer,
                "continuation": completion.text,
            }
            for question, completion in zip(self.questions, completions, strict=True)
        ]
        truncated = sum(map(len, whole)) - sum(map(len, prompts))
        settings = self.settings | {"chat": self.chat, "max_new_tokens": limit}
        outcome = accuracy if self.metric == ACCURACY else mean_score
        return [
            outcome(
                self.task,
                self.metric,
                settings,
                examples,
                truncated=sum(a is not b for a, b in zip(whole, prompts, strict=True)),
                truncated_tokens=truncated,
                prompt_tokens=sum(map(len, prompts)),
            )
        ]

    def _score(self, question: Question, continuation: str) -> float:
        if self.metric == ACCURACY:
            return int(question.is_correct(continuation))
        return GRADES[self.metric](question.answer, continuation)
