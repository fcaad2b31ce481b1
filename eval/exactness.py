r"""Drafted text is plain decoding's, token for token: methods, trees, batches and processors in every combination.

    python -m eval.exactness --model tiny --methods recycling --json exactness.json
    python -m eval.exactness --model tiny --methods recycling --trees chain-4 tree.json --batch-sizes 8 --json OUT
    python -m eval.exactness --model smollm2 --spec-bench question.jsonl --chat --num-prompts 60 --prompt-tokens 96 \
      --methods recycling lookup suffix lookahead draft-model hybrid --trees tree-15 --batch-sizes 1 8 --json OUT
    python -m eval.exactness --model DIR --methods hamburger --modules FOLDER --json OUT
    python -m eval.exactness --model smollm2 --methods eagle medusa --drafter RUN/eagle/drafter RUN/eagle1/drafter \
      RUN/medusa/drafter --trees chain-4 tree-15 --json OUT

Every text is compared with plain decoding of the same seed and batch size, and every emitted token with a plain forward
over the whole text, processors applied: it must lie within rounding of the best. Rounding is 1e-5 of the largest
processed logit's magnitude in float32, and one step of the format, 2⁻⁷ of it, in bfloat16. Divergences are listed, with
the gap between the two tokens; in float32 there may be 5 in a million tokens, each a near-tie. A row in which no draft
was kept proves nothing: it is no fault and has a star.

For the last condition (the largest batch, all processors, sampled) trees are also decoded in ways that must change
nothing (padding nodes that nothing reaches; siblings swapped; a tree of first children alone, against the chain), and
in ways that must be found out: an ancestor bit flipped, a penalty left out at drafted nodes. These decode up to the
batch in which the fault shows.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp

from eval.drafting.random_drafters import KINDS
from eval.drafting.trained import MICRO, Trained, trained_for
from eval.exact.conditions import REGEX, STOP, Condition
from eval.exact.divergence import ROUNDING
from eval.exact.exactness_report import Clock, earlier_rows, inputs_of, totals
from eval.exact.exactness_rows import AS_IT_IS, DRAFT_MODEL, GROUPS, HAMBURGER, HYBRID, SELF_SPARSE, Case, Study
from eval.exact.kept import NO_DRAFT_KEPT, no_draft_kept
from eval.prompts.exactness_prompts import of_file, of_spec_bench, shipped
from eval.reports.options import Names, Numbers, Paths, check_least
from eval.reports.report import check_output, heading, print_table, run_program, write_json
from eval.scores.smashing import smash_options
from jax_smash.decode.programs import PROGRAMS
from jax_smash.draft.trees.confident import confident
from jax_smash.loading import Model, grafted, load, stored_base
from jax_smash.methods import RANDOM, DraftOptions, check_draft, check_method, check_smash, fitting_modules
from jax_smash.methods.draft_options import INT8, READERS
from jax_smash.sharding import mesh_of_hosts

Row = dict[str, Any]

SMASHING = ("modules", "smash_mode", "confidence", "token_confidence", "micro_steps", "micro_head")
"""Settings of method hamburger alone."""

COLUMNS = (
    "way",
    "method",
    "drafter",
    "draft_model",
    "tree",
    "batch_size",
    "processors",
    "choice",
    "tokens",
    "divergences",
    "beyond_near_ties",
    "unexplained",
    "worst_gap",
    "mean_accepted_tokens",
    "passed",
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Checks that drafted text is plain decoding's.

    Attributes:
      model: a shipped model's name, a directory or a hub id.
      methods: names of methods that draft.
      draft_model: what method draft-model drafts with, a model's name or int8, as by default; it has no tree off. With
        int8, method self-sparse drafts by its copy in int8 too; by default, by the target's own weights.
      sparse: policy by which method self-sparse drafts, as in `jax-smash generate --sparse`; by default its own.
      trees: auto, off, chain-N, tree-N, a template's name or a .json file, each under every method but hamburger, whose
        groups are chains.
      drafter: folders of trained drafters, as `jax-smash generate --drafter` takes them; each is a row of its method,
        and one of hybrid. `random:KIND` is one with random weights, of kind eagle, eagle1, medusa, chimera or dflash.
      modules: HAMburger modules, a folder; by default those beside the model. Where the folder holds a base, which was
        trained with them, every method decodes with that one. `random` are modules with random weights.
      smash_mode: of hamburger: exact, whose groups are drafts. In other modes text is not plain decoding's.
      confidence, token_confidence, micro_steps, micro_head: of hamburger, as in `jax-smash generate`; by default as the
        modules were calibrated.
      batch_sizes: prompts that decode together.
      processors: none, all (every processor, stop strings, a grammar, log-probabilities), or both.
      choices: greedy, sampled, or both.
      checks: also decode in ways that must change nothing, and in ways that must be found out.
      equivalents: of the checks, also those that must change nothing.
      faults: of the checks, also those that must be found out. Of random drafters a large model keeps hardly anything,
        so nothing shows.
      prompts: file of prompts, one {"prompt": …} a line; by default pieces of the texts that come with the project.
      spec_bench: Spec-Bench's question.jsonl, in place of prompts: the first turns, of each task in turn.
      chat: the questions of Spec-Bench are put into the model's chat template.
      num_prompts: prompts to take; None takes the whole file.
      prompt_tokens: a prompt's tokens at most; longer ones are cut. Shipped ones have two thirds of it or more.
      max_new_tokens: of each prompt.
      seed: of the first prompt; each one after has the next.
      stop: strings that end a text, where all processors are on.
      regex: grammar of the texts, where all processors are on.
      dtype: of the weights.
      json: file to write, after every row.
      resume: go on with the rows that the file lacks.
      overwrite: replace the file if it exists.
    """

    model: str = "tiny"
    methods: Names = ("recycling",)
    draft_model: str | None = None
    sparse: str | None = None
    trees: Names = ("off", "chain-4", "recycling-80")
    drafter: Paths = ()
    modules: str | None = None
    smash_mode: str = "exact"
    confidence: float | None = None
    token_confidence: float | None = None
    micro_steps: int | None = None
    micro_head: str | None = None
    batch_sizes: Numbers = (1, 3, 8)
    processors: Names = ("none", "all")
    choices: Names = ("greedy", "sampled")
    checks: bool = True
    equivalents: bool = True
    faults: bool = True
    prompts: Path | None = None
    spec_bench: Path | None = None
    chat: bool = False
    num_prompts: int | None = 200
    prompt_tokens: int = 48
    max_new_tokens: int = 32
    seed: int = 0
    stop: tuple[str, ...] = STOP
    regex: str = REGEX
    dtype: Literal["float32", "bfloat16"] = "float32"
    json: Path | None = None
    resume: bool = False
    overwrite: bool = False

    def check(self) -> None:
        """Refuses what cannot be checked, before anything is loaded.

        Raises:
          ValueError: an option is out of range or unknown, or modules do not fit the model.
          FileExistsError, FileNotFoundError: the output file cannot be written, or there are no modules.
        """
        for method in self.methods:
            check_method(method)
        if not self.methods or "ar" in self.methods:
            raise ValueError(f"methods must name some that draft; got {', '.join(self.methods) or 'none'}")
        self._check_smashing()
        self.trained()
        if self.sparse is not None and SELF_SPARSE not in self.methods:
            raise ValueError(f"sparse goes with method {SELF_SPARSE} alone; got {', '.join(self.methods)}")
        if self.draft_model is not None and not {DRAFT_MODEL, SELF_SPARSE}.intersection(self.methods):
            raise ValueError(
                f"draft_model goes with methods {DRAFT_MODEL} and {SELF_SPARSE}; got {', '.join(self.methods)}"
            )
        for method in self.methods:
            taken = {"sparse": self.sparse} if method == SELF_SPARSE else {}
            check_draft(method, DraftOptions(draft_model=self.drafts_with(method), **taken))
        known = {"processors": ("none", "all"), "choices": ("greedy", "sampled")}
        for name, words in known.items():
            if not getattr(self, name) or set(getattr(self, name)) - set(words):
                raise ValueError(
                    f"{name} must be of {', '.join(words)}; got {', '.join(getattr(self, name)) or 'none'}"
                )
        if not self.trees or not self.batch_sizes:
            raise ValueError(f"trees and batch_sizes must each name one at least; got {self.trees}, {self.batch_sizes}")
        check_least(self, num_prompts=1, prompt_tokens=3, max_new_tokens=2, seed=0)
        if min(self.batch_sizes) < 1:
            raise ValueError(f"batch_sizes must be at least 1; got {min(self.batch_sizes)}")
        if self.prompts is not None and self.spec_bench is not None:
            raise ValueError("--prompts and --spec-bench exclude each other; got both")
        if self.chat and self.spec_bench is None:
            raise ValueError(
                "chat goes with --spec-bench, whose questions are a user's; got neither file nor questions"
            )
        if self.resume and self.json is None:
            raise ValueError("resume needs the file to go on with; give --json")
        check_output(self.json, overwrite=self.overwrite or self.resume)

    def _check_smashing(self) -> None:
        defaults = {f.name: f.default for f in dataclasses.fields(self)}
        given = [name for name in SMASHING if getattr(self, name) != defaults[name]]
        if given and HAMBURGER not in self.methods:
            raise ValueError(f"{given[0]} goes with method {HAMBURGER} alone; got {', '.join(self.methods)}")
        if self.smash_mode != defaults["smash_mode"]:
            raise ValueError(f"smash_mode must be exact, whose text is plain decoding's; got {self.smash_mode}")
        self.folder()

    def trained(self) -> list[Trained]:
        """Returns the trained drafters.

        Raises:
          ValueError: a method lacks one, one is of no method that is asked for, or one is damaged or for another base.
          FileNotFoundError: there is no such folder.
        """
        found = trained_for(self.model, self.drafter, random=True)
        taken = {method for method in self.methods if method in READERS}
        if lacking := sorted(taken - {drafter.method for drafter in found}):
            raise ValueError(f"method {lacking[0]} needs a drafter: give --drafter FOLDER")
        if HYBRID not in self.methods and (odd := [drafter for drafter in found if drafter.method not in taken]):
            raise ValueError(
                f"{odd[0].folder} holds a drafter of method {odd[0].method}; got methods {', '.join(self.methods)}"
            )
        return found

    def drafts_with(self, method: str) -> str | None:
        """Returns what a model drafts with; None of methods without one, and for the target's own weights."""
        if method == DRAFT_MODEL:
            return self.draft_model or INT8
        return self.draft_model if method == SELF_SPARSE else None

    def folder(self) -> str | None:
        """Returns the folder of modules to load the model with; None where no method takes any, or they are random.

        Raises:
          ValueError: modules or options of hamburger do not fit the model.
          FileNotFoundError: there is no such model, or it has no such modules.
        """
        if HAMBURGER not in self.methods:
            return None
        if self.modules == RANDOM:
            base = stored_base(self.model)[0]
            check_smash(HAMBURGER, smash_options(self), KINDS[MICRO].config(base), base.vocab_size)
            return None
        return str(fitting_modules(self.model, self.modules, smash_options(self)))

    def conditions(self) -> list[Condition]:
        """Returns the conditions, the most demanding one last."""
        return [
            Condition(batch_size=b, processors=p, choice=c)  # type: ignore[arg-type]
            for b in sorted(set(self.batch_sizes))
            for p in sorted(set(self.processors), reverse=True)
            for c in sorted(set(self.choices))
        ]


