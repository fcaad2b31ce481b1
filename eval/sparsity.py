r"""Policies of sparse decoding at equal bytes: quality and recall by what a step reads of the cache.

    python -m eval.sparsity --model tiny --policies oracle,recency --tasks perplexity --json sparsity.json
    python -m eval.sparsity --model smollm2 --policies oracle,quest,h2o:decay=0.98,snapkv:rolling=true,recency \
        --budgets 10%,25%,50% --tasks perplexity,recall,ruler_niah_single_1,piqa:DATA/piqa.jsonl \
        --json sparsity.json --plot sparsity.png

A budget is a share of the bytes that dense decoding reads of its cache in a step. What slots are chosen by counts too:
a policy with a costly scorer reads fewer slots, and one whose scorer alone is more than the budget has a row that says
so. Controls (oracle, random, recency) choose for nothing. Bytes are counted at the length of a task's texts.

Prompts of the protocol `dense` are read once for up to 12 policies and budgets that choose slots; their seconds are
those behind the prompts. Each row has a 95% interval and its difference from dense decoding on the same examples. Every
outcome is kept in NAME.outcomes.jsonl as soon as it is made: a rerun goes on with them, and may add policies, budgets
and tasks. Where a file that a policy is read from has changed, the policy is asked again.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp

from eval.reports.options import Names, check_least
from eval.reports.report import check_outputs, commit, heading, print_table, run_program, write_json, write_whole
from eval.scores.finished import Finished, file_states
from eval.scores.intervals import RESAMPLES, SEED
from eval.sparse.arms import read_policy
from eval.sparse.asked import Drawn, Task, check_task, given_length, read_task
from eval.sparse.comparison import Comparison
from eval.sparse.rows import COLUMNS, shown
from eval.tasks.selection import FIRST_POSITION
from jax_smash.checkpoints.tokenizer import load_tokenizer
from jax_smash.loading import find, load
from jax_smash.protocols import SparsePolicy
from jax_smash.sparse import Dense, Selecting
from jax_smash.sparse.named import parse_budget

FREE_TO_CHANGE = ("policies", "budgets", "tasks", "batch_size", "json", "plot", "overwrite")
"""Settings that choose rows, or do not bear on them."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Compares policies of sparse decoding.

    Attributes:
      model: a shipped model's name, a directory or a hub id.
      policies: as in `jax-smash generate --sparse`, settings behind colons: h2o:recent=0.25:decay=0.98. Dense
        decoding is always measured.
      budgets: shares of the bytes that dense decoding reads of its cache in a step, as in 25%, at the length of
        a text. Where texts are read by steps, those at the beginning may read as many slots as those at the end.
      tasks: perplexity (every token is read by a decode step), recall (of the slots with most attention, a policy's
        choice beside the truth), locations, piqa, arc_easy, arc_challenge, openbookqa, winogrande, hellaswag,
        ruler_niah_single_1 and RULER's others; TASK:FILE takes examples from a file, path:FILE prompts with answers,
        one {"context": …, "answer": …} a line; with "metric": "rouge_l" in each, continuations are graded by ROUGE-L,
        as those to the queries of a file of QMSum's meetings are.
      num: examples of each task.
      length: tokens of a text of perplexity, recall and locations.
      ruler_length: of one of RULER, new tokens included; by default the same.
      new_tokens: that the model writes of RULER and path; by default the task's own number.
      shots: solved questions before each of multiple choice, which alone are too short for most budgets.
      page_size: consecutive slots that are chosen together; by default each policy's own.
      protocol: dense reads prompts and contexts at once, alike under all policies; stepwise reads them by steps of the
        policy. Texts of perplexity and locations are always read by steps, and a policy that keeps its own cache reads
        prompts as it can: its rows say `own`.
      equal: bytes, or slots whatever scorers read.
      batch_size: texts that are read or decoded together.
      dtype: of the weights.
      seed: of drawn examples.
      json: file to write.
      plot: picture to write, a PNG.
      overwrite: replace files that exist, and start again.
    """

    model: str = "tiny"
    policies: Names = ("oracle", "recency")
    budgets: Names = ("10%", "25%", "50%", "100%")
    tasks: Names = ("perplexity",)
    num: int = 16
    length: int = 512
    ruler_length: int | None = None
    new_tokens: int | None = None
    shots: int = 0
    page_size: int | None = None
    protocol: Literal["dense", "stepwise"] = "dense"
    equal: Literal["bytes", "slots"] = "bytes"
    batch_size: int = 8
    dtype: Literal["float32", "bfloat16"] = "float32"
    seed: int = 0
    json: Path | None = None
    plot: Path | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Refuses what cannot be measured, before anything is loaded.

        Raises:
          ValueError: an option is out of range or unknown, or a budget is below what a policy always reads.
          FileExistsError, FileNotFoundError: a file is missing, or an output file cannot be written.
          ImportError: a picture is asked for and matplotlib is not installed.
        """
        for name in ("policies", "budgets", "tasks"):
            if not getattr(self, name):
                raise ValueError(f"{name} must name at least one; got none")
        check_least(self, num=1, length=2, ruler_length=2, new_tokens=1, page_size=1, batch_size=1, shots=0)
        for task in self.tasks:
            check_task(task)
        if "recall" in {task.partition(":")[0] for task in self.tasks} and self.length <= FIRST_POSITION:
            raise ValueError(f"length must be over {FIRST_POSITION}, the first position of recall; got {self.length}")
        for name in ("length", "ruler_length"):
            value = getattr(self, name)
            if self.page_size is not None and value is not None and value % self.page_size:
                raise ValueError(f"page_size must divide the {name} of {value} tokens; got {self.page_size}")
        for text, policy in self.arms().items():
            self._check_budgets(text, policy)
        there = self.outcomes() is not None and self.outcomes().exists()  # type: ignore[union-attr]
        check_outputs(self.json, plot=self.plot, overwrite=self.overwrite or there)

    def _check_budgets(self, text: str, policy: SparsePolicy) -> None:
        """Refuses a budget that is less than what a policy always reads of a task's texts."""
        if isinstance(policy, Dense):
            return
        always = policy.least if isinstance(policy, Selecting) else getattr(policy, "sinks", 0) + 1
        lengths = {task: given_length(task, self.drawn(len)) for task in self.tasks}
        for task, length in lengths.items():
            for share in self.shares():
                if length is not None and share < 1 and int(share * length + 1e-9) < always:
                    raise ValueError(
                        f"a budget of {share:.0%} of {length} slots, the length of {task}, must be at least the "
                        f"{always} that {text} always reads"
                    )

    def shares(self) -> list[float]:
        """Returns the budgets as shares, each once.

        Raises:
          ValueError: one is no share over 0% and at most 100%.
        """
        found = [parse_budget(budget) for budget in self.budgets]
        for text, share in zip(self.budgets, found, strict=True):
            if not isinstance(share, float) or not 0 < share <= 1:
                raise ValueError(f"budgets must be shares over 0% and at most 100%, as in 25%; got {text!r}")
        return list(dict.fromkeys(map(float, found)))

    def arms(self) -> dict[str, SparsePolicy]:
        """Returns the policies by what they were asked for as, budgets still to be settled; dense decoding is not one.

        Raises:
          ValueError: there is no such policy.
        """
        policies = {
            text: read_policy(text, protocol=self.protocol, page_size=self.page_size)
            for text in dict.fromkeys(self.policies)
        }
        return {text: policy for text, policy in policies.items() if not isinstance(policy, Dense)}

    def drawn(self, size: Any) -> Drawn:
        """Returns what examples depend on; `size` counts the tokens of a text."""
        return Drawn(
            size=size,
            count=self.num,
            length=self.length,
            ruler_length=self.ruler_length or self.length,
            new_tokens=self.new_tokens,
            seed=self.seed,
            shots=self.shots,
        )

    def outcomes(self) -> Path | None:
        """Returns where outcomes are kept; None where there is no report."""
        return None if self.json is None else self.json.with_name(f"{self.json.stem}.outcomes.jsonl")


