"""Regular expressions for JSON numbers between bounds."""

from collections.abc import Mapping
from typing import Any

DIGITS = 16
"""The most digits on either side of a number's point: what a float64 holds."""

_LIMIT = 10**DIGITS


def integer_between(schema: Mapping[str, Any], where: str) -> str:
    """Returns the expression of the integers that a schema's minimum and maximum leave, of at most `DIGITS` digits.

    Raises:
      ValueError: a bound is no whole number, or they leave none.
    """
    low, low_open, high, high_open = _bounds(schema, where)
    return _integers(low + low_open, high - high_open, where)


def number_between(schema: Mapping[str, Any], where: str) -> str:
    """Returns the expression of the numbers, written without an exponent, that a schema's bounds leave.

    Raises:
      ValueError: a bound is no whole number, or they leave none.
    """
    low, low_open, high, high_open = _bounds(schema, where)
    if low > high or (low == high and (low_open or high_open)):
        raise ValueError(f"JSON schema at {where} must have a minimum below its maximum; got {low} and {high}")
    choices = []
    if high > 0 or (high == 0 and not high_open):
        choices.append(_magnitudes(max(low, 0), low_open and low >= 0, high, high_open))
    if low < 0:
        choices.append("-" + _magnitudes(max(-high, 0), high_open and high <= 0, -low, low_open))
    return f"(?:{'|'.join(choices)})"


def _bounds(schema: Mapping[str, Any], where: str) -> tuple[int, bool, int, bool]:
    """Returns the lower bound, whether it is itself left out, and the same of the upper bound."""
    for word in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
        value = schema.get(word, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) >= _LIMIT:
            raise ValueError(f"JSON schema at {where}/{word} must be a number below 10^{DIGITS}; got {value!r}")
        if value != int(value):
            raise ValueError(f"JSON schema at {where}/{word} must be a whole number; got {value!r}")
    low = (
        max((int(schema[w]), w == "exclusiveMinimum") for w in ("minimum", "exclusiveMinimum") if w in schema)
        if ("minimum" in schema or "exclusiveMinimum" in schema)
        else (-_LIMIT, True)
    )
    high = (
        min((int(schema[w]), w == "maximum") for w in ("maximum", "exclusiveMaximum") if w in schema)
        if ("maximum" in schema or "exclusiveMaximum" in schema)
        else (_LIMIT, False)
    )
    return low[0], low[1], high[0], not high[1]


def _integers(low: int, high: int, where: str) -> str:
    if low > high:
        raise ValueError(f"JSON schema at {where} must leave an integer between its bounds; got {low} to {high}")
    choices = _whole(max(low, 0), high) if high >= 0 else []
    if low < 0:
        choices += [f"-{c}" for c in _whole(max(-high, 1), -low)]
    return f"(?:{'|'.join(choices)})"


def _magnitudes(low: int, low_open: bool, high: int, high_open: bool) -> str:
    """Returns the expression of numbers without a sign between two bounds."""
    fraction = rf"(?:\.[0-9]{{1,{DIGITS}}})?"
    choices = [f"{c}{fraction}" for c in _whole(low + low_open, high - 1)]
    if low_open and low < high:
        choices.append(rf"{low}\.0{{0,{DIGITS - 1}}}[1-9][0-9]{{0,{DIGITS - 1}}}")
    if not high_open:
        choices.append(rf"{high}(?:\.0{{1,{DIGITS}}})?")
    return f"(?:{'|'.join(choices)})"


def _whole(low: int, high: int) -> list[str]:
    """Returns expressions of the whole numbers from `low`, at least 0, to `high`: one for each count of digits."""
    choices = []
    for digits in range(1, len(str(max(high, 0))) + 1):
        first = max(low, 10 ** (digits - 1) if digits > 1 else 0)
        last = min(high, 10**digits - 1)
        if first <= last:
            choices.append(_same_length(str(first), str(last)))
    return choices


def _same_length(low: str, high: str) -> str:
    """Returns the expression of the digit strings between two of one length."""
    if low == high:
        return low
    rest = len(low) - 1
    if low[0] == high[0]:
        return low[0] + _same_length(low[1:], high[1:])
    first, last = int(low[0]), int(high[0])
    choices = []
    if low[1:] != "0" * rest:
        choices.append(low[0] + _same_length(low[1:], "9" * rest))
        first += 1
    if high[1:] != "9" * rest:
        choices.append(high[0] + _same_length("0" * rest, high[1:]))
        last -= 1
    if first <= last:
        choices.append(f"[{first}-{last}]" + (f"[0-9]{{{rest}}}" if rest else ""))
    return f"(?:{'|'.join(choices)})"
