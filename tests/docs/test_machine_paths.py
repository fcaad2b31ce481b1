"""No page and no report names a folder of one machine."""

from pathlib import Path

import pytest

from eval.reports.told_paths import MACHINE_PATH

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += [path for path in sorted((ROOT / "docs").rglob("*")) if path.suffix in (".md", ".json", ".py")]
PAGES += sorted((ROOT / "jax_smash" / "assets").rglob("*.md"))


def found(text: str) -> list[str]:
    return [match[0] for match in MACHINE_PATH.finditer(text)]


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_page_or_report_holds_no_machine_path(path):
    assert not found(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "text", ["`python -m eval.speed --json /tmp/out.json`", "see ~/models/x", '"/home/me/a"', "in (/work/b)", "/root/"]
)
def test_a_machine_path_would_be_found(text):
    assert found(text)


@pytest.mark.parametrize(
    "text", ["DATA/sets/a.jsonl", "tokens/s", "https://example.com/home/x", "`docs/results/`", "~5"]
)
def test_other_words_with_strokes_are_none(text):
    assert not found(text)