def read_tasks(settings: Settings) -> list[Task]:
    """Returns the tasks with their examples, read and drawn before the weights are loaded.

    Raises:
      ValueError: an example is malformed, or the model has no tokenizer.
      OSError: a file cannot be read.
    """
    tokenizer = load_tokenizer(find(settings.model))
    if tokenizer is None:
        raise ValueError(f"{settings.model} has no tokenizer: no task can be read")
    drawn = settings.drawn(lambda text: len(tokenizer(text)["input_ids"]))
    return [read_task(name, drawn) for name in dict.fromkeys(settings.tasks)]


def kept_outcomes(settings: Settings) -> Finished | None:
    """Returns the outcomes of earlier runs, and where this one keeps its own; None without a report.

    Raises:
      ValueError: they were found under other settings.
      OSError: the file cannot be read.
    """
    path = settings.outcomes()
    if path is None:
        return None
    run = {k: str(v) for k, v in dataclasses.asdict(settings).items() if k not in FREE_TO_CHANGE}
    return Finished(path, run | {"files": file_states(find(settings.model))}, resume=not settings.overwrite)


def measure(settings: Settings, on_rows: Callable[[dict[str, Any]], None] = lambda found: None) -> dict[str, Any]:
    """Measures every policy at every budget on every task; returns the report without its heading.

    Args:
      settings: what to measure.
      on_rows: called with the report so far after each policy at a budget.

    Raises:
      ValueError: an option, an example or the model is wrong.
      OSError: a file cannot be read or written.
    """
    settings.check()
    tasks, kept = read_tasks(settings), kept_outcomes(settings)
    model = load(settings.model, dtype=jnp.dtype(settings.dtype))
    comparison = Comparison(
        model,
        settings.arms(),
        settings.shares(),
        protocol=settings.protocol,
        equal=settings.equal,
        batch_size=settings.batch_size,
        kept=kept,
    )

    def report(rows: list[dict[str, Any]]) -> dict[str, Any]:
        return {"model": model.name, "bootstrap": {"resamples": RESAMPLES, "seed": SEED}, "rows": rows}

    return report(comparison.rows(tasks, lambda rows: on_rows(report(rows))))


def main(settings: Settings, arguments: Sequence[str] | None = None) -> None:
    """Compares, prints a table and writes the files; the report after each policy at a budget."""
    begun = commit()  # Hours later the repository may be at another.
    headed = heading("eval.sparsity", arguments, dataclasses.asdict(settings)) | {"commit": begun}

    def write(found: dict[str, Any]) -> None:
        if settings.json is not None:
            write_json(settings.json, headed | found)

    found = measure(settings, write)
    write(found)
    title = f"{headed['device']['kind']}: {settings.model}, {settings.dtype}, equal {settings.equal}"
    print_table(title, [shown(row) for row in found["rows"]], COLUMNS)
    if settings.plot is not None:
        from eval.sparse.plot import plot_sparsity  # matplotlib takes a second to import.

        write_whole(settings.plot, plot_sparsity(found["rows"], title=title))


if __name__ == "__main__":
    run_program(Settings, main)
