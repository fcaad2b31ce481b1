r"""Mean accepted tokens and speed by task: every method's tree beside the chain of as many nodes, and other programs.

    python -m eval.by_task --model tiny --json by_task.json
    python -m eval.by_task --model smollm2 --spec-bench question.jsonl --chat --batch-sizes 1 8 \
      --peers transformers transformers-lookup --json by_task.json

All continue the same prompts greedily, one after the other on each batch, to a stop token or the limit. A batch is of
one task; what a method learns from one batch is known to its next, as `jax-smash generate` has it. Prompts whose answer
by plain decoding goes in circles (fewer than 0.7 of its 4-grams distinct) are left out and counted. The prompt of a
second turn holds plain decoding's answer to the first.

Mean accepted tokens are (new tokens − 1) / decode forwards, each summed over answers and repeats. Speed is of decoding
alone. A method's tree, its chain and plain decoding take turns on every batch. A speed-up is plain decoding's seconds
over the method's for as many tokens: of each batch the median over repeats, summed over batches. Its interval draws
these batches again.

`METHOD:auto` has its trees sized while it decodes, once for each of `--curves` that it may begin with. The curves are
measured first. What was learned of costs is forgotten with everything else before each repeat, but for `--keep-costs`:
a process that decodes for long pays for a wrong curve once.

    python -m eval.by_task --model smollm2 --drafters runs/eagle/drafter,runs/medusa/drafter \
      --methods eagle:chain-8,eagle:tree-16,hybrid+eagle:tree-16,medusa:auto --chat --json trained.json

A drafter in a folder of `--drafters` is named by it, or by its run where that is called `drafter`. Its name stands for
the method that drafts with it; `hybrid+` before the name is method hybrid with it. HAMburger's modules draft in mode
exact, a chain as long as they make: their name has no tree.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp

from eval.drafting.acceptance_runs import Asking
from eval.drafting.task_contest import Learner, batches_of, capacities_for, hold
from eval.drafting.task_rows import below_chains, rows_of
from eval.drafting.told_trees import told_tree
from eval.drafting.trained import (
    Named,
    Trained,
    check_all_named,
    check_rows,
    modules_of,
    named_method,
    read_trained,
    trained_for,
)
from eval.exact.exactness_report import earlier_rows, inputs_of, say
from eval.exact.reference import require_torch
from eval.prompts.question_sets import Question, read_questions, spec_bench_questions
from eval.prompts.task_prompts import Task, task_prompts
from eval.reports.options import ONE_ROW, Names, Numbers, Paths, Peers, check_least
from eval.reports.report import check_output, heading, print_table, run_program, write_json
from eval.timing.curves import FACTORS, beginning_with, cost_curves
from eval.timing.measure import Contender, Ours
from jax_smash.costs import Follower
from jax_smash.decode.programs import PROGRAMS
from jax_smash.loading import Model, load
from jax_smash.methods import REACH, DraftOptions, check_draft, make_method
from jax_smash.plan import tree_bytes

PROMPTS = Path(__file__).parent / "prompts" / "mixed.jsonl"
BASELINE = "ar"
TOGETHER = 8
"""Questions that plain decoding answers together to make the prompts."""

COLUMNS = (
    *("method", "tree", "task", "batch_size", "answers", "mean_accepted_tokens", "chain_mean_accepted_tokens"),
    *("tokens_per_second", "speedup", "speed_over_chain", "ms_per_step", "time_to_first_token_ms", "differing"),
)
FREE_TO_CHANGE = ("json", "resume", "overwrite", "batch_sizes", "methods", "drafters", "peers")
"""Settings that choose rows, or do not bear on them."""

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Settings:
    """Measures mean accepted tokens and speed by task.

    Attributes:
      model: a shipped model's name, a directory or a hub id.
      methods: METHOD:TREE each, trees as in `jax-smash generate --tree`; without a tree, the one that the method has of
        its own. Plain decoding is always measured.
      curves: what automatic trees begin with: none, right (as measured), or with drafted steps a third as dear (cheap)
        or three times as dear (dear) as measured.
      chains: measure the chain of as many nodes beside each tree of a method that drafts by ranks.
      draft_model: what draft-model drafts with, a model's name or int8.
      drafters: folders of trained drafters, as `jax-smash generate --drafter` takes them, and of HAMburger's modules;
        methods name them.
      prompts: file of {"prompt": …} or {"turns": […]} a line, with a "category", its task.
      spec_bench: Spec-Bench's question.jsonl, in place of prompts. It does not come with the program.
      chat: turns are put into the model's chat template.
      num_prompts: of each task, at most; a question of two turns gives two.
      prompt_tokens: of a question's turns at most; longer ones are left out and counted. By default the context is the
        limit.
      batch_sizes: prompts that are continued together; every size is measured for itself.
      max_new_tokens: of an answer.
      repeats: of everything; medians count.
      peers: other programs to run on the same weights and prompts. transformers-lookup takes one prompt at a time: it
        is measured at batch size 1 alone, which must be among the sizes.
      keep_costs: what was learned of costs is known to the next repeat.
      settle_seconds: pause before each run, in which the other framework's idle threads stop spinning.
      dtype: of the weights.
      json: file to write, after each method.
      resume: go on with the methods and batch sizes that the file lacks.
      overwrite: replace the file if it exists.
    """

    model: str = "tiny"
    methods: Names = (
        *("recycling:tree-15", "lookup:tree-15", "suffix:tree-15"),
        *("lookahead", "draft-model", "hybrid:tree-15"),
    )
    curves: Names = ("none",)
    chains: bool = True
    draft_model: str = "int8"
    drafters: Paths = ()
    prompts: Path = PROMPTS
    spec_bench: Path | None = None
    chat: bool = False
    num_prompts: int = 8
    prompt_tokens: int | None = None
    batch_sizes: Numbers = (1, 8)
    max_new_tokens: int = 64
    repeats: int = 1
    peers: Peers = ()
    keep_costs: bool = False
    settle_seconds: float = 0.2
    dtype: Literal["float32", "bfloat16"] = "float32"
    json: Path | None = None
    resume: bool = False
    overwrite: bool = False

    def check(self) -> None:
        """Refuses what cannot be measured, before anything is loaded.

        Raises:
          ValueError: an option is out of range or unknown, no method drafts with a drafter, or a peer is not installed.
          FileExistsError, FileNotFoundError: the output file cannot be written.
        """
        check_least(self, num_prompts=1, prompt_tokens=1, max_new_tokens=2, repeats=1, settle_seconds=0)
        if not self.batch_sizes or min(self.batch_sizes) < 1:
            raise ValueError(f"batch_sizes must be one or more, each at least 1; got {self.batch_sizes}")
        if 1 not in self.batch_sizes and (alone := [name for name in self.peers if name in ONE_ROW]):
            raise ValueError(
                f"batch_sizes must have 1, at which {', '.join(alone)} is measured; got "
                f"{', '.join(map(str, self.batch_sizes))}"
            )
        trained = trained_for(self.model, self.drafters, modules=True)
        if not self.curves or not set(self.curves) <= {*FACTORS}:
            raise ValueError(f"curves must be of {', '.join(FACTORS)}; got {', '.join(self.curves) or 'none at all'}")
        for name in self.methods:
            named, tree = named_method(name.partition(":")[0], trained), name.partition(":")[2]
            if not tree and named.method in REACH:
                raise ValueError(f"{name} must have a tree, as in {name}:tree-15 or {name}:auto; got none")
            if tree and named.chain:
                raise ValueError(f"{named.name} drafts {named.chain}, as its modules were made; got {name}")
            check_draft(named.method, self.draft(named, tree or "auto"))
        check_all_named([named for named, _ in self.pairs(trained)], trained)
        if self.resume and self.json is None:
            raise ValueError("resume needs the file to go on with; give --json")
        if self.peers:
            require_torch()
        check_output(self.json, overwrite=self.overwrite or self.resume)

    def trained(self) -> list[Trained]:
        """Returns the trained drafters; `check` has seen that each is the model's own.

        Raises:
          ValueError: one is damaged.
          FileNotFoundError: there is no such drafter.
        """
        return read_trained(self.drafters, modules=True)

    def pairs(self, trained: Sequence[Trained]) -> list[tuple[Named, str]]:
        """Returns the methods that draft, each with a tree's name, chains of as many nodes left out."""
        given = dict.fromkeys((m.partition(":")[0], m.partition(":")[2] or "auto") for m in self.methods)
        found = [(named_method(name, trained), tree) for name, tree in given]
        return [(named, named.chain or tree) for named, tree in found]

    def draft(self, named: Named, tree: str) -> DraftOptions:
        """Returns the options of drafting of a method and a tree."""
        return named.options(DraftOptions(tree=tree, draft_model=self.draft_model))


