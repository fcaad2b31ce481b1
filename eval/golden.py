"""Golden tokens: what every method decodes is stored, and later code must decode the same.

    python -m eval.golden --model tiny --json tests/golden/tiny.json
    python -m eval.golden --check tests/golden/tiny.json
    python -m eval.golden --check tests/golden/tiny.json --methods recycling --batch-sizes 3

A case is a method under a condition: a batch size, greedy or sampled, with all processors or none. With `--check` the
cases of a file are decoded again. Each text must be the stored text of its own case. Where it first differs, both
tokens must lie within rounding of the best one in a plain forward over the text (see eval.exactness). Such near-ties
are listed, and the rest of their row is not compared. With any other difference the program ends with status 1.
"""

import dataclasses
import json as json_format
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from eval.exact.conditions import Condition
from eval.exact.decoded import Decoded
from eval.exact.golden_cases import KEPT, Case, Decoder, Prompts, conditions
from eval.reports.options import Names, Numbers
from eval.reports.report import check_output, heading, progress, run_program, write_json, write_whole
from eval.reports.told_paths import told
from jax_smash.methods import METHODS, check_method

Row = dict[str, Any]

OF_THE_FILE = ("model", "num_prompts", "prompt_tokens", "max_new_tokens", "seed")
"""Settings that a check takes from the golden file."""

