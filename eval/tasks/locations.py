"""A made-up place, told in the first sentence, must come back at the end of a text that is decoded token by token."""

import dataclasses
from collections.abc import Callable, Iterator

from eval.scores.engine import Engine
from eval.tasks.outcome import Outcome, accuracy, mean_score
from jax_smash.tasks.coreference import RELATIONS
from jax_smash.tasks.dice import Dice
from jax_smash.tasks.draft import Draft, fill, full_size
from jax_smash.tasks.example import Example
from jax_smash.tasks.story import FOOD, THOUGHTS, Cast
from jax_smash.tasks.words import invented_name

TASK = "locations"
SPLIT = "test"
WORKED = (
    "{n} {thing}s and {m} {thing}s are {total} {thing}s.",
    "{p} has {n} {thing}s and finds {m} more, which makes {total}.",
    "If {n} of {total} {thing}s are sold, {m} are left.",
    "Add {n} to {m}, and you get {total}.",
)
DISTRACTORS = (THOUGHTS, FOOD, WORKED)


@dataclasses.dataclass(frozen=True)
class Location:
    """A text up to the place where a location must stand.

    Attributes:
      name: tells it apart.
      prompt: ends without white space.
      answer: the location.
    """

    name: str
    prompt: str
    answer: str


class LocationDraft(Draft):
    """A lead that tells the place, thoughts, food and sums in turn, and a prelude that the place must follow.

    No other invented name stands in the text. A thought, a sentence on food and a sum are always there.
    """

    def __init__(self, rng: Dice) -> None:
        super().__init__()
        self._rng, self._place = rng, invented_name(rng, SPLIT)
        relation, hero = rng.pick(RELATIONS), Cast(rng, SPLIT)
        hero["x"] = self._place
        self._lead = rng.pick(relation.leads).format_map(hero)
        self._prelude = rng.pick(relation.ties).format_map(hero)
        self._avoid = (self._place, hero["p"])
        for _ in DISTRACTORS:
            self.keep(self.propose())

    def propose(self) -> str:
        """Returns a sentence of the next kind in turn."""
        rng = self._rng
        cast = Cast(rng, SPLIT, self._avoid)
        n, m = rng.number(2, 40), rng.number(2, 40)
        cast.update(n=str(n), m=str(m), total=str(n + m))
        return " " + rng.pick(DISTRACTORS[len(self.units) % len(DISTRACTORS)]).format_map(cast)

    def finish(self) -> Example:
        """Returns the text with the sentences kept so far."""
        prompt = f"{self._lead}{''.join(self.units)} {self._prelude}"
        return Example(task=TASK, prompt=prompt, separator=" ", answer=self._place)


@dataclasses.dataclass(frozen=True)
class LocationSet:
    """Texts scored by the tokens of their locations.

    Attributes:
      locations: at least one.
      length: tokens of a text, the location included, at most.
      seed: of the draw.
      task: its name.
    """

    locations: tuple[Location, ...]
    length: int
    seed: int
    task: str = TASK

    def measure(self, engine: Engine) -> list[Outcome]:
        """Returns accuracy, the share of locations all of whose tokens are likeliest, and coverage, their mean share.

        The whole text is read by steps of plain decoding, and each token of a location is predicted behind the true
        ones before it. All of them are likeliest exactly where greedy decoding would write the location.

        Raises:
          ValueError: the context is shorter than the texts.
        """
        if engine.context < self.length:
            raise ValueError(f"context must be at least {self.length}, the length of {TASK}; got {engine.context}")
        pairs = [engine.pair(location.prompt, f" {location.answer}") for location in self.locations]
        records = engine.log_probs([pair.tokens for pair in pairs], what=TASK, decoded=True)
        examples = []
        for location, pair, record in zip(self.locations, pairs, records, strict=True):
            asked = record[len(record) - pair.scored :]
            right = sum(one.top[0][0] == one.token for one in asked)
            examples.append({"example": location.name, "score": right / len(asked), "answer": location.answer})
        whole = [example | {"score": int(example["score"] == 1)} for example in examples]
        settings = {"length": self.length, "seed": self.seed}
        more = {"location_tokens": sum(pair.scored for pair in pairs)}
        coverage = mean_score(TASK, "coverage", settings, examples, **more)
        return [accuracy(TASK, "accuracy", settings, whole, **more), coverage]


def location_set(*, count: int, length: int, seed: int, size: Callable[[str], int]) -> LocationSet:
    """Draws texts; the same arguments always draw the same ones, and a smaller count the first of them.

    Source: TokenButler, section 4.2 and appendix E.2: a contextual lead with its location, philosophical, culinary and
    mathematical statements, a prelude that the location must follow; 100 texts of fewer than 512 tokens.
    Differs: sentences are ours and drawn by rule, and there are as many statements as the length takes.

    Args:
      count: texts, 1 or more.
      length: tokens of a text, the location included, at most; seldom less than 85% of it.
      seed: any integer.
      size: counts a text's tokens.

    Raises:
      ValueError: the count is less than 1, or the length too small.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1; got {count}")
    drafts = [LocationDraft(Dice(f"{TASK}/{seed}/{length}/{number}")) for number in range(count)]
    longest = max(full_size(draft.finish(), size) for draft in drafts)
    if longest > length:
        raise ValueError(f"length must be at least {longest} for these texts of {TASK}; got {length}")
    drawn = (fill(draft, length=length, size=size) for draft in drafts)
    names = (f"{TASK}/{length}/{seed}/{number}" for number in range(count))
    return LocationSet(tuple(_locations(names, drawn)), length=length, seed=seed)


def _locations(names: Iterator[str], drawn: Iterator[Example | None]) -> Iterator[Location]:
    for name, example in zip(names, drawn, strict=True):
        assert example is not None
        yield Location(name=name, prompt=example.prompt, answer=example.answer)