def read_tokens(settings: Settings, model: Model) -> list[list[int]]:
    """Returns the prompts as tokens, `prompt_tokens` of each at most.

    Raises:
      ValueError: there are too few, or one is malformed or does not fit the model.
      OSError: the file cannot be read.
    """
    count, longest = settings.num_prompts, settings.prompt_tokens
    if settings.spec_bench is not None:
        return of_spec_bench(model, settings.spec_bench, count, longest=longest, chat=settings.chat)
    if settings.prompts is not None:
        return of_file(model, settings.prompts, count, longest=longest)
    return shipped(model, count, longest=longest)


def measure(
    settings: Settings, kept: Sequence[Row] = (), on_row: Callable[[list[Row]], None] = lambda rows: None
) -> list[Row]:
    """Returns all rows.

    Args:
      settings: what to check.
      kept: rows of an earlier run, of other methods and trees too; they stay and are not made again.
      on_row: called with the rows so far after each that is made.

    Raises:
      ValueError: an option is wrong, or a method does not take a tree.
    """
    settings.check()
    dtype = jnp.dtype(settings.dtype)
    model = load(settings.model, mesh=mesh_of_hosts(), dtype=dtype, modules=settings.folder())
    if settings.modules == RANDOM:
        model = grafted(model, KINDS[MICRO].make(model.config, dtype=dtype))
    with jax.default_matmul_precision("highest"):
        study = Study(
            model,
            read_tokens(settings, model),
            dtype=settings.dtype,
            max_new_tokens=settings.max_new_tokens,
            seed=settings.seed,
            stop=settings.stop,
            regex=settings.regex,
            sparse=settings.sparse,
            smash=smash_options(settings),
            drafters=settings.trained(),
        )
        rows = {tuple(row["key"]): row for row in kept}
        left = [case for case in cases_of(settings, study) if case.key not in rows]
        clock = Clock(len(left), prompts=len(study.prompts), max_new_tokens=settings.max_new_tokens)
        for case in left:
            rows[case.key] = study.row(case)
            clock.tick(rows[case.key])
            on_row(list(rows.values()))
            # No other row decodes with them, and a process may map so many pieces of memory and no more.
            PROGRAMS.forget()
    return list(rows.values())


