import struct

from eval.reports.claims.pictures import bars, curves, picture
from eval.reports.claims.table import text
from tests.eval.reports.claims.reports import accepted_row

ROWS = [accepted_row(m, t, 2.0, interval=(1.8, 2.1)) for m in ("recycling", "hybrid") for t in ("all", "qa")]
OPTIONS = {"group": text("category"), "bar": text("method"), "height": "mean_accepted_tokens", "label": "tokens"}


def size(png):
    assert png.startswith(b"\x89PNG")
    return struct.unpack(">II", png[16:24])


def test_bars_are_drawn_and_more_groups_make_a_wider_picture():
    few = bars(ROWS, **OPTIONS)
    many = bars([{**row, "category": f"{row['category']}{i}"} for row in ROWS for i in range(8)], **OPTIONS)
    assert size(many)[0] > size(few)[0]
    assert len(many) < 100_000


def test_the_same_rows_give_the_same_file_and_other_rows_another():
    assert bars(ROWS, **OPTIONS) == bars(ROWS, **OPTIONS)
    assert bars(ROWS[:3], **OPTIONS) != bars(ROWS, **OPTIONS)
    without = [{**row, "interval": None} for row in ROWS]
    assert bars(without, **OPTIONS) != bars(ROWS, **OPTIONS)
    assert bars([*ROWS, {**ROWS[0], "category": "rag", "mean_accepted_tokens": None}], **OPTIONS, line=1.0)


def test_a_picture_of_a_claim_draws_the_rows_that_it_chooses():
    chosen = picture(bars, lambda rows: rows[:2], **OPTIONS)
    assert chosen(ROWS) == bars(ROWS[:2], **OPTIONS)


def test_curves_join_the_points_of_a_line():
    rows = [{"x": x, "y": y, "line": "a", "word": f"{x}"} for x, y in ((2.0, 0.4), (1.0, 0.5))]
    options = {"x": "x", "y": "y", "line": text("line"), "point": text("word"), "labels": ("x", "y")}
    assert size(curves(rows, **options, level={"plain": 0.5}))
    assert curves(rows, **options, level={}) == curves(rows[::-1], **options, level={})
