"""Tables in Markdown, made of the rows of reports."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Cell = Callable[[Row], str]

NOTHING = "–"


@dataclasses.dataclass(frozen=True)
class Table:
    """Words and figures in columns.

    Attributes:
      header: a name a column.
      lines: a cell a column each.
      words: of how many columns, from the left, the cells are words; figures stand to the right.
    """

    header: Sequence[str]
    lines: Sequence[Sequence[str]]
    words: int = 1

    def markdown(self) -> str:
        """Returns the table as Markdown, a line a row."""
        rule = ["---" if i < self.words else "---:" for i in range(len(self.header))]
        return "\n".join(f"| {' | '.join(line)} |" for line in (self.header, rule, *self.lines))


def listed(rows: Iterable[Row], columns: Mapping[str, Cell], *, words: int = 1) -> Table:
    """Returns a table with a line a row; a column in which every cell is empty is left out."""
    lines = [[cell(row) for cell in columns.values()] for row in rows]
    kept = [i for i in range(len(columns)) if any(line[i] != NOTHING for line in lines)]
    names = list(columns)
    return Table([names[i] for i in kept], [[line[i] for i in kept] for line in lines], words)


def crossed(rows: Iterable[Row], down: Mapping[str, Cell], across: Cell, cell: Cell) -> Table:
    """Returns a table with a line for all rows that are alike in `down`, and a column for each value of `across`.

    Lines and columns come in the order in which rows name them.

    Raises:
      ValueError: two rows claim one cell.
    """
    places: dict[tuple[str, ...], dict[str, str]] = {}
    columns: dict[str, None] = {}
    for row in rows:
        key, column = tuple(name(row) for name in down.values()), across(row)
        line = places.setdefault(key, {})
        if column in line:
            raise ValueError(f"a cell must have one figure; got two for {', '.join(key)} under {column}")
        line[column], columns[column] = cell(row), None
    lines = [[*key, *(line.get(column, NOTHING) for column in columns)] for key, line in places.items()]
    return Table([*down, *columns], lines, words=len(down))


def text(name: str, words: Mapping[Any, str] | None = None) -> Cell:
    """Returns what writes a field as it is, or in other words."""
    return lambda row: NOTHING if row.get(name) is None else str((words or {}).get(row[name], row[name]))


def number(name: str, digits: int = 3, *, unit: str = "") -> Cell:
    """Returns what writes a field as a number of so many digits."""
    return lambda row: figure(row.get(name), digits) + (unit if row.get(name) is not None else "")


def count(name: str) -> Cell:
    """Returns what writes a whole number."""
    return lambda row: NOTHING if row.get(name) is None else f"{row[name]:,}"


def with_interval(name: str, digits: int = 3, *, interval: str = "interval") -> Cell:
    """Returns what writes a field with its interval behind it, where it has one."""

    def written(row: Row) -> str:
        bounds = row.get(interval)
        between = "" if bounds is None else f" ({span(bounds['low'], bounds['high'], row[name], digits)})"
        return figure(row.get(name), digits) + between

    return written


def figure(value: float | None, digits: int = 3) -> str:
    """Returns a number with so many digits; those before the point are all told, and below 1 they are decimals."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{value:,.{_decimals(value, digits)}f}"


def span(low: float, high: float, beside: float, digits: int = 3) -> str:
    """Returns two bounds, with as many decimals as the figure that they belong to."""
    decimals = _decimals(beside, digits)
    return f"{low:,.{decimals}f} to {high:,.{decimals}f}"


def _decimals(value: float, digits: int) -> int:
    if abs(value) < 1:
        return digits
    return max(0, digits - 1 - math.floor(math.log10(abs(value))))
