"""The pages of results say what the reports say, and a number that somebody typed would be found."""

import json

import pytest

from eval.reports.claims.catalogue import CLAIMS, FIGURES
from eval.reports.claims.claim import Claim, Figure
from eval.reports.claims.marks import marks_of
from eval.reports.claims.table import count, figure, listed, number, text
from eval.reports.code_hashes import ROOT, digest_of
from eval.results import MARKED, Settings, faults, main, pictures, text_files
from eval.sparse.asked import BY_STEPS
from tests.eval.reports.claims.reports import accepted_row, report, speed_row

CLAIM = Claim(
    name="speed",
    title="Speed",
    text="What a second gives.",
    reports=("speed",),
    table=lambda rows: listed(rows, {"Method": text("method"), "Tokens/s": number("tokens_per_second")}),
    picture=lambda rows: b"\x89PNG" + str(len(rows)).encode(),
)
OTHER = Claim("other", "Other", "", ("other",), lambda rows: listed(rows, {"Nodes": count("nodes")}))
FIGURE = Figure("plain-speed", "speed", lambda r: figure(r["rows"][0]["tokens_per_second"]))
MADE = {"claims": (CLAIM, OTHER), "figures": (FIGURE,)}
README = "A step gives <!-- result: plain-speed -->?<!-- end --> tokens/s.\n\n<!-- result: speed -->\n<!-- end -->\n"


@pytest.fixture
def project(tmp_path):
    """A project with a report whose pages are as they should be."""
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "README.md").write_text(README)
    code = {"eval/reports/options.py": digest_of(ROOT / "eval" / "reports" / "options.py")}
    keep(tmp_path, "speed", report(rows=[speed_row()], code=code).content)
    write(tmp_path)
    return tmp_path


def keep(root, name, content):
    (root / "docs" / "results" / f"{name}.json").write_text(json.dumps(content))


def write(root):
    for name, written in text_files(root, **MADE).items():
        (root / name).write_text(written)
    for name, drawn in pictures(root, MADE["claims"]).items():
        (root / name).write_bytes(drawn)


def test_the_pages_of_the_project_are_what_its_reports_say():
    assert faults() == []


def test_the_text_over_policies_names_every_task_that_is_read_by_steps():
    (claim,) = (claim for claim in CLAIMS if claim.name == "smollm2-sparse")
    (told,) = (sentence for sentence in claim.text.split(". ") if "by steps" in sentence)
    assert all(task in told for task in BY_STEPS)


def test_names_of_claims_figures_and_their_links_are_unique():
    names = [c.name for c in CLAIMS] + [f.name for f in FIGURES]
    assert len(set(names)) == len(names)
    assert len({c.title for c in CLAIMS}) == len(CLAIMS)


def test_every_figure_is_used():
    used = {name for page in MARKED for name in marks_of((ROOT / page).read_text())}
    assert {f.name for f in FIGURES} <= used


def test_pages_that_were_just_written_have_no_fault(project):
    assert faults(project, **MADE) == []
    assert "gives <!-- result: plain-speed -->12.0<!-- end --> tokens/s" in (project / "README.md").read_text()
    assert "| ar | 12.0 |" in (project / "README.md").read_text()
    assert "| ar | 12.0 |" in (project / "docs" / "results.md").read_text()


@pytest.mark.parametrize(
    ("page", "shown", "typed"),
    [
        ("README.md", "12.0<!-- end --> tokens", "12.9<!-- end --> tokens"),
        ("README.md", "| ar | 12.0 |", "| ar | 13.0 |"),
        ("docs/results.md", "| ar | 12.0 |", "| ar | 13.0 |"),
        ("docs/results.md", "2 prompts", "3 prompts"),
        ("docs/support.md", "| `ar` | yes", "| `ar` | no"),
    ],
)
def test_a_number_that_somebody_typed_is_found(project, page, shown, typed):
    path = project / page
    assert shown in path.read_text()
    path.write_text(path.read_text().replace(shown, typed))
    assert faults(project, **MADE) == [f"{page} differs from what the reports say"]


def test_a_report_that_changed_is_found_in_every_page_that_tells_it(project):
    keep(project, "speed", report(rows=[speed_row(speeds=(20.0,))]).content)
    found = faults(project, **MADE)
    assert found == [f"{page} differs from what the reports say" for page in ("docs/results.md", "README.md")]


def test_a_report_that_is_older_than_its_code_is_no_fault(project):
    old = report(rows=[speed_row()], code={"eval/reports/options.py": "0" * 64})
    keep(project, "speed", old.content)
    assert faults(project, **MADE) == []
    write(project)
    assert "Older than its code:* of its 1 files 1 have changed since" in (project / "docs" / "results.md").read_text()


def test_files_that_are_missing_or_belong_to_nothing_are_found(project):
    folder = project / "docs" / "results"
    (folder / "speed.png").rename(folder / "strange.png")
    keep(project, "strange", report("strange").content)
    (project / "docs" / "support.md").unlink()
    assert faults(project, **MADE) == [
        "docs/support.md is missing",
        "docs/results/speed.png is missing",
        "docs/results/strange.png belongs to no claim",
        "docs/results/strange.json belongs to no claim",
    ]


def test_the_program_adds_a_report_writes_pages_and_checks_them(tmp_path, capsys):
    root = tmp_path / "project"
    (root / "docs" / "results").mkdir(parents=True)
    (root / "README.md").write_text("Nothing is marked here.\n")
    rows = [accepted_row("recycling", "all", 2.0, interval=(1.9, 2.1)) | {"tokens_per_second": 20.0}]
    made = report("a", "eval.acceptance", rows, settings={"temperatures": [], "batch_size": 1}, questions=5, code={})
    (tmp_path / "a.json").write_text(json.dumps(made.content))
    name = "smollm2-by-task"
    assert main(Settings(add=(f"{name}={tmp_path}/a.json",), write=True), root) == 0
    assert main(Settings(check=True), root) == 0
    assert "2.00 (1.90 to 2.10)" in (root / "docs" / "results.md").read_text()
    assert (root / "docs" / "results" / "smollm2-accepted-b1.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(FileExistsError, match="report exists"):
        main(Settings(add=(f"{name}={tmp_path}/a.json",)), root)
    (root / "docs" / "results" / f"{name}.json").unlink()
    assert main(Settings(check=True), root) == 1
    assert "docs/results.md differs" in capsys.readouterr().out
    assert main(Settings(write=True), root) == 0
    assert not (root / "docs" / "results" / "smollm2-accepted-b1.png").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "give --check, --write or --add"),
        ({"check": True, "write": True}, "exclude each other"),
        ({"add": ("name",)}, "add must be NAME=FILE.*got 'name'"),
        ({"add": ("a b=c",)}, "add must be NAME=FILE"),
        ({"add": ("a=missing.json",)}, "report does not exist: missing.json"),
    ],
)
def test_options_that_ask_for_nothing_or_cannot_be_done_are_refused(options, said, tmp_path):
    with pytest.raises((ValueError, OSError), match=said):
        main(Settings(**options), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_malformed_report_leaves_every_page_as_it_was(project):
    before = {p: p.read_bytes() for p in project.rglob("*") if p.is_file()}
    copy = project / "docs" / "results" / "bad.json"
    copy.write_text("{")
    with pytest.raises(ValueError, match=r"bad\.json must be a report"):
        main(Settings(write=True), project)
    copy.unlink()
    assert {p: p.read_bytes() for p in project.rglob("*") if p.is_file()} == before