def cases_of(settings: Settings, study: Study) -> list[Case]:
    """Returns everything that is to be decoded, in an order in which little is decoded twice.

    Raises:
      ValueError: a method does not take a tree.
    """
    cases = []
    conditions = settings.conditions()
    for condition in conditions:
        cases.append(Case(AS_IT_IS, "ar", None, condition))
        for method in settings.methods:
            for tree in (GROUPS,) if method == HAMBURGER else settings.trees:
                if (method, tree) == (DRAFT_MODEL, "off"):
                    continue
                for drafter in drafters_of(study, method, tree):
                    case = Case(AS_IT_IS, method, tree, condition, drafter, settings.drafts_with(method))
                    possible = study.checks(case, equivalents=settings.equivalents, faults=settings.faults)
                    wanted = possible if settings.checks and condition == conditions[-1] else []
                    cases += [dataclasses.replace(case, way=way) for way in (AS_IT_IS, *wanted)]
    return cases


def drafters_of(study: Study, method: str, tree: str) -> list[str | None]:
    """Returns the labels of the trained drafters of a method; None stands for none.

    Hybrid can be without one too, but where the tree needs its probabilities.
    """
    if method == HYBRID:
        needed = confident(tree) is not None and study.drafters
        return [*study.drafters] if needed else [None, *study.drafters]
    return [label for label, drafter in study.drafters.items() if drafter.method == method] or [None]


