"""Sentences in the English of small stories that lead away from the question."""

from collections.abc import Callable, Sequence

from jax_smash.tasks.dice import Dice
from jax_smash.tasks.words import WORDS, invented_name

DAILY = (
    "{p} had a {adj} {thing}.",
    "{p} went to the {place} with {q}.",
    "{p} and {q} played with a {adj} {thing} all day.",
    "In the {place}, {p} saw a {animal} and a {animal2}.",
    "{p} lost {his} {thing} near the {place}.",
    '"Look at the {animal}!" said {p}.',
    "{q} gave {p} a {thing}, and {p} said thank you.",
    "The {animal} ran away from {p} and hid behind a {adj} {thing}.",
    "{p} was sad because the {thing} did not work.",
    "{p} laughed when the {animal} sat on the {thing}.",
    "It started to rain, so {p} ran back to the {place}.",
    "{p} wanted to buy a {adj} {thing} in the {place}.",
    "After lunch, {p} helped {q} to look for the {thing}.",
    "{p} put the {thing} under the bed.",
    "{p} liked the {adj} {animal} best of all.",
    "There was a {adj} {thing} on the table.",
    "The sun was shining, and {p} was happy.",
    '"Can I have the {thing}?" asked {p}.',
    "{p} went home from the {place} and fell asleep.",
    "{p} made a {thing} for {his} friend {q}.",
    "The {place} was full of people, and {p} held the hand of {q}.",
    "Mom told {p} to be kind to the {animal}.",
    "{p} was afraid of the {animal}, but {q} was not.",
    "{p} waited in the {place} until {q} came.",
)
FOOD = (
    "{p} ate some {food} and drank some water.",
    "For dinner, {p} mixed the {food} with some {food2}.",
    "{q} cooked {food} in a hot pan and gave some to {p}.",
    "The {food} smelled so good that {p} came running.",
    "{p} put {food} on the table, and everybody was hungry.",
    "To make it taste sweet, {p} added some {food} at the end.",
    "{p} shared {his} {food} with a hungry {animal}.",
    "First you wash the {food}, then you cut it, then you cook it slowly.",
)
THOUGHTS = (
    "{p} wondered why the sky has no end.",
    "It is better to ask than to guess, thought {p}.",
    "{p} learned that a kind word costs nothing.",
    "Sometimes we must wait a long time for good things.",
    "{q} said that nobody knows everything.",
    "A friend is someone who stays when it rains.",
    "{p} asked {q} where the wind goes at night.",
    "To be brave is to be afraid and still go on.",
)
SUMS = (
    "{p} counted {n} {thing}s and then {m} more.",
    "If you have {n} {thing}s and lose one, you must look for it.",
    "There were {n} {animal2} tracks in the snow, and {p} counted them all.",
    "{p} needed {n} steps to cross the {place}.",
)
NAMED = (
    "{p} had a {animal} called {name}.",
    "A ship called {name} came into the bay.",
    "{q} told {p} a story about a giant named {name}.",
    "{p} met an old woman with the name {name}.",
    "{name} was tired, so {p} carried {name} home.",
    '"Come here, {name}!" called {p}, and {name} came.',
    "The {animal} of {p} was named {name}, and {name} liked to sleep.",
    '"My name is {name}," said the {animal}.',
    "{name} was a {adj} {animal} who could sing.",
    "{p} wrote a letter to a man called {name}.",
    "On the side of the ship, {p} read the word {name}.",
    "A dancer named {name} came to see {q}.",
)
FAMILIES = (DAILY, DAILY, DAILY, FOOD, THOUGHTS, SUMS, NAMED, NAMED)
_POOLS = {
    "thing": "objects",
    "animal": "animals",
    "place": "places",
    "adj": "adjectives",
    "food": "foods",
}


PERSON = ("p", "he", "his", "him", "He", "girl")
"""The slots that one person fills."""
_HERO = 1 / 16


class Cast(dict[str, str]):
    """Fills the slots of a sentence, each when it is first used; a slot keeps its word until `forget`."""

    def __init__(
        self, rng: Dice, split: str, avoid: tuple[str, ...] = (), invent: Callable[[], str] | None = None
    ) -> None:
        super().__init__()
        self._rng, self._split, self._words, self._invent = rng, split, WORDS[split], invent
        self.avoid = avoid
        """Names that nothing in the distractors may have."""

    def __missing__(self, slot: str) -> str:
        if slot in PERSON:
            self._person()
        elif slot == "q":
            self["q"] = self._name(self._rng.pick((self._words.girls, self._words.boys)), (*self.avoid, self["p"]))
        elif slot == "name":
            self["name"] = self._invent() if self._invent else invented_name(self._rng, self._split, self.avoid)
        elif slot in ("n", "m"):
            self[slot] = str(self._rng.number(2, 19))
        else:
            self[slot] = self._rng.pick(getattr(self._words, _POOLS[slot.rstrip("2")]))
        return self[slot]

    def forget(self, *, people: bool) -> None:
        """Empties the slots, those of the people and of the invented name only if asked."""
        kept = () if people else (*PERSON, "q", "name")
        for slot in [slot for slot in self if slot not in kept]:
            del self[slot]

    def _person(self) -> None:
        if self._rng.random() < 0.5:
            name = self._name(self._words.girls, self.avoid)
            self.update(p=name, he="she", his="her", him="her", He="She", girl="girl")
        else:
            name = self._name(self._words.boys, self.avoid)
            self.update(p=name, he="he", his="his", him="him", He="He", girl="boy")

    def _name(self, pool: tuple[str, ...], avoid: tuple[str, ...]) -> str:
        while (name := self._rng.pick(pool)) in avoid:
            pass
        return name


class Story:
    """An endless story: sentences about people who stay for a few sentences, now and then about its hero.

    `invent` draws the invented names in it, in place of the split's own.
    """

    def __init__(
        self,
        rng: Dice,
        split: str,
        *,
        avoid: tuple[str, ...] = (),
        hero: Cast | None = None,
        invent: Callable[[], str] | None = None,
    ) -> None:
        self._rng = rng
        self._cast = Cast(rng, split, avoid, invent)
        self._hero = {slot: hero[slot] for slot in PERSON} if hero else {}

    def sentence(self, families: Sequence[tuple[str, ...]] = FAMILIES) -> str:
        """Returns the next sentence, of one of some families of templates."""
        self._cast.forget(people=self._rng.random() < 0.5)
        if self._hero and self._rng.random() < _HERO:
            self._cast.update(self._hero)
        return self._rng.pick(self._rng.pick(families)).format_map(self._cast)