def measure(
    settings: Settings, done: Sequence[Row] = (), on_rows: Callable[[Row], None] = lambda found: None
) -> dict[str, Any]:
    """Measures each method at each batch size; returns the report without its heading.

    Args:
      settings: what to measure.
      done: rows of an earlier run, which are not made again.
      on_rows: called with the report so far after each method.

    Raises:
      ValueError: an option or a question is wrong, or a task has no prompt that can be measured.
      OSError: a file cannot be read.
    """
    settings.check()
    questions = _questions(settings)
    modules = modules_of([named.drafter for named, _ in settings.pairs(settings.trained()) if named.drafter])
    model = load(settings.model, dtype=jnp.dtype(settings.dtype), modules=modules)
    tasks = _tasks(settings, model, questions)
    found: dict[str, Any] = {
        "model": {"name": model.name, "weight_bytes": tree_bytes(model.params)},
        "tasks": [dataclasses.asdict(t) | {"prompts": [len(prompt) for prompt in t.prompts]} for t in tasks],
        "rows": list(done),
    }
    for size in dict.fromkeys(settings.batch_sizes):
        for heat in _heats(settings, model, tasks, size):
            there = {(row["method"], row["tree"]) for row in found["rows"] if row["batch_size"] == size}
            if heat.names <= there:
                continue
            rows = _run(heat, settings, tasks, size)
            # Plain decoding runs in every heat; one of them is told.
            found["rows"] += [row for row in rows if (row["method"], row["tree"]) not in there]
            found["notes"] = below_chains(found["rows"])
            on_rows(found)
            # Of another method nothing is called again, and a process may map so many pieces of memory and no more.
            PROGRAMS.forget()
    return {"notes": below_chains(found["rows"])} | found


