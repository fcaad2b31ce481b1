"""The page that says what goes with what: methods, ways to choose tokens, weights, devices, and what is missing."""

from collections.abc import Mapping, Sequence
from typing import Any

from eval.reports.claims.stored import Report
from eval.reports.claims.table import NOTHING, Table
from jax_smash.draft.verify.named import VERIFICATIONS
from jax_smash.methods import METHODS, OPTIONS, DraftOptions, check_draft

YES = "yes"
KERNEL = "kernel of tree attention"
PLATFORMS = ("cpu", "gpu", "tpu")

HAMBURGER = "hamburger"

CAPABILITIES = {
    "batch": "batch",
    "penalties": "penalties, logit bias",
    "grammar": "stops, grammars",
    "log_probs": "log-probs",
    "int8": "int8 weights",
    "mesh": "mesh",
}
"""What every method takes, each with the words of the table. A test decodes with all of them, method by method."""

COUPLING, LOSSY = "coupling", "typical-lossy"

COMPILED = tuple(METHODS)
"""Methods whose steps are compiled for TPUs, by `eval.compile` and the tests."""

INTRODUCTION = """# Support

What goes with what. `python -m eval.results --write` makes this page from what the library accepts and from the reports
in [results/](results).

## Methods

*Coupling* draws every token with the noise of its place, so that sampled text is plain decoding's, token for token.
*Rejection* keeps the distribution and gives another text. Penalties, stops, grammars and temperatures differ from row
to row of a batch.
"""

OPTIONS_TAKEN = """## Options of drafting

What a method does not take is refused by name, before anything is loaded. `typical-lossy` keeps likely tokens, not the
distribution.
"""

DEVICES = """## Devices

*Run* means by the tests, with every change. *Compiled only* means that the programs compile for the device and that
their memory, copies and collectives are known, but not their speed; *lowered only*, that they were not compiled to the
end. Where speed was measured, the report is named.
"""

PARTS: tuple[tuple[str, str, str, str], ...] = (
    ("float32 and bfloat16 weights", "run", "not run", "compiled only"),
    ("int8 weights", "run", "not run", "compiled only"),
    ("mesh of several devices, one host", "run, virtual devices", "not run", "compiled only"),
    ("mesh over several hosts", "run, processes of one machine", "not run", "compiled only"),
    (KERNEL, "interpreted", "lowered only", "interpreted, compiled only"),
    ("kernel of sparse attention", "interpreted", "lowered only", "interpreted, compiled only"),
    ("training", "run", "not run", "not compiled"),
)
"""Parts of the library that are not of one method: on a CPU, a GPU, a TPU."""

MISSING = """## Missing

- `--tree` and the rules of verification do not go with `ar` and `hamburger`; `--tree off` not with `draft-model`.
- HAMburger's modes `blind` and `checked` share slots: their text is not plain decoding's. A row of theirs is the same
  alone and in a batch where `--least-rows` is 1.
- `--tree auto` sizes the trees of {automatic}, and those of trained drafters, by what
  they cost on the device. `lookahead` and `draft-model` have one tree of their own there.
  `self-sparse` has a chain, of the length that pays.
- On several hosts `--tree auto` goes by the cost curve alone, and follows no times.
- `h2o` and `tova` go by probabilities, which no kernel returns: where they choose, XLA's operations attend.
- There is no paged cache, no int8 cache and no weight format below 8 bits.
"""


def support_page(reports: Mapping[str, Report], automatic: Sequence[str]) -> str:
    """Returns the page in Markdown.

    Args:
      reports: by name.
      automatic: methods whose trees are sized by what they cost here.
    """
    *names, last = (f"`{name}`" for name in automatic)
    missing = MISSING.format(automatic=f"{', '.join(names)} and {last}")
    parts = [INTRODUCTION, methods().markdown(), "", OPTIONS_TAKEN, drafts().markdown(), "", DEVICES]
    return "\n".join([*parts, devices(reports).markdown(), "", parts_by_device(reports).markdown(), "", missing])


def methods() -> Table:
    """Returns how each method chooses tokens, and what goes with it."""
    lines = []
    for name in METHODS:
        rules = accepted_rules(name)
        coupled = NOTHING if name not in OPTIONS else YES
        rejected = YES if set(rules) - {COUPLING, LOSSY} else "refused" if rules else NOTHING
        if name == HAMBURGER:
            coupled = "mode `exact`"
        lines.append([f"`{name}`", YES, YES, coupled, rejected, *(YES for _ in CAPABILITIES)])
    header = ["Method", "greedy", "temperature", "coupling", "rejection", *CAPABILITIES.values()]
    return Table(header, lines, words=len(header))


def drafts() -> Table:
    """Returns the rules of verification and the other options that each method that drafts takes."""
    lines = []
    for name in OPTIONS:
        given = [f"`--{option.replace('_', '-')}`" for option in OPTIONS[name] if option != "verify"]
        lines.append([f"`{name}`", ", ".join(f"`{rule}`" for rule in accepted_rules(name)), ", ".join(given)])
    return Table(["Method", "Rules of `--verify`", "Other options"], lines, words=3)


def accepted_rules(method: str) -> list[str]:
    """Returns the rules of verification that a method takes, as the library's own check has it."""
    return [rule for rule in VERIFICATIONS if _takes(method, rule)] if method in OPTIONS else []


def devices(reports: Mapping[str, Report]) -> Table:
    """Returns where each method has been run, compiled or measured."""
    lines = []
    for name in METHODS:
        known = ("run", "not run", "compiled only" if name in COMPILED else "not compiled")
        found = [measured(reports, "eval.speed", platform, name) for platform in PLATFORMS]
        lines.append([f"`{name}`", *map(_with_links, known, found)])
    return Table(["Method", "CPU", "GPU", "TPU"], lines, words=4)


def parts_by_device(reports: Mapping[str, Report]) -> Table:
    """Returns what is known of parts that are not of one method."""
    lines = []
    for part, *known in PARTS:
        found = [measured(reports, "eval.kernels", platform) if part == KERNEL else [] for platform in PLATFORMS]
        lines.append([part, *map(_with_links, known, found)])
    return Table(["Part", "CPU", "GPU", "TPU"], lines, words=4)


def measured(reports: Mapping[str, Report], program: str, platform: str, method: str | None = None) -> list[str]:
    """Returns the names of a program's reports from a kind of device.

    Args:
      reports: by name.
      program: as in eval.speed.
      platform: cpu, gpu or tpu.
      method: that a row must be of; None for any.
    """
    return [
        name
        for name, report in reports.items()
        if report.program == program and report["device"]["platform"] == platform
        if method is None or any(_method_of(row) == method for row in report.rows)
    ]


def _with_links(known: str, reports: Sequence[str]) -> str:
    """Writes what is known; a report says more than that something is not run or only compiled."""
    links = "measured: " + ", ".join(f"[{name}](results/{name}.json)" for name in reports)
    if not reports:
        return known
    return f"{known}, {links}" if known.startswith("run") else links


def _method_of(row: Mapping[str, Any]) -> str:
    """Returns a row's method, without the weights and group lengths that may be named with it."""
    return row["method"].partition(",")[0].removesuffix(" int8")


def _takes(method: str, rule: str) -> bool:
    try:
        check_draft(method, DraftOptions(verify=rule))
    except ValueError:
        return False
    return True
