import dataclasses

import pytest

from eval.reports.claims.claim import Claim
from eval.reports.claims.page import AGE, anchor, page, without_age
from eval.reports.claims.rows import where
from eval.reports.claims.table import listed, number, text
from eval.reports.code_hashes import ROOT, digest_of
from tests.eval.reports.claims.reports import report, speed_row

CLAIM = Claim(
    name="speed",
    title="Speed of `tiny`, batch 1",
    text="What a second gives.",
    reports=("speed",),
    table=lambda rows: listed(rows, {"Method": text("method"), "Tokens/s": number("tokens_per_second")}),
)
NOW = {"eval/reports/options.py": digest_of(ROOT / "eval" / "reports" / "options.py")}


def made(**more):
    return page([CLAIM], {"speed": report(rows=[speed_row()], **more)})


def test_a_claim_has_title_sentence_table_and_all_that_repeats_it():
    text = made(code=NOW)
    for part in (
        "- [Speed of `tiny`, batch 1](#speed-of-tiny-batch-1)",
        "## Speed of `tiny`, batch 1\n\nWhat a second gives.\n\n| Method | Tokens/s |\n| --- | ---: |\n| ar | 12.0 |\n",
        "\nMade from [speed](#speed).\n",
        "## Reports\n\n### speed\n\n- [Its rows](results/speed.json): 2 prompts, 8 tokens each, 3 repeats; greedy; "
        "2 cores of Some CPU; jax 0.10.2; commit `0123456`\n- `python -m eval.speed --json speed.json`\n",
    ):
        assert part in text
    assert "Not measured yet" not in text


def test_a_report_that_was_cut_off_is_named_below_the_table():
    assert "| ar | 12.0 |\n\nCut off before all rows were made: speed.\n\nMade from" in made(code=NOW, complete=False)
    assert made(code=NOW, complete=True) == made(code=NOW)
    assert "Cut off" not in made(code=NOW)


def test_a_report_of_two_claims_is_told_once():
    again = dataclasses.replace(CLAIM, name="again", title="Again")
    text = page([CLAIM, again], {"speed": report(rows=[speed_row()], code=NOW)})
    assert text.count("Made from [speed](#speed).") == 2
    assert text.count("results/speed.json") == 1


def test_a_claim_without_a_report_is_said_to_be_unmeasured():
    text = page([CLAIM], {"other": report("other")})
    assert "## Not measured yet\n\n- Speed of `tiny`, batch 1\n" in text
    assert "## Speed" not in text


def test_a_claim_whose_reports_have_no_row_about_it_is_unmeasured_too():
    eight = dataclasses.replace(CLAIM, choose=lambda rows: where(rows, batch_size=8))
    reports = {"speed": report(rows=[speed_row(), speed_row("suffix", batch_size=8)], code=NOW)}
    assert "| suffix | 12.0 |" in page([eight], reports)
    assert "| ar |" not in page([eight], reports)
    assert "Not measured yet" in page([dataclasses.replace(eight, choose=lambda rows: [])], reports)


def test_a_report_without_a_row_about_a_claim_is_no_source_of_it():
    eight = dataclasses.replace(CLAIM, reports=("speed-*",), choose=lambda rows: where(rows, batch_size=8))
    rows = {f"speed-{size}": [speed_row(batch_size=size)] for size in (1, 8)}
    text = page([eight], {name: report(name, rows=found) for name, found in rows.items()})
    assert "Made from [speed-8](#speed-8)." in text
    assert "speed-1" not in text


def test_a_report_is_marked_where_its_code_has_changed_and_only_there():
    assert AGE not in made(code=NOW)
    old = made(code=NOW | {"eval/gone.py": "0" * 64})
    assert f"{AGE} of its 2 files 1 have changed since: `eval/gone.py`\n" in old
    many = made(code={f"eval/gone_{i}.py": "0" * 64 for i in range(5)})
    assert "`eval/gone_2.py` and 2 more\n" in many
    assert "the report does not name its files" in made()


def test_the_age_of_reports_does_not_count_as_a_difference_of_the_page_and_a_figure_does():
    new, old = made(code=NOW), made(code={"eval/gone.py": "0" * 64})
    assert new != old
    assert without_age(new) == without_age(old) == new
    other = page([CLAIM], {"speed": report(rows=[speed_row(speeds=(11.0,))], code=NOW)})
    assert without_age(other) != without_age(new)


@pytest.mark.parametrize(("title", "link"), [("A: b, `c`", "a-b-c"), ("Two  words", "two--words"), ("x_1.5", "x_15")])
def test_links_within_the_page_are_those_that_readers_of_markdown_make(title, link):
    assert anchor(title) == link