def _questions(settings: Settings) -> list[Question]:
    if settings.spec_bench is not None:
        return spec_bench_questions(settings.spec_bench)
    return read_questions(settings.prompts)


def _tasks(settings: Settings, model: Model, questions: Sequence[Question]) -> list[Task]:
    """Returns the prompts of each task, made by plain decoding."""
    asking = Asking(
        model=model, slots=0, max_new_tokens=settings.max_new_tokens, chat=settings.chat, batch_size=TOGETHER
    )
    plain = make_method(model, BASELINE)
    found = []
    say("prompts by plain decoding")
    for task in task_prompts(asking, plain, questions, count=settings.num_prompts, longest=settings.prompt_tokens):
        say(
            f"{task.name}: {len(task.prompts)} prompts; {task.too_long} questions too long, {task.in_circles} answers "
            f"in circles, {task.too_short} of one token"
        )
        found.append(task)
    PROGRAMS.forget()
    return found


@dataclasses.dataclass(frozen=True)
class Heat:
    """Contenders that take turns, plain decoding first.

    Attributes:
      make: makes them.
      names: method and tree of each but plain decoding; those of a peer's row.
      chains: by the name of a contender with a tree, the one with its chain.
    """

    make: Callable[[], list[Contender]]
    names: frozenset[tuple[str, str | None]]
    chains: dict[str, str]


