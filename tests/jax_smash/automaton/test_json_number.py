import re
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_smash.automaton.json_number import integer_between, number_between

bound = st.integers(-1200, 1200)


@settings(max_examples=100, deadline=None)
@given(low=bound, width=st.integers(0, 1500), low_open=st.booleans(), high_open=st.booleans())
def test_integers_are_matched_exactly_between_their_bounds(low, width, low_open, high_open):
    high = low + width
    if low + low_open > high - high_open:
        return
    schema = {
        ("exclusiveMinimum" if low_open else "minimum"): low,
        ("exclusiveMaximum" if high_open else "maximum"): high,
    }
    compiled = re.compile(integer_between(schema, "#"))
    for n in {*range(low - 12, low + 12), *range(high - 12, high + 12), *range(-1300, 3000, 37), -1, 0, 1}:
        assert bool(compiled.fullmatch(str(n))) == (low + low_open <= n <= high - high_open), n


@settings(max_examples=100, deadline=None)
@given(
    low=st.integers(-25, 25),
    width=st.integers(1, 40),
    low_open=st.booleans(),
    high_open=st.booleans(),
    sixteenths=st.lists(st.integers(-600, 1100), min_size=50, max_size=50),
)
def test_numbers_are_matched_exactly_between_their_bounds(low, width, low_open, high_open, sixteenths):
    high = low + width
    schema = {
        ("exclusiveMinimum" if low_open else "minimum"): low,
        ("exclusiveMaximum" if high_open else "maximum"): high,
    }
    compiled = re.compile(number_between(schema, "#"))
    for n in [*sixteenths, low * 16, high * 16, low * 16 + 1, high * 16 - 1]:
        number = Decimal(n) / 16
        inside = (low < number if low_open else low <= number) and (number < high if high_open else number <= high)
        assert bool(compiled.fullmatch(str(number))) == inside, number
        assert bool(compiled.fullmatch(f"{number:.5f}")) == inside, number


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"minimum": 0}, ["0", "7", "9999999999999999"], ["-1", "01"]),
        ({"maximum": -5}, ["-5", "-9999999999999999"], ["-4", "0"]),
        ({"minimum": 3, "exclusiveMinimum": 3}, ["4"], ["3"]),
        ({"maximum": 9, "exclusiveMaximum": 9, "minimum": 0}, ["8"], ["9"]),
        ({"minimum": 2.0, "maximum": 2}, ["2"], ["1", "3"]),
    ],
)
def test_open_and_doubled_bounds(schema, good, bad):
    for make in (integer_between, number_between):
        regex = make(schema, "#")
        assert all(re.fullmatch(regex, text) for text in good)
        assert not any(re.fullmatch(regex, text) for text in bad)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"minimum": 0.5}, "at #/minimum must be a whole number; got 0.5"),
        ({"maximum": "3"}, "at #/maximum must be a number below 10\\^16; got '3'"),
        ({"maximum": True}, "at #/maximum must be a number below"),
        ({"exclusiveMaximum": 10**16}, "at #/exclusiveMaximum must be a number below"),
        ({"minimum": 5, "maximum": 3}, "at # must .*; got 5"),
        ({"exclusiveMinimum": 5, "maximum": 5}, "at # must .*; got "),
    ],
)
def test_bounds_that_cannot_be_kept_are_refused(schema, message):
    for make in (integer_between, number_between):
        with pytest.raises(ValueError, match=message):
            make(schema, "#")


def test_no_integer_between_neighbours_is_an_error():
    with pytest.raises(ValueError, match="must leave an integer between its bounds; got 4 to 3"):
        integer_between({"exclusiveMinimum": 3, "exclusiveMaximum": 4}, "#")
