"""Quality of a model under our decoding methods: recall, reasoning, multiple choice, perplexity, freedom from loops.

    python -m eval.quality --model tiny --methods ar --tasks all --json quality.json
    python -m eval.quality --model DIR --tasks coreference,key_value --lengths 128,512 --json recall.json
    python -m eval.quality --model DIR --tasks piqa --data piqa=valid.jsonl --json piqa.json --details piqa.jsonl
    python -m eval.quality --model tiny --weights plain,int8 --tasks coreference --count 5000 --json int8.json
    python -m eval.quality --model smollm2 --tasks piqa,wikitext --counts piqa=1000 --context 2048 --resume \
        --data piqa=DATA/piqa.jsonl wikitext=DATA/valid.txt --json all.json
    python -m eval.quality --model smollm2 --tasks ruler --lengths 1024,4096 --count 500 --json ruler.json
    python -m eval.quality --model DIR --methods ar,hamburger --confidence 0.5,0.7,0.9 --json groups.json
    python -m eval.quality --model DIR --base TUNED --methods hamburger --modules A,B --json modules.json --plot a.png

Decoding is greedy. Every score has a 95% interval. Where several methods, weights, models or modules are measured, each
row after the baseline's has its difference from the baseline on the same examples, with a 95% interval of its own;
`--details` keeps the score of each example. Of several sets of questions, `all tasks` counts every question alike.
Until the report is written, finished tasks are kept beside it in NAME.partial: `--resume` goes on with those of a run
that ended early.
"""

import dataclasses
import itertools
import json as json_format
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from eval.reports.report import (
    commit,
    describe_device,
    heading,
    print_table,
    run_program,
    versions,
    write_json,
    write_whole,
)
from eval.scores.engine import Engine
from eval.scores.finished import Finished, file_states
from eval.scores.intervals import RESAMPLES, SEED
from eval.scores.quality_rows import COLUMNS, OPTIONAL, Contender, detail, row, shown
from eval.scores.quality_settings import NOT_MEASURED, Settings
from eval.scores.smashing import Compression
from eval.tasks.catalogue import TASKS, TaskOptions
from eval.tasks.outcome import Outcome, TaskSet
from eval.tasks.totals import all_tasks
from jax_smash.checkpoints.tokenizer import load_tokenizer
from jax_smash.hosts import processes
from jax_smash.loading import find, load
from jax_smash.sharding import add_virtual_devices, mesh_of_hosts
from jax_smash.smash.options import SmashOptions
from jax_smash.sparse import named_files, sparsified


def read_sets(settings: Settings) -> list[TaskSet]:
    """Returns the examples of all chosen tasks, read and drawn before the weights are loaded.

    Raises:
      ValueError: an example is malformed, or the model has no tokenizer.
      OSError: a file cannot be read.
    """
    tokenizer = load_tokenizer(find(settings.model))
    if tokenizer is None:
        raise ValueError(f"{settings.model} has no tokenizer: its quality cannot be measured")
    if settings.chat and not tokenizer.chat_template:
        raise ValueError(f"{settings.model} has no chat template; measure it without --chat")
    if settings.base is not None:
        other = load_tokenizer(find(settings.base))
        if other is None or other.get_vocab() != tokenizer.get_vocab() or other("a") != tokenizer("a"):
            raise ValueError(f"base must have the tokenizer of {settings.model}; {settings.base} has another or none")
    around = [{"role": "user", "content": "a"}]
    template = (
        tokenizer.apply_chat_template(around, add_generation_prompt=True, tokenize=False) if settings.chat else ""
    )
    options = TaskOptions(
        size=lambda text: len(tokenizer(text)["input_ids"]),
        lengths=tuple(dict.fromkeys(settings.lengths)),
        count=settings.count,
        seed=settings.seed,
        shots=settings.shots,
        chat=settings.chat,
        max_new_tokens=settings.max_new_tokens,
        stride=settings.stride,
        template=len(tokenizer(template, add_special_tokens=False)["input_ids"]),
    )
    counted = settings.counted()
    return [
        item
        for task, source in settings.sources().items()
        for item in TASKS[task].sets(source, dataclasses.replace(options, count=counted[task]))
    ]


def finished_tasks(settings: Settings) -> Finished | None:
    """Returns the tasks that an earlier run has finished, and where this one keeps its own; None without a report.

    Raises:
      ValueError: an earlier run had other options, another commit, other models, other data or other code, or ran on
        another device or with other versions.
      OSError: a file cannot be read.
    """
    path = settings.partial()
    if path is None:
        return None
    chosen = {k: str(v) for k, v in dataclasses.asdict(settings).items() if k not in NOT_MEASURED}
    models = [find(name) for name in dict.fromkeys(c.model for c in settings.contenders())]
    folders = [Path(folder) for folder in settings.modules if folder != "auto"]
    folders += [path for c in settings.contenders() if c.sparse for path in named_files(c.sparse, c.model).values()]
    sources = [Path(source) for source in settings.sources().values() if source]
    here = commit()
    device = describe_device()
    run = chosen | {
        "commit": here and here["hash"],
        "files": file_states(*models, *folders, *sources),
        "device": {name: device[name] for name in ("platform", "kind")},
        "versions": versions(),
    }
    return Finished(path, run, resume=settings.resume, same_code=True)


