"""Whether greedy text goes in circles: how many of its runs of four tokens differ.

Source: Welleck et al. 2020, Neural Text Generation with Unlikelihood Training, section 6: 1 − seq-rep-4.
"""

import dataclasses
from collections.abc import Sequence

from eval.scores.engine import Engine
from eval.scores.intervals import interval_of_mean
from eval.scores.paired import difference_of_means
from eval.tasks.outcome import Outcome, accuracy
from eval.tasks.records import front, read_records

RUN = 4
VARIED = 0.7
"""Least share of distinct runs of a text that is no loop."""

MAX_NEW_TOKENS = 128


@dataclasses.dataclass(frozen=True)
class Opening:
    """A prompt and what tells it apart."""

    name: str
    text: str


@dataclasses.dataclass(frozen=True)
class VarietySet:
    """Prompts whose greedy continuations are searched for repeats.

    Attributes:
      task: its name.
      openings: at least one, none empty.
      chat: ask in the model's chat template.
      max_new_tokens: of a continuation.
    """

    task: str
    openings: tuple[Opening, ...]
    chat: bool = False
    max_new_tokens: int = MAX_NEW_TOKENS

    def measure(self, engine: Engine) -> list[Outcome]:
        """Returns `varied`, the share of texts at least 0.7 of whose 4-grams differ, and the mean of their ratios.

        A continuation too short for a 4-gram has the ratio 0 and is counted. A stop token is left out. A prompt that
        does not fit loses tokens behind its beginning and is counted as truncated.

        Raises:
          ValueError: the context has no room for a continuation, or there is no chat template.
        """
        whole = [engine.prompt(opening.text, chat=self.chat) for opening in self.openings]
        prompts = [engine.fit(tokens, engine.context - self.max_new_tokens) for tokens in whole]
        completions = engine.continuations(prompts, max_new_tokens=self.max_new_tokens, what=self.task)
        written = [c.token_ids[: -1 if c.finish_reason == "stop_token" else None] for c in completions]
        ratios = [distinct_share(tokens) for tokens in written]
        examples = [
            {"example": o.name, "score": ratio, "new_tokens": len(tokens), "continuation": c.text}
            for o, ratio, tokens, c in zip(self.openings, ratios, written, completions, strict=True)
        ]
        settings = {"chat": self.chat, "max_new_tokens": self.max_new_tokens}
        more = {
            "truncated": sum(a is not b for a, b in zip(whole, prompts, strict=True)),
            "too_short": sum(len(tokens) < RUN for tokens in written),
            "new_tokens": sum(map(len, written)),
        }
        varied = [e | {"score": int(ratio >= VARIED)} for e, ratio in zip(examples, ratios, strict=True)]
        mean = Outcome(
            task=self.task,
            metric="distinct_4grams",
            settings=settings,
            n=len(ratios),
            score=sum(ratios) / len(ratios),
            interval=interval_of_mean(ratios),
            examples=examples,
            compare=difference_of_means,
            more=more,
        )
        return [accuracy(self.task, "varied", settings | {"least": VARIED}, varied, **more), mean]


def variety_set(source: str, *, count: int | None, chat: bool, max_new_tokens: int | None) -> VarietySet:
    """Returns the prompts of a file or hub data set, entries {"prompt": …}.

    Args:
      source: a file or a hub data set.
      count: prompts, from the front; None takes all.
      chat: ask in the model's chat template.
      max_new_tokens: of a continuation; None takes 128.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: an entry is malformed, which the message names, there are fewer than `count`, or `max_new_tokens` is
        too small for a 4-gram.
    """
    if max_new_tokens is not None and max_new_tokens < RUN:
        raise ValueError(f"max_new_tokens must be at least {RUN} for variety; got {max_new_tokens}")
    openings = []
    for record in front(read_records(source), count, source):
        text = record.text("prompt")
        if not text.strip():
            raise record.error(f"expected a prompt; got {text!r}")
        openings.append(Opening(name=record.where, text=text))
    new = max_new_tokens or MAX_NEW_TOKENS
    return VarietySet(task="variety", openings=tuple(openings), chat=chat, max_new_tokens=new)


def goes_in_circles(tokens: Sequence[int]) -> bool:
    """Returns whether a text repeats itself so much that any drafter guesses it; one without a 4-gram does not."""
    return len(tokens) >= RUN and distinct_share(tokens) < VARIED


def distinct_share(tokens: Sequence[int]) -> float:
    """Returns how many 4-grams of a text differ, over how many there are: 0 … 1; 0 where there is none."""
    runs = [tuple(tokens[i : i + RUN]) for i in range(len(tokens) - RUN + 1)]
    return len(set(runs)) / len(runs) if runs else 0.0
