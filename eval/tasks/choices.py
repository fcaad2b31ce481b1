"""Multiple choice by log-likelihood: the choice that the model finds likeliest behind its context."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from eval.scores.engine import Engine, Pair
from eval.tasks.outcome import Outcome, accuracy


@dataclasses.dataclass(frozen=True)
class Choice:
    """A question with several continuations, one of them right.

    Attributes:
      name: tells it apart.
      contexts: text before each continuation.
      continuations: as many; each begins with the white space that sets it apart from its context.
      right: index of the right one.
    """

    name: str
    contexts: tuple[str, ...]
    continuations: tuple[str, ...]
    right: int

    @property
    def partial(self) -> bool:
        """Whether the contexts differ and one continuation is scored behind each of them."""
        return len(set(self.continuations)) == 1


@dataclasses.dataclass(frozen=True)
class ChoiceSet:
    """Questions scored by the share whose right choice is the likeliest.

    Attributes:
      task: its name.
      choices: at least one.
      settings: what the score depends on, for the row.
    """

    task: str
    choices: tuple[Choice, ...]
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)

    def measure(self, engine: Engine) -> list[Outcome]:
        """Returns `acc`, by a choice's log-likelihood, and `acc_norm`, by log-likelihood a character of the choice.

        The space between context and choice is scored and is no character of the choice, as in lm-evaluation-harness.
        `acc_norm` is left out where all choices of a question share one continuation: it would be the same. The first
        of equally likely choices is chosen. A context that does not fit loses tokens behind its beginning, and its
        question is counted as truncated.
        """
        pairs = [[engine.pair(a, b) for a, b in zip(c.contexts, c.continuations, strict=True)] for c in self.choices]
        flat = [pair for question in pairs for pair in question]
        totals = iter(log_likelihoods(engine, flat, what=self.task))
        likelihoods = [[next(totals)[0] for _ in question] for question in pairs]
        truncated = sum(any(len(p.tokens) > engine.context for p in question) for question in pairs)
        outcomes = [self._outcome("acc", likelihoods, truncated)]
        if not all(choice.partial for choice in self.choices):
            by_character = [
                [value / len(text.removeprefix(" ")) for value, text in zip(values, choice.continuations, strict=True)]
                for values, choice in zip(likelihoods, self.choices, strict=True)
            ]
            outcomes.append(self._outcome("acc_norm", by_character, truncated))
        return outcomes

    def _outcome(self, metric: str, values: Sequence[Sequence[float]], truncated: int) -> Outcome:
        examples = []
        for choice, value in zip(self.choices, values, strict=True):
            chosen = max(range(len(value)), key=value.__getitem__)
            score = int(chosen == choice.right)
            examples.append(
                {"example": choice.name, "score": score, "chosen": chosen, "right": choice.right, "values": list(value)}
            )
        chance = sum(1 / len(choice.contexts) for choice in self.choices) / len(self.choices)
        return accuracy(self.task, metric, self.settings, examples, truncated=truncated, chance=chance)


def log_likelihoods(engine: Engine, pairs: Sequence[Pair], *, what: str) -> list[tuple[float, bool]]:
    """Returns the log-likelihood of each pair's continuation in nats, and whether it is what greedy decoding writes.

    Raises:
      ValueError: a continuation alone fills the context.
    """
    for pair in pairs:
        if pair.scored >= engine.context:
            raise ValueError(f"a continuation of {pair.scored} tokens fills the context of {engine.context}")
    texts = [engine.fit(pair.tokens, engine.context) for pair in pairs]
    records = engine.log_probs(texts, what=what, scored=[pair.scored for pair in pairs])
    found = []
    for pair, record in zip(pairs, records, strict=True):
        scored = record[len(record) - pair.scored :]
        found.append((sum(r.log_prob for r in scored), all(r.top[0][0] == r.token for r in scored)))
    return found
