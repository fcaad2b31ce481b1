"""Arithmetic on small numbers, with the steps that lead to the answer."""

from jax_smash.tasks.dice import Dice
from jax_smash.tasks.draft import Draft
from jax_smash.tasks.example import Example
from jax_smash.tasks.problem import Problem
from jax_smash.tasks.story import Story
from jax_smash.tasks.word_problems import word_problem
from jax_smash.tasks.words import belongs

ASKED = {
    "+": ("What is {a} + {b}?", "Add {a} and {b}.", "{a} + {b} = ?", "Work out {a} + {b}."),
    "-": ("What is {a} - {b}?", "Take {b} from {a}.", "{a} - {b} = ?", "Work out {a} - {b}."),
    "x": ("What is {a} x {b}?", "Multiply {a} by {b}.", "{a} x {b} = ?", "Work out {a} x {b}."),
}
_WORD_PROBLEMS = 0.35
_FACTS = 0.15
_PROBLEMS_TRIED = 3
_ANSWER = "\nAnswer: "
_CHAT = "{question} Show the steps and end with: So the answer is N."


def addition_steps(a: int, b: int) -> str:
    """Returns the column addition, last digit first; each step writes the digits found so far."""
    steps, written, carry = [], "", 0
    columns = max(len(str(a)), len(str(b)))
    for i in range(columns):
        x, y = a // 10**i % 10, b // 10**i % 10
        total = x + y + carry
        line = f"{x} + {y} + {carry} = {total}" if carry else f"{x} + {y} = {total}"
        last = i == columns - 1
        written = (str(total) if last else str(total % 10)) + written
        carry = 0 if last else total // 10
        steps.append(_step(line, written, "carry" if carry else ""))
    return " ".join(steps)


def subtraction_steps(a: int, b: int) -> str:
    """Returns the column subtraction of `b` from `a >= b`, last digit first; a column too small borrows ten."""
    steps, written, borrow = [], "", 0
    for i in range(len(str(a))):
        x, y = a // 10**i % 10, b // 10**i % 10
        short = x - borrow < y
        x += 10 * short
        digit = x - borrow - y
        line = f"{x} - {borrow} - {y} = {digit}" if borrow else f"{x} - {y} = {digit}"
        borrow = int(short)
        written = str(digit) + written
        steps.append(_step(line, written, "borrow" if borrow else ""))
    return " ".join(steps)


def product_steps(a: int, b: int) -> str:
    """Returns the column product of `a` with the single digit `b`, last digit first."""
    steps, written, carry = [], "", 0
    columns = len(str(a))
    for i in range(columns):
        x = a // 10**i % 10
        total = x * b + carry
        line = f"{x} x {b} + {carry} = {total}" if carry else f"{x} x {b} = {total}"
        last = i == columns - 1
        written = (str(total) if last else str(total % 10)) + written
        carry = 0 if last else total // 10
        steps.append(_step(line, written, f"carry {carry}" if carry else ""))
    return " ".join(steps)


def _step(line: str, written: str, moved: str) -> str:
    if moved in ("carry", "borrow"):
        moved += " 1"
    return f"{line}, write {written}, {moved}." if moved else f"{line}, write {written}."


_STEPS = {"+": addition_steps, "-": subtraction_steps, "x": product_steps}


def column_problem(rng: Dice, split: str) -> Problem:
    """Returns a sum, a difference or a product of numbers of one to three digits; the split owns the operands.

    Problems of two single digits are training's alone: they are the facts that every other problem rests on.
    """
    facts = split == "train" and rng.random() < _FACTS
    while True:
        sign = rng.pick("++--x")
        digits = 1 if facts else rng.pick((2, 2, 3))
        a = rng.number(10 ** (digits - 1), 10**digits - 1)
        b = rng.number(2, 9) if sign == "x" else rng.number(1, 10**digits - 1)
        if (sign == "+" and rng.random() < 0.5) or (sign == "-" and a < b):
            a, b = b, a
        if facts or (max(a, b) > 9 and belongs(split, f"{max(a, b)}{sign}{min(a, b)}")):
            break
    result = {"+": a + b, "-": a - b, "x": a * b}[sign]
    return Problem(rng.pick(ASKED[sign]).format(a=a, b=b), _STEPS[sign](a, b), result)


class ArithmeticDraft(Draft):
    """A problem after other problems with their solutions; where none fits any more, sentences fill the rest.

    Only the number that the solution ends in is scored. Numbers are written plainly, steps name single digits and
    carries, and each step repeats the digits found so far: the answer is copied from the last step. About a third are
    word problems of one or two steps.
    """

    tries = 12

    def __init__(self, rng: Dice, split: str) -> None:
        super().__init__()
        self._rng, self._split = rng, split
        self._kind = word_problem if rng.random() < _WORD_PROBLEMS else column_problem
        self._problem = self._kind(rng, split)
        self._story = Story(rng, split)
        self._failed = 0

    def propose(self) -> str:
        self._failed += 1
        if self._failed > _PROBLEMS_TRIED:
            return f"{self._story.sentence()}\n\n"
        while (problem := self._kind(self._rng, self._split)).question == self._problem.question:
            pass
        return f"Question: {problem.question}{_ANSWER}{problem.solution}.\n\n"

    def keep(self, unit: str) -> None:
        super().keep(unit)
        if self._failed <= _PROBLEMS_TRIED:
            self._failed = 0

    def drop(self) -> None:
        super().drop()
        self._failed = 0

    def finish(self) -> Example:
        solved, asked = "".join(self.units), self._problem.question
        return Example(
            task="arithmetic",
            prompt=f"{solved}Question: {asked}\nAnswer:",
            separator=" ",
            answer=self._problem.solution,
            rest=".",
            question=solved + _CHAT.format(question=asked),
            final=str(self._problem.result),
            shown=tuple(u.partition(_ANSWER)[2].removesuffix(".\n\n") for u in self.units if _ANSWER in u),
        )
