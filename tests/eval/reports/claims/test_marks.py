import pytest

from eval.reports.claims.claim import Claim, Figure
from eval.reports.claims.marks import filled, marks_of
from eval.reports.claims.table import figure, listed, text
from tests.eval.reports.claims.reports import report, speed_row

CLAIM = Claim("speed", "Speed", "", ("speed",), lambda rows: listed(rows, {"Method": text("method")}))
ABSENT = Claim("later", "Later", "", ("later",), lambda rows: listed(rows, {}))
FIGURES = [
    Figure("plain", "speed", lambda r: figure(r["rows"][0]["tokens_per_second"])),
    Figure("missing", "later", lambda r: ""),
]
REPORTS = {"speed": report(rows=[speed_row()])}


def fill(page):
    return filled(page, [CLAIM, ABSENT], FIGURES, REPORTS)


def test_a_number_within_a_sentence_is_the_reports():
    page = "Plain: <!-- result: plain -->99<!-- end --> tokens/s, <!-- result: plain --><!-- end --> again."
    expected = "Plain: <!-- result: plain -->12.0<!-- end --> tokens/s, <!-- result: plain -->12.0<!-- end --> again."
    assert fill(page) == expected
    assert fill(expected) == expected
    assert marks_of(page) == ["plain", "plain"]


def test_a_table_stands_on_lines_of_its_own():
    page = "a\n\n<!-- result: speed -->\nold\n<!-- end -->\n\nb\n"
    table = "| Method |\n| --- |\n| ar |"
    assert fill(page) == f"a\n\n<!-- result: speed -->\n{table}\n<!-- end -->\n\nb\n"


def test_a_page_without_marks_stays_as_it_is():
    assert fill("# Title\n<!-- a comment -->\n") == "# Title\n<!-- a comment -->\n"


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("<!-- result: other -->1<!-- end -->", "must name one of plain, missing, speed, later; got other"),
        ("<!-- result: missing -->1<!-- end -->", "mark missing needs docs/results/later.json"),
        ("<!-- result: later -->1<!-- end -->", "mark later needs one of docs/results/later"),
        ("<!-- result: plain -->1", "has no name or no end"),
        ("<!-- result: -->1<!-- end -->", "has no name or no end"),
        ("<!-- result: plain -->1 <!-- result: plain -->2<!-- end -->", "plain has no <!-- end --> before the next"),
    ],
)
def test_a_mark_that_cannot_be_filled_is_told(page, said):
    with pytest.raises(ValueError, match=said):
        fill(page)
