"""What a claim is: a table, and the reports that it is made of."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from eval.reports.claims.stored import Report, matching
from eval.reports.claims.table import Row, Table

Rows = Sequence[Row]


@dataclasses.dataclass(frozen=True)
class Claim:
    """One table of the page of results.

    Attributes:
      name: short, of letters, digits and hyphens; the README names it where it shows the table.
      title: of its part of the page.
      text: what the table shows, in one or two sentences.
      reports: names of files in docs/results without their ending; `*` stands for anything.
      table: makes the table of the rows of all its reports, in their order.
      picture: draws the same rows as a PNG file, which stands above the table.
      choose: which rows of the reports it is about; without any, the claim is not measured.
    """

    name: str
    title: str
    text: str
    reports: tuple[str, ...]
    table: Callable[[Rows], Table]
    picture: Callable[[Rows], bytes] | None = None
    choose: Callable[[Rows], Rows] = list

    def sources(self, reports: Mapping[str, Report]) -> list[Report]:
        """Returns its reports, those without a row that it is about left out."""
        return [report for report in matching(reports, self.reports) if self.rows([report])]

    def rows(self, reports: Sequence[Report]) -> Rows:
        """Returns the rows that it is about."""
        return self.choose([row for report in reports for row in report.rows])


@dataclasses.dataclass(frozen=True)
class Figure:
    """One number in a sentence of the README or of a page.

    Attributes:
      name: by which the sentence names it.
      report: name of a file in docs/results without its ending.
      text: writes the number.
    """

    name: str
    report: str
    text: Callable[[Report], str]
