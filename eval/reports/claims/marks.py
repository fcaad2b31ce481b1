"""Numbers and tables of the README and other pages, filled in from reports.

    Tiny decodes <!-- result: tiny-speed -->1,397<!-- end --> tokens a second.

    <!-- result: smollm2-speed -->
    | table |
    <!-- end -->

A mark names a figure, which stands within a sentence, or a claim, whose table stands on lines of its own.
"""

import re
from collections.abc import Mapping, Sequence

from eval.reports.claims.claim import Claim, Figure
from eval.reports.claims.page import table_of
from eval.reports.claims.stored import Report

_MARK = re.compile(r"<!-- result: (?P<name>\S+) -->(?P<shown>.*?)<!-- end -->", re.DOTALL)
_BEGIN = re.compile(r"<!-- result:")


def filled(text: str, claims: Sequence[Claim], figures: Sequence[Figure], reports: Mapping[str, Report]) -> str:
    """Returns a page with every mark filled from the reports.

    Args:
      text: of the page.
      claims, figures: that a mark may name.
      reports: by name.

    Raises:
      ValueError: a mark names what nobody claims or has no report, or has no end.
    """
    found = {claim.name: (claim, claim.sources(reports)) for claim in claims}
    numbers = {f.name: f for f in figures}

    def shown(mark: re.Match[str]) -> str:
        name = mark["name"]
        if "<!-- result:" in mark["shown"]:
            raise ValueError(f"mark {name} has no <!-- end --> before the next mark")
        if name in numbers:
            if numbers[name].report not in reports:
                raise ValueError(f"mark {name} needs docs/results/{numbers[name].report}.json, which is not there")
            content = numbers[name].text(reports[numbers[name].report])
        elif name in found:
            claim, sources = found[name]
            if not sources:
                raise ValueError(f"mark {name} needs one of docs/results/{', '.join(claim.reports)}; none is there")
            content = f"\n{table_of(claim, sources)}\n"
        else:
            raise ValueError(f"a mark must name one of {', '.join((*numbers, *found))}; got {name}")
        return f"<!-- result: {name} -->{content}<!-- end -->"

    made, marks = _MARK.subn(shown, text)
    if marks < len(_BEGIN.findall(text)):
        raise ValueError("a mark must read <!-- result: NAME -->…<!-- end -->; one has no name or no end")
    return made


def marks_of(text: str) -> list[str]:
    """Returns the names of the marks of a page."""
    return [mark["name"] for mark in _MARK.finditer(text)]