def measure(settings: Settings) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Measures every task under every method; returns the report without its heading, and the details.

    Where a report is to be written, finished tasks are kept in `settings.partial()`.

    Raises:
      ValueError: an option, an example or the model is wrong.
      OSError: a file cannot be read or written.
    """
    settings.check()
    add_virtual_devices(settings.mesh, processes=processes())
    sets = read_sets(settings)
    kept = finished_tasks(settings)
    found = {
        contender: outcomes
        for alike in _alike(settings.contenders())
        for contender, outcomes in _asked(alike, sets, settings, kept)
    }
    whole = {contender: [*outcomes, *all_tasks(outcomes)] for contender, outcomes in found.items()}
    baseline, *_ = found
    rows = []
    for contender, outcomes in whole.items():
        for outcome, usual in zip(outcomes, whole[baseline], strict=True):
            against = None if contender == baseline else (baseline, outcome.compare(outcome.examples, usual.examples))
            rows.append(row(contender, outcome, dtype=settings.dtype, against=against))
    details = [detail(c, outcome, example) for c in found for outcome in found[c] for example in outcome.examples]
    bootstrap = {"resamples": RESAMPLES, "seed": SEED}
    return {"model": settings.model, "bootstrap": bootstrap, "rows": rows}, details


def _alike(contenders: list[Contender]) -> Iterator[list[Contender]]:
    """Yields those that share weights together, so that one model at a time is in memory."""
    for _, alike in itertools.groupby(contenders, key=lambda c: c.loaded):
        yield list(alike)


def _asked(
    alike: list[Contender], sets: list[TaskSet], settings: Settings, kept: Finished | None
) -> Iterator[tuple[Contender, list[Outcome]]]:
    """Yields what each of some contenders that share weights was found to do; loads these where something is left."""
    finished = {c: [kept and kept.get(c.fields(), number) for number in range(len(sets))] for c in alike}
    if all(outcomes is not None for found in finished.values() for outcomes in found):
        yield from ((c, [outcome for outcomes in found for outcome in outcomes or ()]) for c, found in finished.items())
        return
    name, weights, modules = alike[0].loaded
    model = load(
        name, dtype=jnp.dtype(settings.dtype), weights=weights, mesh=settings.mesh or mesh_of_hosts(), modules=modules
    )
    # All before the first is asked: what one refuses is told at once.
    engines = [
        Engine(
            model if contender.policy is None else sparsified(model, contender.policy),
            method=contender.method,
            smash=contender.smash or SmashOptions(),
            batch_size=settings.batch_size,
            context=settings.context,
        )
        for contender in alike
    ]
    for contender, engine in zip(alike, engines, strict=True):
        found: list[Outcome] = []
        for number, (item, outcomes) in enumerate(zip(sets, finished[contender], strict=True)):
            if outcomes is None:
                outcomes = _measured(item, engine, contender)
                if kept is not None:
                    kept.add(contender.fields(), number, outcomes)
            found += outcomes
        yield contender, found


def _measured(item: TaskSet, engine: Engine, contender: Contender) -> list[Outcome]:
    """Returns what a set of examples found, with the slots that its answers took; says so on standard error."""
    engine.compression, begun = Compression(), time.monotonic()
    found = item.measure(engine)
    told = ", ".join(f"{one.metric} {one.score:.4f}" for one in found)
    whose = f"{contender.model} {contender.weights} {contender.method}"
    seconds = time.monotonic() - begun
    print(f"{whose} {item.task}: n {found[0].n}, {told}, {seconds:.0f} s", file=sys.stderr, flush=True)
    return [dataclasses.replace(one, compression=engine.compression) for one in found]


def main(settings: Settings, arguments: Sequence[str] | None = None) -> None:
    """Measures, prints a table and writes the files."""
    begun = commit()  # Hours later the repository may be at another.
    found, details = measure(settings)
    report = heading("eval.quality", arguments, dataclasses.asdict(settings)) | {"commit": begun} | found
    title = f"{report['device']['kind']}: {settings.model}, {settings.dtype}, greedy"
    rows = [shown(one) for one in report["rows"]]
    # A column that says the same in every row, or nothing, is left out.
    columns = [c for c in COLUMNS if c not in OPTIONAL or len({one.get(c) for one in rows}) > 1]
    print_table(title, rows, columns)
    if settings.details is not None:
        lines = (json_format.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in details)
        write_whole(settings.details, "".join(lines).encode())
    if settings.plot is not None:
        from eval.scores.quality_plot import plot_scores  # matplotlib takes a second to import.

        write_whole(settings.plot, plot_scores(report["rows"], title=title))
    if settings.json is not None:
        write_json(settings.json, report)
    if (partial := settings.partial()) is not None:
        partial.unlink(missing_ok=True)


if __name__ == "__main__":
    run_program(Settings, main, several_hosts=True)
