"""Copying: a random sequence is repeated, or reversed, item by item."""

from collections.abc import Callable

from jax_smash.tasks.dice import Dice
from jax_smash.tasks.draft import Draft
from jax_smash.tasks.example import Example
from jax_smash.tasks.words import WORDS, belongs

LETTERS = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"
# The command, what stands behind it in a chat, and whether the copy is reversed.
COMMANDS = (
    ("Copy:", "Copy this exactly:", False),
    ("Repeat:", "Repeat this word for word:", False),
    ("Reverse:", "Write this in reverse order:", True),
)
_LABELLED = 0.5
_LONGEST = 12
_LONGEST_REVERSED = 5


class CopyingDraft(Draft):
    """A sequence of letters, digits, numbers or words to copy.

    Either the sequence stands right before the copy, after other sequences with their copies, or it stands among other
    labelled sequences and its label asks for it. Sequences have 3 to 12 items, reversed ones 2 to 5. A sequence that
    one split may draw, the other may not.
    """

    def __init__(self, rng: Dice, split: str) -> None:
        super().__init__()
        self._rng, self._split, self._words = rng, split, WORDS[split].tokens
        self._item: Callable[[], str] = rng.pick((self._letter, self._digit, self._number, self._word, self._mixed))
        self._labelled = rng.random() < _LABELLED
        self._command, self._chat, self._reversed = rng.pick(COMMANDS)
        self._reversed &= not self._labelled
        self._labels: set[str] = set()
        self._label = self._new_label()
        self._labels.add(self._label)
        self._sequence = self._new_sequence()
        self._place = rng.random()

    def propose(self) -> str:
        sequence = self._new_sequence()
        if self._labelled:
            return f"List {self._new_label()}: {sequence}.\n"
        return f"{self._command} {sequence}\n{self._copy(sequence)}\n\n"

    def keep(self, unit: str) -> None:
        super().keep(unit)
        if self._labelled:
            self._labels.add(unit[len("List ") : unit.index(":")])

    def finish(self) -> Example:
        return self._finish_labelled() if self._labelled else self._finish_copy()

    def _finish_labelled(self) -> Example:
        units = [*self.units]
        units.insert(round(self._place * len(units)), f"List {self._label}: {self._sequence}.\n")
        context = "".join(units)
        return Example(
            task="copying",
            prompt=f"{context}\nRepeat list {self._label}:",
            separator=" ",
            answer=self._sequence,
            rest=".",
            question=f"{context}\nRepeat list {self._label}.",
        )

    def _finish_copy(self) -> Example:
        return Example(
            task="copying",
            prompt="".join([*self.units, f"{self._command} {self._sequence}"]),
            separator="\n",
            answer=self._copy(self._sequence),
            question="".join([*self.units, f"{self._chat} {self._sequence}"]),
            shown=tuple(unit.split("\n")[1] for unit in self.units),
        )

    def _copy(self, sequence: str) -> str:
        return " ".join(reversed(sequence.split())) if self._reversed else sequence

    def _new_sequence(self) -> str:
        low, high = (2, _LONGEST_REVERSED) if self._reversed else (3, _LONGEST)
        items = [self._item() for _ in range(self._rng.number(low, high))]
        # Words are the split's own already; of what any split can spell, items change until the sequence is. It goes
        # with its reverse, so that one split's reversed copies are not the other's plain ones.
        while self._item != self._word and not belongs(self._split, " ".join(min(items, items[::-1]))):
            items[self._rng.number(0, len(items) - 1)] = self._item()
        return " ".join(items)

    def _new_label(self) -> str:
        while True:
            label = self._rng.pick(self._words)
            if 2 * len(self._labels) > len(self._words):
                label = f"{label} {self._rng.pick(self._words)}"
            if label not in self._labels:
                return label

    def _letter(self) -> str:
        return self._rng.pick(LETTERS)

    def _digit(self) -> str:
        return self._rng.pick(DIGITS)

    def _number(self) -> str:
        return str(self._rng.number(10, 999))

    def _word(self) -> str:
        return self._rng.pick(self._words)

    def _mixed(self) -> str:
        return self._rng.pick((self._letter, self._digit, self._word))()
