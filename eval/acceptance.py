r"""How many tokens a forward of the target gives under methods that draft, by tree, depth, category and study.

    python -m eval.acceptance --model tiny --methods recycling --trees recycling-80 --json acceptance.json
    python -m eval.acceptance --study official --json official.json
    python -m eval.acceptance --study cold-start --warm-start FILE --json cold.json --plot cold.png
    python -m eval.acceptance --study width-depth --json shapes.json --plot shapes.png
    python -m eval.acceptance --study temperature --temperatures 0,0.4,0.8,1.2 --json heat.json --plot heat.png
    python -m eval.acceptance --study spec-bench --spec-bench question.jsonl --chat --json tasks.json --plot tasks.png
    python -m eval.acceptance --study spec-bench --spec-bench question.jsonl --categories --chat --json mt-bench.json
    python -m eval.acceptance --model smollm2 --drafters runs/eagle/drafter --methods eagle,hybrid+eagle \
      --trees chain-8,tree-16 --json trained.json

Mean accepted tokens are (new tokens − 1) / decode forwards, each summed over answers: the prefill's token is left out,
and nothing is counted past a stop. Answers that go in circles (fewer than 0.7 of their 4-grams distinct) are left out
and counted. Beside each tree stands the chain of the same drafter with as many nodes, and plain decoding. The report is
written after each tree; with `--resume` a run goes on with the trees that it lacks.

A drafter in a folder of `--drafters` is named by it, or by its run where that is called `drafter`. Its name stands for
the method that drafts with it; `hybrid+` before the name is method hybrid with it. HAMburger's modules draft in mode
exact, and have a chain of their own, which is whole whatever their stop head says.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp

from eval.drafting.acceptance_runs import Asking
from eval.drafting.studies import TEMPLATE, Plan, Row, cold_start, official, rounds, trees_and_chains, width_and_depth
from eval.drafting.trained import (
    Named,
    check_all_named,
    check_rows,
    modules_of,
    named_method,
    read_trained,
    trained_for,
)
from eval.exact.exactness_report import earlier_rows, inputs_of
from eval.prompts.question_sets import Question, fitting, read_questions, spec_bench_questions
from eval.reports.options import Decimals, Names, Numbers, Paths, check_least
from eval.reports.report import check_outputs, heading, print_table, progress, run_program, write_json, write_whole
from jax_smash.loading import load
from jax_smash.methods import OPTIONS, DraftOptions, check_draft
from jax_smash.shapes import bucket
from jax_smash.sharding import mesh_of_hosts

PROMPTS = Path(__file__).parent / "prompts" / "stories.jsonl"
StudyName = Literal["trees", "official", "cold-start", "width-depth", "temperature", "spec-bench"]
FREE_TO_CHANGE = ("json", "plot", "resume", "overwrite", "methods", "trees", "drafters", "temperatures")
"""Settings that choose rows, or do not bear on them."""

STUDIES = {"official": official, "cold-start": cold_start, "width-depth": width_and_depth}
"""Functions of the studies; what is not named compares trees with chains."""

FACTS = ("answers", "degenerate", "forwards", "mean_accepted_tokens")
TREES = ("method", "tree", "temperature", "category", "nodes", *FACTS, "chain_mean_accepted_tokens", "differing")
COLUMNS = {
    "official": ("method", "category", *FACTS, "over_official", "differing"),
    "cold-start": ("learner", "seen", "seen_tokens", *FACTS),
    "width-depth": ("width", "depth", "nodes", *FACTS, "chain_mean_accepted_tokens"),
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Measures mean accepted tokens.

    Attributes:
      model: a shipped model's name, a directory or a hub id.
      study: trees compares trees with chains; official compares Token Recycling with its authors' algorithm; cold-start
        varies what was seen before; width-depth cuts the published template; temperature and spec-bench are trees over
        temperatures and over Spec-Bench's tasks.
      methods: that draft. The studies official, cold-start and width-depth are of recycling.
      trees: names as in `jax-smash generate --tree`; of width-depth and official the template is the only one, and
        cold-start is of one.
      prompts: files of {"prompt": …} or {"turns": […]} a line, with or without a "category"; by default stories that
        come with the program (prompts/mixed.jsonl has more categories).
      spec_bench: Spec-Bench's question.jsonl, in place of prompts. It does not come with the program.
      categories: Spec-Bench's questions are told by the categories of its file, eight of which are MT-bench's, in place
        of its six tasks, one of which is all of MT-bench.
      num_prompts: to take, of each category in turn; by default all.
      prompt_tokens: of a question's turns at most; longer ones are left out and counted. By default the context is the
        limit.
      chat: turns are put into the model's chat template.
      batch_size: questions that decode together; in official one.
      max_new_tokens: of an answer.
      temperatures: 0 takes the likeliest token; the study temperature has 0, 0.25 … 1.25 by default.
      seed: of sampling.
      warm_start: a file that `jax-smash generate --save-warm-start` wrote, for methods that take it.
      lookup_corpus: texts that methods which take it look up in, as of `jax-smash generate`.
      draft_model: what draft-model drafts with, a model's name or int8.
      drafters: folders of trained drafters, as `jax-smash generate --drafter` takes them; methods name them.
      stored_probabilities: recycling grows its trees by stored probabilities.
      verify: how sampled drafts are checked, as in `jax-smash generate --verify`.
      seen: questions that come before the measured ones in cold-start, at most half of all.
      widths: children of a node in width-depth.
      depths: levels in width-depth.
      chains: measure the chain of as many nodes beside each tree.
      dtype: of the weights.
      json: file to write, after each tree where trees are compared.
      plot: picture to draw, a PNG file.
      resume: go on with the methods, trees and temperatures that the file lacks.
      overwrite: replace files that exist.
    """

    model: str = "tiny"
    study: StudyName = "trees"
    methods: Names = ("recycling",)
    trees: Names = (TEMPLATE,)
    prompts: Paths = (PROMPTS,)
    spec_bench: Path | None = None
    categories: bool = False
    num_prompts: int | None = None
    prompt_tokens: int | None = None
    chat: bool = False
    batch_size: int = 1
    max_new_tokens: int = 128
    temperatures: Decimals = ()
    seed: int = 0
    warm_start: Path | None = None
    lookup_corpus: Path | None = None
    draft_model: str | None = None
    drafters: Paths = ()
    stored_probabilities: bool = False
    verify: str = "coupling"
    seen: Numbers = (0, 1, 2, 4, 8, 16, 32, 64)
    widths: Numbers = (1, 2, 4, 8)
    depths: Numbers = (1, 2, 3, 4, 6)
    chains: bool = True
    dtype: Literal["float32", "bfloat16"] = "float32"
    json: Path | None = None
    plot: Path | None = None
    resume: bool = False
    overwrite: bool = False

    @property
    def draft(self) -> DraftOptions:
        """Options of drafting beside the tree."""
        return DraftOptions(
            warm_start=self.warm_start,
            lookup_corpus=self.lookup_corpus,
            draft_model=self.draft_model,
            stored_probabilities=self.stored_probabilities,
            verify=self.verify,
        )

    def check(self) -> None:
        """Refuses what cannot be measured, before anything is loaded.

        Raises:
          ValueError: an option is out of range, or does not go with the study or the methods.
          OSError: a file cannot be read or written.
        """
        check_least(self, batch_size=1, max_new_tokens=2, num_prompts=1, prompt_tokens=1, seed=0)
        for name, smallest in {"temperatures": 0, "seen": 0, "widths": 1, "depths": 1}.items():
            for value in getattr(self, name):
                if value < smallest:
                    raise ValueError(f"{name} must be at least {smallest}; got {value}")
        self._check_methods()
        if self.categories and self.spec_bench is None:
            raise ValueError("categories are those of --spec-bench question.jsonl; got none")
        if self.study == "spec-bench" and self.spec_bench is None:
            raise ValueError("the study spec-bench needs --spec-bench question.jsonl, which does not come with us")
        if self.resume and (self.json is None or self.study in STUDIES):
            raise ValueError("resume needs the file to go on with, of a study that compares trees; give --json")
        check_outputs(self.json, plot=self.plot, overwrite=self.overwrite or self.resume)

    def _check_methods(self) -> None:
        if not self.methods or not self.trees:
            raise ValueError(f"methods and trees must each name at least one; got {self.methods} and {self.trees}")
        trained = trained_for(self.model, self.drafters, modules=True)
        methods = self.named()
        check_all_named(methods, trained)
        for named in methods:
            for tree in self.trees:
                check_draft(named.method, named.options(DraftOptions(tree=tree)))
        if self.study in STUDIES and self.methods != ("recycling",):
            raise ValueError(f"the study {self.study} is of recycling; got methods {', '.join(self.methods)}")
        if self.study in ("official", "width-depth") and self.trees != (TEMPLATE,):
            raise ValueError(f"the study {self.study} is of the tree {TEMPLATE}; got {', '.join(self.trees)}")
        if self.study == "cold-start" and len(self.trees) > 1:
            raise ValueError(f"the study cold-start is of one tree; got {', '.join(self.trees)}")
        if self.study == "official" and self.batch_size > 1:
            raise ValueError(f"the study official answers one question at a time; got batch_size {self.batch_size}")
        if self.study in STUDIES and any(self.temperatures):
            raise ValueError(f"the study {self.study} is greedy; got temperatures {self.temperatures}")
        if self.warm_start is not None and self.study in ("official", "width-depth"):
            raise ValueError(f"warm_start does not go with the study {self.study}")
        given = [f.name for f in dataclasses.fields(DraftOptions) if getattr(self.draft, f.name) != f.default]
        for name in given:
            takers = [named.method for named in methods if name in OPTIONS.get(named.method, ())]
            if not takers:
                raise ValueError(f"{name} does not go with {', '.join(self.methods)}")
            check_draft(takers[0], DraftOptions(**{name: getattr(self.draft, name)}))

    def named(self) -> list[Named]:
        """Returns the methods; `check` has seen that each drafter is the model's own.

        Raises:
          ValueError: a method is unknown or lacks a drafter, or one is damaged.
          FileNotFoundError: there is no such drafter.
        """
        trained = read_trained(self.drafters, modules=True)
        return [named_method(name, trained) for name in self.methods]

    def questions(self) -> list[Question]:
        """Reads the questions.

        Raises:
          ValueError: a file is malformed, or has fewer questions than `num_prompts`.
        """
        if self.spec_bench is not None:
            return spec_bench_questions(self.spec_bench, count=self.num_prompts, categories=self.categories)
        found = [question for path in self.prompts for question in read_questions(path)]
        if self.num_prompts is None:
            return found
        if len(self.prompts) == 1:
            return read_questions(self.prompts[0], count=self.num_prompts)
        if self.num_prompts > len(found):
            raise ValueError(f"num_prompts must be at most {len(found)}; got {self.num_prompts}")
        return found[: self.num_prompts]


