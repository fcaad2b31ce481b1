"""A small world: who is where, who holds what, and where each thing has been."""

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Event:
    """What a sentence tells: `go` to a place, `take` or `drop` a thing, `give` it to another person, or `rest`."""

    kind: str
    person: str
    what: str
    other: str = ""


class World:
    """The state that events lead to. A thing is where its holder is, or where it was left."""

    def __init__(self) -> None:
        self.place_of: dict[str, str] = {}
        self.holder_of: dict[str, str] = {}
        self._path: dict[str, list[str]] = {}

    def apply(self, event: Event) -> None:
        """Changes the state by one event."""
        person, what = event.person, event.what
        if event.kind == "go":
            self.place_of[person] = what
            for thing, holder in self.holder_of.items():
                if holder == person:
                    self._visit(thing, what)
        elif event.kind == "take":
            self.holder_of[what] = person
            self._visit(what, self.place_of[person])
        elif event.kind == "drop":
            del self.holder_of[what]
        elif event.kind == "give":
            self.holder_of[what] = event.other

    def object_place(self, thing: str) -> str | None:
        """Returns where a thing is; None before anyone took it."""
        path = self._path.get(thing)
        return path[-1] if path else None

    def unique_moves(self, thing: str) -> list[tuple[str, str]]:
        """Returns the thing's moves, from one place to another, to places where it was only once."""
        path = self._path.get(thing, [])
        return [(earlier, later) for earlier, later in pairwise(path) if path.count(later) == 1]

    def _visit(self, thing: str, place: str) -> None:
        path = self._path.setdefault(thing, [])
        if not path or path[-1] != place:
            path.append(place)
