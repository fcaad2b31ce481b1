"""Perplexity of the first tokens of held-out texts, each read by a decode step."""

import dataclasses
import math

from eval.scores.engine import Engine
from eval.scores.intervals import ratio_bootstrap
from eval.scores.paired import difference_of_nats
from eval.tasks.documents import first
from eval.tasks.outcome import Outcome

TASK = "perplexity"


@dataclasses.dataclass(frozen=True)
class TextSet:
    """Texts scored by perplexity a token, all of a batch by one compiled loop.

    Attributes:
      names: tell the texts apart.
      texts: whose first tokens are scored.
      length: tokens of a text at most, its opening included.
      task: its name.
    """

    names: tuple[str, ...]
    texts: tuple[str, ...]
    length: int
    task: str = TASK

    def measure(self, engine: Engine) -> list[Outcome]:
        """Returns exp(nats / tokens) over all texts; every token is read by what a policy has left of those before.

        Raises:
          ValueError: a text is too short to score.
        """
        texts = [engine.encode_whole(text)[: self.length] for text in self.texts]
        for name, text in zip(self.names, texts, strict=True):
            if len(text) < 2:
                raise ValueError(f"{name} must have several tokens; got {len(text)}")
        opening = first(engine.opening)
        records = engine.log_probs(texts, what=self.task, decoded=True)
        nats = [-sum(one.log_prob for one in record[opening - 1 :]) for record in records]
        tokens = [len(text) - opening for text in texts]
        interval = ratio_bootstrap(nats, tokens)
        if interval:
            interval = dataclasses.replace(interval, low=math.exp(interval.low), high=math.exp(interval.high))
        return [
            Outcome(
                task=self.task,
                metric="perplexity",
                settings={"length": self.length},
                n=len(texts),
                score=math.exp(sum(nats) / sum(tokens)),
                interval=interval,
                examples=[
                    {"example": name, "score": math.exp(n / size), "nats": n, "tokens": size}
                    for name, n, size in zip(self.names, nats, tokens, strict=True)
                ],
                compare=difference_of_nats,
                more={"tokens": sum(tokens)},
            )
        ]
