"""State: people move, pick things up, drop them and hand them over; where things are is asked.

Source of the idea: the bAbI tasks 1 to 3 (Weston et al., 2015); words, sentences and the world are our own.
"""

from jax_smash.tasks.dice import Dice
from jax_smash.tasks.draft import Draft
from jax_smash.tasks.example import Example
from jax_smash.tasks.words import WORDS
from jax_smash.tasks.world import Event, World

SENTENCES = {
    "go": ("{p} went to the {x}.", "{p} moved to the {x}.", "{p} walked to the {x}.", "{p} ran to the {x}."),
    "take": ("{p} picked up the {x}.", "{p} took the {x}.", "{p} got the {x}."),
    "drop": ("{p} put down the {x}.", "{p} dropped the {x}.", "{p} left the {x} there."),
    "give": ("{p} gave the {x} to {q}.", "{p} handed the {x} to {q}.", "{p} passed the {x} to {q}."),
    "rest": ("{p} was tired.", "{p} sang a song.", "{p} smiled at {q}.", "{p} waited for {q}.", "{p} looked around."),
}
_KINDS = ("go", "go", "go", "take", "take", "drop", "give", "rest")
_QUESTIONS = ("person", "object", "object", "holder", "before")


class StateDraft(Draft):
    """A story about two to five people, one to four things and five to seven places, and a question with one answer.

    Asked are: where a person is, where a thing is, who has it, and where it was before it was in a place. A guess among
    the places is right in about one of six cases, the place named last in one of three.
    """

    tries = 1  # What comes next depends on what came before, so a sentence that does not fit ends the story.

    def __init__(self, rng: Dice, split: str) -> None:
        super().__init__()
        self._rng = rng
        words = WORDS[split]
        self._people = rng.several(words.people, rng.number(2, 5))
        self._places = rng.several(words.places, rng.number(5, 7))
        self._objects = rng.several(words.objects, rng.number(1, 4))
        self._as_question = rng.random() < 0.5
        self._events: list[Event] = []
        self._world = World()
        self._proposed = Event("go", self._people[0], self._places[0])
        self._first = [self._begin(), self._begin()]

    def _begin(self) -> str:
        """Lets someone appear somewhere; returns the sentence."""
        event = self._move()
        self._world.apply(event)
        self._events.append(event)
        return self._tell(event)

    def propose(self) -> str:
        kind = self._rng.pick(_KINDS)
        world, rng = self._world, self._rng
        placed = list(world.place_of)
        event = None
        if kind == "take":
            free = [thing for thing in self._objects if thing not in world.holder_of]
            if free:
                thing = rng.pick(free)
                lies = world.object_place(thing)
                takers = [p for p in placed if lies in (None, world.place_of[p])]
                event = Event("take", rng.pick(takers), thing) if takers else None
        elif kind in ("drop", "give") and world.holder_of:
            thing, holder = rng.pick(list(world.holder_of.items()))
            near = [p for p in placed if p != holder and world.place_of[p] == world.place_of[holder]]
            if kind == "drop":
                event = Event("drop", holder, thing)
            elif near:
                event = Event("give", holder, thing, rng.pick(near))
        elif kind == "rest":
            event = Event("rest", *rng.several(self._people, 2))
        self._proposed = event or self._move()
        return " " + self._tell(self._proposed)

    def _move(self) -> Event:
        person = self._rng.pick(self._people)
        here = self._world.place_of.get(person)
        return Event("go", person, self._rng.pick([place for place in self._places if place != here]))

    def _tell(self, event: Event) -> str:
        return self._rng.pick(SENTENCES[event.kind]).format(
            p=event.person, x=event.what, q=event.what if event.kind == "rest" else event.other
        )

    def keep(self, unit: str) -> None:
        super().keep(unit)
        self._events.append(self._proposed)
        self._world.apply(self._proposed)

    def drop(self) -> None:
        super().drop()
        self._events.pop()
        self._world = World()
        for event in self._events:
            self._world.apply(event)

    def finish(self) -> Example:
        story = " ".join(self._first) + "".join(self.units)
        question, cloze, answer = self._ask()
        tail = f"Question: {question}\nAnswer:" if self._as_question else cloze
        return Example(
            task="state",
            prompt=f"{story}\n\n{tail}",
            separator=" ",
            answer=answer,
            rest="" if self._as_question else ".",
            question=f"{story}\n\n{question} Answer with one word.",
        )

    def _ask(self) -> tuple[str, str, str]:
        """Returns a question, the sentence that its answer would complete, and the answer."""
        rng, world = self._rng, self._world
        kind = rng.pick(_QUESTIONS)
        if kind == "holder" and world.holder_of:
            thing, holder = rng.pick(list(world.holder_of.items()))
            return f"Who has the {thing}?", f"The one who has the {thing} is", holder
        known = [thing for thing in self._objects if world.object_place(thing)]
        if kind == "before":
            moves = [(thing, *move) for thing in known for move in world.unique_moves(thing)]
            if moves:
                thing, earlier, later = rng.pick(moves)
                asked = f"Where was the {thing} before the {later}?"
                return asked, f"Before the {later}, the {thing} was in the", earlier
        if kind != "person" and known:
            thing = rng.pick(known)
            return f"Where is the {thing}?", f"The {thing} is now in the", world.object_place(thing) or ""
        person = rng.pick(list(world.place_of))
        return f"Where is {person}?", f"{person} is now in the", world.place_of[person]
