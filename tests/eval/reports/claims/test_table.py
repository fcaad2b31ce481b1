import pytest

from eval.reports.claims.table import NOTHING, count, crossed, figure, listed, number, span, text, with_interval

ROWS = [
    {"name": "a", "task": "x", "speed": 12345.6, "n": 1000},
    {"name": "a", "task": "y", "speed": 2.345},
    {"name": "b", "task": "y", "speed": None},
]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(12345.6, "12,346"), (123.45, "123"), (12.345, "12.3"), (2.344, "2.34"), (0.5254, "0.525"), (0, "0.000")],
)
def test_a_number_has_three_digits_and_whole_ones_before_the_point(value, shown):
    assert figure(value) == shown


def test_nothing_and_what_is_not_finite_are_a_dash():
    assert figure(None) == figure(float("nan")) == figure(float("inf")) == NOTHING
    assert number("absent", unit=" ms")({}) == count("absent")({}) == text("absent")({}) == NOTHING


def test_bounds_have_the_decimals_of_their_figure():
    assert span(9.876, 12.345, 10.5) == "9.9 to 12.3"
    row = {"speed": 10.5, "interval": {"low": 9.876, "high": 12.345}}
    assert with_interval("speed")(row) == "10.5 (9.9 to 12.3)"
    assert with_interval("speed")({"speed": 10.5, "interval": None}) == "10.5"


def test_a_listed_table_has_a_line_a_row_and_leaves_out_columns_that_say_nothing():
    table = listed(ROWS, {"Name": text("name"), "Speed": number("speed"), "Lost": number("lost")})
    assert table.header == ["Name", "Speed"]
    assert table.lines == [["a", "12,346"], ["a", "2.35"], ["b", NOTHING]]
    assert table.markdown().splitlines()[:3] == ["| Name | Speed |", "| --- | ---: |", "| a | 12,346 |"]


def test_a_crossed_table_has_a_line_for_what_is_alike_and_a_column_a_value():
    table = crossed(ROWS, {"Name": text("name")}, text("task"), number("speed"))
    assert table.header == ["Name", "x", "y"]
    assert table.lines == [["a", "12,346", "2.35"], ["b", NOTHING, NOTHING]]


def test_two_figures_for_one_cell_are_refused():
    with pytest.raises(ValueError, match="two for a under x"):
        crossed([ROWS[0], ROWS[0]], {"Name": text("name")}, text("task"), number("speed"))