def _heats(settings: Settings, model: Model, tasks: Sequence[Task], size: int) -> list[Heat]:
    """Returns a heat for each method with a tree, and one for the peers."""
    context = model.config.max_positions if model.config else 2**30
    capacities = capacities_for(tasks, settings.max_new_tokens, context)

    def learner(named: Named, tree: str | None, curve: str = "none") -> Learner:
        learned: dict[Hashable, dict[Hashable, Follower]] = {}

        def make(slots: int) -> Ours:
            with beginning_with(curves[curve], model, learned):
                return Ours(
                    named.method,
                    model,
                    slots=slots,
                    max_new_tokens=settings.max_new_tokens,
                    batch_size=size,
                    draft=DraftOptions() if tree is None else settings.draft(named, tree),
                    smash=named.smash,
                    carries=tree is not None,
                )

        told = None if tree is None else told_tree(tree) if curve == "none" else f"{tree} {curve}"
        return Learner(named.name, told, make, capacities, settings.max_new_tokens, named.facts())

    found, curves, plain = [], dict.fromkeys(FACTORS), Named(BASELINE, BASELINE)
    pairs = settings.pairs(settings.trained())
    if any(tree == "auto" and named.method in REACH for named, tree in pairs):
        curves |= cost_curves(model, settings.curves, batch=size, slots=capacities[0])
    for named, tree in pairs:
        if tree == "auto" and named.method in REACH:
            sized = [learner(plain, None), *(learner(named, tree, curve) for curve in settings.curves)]
            names = frozenset((learner.method, learner.tree) for learner in sized[1:])
            found.append(Heat(functools.partial(list, sized), names, {}))
            continue
        mine, chains = [learner(plain, None), learner(named, tree)], {}
        nodes = mine[1].facts()["nodes"]
        # Lookahead lays out its own window whatever the tree; the chain of a chain is itself.
        if settings.chains and named.method in REACH and tree != f"chain-{nodes}":
            mine.append(learner(named, f"chain-{nodes}"))
            chains[mine[1].name] = mine[2].name
        names = frozenset((learner.method, learner.tree) for learner in mine[1:])
        found.append(Heat(functools.partial(list, mine), names, chains))
    if others := [name for name in settings.peers if size == 1 or name not in ONE_ROW]:
        peers = functools.partial(_with_peers, learner(plain, None), others, settings, model)
        found.append(Heat(peers, frozenset((name, None) for name in others), {}))
    return found


def _with_peers(plain: Learner, names: Sequence[str], settings: Settings, model: Model) -> list[Contender]:
    from eval.timing.peers import PEERS  # torch takes seconds to import.

    found: list[Contender] = [plain]
    loaded = None
    for name in names:
        peer = PEERS[name](model, dtype=settings.dtype, max_new_tokens=settings.max_new_tokens, loaded=loaded)
        loaded = peer.model
        found.append(peer)
    return found


def _run(heat: Heat, settings: Settings, tasks: Sequence[Task], size: int) -> list[Row]:
    batches, contenders = batches_of(tasks, size), heat.make()
    # Of the last minute: other work on the machine shows there.
    load_before = os.getloadavg()[0]
    for contender in contenders:
        contender.warm_up([batch.prompts for batch in batches])
        say(f"batch {size}: {contender.name} is compiled and warm")
    total, done = settings.repeats * len(batches), 0

    def tell() -> None:
        nonlocal done
        done += 1
        say(f"batch {size}: {contenders[1].name}: {done} of {total} batches")

    runs = hold(
        contenders,
        batches,
        repeats=settings.repeats,
        keep_costs=settings.keep_costs,
        settle_seconds=settings.settle_seconds,
        on_batch=tell,
    )
    others = {"host_load_average": {"before": load_before, "after": os.getloadavg()[0]}}
    return [row | others for row in rows_of(contenders, runs, batches, batch_size=size, chains=heat.chains)]


def main(settings: Settings, arguments: Sequence[str] | None = None) -> None:
    """Measures, prints a table and writes the report after each method."""
    settings.check()
    if settings.peers:
        # Two frameworks share the device: neither may take all of its memory at once.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    packages = ("torch",) if settings.peers else ()
    report = heading("eval.by_task", arguments, dataclasses.asdict(settings), *packages)
    files = (settings.prompts, settings.spec_bench)
    report |= {"inputs": inputs_of(settings.model, files, draft_model=settings.draft_model)}
    done = []
    if settings.resume and settings.json:
        same = {"inputs": report["inputs"], "machine": report, "free": FREE_TO_CHANGE}
        done = earlier_rows(settings.json, report["settings"], **same)
        check_rows(done, settings.trained())

    def write(found: Row, *, complete: bool = False) -> None:
        if settings.json is not None:
            write_json(settings.json, report | {"complete": complete} | found)

    found = measure(settings, done, write)
    write(found, complete=True)
    print_table(f"{report['device']['kind']}: {found['model']['name']}, {settings.dtype}", found["rows"], COLUMNS)
    for note in found["notes"]:
        print(note)


if __name__ == "__main__":
    run_program(Settings, main)