def measure(
    settings: Settings, done: Sequence[Row] = (), on_rows: Callable[[dict[str, Any]], None] = lambda found: None
) -> dict[str, Any]:
    """Measures; returns the report without its heading.

    Args:
      settings: what to measure.
      done: rows of an earlier run, which are not made again.
      on_rows: called with the report so far after each tree.

    Raises:
      ValueError: an option or a question is wrong, or none fits the model.
      OSError: a file cannot be read.
    """
    settings.check()
    asked = settings.questions()
    methods = settings.named()
    modules = modules_of([named.drafter for named in methods if named.drafter])
    model = load(settings.model, mesh=mesh_of_hosts(), dtype=jnp.dtype(settings.dtype), modules=modules)
    limits = {"max_new_tokens": settings.max_new_tokens, "longest": settings.prompt_tokens}
    questions, need = fitting(model, asked, chat=settings.chat, **limits)
    context = model.config.max_positions if model.config else need
    asking = Asking(
        model=model,
        slots=min(bucket(need, least=64), context),
        max_new_tokens=settings.max_new_tokens,
        chat=settings.chat,
        batch_size=settings.batch_size,
        seed=settings.seed,
    )
    facts = {
        "model": settings.model,
        "questions": len(questions),
        "too_long": len(asked) - len(questions),
        "cache_slots": asking.slots,
    }
    default = tuple(0.25 * i for i in range(6)) if settings.study == "temperature" else (0.0,)
    plan = Plan(
        asking=asking,
        questions=questions,
        methods=methods,
        trees=settings.trees,
        temperatures=settings.temperatures or default,
        draft=settings.draft,
        seen=settings.seen,
        widths=settings.widths,
        depths=settings.depths,
        chains=settings.chains,
        done=done,
        on_rows=lambda rows: on_rows(facts | {"rows": rows}),
    )
    with progress(settings.study, rounds(settings.study, plan)) as advance:
        rows = STUDIES.get(settings.study, trees_and_chains)(plan, advance)
    return facts | {"rows": rows}


