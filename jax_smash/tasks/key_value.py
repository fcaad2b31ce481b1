"""Key and value: many pairs are told, then the value of one key is asked for."""

from jax_smash.tasks.dice import Dice
from jax_smash.tasks.draft import Draft
from jax_smash.tasks.example import Example
from jax_smash.tasks.words import WORDS, draw_owned

# How a pair is told, and a question for it. The line up to its value is the other way to ask.
NUMBERS = (
    ("The code of {k} is {v}.", "What is the code of {k}?"),
    ("The number of {k} is {v}.", "What is the number of {k}?"),
    ("The door {k} opens with {v}.", "What opens the door {k}?"),
    ("The price of {k} is {v}.", "What is the price of {k}?"),
    ("{k} = {v}", "What is {k}?"),
    ("{k}: {v}", "Which number stands next to {k}?"),
)
TOKENS = (
    ("The word for {k} is {v}.", "What is the word for {k}?"),
    ("The team {k} plays against {v}.", "Against whom does the team {k} play?"),
    ("The password of {k} is {v}.", "What is the password of {k}?"),
    ("Room {k} leads to room {v}.", "To which room does room {k} lead?"),
    ("{k} -> {v}", "What does {k} point to?"),
    ("{k}: {v}", "Which word stands next to {k}?"),
)
_SINGLE = 0.75
"""Share of a word list that one example uses as single words; a longer example joins two words to a key."""


class KeyValueDraft(Draft):
    """A list of pairs, all told in one way, the asked one anywhere among them; a key occurs once.

    Values are numbers of three or four digits, or words. A guess among the values is right in one of as many cases as
    there are pairs.
    """

    def __init__(self, rng: Dice, split: str) -> None:
        super().__init__()
        self._rng, self._split, self._words = rng, split, WORDS[split].tokens
        self._numeric = rng.random() < 0.5
        self._line, self._asked = rng.pick(NUMBERS if self._numeric else TOKENS)
        self._digits = rng.number(3, 4)
        self._joint = " " if self._line[-1] == "." and rng.random() < 0.5 else "\n"
        self._as_question = rng.random() < 0.5
        self._used: set[str] = set()
        self._place = rng.random()
        self._key, self._value = self._word(), self._new_value()
        self._used |= {self._key, self._value}
        self._proposed = ("", "")
        self._pairs: list[tuple[str, str]] = []

    def propose(self) -> str:
        key = self._word()
        while (value := self._new_value()) in (self._value, key):
            pass
        self._proposed = (key, value)
        return self._joint + self._line.format(k=key, v=value)

    def keep(self, unit: str) -> None:
        super().keep(unit)
        self._pairs.append(self._proposed)
        self._used |= set(self._proposed)

    def drop(self) -> None:
        super().drop()
        self._used -= set(self._pairs.pop())

    def finish(self) -> Example:
        units = [*self.units]
        units.insert(round(self._place * len(units)), self._joint + self._line.format(k=self._key, v=self._value))
        context = "".join(units).strip()
        question = self._asked.format(k=self._key)
        cloze = self._line.partition("{v}")[0].format(k=self._key).rstrip()
        tail = f"Question: {question}\nAnswer:" if self._as_question else cloze
        return Example(
            task="key_value",
            prompt=f"{context}\n\n{tail}",
            separator=" ",
            answer=self._value,
            rest="." if self._line[-1] == "." and not self._as_question else "",
            question=f"{context}\n\n{question}",
        )

    def _new_value(self) -> str:
        if not self._numeric:
            return self._word()
        low = 10 ** (self._digits - 1)
        return draw_owned(self._split, lambda: str(self._rng.number(low, 10 * low - 1)))

    def _word(self) -> str:
        """Returns a word that does not occur yet, or two where the list is used up."""
        while True:
            word = self._rng.pick(self._words)
            if len(self._used) > _SINGLE * len(self._words):
                word = f"{word} {self._rng.pick(self._words)}"
            if word not in self._used:
                return word
