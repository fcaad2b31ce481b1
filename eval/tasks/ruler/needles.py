"""Needles in a haystack: sentences that tell the values of keys, one or several of which are asked for."""

import dataclasses
from collections.abc import Callable

from eval.tasks.ruler.example import Draft, Example, Units, inserted, needle_depths
from eval.tasks.ruler.haystack import filler, prose, stories
from eval.tasks.ruler.names import adjective_noun, distinct, seven_digits, uuid
from jax_smash.tasks.dice import Dice

Name = Callable[[Dice], str]


@dataclasses.dataclass(frozen=True)
class Needles:
    """Which needles lie in which haystack.

    Attributes:
      haystack: `filler`, `stories`, or `needles`: of other keys.
      key, value: draw one.
      value_kind: what a value is called.
      keys: keys whose values are told beside the haystack.
      asked: of them, those asked for, the first ones.
      values: of each key.
    """

    haystack: str
    key: Name = adjective_noun
    value: Name = seven_digits
    value_kind: str = "number"
    keys: int = 1
    asked: int = 1
    values: int = 1

    def draft(self, rng: Dice, length: int) -> "NeedleDraft":
        """Returns an example under way, for any length."""
        return NeedleDraft(self, rng)


class NeedleDraft(Draft):
    """Needles of some keys, each at one of 40 depths, and a question about the first of them.

    Source: Hsieh et al. 2024, "RULER", section 3.1.
    Differs: small stories drawn by rule stand in place of essays, and sentences and words are ours.
    """

    def __init__(self, kind: Needles, rng: Dice) -> None:
        self._kind = kind
        keys, values = distinct(lambda: kind.key(rng)), distinct(lambda: kind.value(rng))
        told = {next(keys): [next(values) for _ in range(kind.values)] for _ in range(kind.keys)}
        self._asked = list(told)[: kind.asked]
        self._references = tuple(value for key in self._asked for value in told[key])
        self._needles = [self._sentence(key, value) for key in told for value in told[key]]
        self._depths = needle_depths(rng, len(self._needles))
        if kind.haystack == "needles":
            self._units = Units(self._sentence(key, value) for key, value in zip(keys, values, strict=False))
        else:
            self._units = Units(filler() if kind.haystack == "filler" else stories(rng))

    def at(self, count: int) -> Example:
        """Returns the example with `count` sentences of haystack."""
        kind, several = self._kind.value_kind, len(self._references) > 1
        text = prose(inserted(self._units.first(count), self._needles, self._depths))
        keys = listed(self._asked)
        verb, kinds = ("are", f"{kind}s") if several else ("is", kind)
        return Example(
            prompt=(
                f"The text below tells secret {kind}s. Remember them: a question about them follows the text.\n\n"
                f"{text}\n\nQuestion: What {verb} {'all ' * several}the secret {kinds} of {keys}?"
            ),
            prefix=f"\nAnswer: According to the text, the secret {kinds} of {keys} {verb}",
            references=self._references,
        )

    def _sentence(self, key: str, value: str) -> str:
        return f"The secret {self._kind.value_kind} of {key} is {value}."


def listed(words: list[str]) -> str:
    """Returns words as English lists them."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


NEEDLES: dict[str, Needles] = {
    "niah_single_1": Needles("filler"),
    "niah_single_2": Needles("stories"),
    "niah_single_3": Needles("stories", value=uuid, value_kind="code"),
    "niah_multikey_1": Needles("stories", keys=4),
    "niah_multikey_2": Needles("needles"),
    "niah_multikey_3": Needles("needles", key=uuid, value=uuid, value_kind="code"),
    "niah_multivalue": Needles("stories", values=4),
    "niah_multiquery": Needles("stories", keys=4, asked=4),
}