def main(settings: Settings, arguments: Sequence[str] | None = None) -> int:
    """Measures, prints tables, writes report and picture; returns 1 where the official algorithm is the better one."""
    shown = dataclasses.asdict(settings) | {"prompts": [str(path) for path in settings.prompts]}
    headed = heading("eval.acceptance", arguments, shown)
    files = (*settings.prompts, settings.spec_bench, settings.warm_start, settings.lookup_corpus)
    headed |= {"inputs": inputs_of(settings.model, files, draft_model=settings.draft_model)}
    done: list[Row] = []
    if settings.resume and settings.json is not None:
        done = earlier_rows(settings.json, headed["settings"], inputs=headed["inputs"], free=FREE_TO_CHANGE)
        check_rows(done, [named.drafter for named in settings.named() if named.drafter])

    def write(found: dict[str, Any], *, complete: bool = False) -> None:
        if settings.json is not None:
            write_json(settings.json, headed | {"complete": complete} | found)

    report = measure(settings, done, write)
    write(report, complete=True)
    rows = report["rows"]
    title = f"{settings.model}, {settings.study}: {report['questions']} questions, {report['too_long']} too long"
    print_table(title, rows, COLUMNS.get(settings.study, TREES))
    _print_depths(rows)
    if settings.plot is not None:
        from eval.drafting.acceptance_plots import plot_study  # matplotlib takes a second to import.

        write_whole(settings.plot, plot_study(settings.study, rows, title=title))
    return int(any(row["category"] == "all" and (row.get("over_official") or 1) < 1 for row in rows))


def _print_depths(rows: Sequence[dict[str, Any]]) -> None:
    drafted = [row for row in rows if row["category"] == "all" and any(row["tried_by_depth"])]
    if not drafted:
        return
    reached = max(i + 1 for row in drafted for i, tried in enumerate(row["tried_by_depth"]) if tried)
    names = [f"depth_{i + 1}" for i in range(min(reached, 8))]
    shares = [dict(zip(names, row["acceptance_by_depth"], strict=False)) for row in drafted]
    columns = ("method", "tree", "temperature", *names)
    print_table("Kept of those tried, by depth", [row | s for row, s in zip(drafted, shares, strict=True)], columns)


if __name__ == "__main__":
    run_program(Settings, main, several_hosts=True)
