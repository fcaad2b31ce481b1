"""Word problems of one or two steps in simple English."""

from jax_smash.tasks.dice import Dice
from jax_smash.tasks.problem import Problem
from jax_smash.tasks.story import Cast

# A sentence, and the sign of what it does to the number so far.
GAINS = (
    ("{q} gives {him} {n} more.", "+"),
    ("{He} finds {n} more.", "+"),
    ("Then {he} buys {n} more.", "+"),
)
LOSSES = (
    ("{He} loses {n} of them.", "-"),
    ("{He} gives {n} of them to {q}.", "-"),
    ("Then {he} sells {n} of them.", "-"),
)
GROUPS = (
    "{p} has {n} boxes with {m} {thing}s in each.",
    "{p} fills {n} bags and puts {m} {thing}s in each.",
)
# Two people and a sum; the question says whose things count.
PAIRS = (
    "{p} has {n} {thing}s and {q} has {m} {thing}s. How many {thing}s do they have together?",
    "{p} has {n} {thing}s. {q} has {m} more than {p}. How many {thing}s does {q} have?",
)
_MOST = 20
_MOST_GROUPS = 9


def word_problem(rng: Dice, split: str) -> Problem:
    """Returns a problem about people's things; all numbers on the way are at most 101.

    Names and things are the split's own; numbers recur, since they are too few to share out.
    """
    cast = Cast(rng, split)
    kind = rng.random()
    if kind < 0.2:
        n, m = _numbers(rng, cast, _MOST)
        return Problem(rng.pick(PAIRS).format_map(cast), f"{n} + {m} = {n + m}.", n + m)
    if kind < 0.45:
        n, m = _numbers(rng, cast, _MOST_GROUPS)
        return _changed(rng, cast, [rng.pick(GROUPS).format_map(cast)], [f"{n} x {m} = {n * m}."], n * m)
    n, _ = _numbers(rng, cast, _MOST)
    return _changed(rng, cast, ["{p} has {n} {thing}s.".format_map(cast)], [], n)


def _numbers(rng: Dice, cast: Cast, most: int) -> tuple[int, int]:
    """Puts two numbers into the cast and returns them."""
    n, m = rng.number(2, most), rng.number(2, most)
    cast.update(n=str(n), m=str(m))
    return n, m


def _changed(rng: Dice, cast: Cast, sentences: list[str], steps: list[str], have: int) -> Problem:
    """Returns the problem after what happens next: one step in all, or two."""
    for _ in range(rng.number(0, 1) if steps else rng.number(1, 2)):
        sentence, sign = rng.pick(GAINS + LOSSES if have > 1 else GAINS)
        n = rng.number(1, _MOST if sign == "+" else min(_MOST, have - 1))
        cast["n"] = str(n)
        sentences.append(sentence.format_map(cast))
        result = have + n if sign == "+" else have - n
        steps.append(f"{have} {sign} {n} = {result}.")
        have = result
    sentences.append("How many {thing}s does {p} have now?".format_map(cast))
    return Problem(" ".join(sentences), " ".join(steps), have)
