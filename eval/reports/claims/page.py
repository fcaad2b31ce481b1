"""The page of results: a part a claim, then what every report says of how it was made."""

import textwrap
from collections.abc import Mapping, Sequence

from eval.reports.claims.claim import Claim
from eval.reports.claims.stored import Report
from eval.reports.code_hashes import ROOT

NAMED = 3
"""Changed files that are named; further ones are counted."""

AGE = "- *Older than its code:*"
"""How the line of a report begins whose code has changed."""

UNKNOWN = "- *Its code is not known:*"

INTRODUCTION = """# Results

The newest reports of current models and methods. `python -m eval.results --write` makes this page from the reports in
[results/](results): every figure on it stands in one of them. Its last part, [Reports](#reports), has the command of
each, and tells where the code has changed since. Commands are run from a checkout. `DATA` in a command is the folder of
your data sets, and a file without a folder is one that you have or that is written. Figures in brackets are the 95%
interval of the one before them, or, for speeds, the range of the repeats.
"""


def page(claims: Sequence[Claim], reports: Mapping[str, Report]) -> str:
    """Returns the page in Markdown; behind the claims stand those without a report, and the reports.

    Args:
      claims: in order.
      reports: by name.
    """
    shown = [claim for claim in claims if claim.sources(reports)]
    missing = [claim.title for claim in claims if claim not in shown]
    sources = {report.name: report for claim in shown for report in claim.sources(reports)}
    titles = [claim.title for claim in shown] + ["Reports"] * bool(sources)
    contents = "\n".join(f"- [{title}](#{anchor(title)})" for title in titles)
    parts = [INTRODUCTION, contents + "\n", *(part(claim, claim.sources(reports)) for claim in shown)]
    if missing:
        parts.append("## Not measured yet\n\n" + "\n".join(f"- {title}" for title in missing) + "\n")
    if sources:
        parts.append("## Reports\n")
        parts += ["\n".join(source(report)) + "\n" for report in sources.values()]
    return "\n".join(parts)


def part(claim: Claim, reports: Sequence[Report]) -> str:
    """Returns the part of one claim: sentences, picture, table, names of its reports."""
    lines = [f"## {claim.title}", "", textwrap.fill(claim.text, 120), ""]
    if claim.picture is not None:
        lines += [f"![{claim.title}](results/{claim.name}.png)", ""]
    lines += [table_of(claim, reports), ""]
    named = ", ".join(f"[{report.name}](#{anchor(report.name)})" for report in reports)
    lines.append(textwrap.fill(f"Made from {named}.", 120, break_long_words=False, break_on_hyphens=False))
    return "\n".join(lines) + "\n"


def table_of(claim: Claim, reports: Sequence[Report]) -> str:
    """Returns the table of one claim in Markdown; below it, which of its reports lack rows that were asked for."""
    table = claim.table(claim.rows(reports)).markdown()
    if not (short := [report.name for report in reports if not report.complete]):
        return table
    lacking = f"Cut off before all rows were made: {', '.join(short)}."
    return f"{table}\n\n{textwrap.fill(lacking, 120, break_long_words=False, break_on_hyphens=False)}"


def source(report: Report) -> list[str]:
    """Returns the lines of a report: what a reader needs to make it again, and whether its code has changed since."""
    versions = ", ".join(
        f"{name} {report['versions'][name]}" for name in ("jax", "torch") if name in report["versions"]
    )
    facts = [report.size, report.seed, report.device, versions, f"commit {report.commit}"]
    told = "; ".join(fact for fact in facts if fact)
    lines = [f"### {report.name}", "", f"- [Its rows](results/{report.name}.json): {told}", f"- `{report['command']}`"]
    changed = report.changed(ROOT)
    if changed is None:
        return [*lines, f"{UNKNOWN} the report does not name its files"]
    if changed:
        names = ", ".join(f"`{name}`" for name in changed[:NAMED])
        more = f" and {len(changed) - NAMED} more" if len(changed) > NAMED else ""
        lines.append(f"{AGE} of its {len(report['code'])} files {len(changed)} have changed since: {names}{more}")
    return lines


def without_age(text: str) -> str:
    """Returns a page without what says that reports are old: that changes with the code, not with the reports."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith((AGE, UNKNOWN)))


def anchor(title: str) -> str:
    """Returns the link within a page to one of its headings."""
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")
