"""RULER's examples asked of a model: greedy continuations, and the share of references in them."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from eval.scores.engine import Engine
from eval.tasks.outcome import Outcome, accuracy, mean_score
from eval.tasks.ruler.catalogue import RULER, ruler_examples
from eval.tasks.ruler.example import Example

METRIC = "contained"
PREFIX = "ruler-"
"""Before the names of the tasks in the catalogue."""


@dataclasses.dataclass(frozen=True)
class RulerSet:
    """Examples of one task and length.

    Attributes:
      task: its name in the catalogue, `ruler-…`.
      examples: at least one.
      length: tokens of prompt and new tokens together, at most.
      new_tokens: that the model writes of each, but for a stop token.
      seed: of the draw.
      chat: ask in the model's chat template, the answer's beginning behind it.
    """

    task: str
    examples: tuple[Example, ...]
    length: int
    new_tokens: int
    seed: int
    chat: bool = False

    def measure(self, engine: Engine) -> list[Outcome]:
        """Returns the mean share of references that a continuation holds, case aside, with every continuation.

        Raises:
          ValueError: the context is shorter than the examples, or there is no chat template.
        """
        if engine.context < self.length:
            raise ValueError(f"context must be at least {self.length}, the length of {self.task}; got {engine.context}")
        prompts = [self._prompt(engine, example) for example in self.examples]
        completions = engine.continuations(prompts, max_new_tokens=self.new_tokens, what=self.task)
        examples = [
            {
                "example": f"{self.task}/{self.length}/{self.seed}/{number}",
                "score": example.score(completion.text),
                "answer": list(example.references),
                "continuation": completion.text,
            }
            for number, (example, completion) in enumerate(zip(self.examples, completions, strict=True))
        ]
        settings = {
            "length": self.length,
            "seed": self.seed,
            "chat": self.chat,
            "max_new_tokens": self.new_tokens,
        }
        more = {"prompt_tokens": sum(map(len, prompts))}
        if all(example.any_reference or len(example.references) == 1 for example in self.examples):
            return [accuracy(self.task, METRIC, settings, examples, **more)]
        return [mean_score(self.task, METRIC, settings, examples, **more)]

    def mean_prompt(self, engine: Engine) -> int:
        """Returns the mean number of tokens that stand before an answer."""
        return round(sum(len(self._prompt(engine, example)) for example in self.examples) / len(self.examples))

    def _prompt(self, engine: Engine, example: Example) -> list[int]:
        if not self.chat:
            return engine.prompt(example.text)
        opened = engine.prompt(example.prompt, chat=True)
        return opened + engine.model.encode(example.prefix.lstrip())[len(engine.beginning) :]


def ruler_set(
    task: str,
    *,
    count: int,
    length: int,
    seed: int,
    size: Callable[[str], int],
    chat: bool = False,
    spare: int = 0,
    path: Path | None = None,
) -> RulerSet:
    """Draws a task's examples, as `ruler_examples` does, to be asked.

    Args:
      task: a name in `RULER`.
      count, length, seed, size, spare, path: as there.
      chat: ask in the model's chat template.

    Raises:
      FileNotFoundError, ValueError: as there.
    """
    drawn = ruler_examples(task, count=count, length=length, seed=seed, size=size, spare=spare, path=path)
    examples = tuple(drawn)
    new_tokens = RULER[task].new_tokens
    return RulerSet(f"{PREFIX}{task}", examples, length=length, new_tokens=new_tokens, seed=seed, chat=chat)