def main(settings: Settings, arguments: Sequence[str] | None = None) -> int:
    """Checks, prints tables, writes the report after every row; returns 1 where something is not as it must be."""
    settings.check()
    report = heading("eval.exactness", arguments, dataclasses.asdict(settings))
    report |= {"rounding": ROUNDING[settings.dtype]}
    folder = settings.folder()
    files = (settings.prompts, settings.spec_bench, None if folder is None else Path(folder))
    report |= {"inputs": inputs_of(settings.model, files, draft_model=settings.draft_model)}
    kept = []
    if settings.resume and settings.json:
        kept = earlier_rows(settings.json, report["settings"], inputs=report["inputs"])

    def write(rows: list[Row], *, complete: bool = False) -> None:
        if settings.json is not None:
            found = {"complete": complete, "totals": totals(rows, settings.dtype), "rows": rows}
            write_json(settings.json, report | found)

    rows = measure(settings, kept, write)
    write(rows, complete=True)
    shown = [row | {"passed": ("yes" if row["passed"] else "NO") + "*" * no_draft_kept(row)} for row in rows]
    unused = {name for name in ("drafter", "draft_model") if not getattr(settings, name)}
    columns = [column for column in COLUMNS if column not in unused]
    print_table(f"Drafted text against plain decoding's: {settings.model}, {settings.dtype}", shown, columns)
    for row in filter(no_draft_kept, rows):
        print(f"* {' '.join(row['key'])}: {NO_DRAFT_KEPT}")
    for row in rows:
        if row["must"] == "equal":
            for divergence in row["listed"]:
                print(" ".join(row["key"]), divergence)
    sums = totals(rows, settings.dtype)
    print(sums)
    return int(not sums["passed"])


if __name__ == "__main__":
    run_program(Settings, main, several_hosts=True)