CHOOSING = {"methods": "method", "batch_sizes": "batch_size", "processors": "processors", "choices": "choice"}
"""Settings that choose cases, and the field of a case that each goes by. Where not given, a check takes every value."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Stores what methods decode, or checks that they still decode it.

    Attributes:
      model: a shipped model's name, a directory or a hub id.
      methods: by name; hamburger needs modules beside the model.
      batch_sizes: prompts that decode together.
      processors: none, all (every processor, stop strings, a grammar, log-probabilities), or both.
      choices: greedy, sampled, or both.
      spread: each method under one condition only, another for each, so that few cases have every value.
      num_prompts: prompts of every case, pieces of the texts that come with the project.
      prompt_tokens: tokens of the longest prompt; the others have two thirds of it or more.
      max_new_tokens: of each prompt.
      seed: of the first prompt; each one after has the next.
      golden: decode the cases of this golden file again and compare; methods and conditions choose among them.
      json: file to write: the golden file, or what a check found.
      overwrite: replace the file if it exists.
    """

    model: str = "tiny"
    methods: Names = KEPT
    batch_sizes: Numbers = (1, 3, 8)
    processors: Names = ("none", "all")
    choices: Names = ("greedy", "sampled")
    spread: bool = False
    num_prompts: int = 8
    prompt_tokens: int = 48
    max_new_tokens: int = 20
    seed: int = 0
    golden: Annotated[Path | None, tyro.conf.arg(name="check", metavar="FILE")] = None
    json: Path | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Refuses what cannot be decoded, before anything is loaded.

        Raises:
          ValueError: an option is out of range or unknown, or there is no file to write or check.
          FileExistsError, FileNotFoundError: the output file cannot be written.
        """
        for method in self.methods:
            check_method(method)
        known = {"methods": tuple(METHODS), "processors": ("none", "all"), "choices": ("greedy", "sampled")}
        for name, words in known.items():
            given = getattr(self, name)
            if not given or set(given) - set(words):
                raise ValueError(f"{name} must be of {', '.join(words)}; got {', '.join(given) or 'none'}")
        if not self.batch_sizes or min(self.batch_sizes) < 1:
            raise ValueError(f"batch_sizes must be at least 1; got {', '.join(map(str, self.batch_sizes)) or 'none'}")
        for name, least in {"num_prompts": 1, "prompt_tokens": 3, "max_new_tokens": 2, "seed": 0}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}; got {getattr(self, name)}")
        if self.golden is None and self.json is None:
            raise ValueError("there must be a file to write or to check: give --json or --check")
        defaults = {f.name: f.default for f in dataclasses.fields(self)}
        for name in OF_THE_FILE:
            if self.golden is not None and getattr(self, name) != defaults[name]:
                raise ValueError(f"with --check, {name} is the golden file's; got {getattr(self, name)}")
        check_output(self.json, overwrite=self.overwrite)

    def cases(self) -> list[Case]:
        """Returns the cases of the methods and conditions."""
        combined = {"batch_sizes": self.batch_sizes, "processors": self.processors, "choices": self.choices}
        return [
            Case(method, condition)
            for method in self.methods
            for condition in conditions(**combined, method=method, spread=self.spread)
        ]


@dataclasses.dataclass(frozen=True)
class Golden:
    """What a golden file holds.

    Attributes:
      model: the model's name.
      prompts: what was continued.
      rows: of each case the number of compiled programs, the forwards of all rows together, and the texts.
    """

    model: str
    prompts: Prompts
    rows: Mapping[Case, Row]


def read_golden(path: Path) -> Golden:
    """Returns a golden file's content; the texts of a case stand in its row, one per prompt.

    Raises:
      ValueError: the file is no golden file.
      OSError: it cannot be read.
    """
    try:
        held = json_format.loads(path.read_text())
        settings, texts = held["settings"], [_text(text) for text in held["texts"]]
        rows = {_case(row): row | {"texts": [texts[i] for i in row["texts"]]} for row in held["cases"]}
        prompts = Prompts(**{field.name: settings[field.name] for field in dataclasses.fields(Prompts)})
        sound = all(len(row["texts"]) == prompts.num_prompts for row in rows.values())
        if not sound or max(len(text.tokens) for text in texts) > prompts.max_new_tokens:
            raise ValueError("it has too few texts, or too long ones")
        return Golden(settings["model"], prompts, rows)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{path} is no golden file: {error!r}") from error


def record(settings: Settings, on_case: Callable[[], None] = lambda: None) -> dict[str, list[Row]]:
    """Decodes all cases. Returns their rows, and the texts that these name by number.

    Args:
      settings: what to decode.
      on_case: called after each case.
    """
    prompts = Prompts(**{field.name: getattr(settings, field.name) for field in dataclasses.fields(Prompts)})
    decoder = Decoder(settings.model, prompts)
    texts: dict[tuple[str, tuple[int, ...]], int] = {}
    rows = []
    for case in settings.cases():
        decoded, programs = decoder.decode(case)
        # Drafted text is plain text, so few texts are all there are.
        numbers = [texts.setdefault((d.finish, tuple(d.tokens)), len(texts)) for d in decoded]
        forwards = sum(d.forwards for d in decoded)
        named = {"method": case.method, **dataclasses.asdict(case.condition)}
        rows.append(named | {"programs": programs, "forwards": forwards, "texts": numbers})
        on_case()
    return {"texts": [{"finish": finish, "tokens": [*tokens]} for finish, tokens in texts], "cases": rows}


def compare(decoder: Decoder, case: Case, stored: Row) -> Row:
    """Decodes a case again and compares.

    Args:
      decoder: of the golden file's model and prompts.
      case: what to decode.
      stored: its row of the golden file.

    Returns:
      `failures` and `near_ties`, a line each; `forwards` and `stored_forwards`, of all rows together.
    """
    decoded, programs = decoder.decode(case)
    found = decoder.differences(case, decoded, stored["texts"])
    failures = [f"{case}, {difference}" for difference in found if not difference.near_tie]
    if programs != stored["programs"]:
        failures.append(f"{case}: {programs} programs were compiled, stored {stored['programs']}")
    return {
        "method": case.method,
        **dataclasses.asdict(case.condition),
        "failures": failures,
        "near_ties": [f"{case}, {difference}" for difference in found if difference.near_tie],
        "forwards": sum(d.forwards for d in decoded),
        "stored_forwards": stored["forwards"],
    }


def chosen(settings: Settings, golden: Golden) -> list[Case]:
    """Returns the cases of a golden file that a check decodes: those of the methods and conditions that are given.

    Raises:
      ValueError: there are none.
    """
    defaults = {f.name: f.default for f in dataclasses.fields(settings)}
    given = {name: field for name, field in CHOOSING.items() if getattr(settings, name) != defaults[name]}
    spread = set(settings.cases()) if settings.spread else set(golden.rows)
    cases = [
        case
        for case, row in golden.rows.items()
        if case in spread and all(row[field] in getattr(settings, name) for name, field in given.items())
    ]
    if not cases:
        raise ValueError(f"{settings.golden} has no case of these methods and conditions")
    return cases


def main(settings: Settings, arguments: Sequence[str] | None = None) -> int:
    """Writes a golden file, or checks one; returns 1 where a text is not the stored one."""
    settings.check()
    report = heading("eval.golden", arguments, dataclasses.asdict(settings))
    if settings.golden is None:
        assert settings.json is not None
        with progress("cases", len(settings.cases())) as advance:
            found = record(settings, advance)
        del report["code"]  # The texts must stay while the code changes.
        write_whole(settings.json, in_lines(told(report | found)))
        return 0
    golden = read_golden(settings.golden)
    cases, decoder, rows = chosen(settings, golden), Decoder(golden.model, golden.prompts), []
    with progress("cases", len(cases)) as advance:
        for case in cases:
            rows.append(compare(decoder, case, golden.rows[case]))
            advance()
    for row in rows:
        for kind, lines in (("DIFFERS", row["failures"]), ("near-tie", row["near_ties"])):
            for line in lines:
                print(f"{kind}: {line}")
    failures, near_ties = (sum(len(row[name]) for row in rows) for name in ("failures", "near_ties"))
    forwards, before = (sum(row[name] for row in rows) for name in ("forwards", "stored_forwards"))
    print(f"{len(rows)} cases: {failures} differences, {near_ties} near-ties; {forwards} forwards, stored {before}")
    if settings.json is not None:
        write_json(settings.json, report | {"rows": rows})
    return int(failures > 0)


def in_lines(report: Mapping[str, Any]) -> bytes:
    """Returns a golden file's JSON with a line for each field, text and case."""
    fields = []
    for name, value in report.items():
        lines = [json_format.dumps(item, separators=(",", ":")) for item in value] if isinstance(value, list) else []
        held = "[\n" + ",\n".join(lines) + "\n]" if lines else json_format.dumps(value, ensure_ascii=False)
        fields.append(f"{json_format.dumps(name)}: {held}")
    return ("{\n" + ",\n".join(fields) + "\n}\n").encode()


def _text(held: Mapping[str, Any]) -> Decoded:
    return Decoded(tokens=[int(token) for token in held["tokens"]], finish=held["finish"], forwards=0, log_probs=None)


def _case(row: Mapping[str, Any]) -> Case:
    condition = Condition(batch_size=row["batch_size"], processors=row["processors"], choice=row["choice"])
    return Case(row["method"], condition)


if __name__ == "__main__":
    run_program(Settings, main)
