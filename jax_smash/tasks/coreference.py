"""Co-reference: a place name told once, in a lead about a person, is the last word of a sentence that ties back to it.

Training and tests share the templates; people, invented names and all words of the distractors differ.
"""

from dataclasses import dataclass

from jax_smash.tasks.dice import Dice
from jax_smash.tasks.draft import Draft
from jax_smash.tasks.example import Example
from jax_smash.tasks.story import NAMED, Cast, Story
from jax_smash.tasks.words import invented_name


@dataclass(frozen=True)
class Relation:
    """What ties a person to a place: ways to tell it, ways to come back to it, and a question about it."""

    leads: tuple[str, ...]
    ties: tuple[str, ...]
    question: str


RELATIONS = (
    Relation(
        (
            "{p} was born in {x}, far away from here.",
            "Once there was a {girl} named {p}, who was born in {x}.",
            "Long ago, in the town of {x}, {p} was born.",
        ),
        (
            "{p} never forgot the town where {he} was born. It was",
            "When people asked {p} where {he} was born, {he} always said: in",
            "One day {p} went back to the town where {he} was born,",
        ),
        "Where was {p} born?",
    ),
    Relation(
        (
            "{p} had a grandmother who lived in {x}.",
            "The grandmother of {p} lived in a place called {x}.",
            "{p} loved {his} grandmother. Her house was in {x}.",
        ),
        (
            "Every summer, {p} went to see {his} grandmother in",
            "{p} took the train to {his} grandmother. The train went to",
            "{p} missed {his} grandmother, so {he} sent a parcel to",
        ),
        "Where did the grandmother of {p} live?",
    ),
    Relation(
        (
            "One morning, {p} found a secret valley. It was called {x}.",
            "Behind the hills, {p} found a secret valley with the name {x}.",
        ),
        (
            "{p} told nobody about the secret valley. Its name was",
            "In the evening, {p} drew the secret valley and wrote its name:",
        ),
        "What was the secret valley of {p} called?",
    ),
    Relation(
        (
            "Each night, {p} dreamed of {x}, a city in the clouds.",
            "In {his} dreams, {p} lived in the city of {x}.",
        ),
        (
            "At night {p} closed {his} eyes and flew in {his} dream to",
            "The city in the dreams of {p} was called",
        ),
        "What was the city in the dreams of {p} called?",
    ),
    Relation(
        (
            "An old map told {p} that there was gold in {x}.",
            "{p} heard that gold was hidden in {x}.",
            '"The gold is in {x}," whispered an old man to {p}.',
        ),
        (
            "So {p} took a spade and went to look for the gold in",
            "{p} knew very well where the gold was. It was in",
        ),
        "Where was the gold that {p} looked for?",
    ),
    Relation(
        (
            "Last spring, {p} moved to a new house in {x}.",
            "{p} and {his} family left the old house and moved to {x}.",
        ),
        (
            "The new house of {p} was in",
            "{p} was tired and wanted to go home to the new house in",
            "A friend asked {p} where the new house was. {He} said it was in",
        ),
        "Where was the new house of {p}?",
    ),
    Relation(
        (
            "{p} sailed over the sea to an island named {x}.",
            "Far out at sea, {p} came to the island of {x}.",
        ),
        (
            "{p} wanted to sail once more to the island of",
            "The island that {p} had seen at sea was",
        ),
        "To which island did {p} sail?",
    ),
    Relation(
        (
            "{p} promised to carry a message to the king of {x}.",
            'The king of {x} wrote to {p}: "Please send me a message."',
        ),
        (
            "At last {p} carried the message to the king of",
            "{p} opened the door and asked for the way to the king of",
        ),
        "To the king of which place did {p} carry a message?",
    ),
)
ENDINGS = (".", ".", ".", " again.", ", and everyone was glad.")
_RIVAL = 1 / 3
_LEAD_FIRST = 1 / 3
_MOST_BEFORE = 4


class CoreferenceDraft(Draft):
    """A story in which a person is tied to an invented place name, once, near the beginning.

    Other invented names (animals, ships, people) stand in about a quarter of the distractors, also before the lead: a
    guess among the invented names is right in one of four cases at 128 words and in one of eleven at 400, the first of
    them in four of ten. In up to a third of the examples another person is tied in the same way to another place: then
    only the person tells which is asked for.

    Source: TokenButler, §4.2 (a contextual lead with a fictional location, distracting statements, a prelude that
    the location must follow).
    Differs: the lead names a person, may come after a few other sentences and may have a rival; distractors are small
    stories that hold other invented names.
    """

    def __init__(self, rng: Dice, split: str) -> None:
        super().__init__()
        self._rng = rng
        self._place = invented_name(rng, split)
        self._cast = Cast(rng, split)
        relation = rng.pick(RELATIONS)
        self._cast["x"] = self._place
        self._lead = rng.pick(relation.leads).format_map(self._cast)
        self._tie = rng.pick(relation.ties).format_map(self._cast)
        self._question = relation.question.format_map(self._cast)
        self._lead_at = 0 if rng.random() < _LEAD_FIRST else rng.number(1, _MOST_BEFORE)
        avoid: tuple[str, ...] = (self._place, self._cast["p"])
        self._rival = None
        if rng.random() < _RIVAL:
            rival = Cast(rng, split, avoid)
            rival["x"] = invented_name(rng, split, avoid)
            self._rival = " " + rng.pick(relation.leads).format_map(rival)
            avoid = (*avoid, rival["p"], rival["x"])
        self._story = Story(rng, split, avoid=avoid, hero=self._cast)

    def propose(self) -> str:
        if self._rival and self._rival not in self.units and self._rng.random() < 0.3:
            return self._rival
        # Another invented name often comes first, or the first one would be too good a guess.
        before_lead = len(self.units) < self._lead_at
        named = before_lead and self._rng.random() < 0.5
        sentence = self._story.sentence((NAMED,)) if named else self._story.sentence()
        return ("\n\n" if self._rng.random() < 0.1 else " ") + sentence

    def finish(self) -> Example:
        units = [*self.units]
        units.insert(min(self._lead_at, len(units)), " " + self._lead)
        context = "".join(units).strip()
        return Example(
            task="coreference",
            prompt=f"{context} {self._tie}",
            separator=" ",
            answer=self._place,
            rest=self._rng.pick(ENDINGS),
            question=f"{context}\n\n{self._question} Answer with one name.",
        )
