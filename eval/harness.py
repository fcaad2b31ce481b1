"""Tasks of lm-evaluation-harness on a model under one of our methods. Needs the extra `lm-eval`.

    python -m eval.harness --model DIR --tasks arc_easy,piqa --limit 100 --json harness.json

The harness reads its data sets from the hub or from its cache.
"""

import dataclasses
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp

from eval.reports.options import Names, check_least
from eval.reports.report import check_output, heading, print_table, run_program, write_json
from jax_smash.loading import load
from jax_smash.methods import check_method
from jax_smash.sharding import mesh_of_hosts


@dataclasses.dataclass(frozen=True)
class Settings:
    """Runs tasks of lm-evaluation-harness.

    Attributes:
      tasks: the harness's names.
      model: a shipped model's name, a directory or a hub id.
      method: name of our decoding method.
      shots: solved examples before each; by default the task's own number.
      limit: examples of each task; by default all.
      chat: ask in the model's chat template.
      task_folder: folder with further tasks, in the harness's YAML.
      context: tokens that a text may have; by default the model's own.
      batch_size: texts that are read or decoded together.
      dtype: of the weights.
      json: file to write.
      overwrite: replace the file if it exists.
    """

    tasks: Names
    model: str = "tiny"
    method: str = "ar"
    shots: int | None = None
    limit: int | None = None
    chat: bool = False
    task_folder: Path | None = None
    context: int | None = None
    batch_size: int = 8
    dtype: Literal["float32", "bfloat16"] = "float32"
    json: Path | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Refuses what cannot be run, before anything is loaded.

        Raises:
          ImportError: the harness is not installed.
          ValueError: an option is out of range.
          FileExistsError, FileNotFoundError: the output file cannot be written.
        """
        if importlib.util.find_spec("lm_eval") is None:
            raise ImportError("lm-evaluation-harness is not installed: pip install 'jax_smash[lm-eval]'")
        if not self.tasks:
            raise ValueError("tasks must name at least one task of the harness; got none")
        check_method(self.method)
        check_least(self, shots=0, limit=1, batch_size=1)
        if self.task_folder is not None and not self.task_folder.is_dir():
            raise FileNotFoundError(f"folder of tasks does not exist: {self.task_folder}")
        check_output(self.json, overwrite=self.overwrite)


def measure(settings: Settings) -> dict[str, Any]:
    """Runs the tasks; returns the report without its heading.

    Raises:
      ImportError: the harness is not installed.
      ValueError: an option is wrong, or the harness does not know a task.
    """
    settings.check()
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    from eval.scores.lm_eval_adapter import JaxSmashLM  # The harness takes seconds to import.

    folder = None if settings.task_folder is None else str(settings.task_folder)
    manager = TaskManager(include_path=folder)
    unknown = [task for task in settings.tasks if not manager.match_tasks([task])]
    if unknown:
        raise ValueError(f"lm-evaluation-harness has no task {', '.join(unknown)}")
    model = load(settings.model, mesh=mesh_of_hosts(), dtype=jnp.dtype(settings.dtype))
    found = simple_evaluate(
        model=JaxSmashLM(model, method=settings.method, batch_size=settings.batch_size, context=settings.context),
        tasks=list(settings.tasks),
        num_fewshot=settings.shots,
        limit=settings.limit,
        apply_chat_template=settings.chat,
        task_manager=manager,
        log_samples=False,
    )
    rows = [row for task, values in found["results"].items() for row in _rows(settings, task, values, found)]
    return {"model": settings.model, "rows": rows}


def _rows(settings: Settings, task: str, values: dict[str, Any], found: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns a row a metric: the harness writes them as `metric,filter`, errors as `metric_stderr,filter`."""
    rows = []
    for name, score in values.items():
        metric, comma, filtered = name.partition(",")
        if comma and not metric.endswith("_stderr"):
            error = values.get(f"{metric}_stderr,{filtered}")
            error = error if isinstance(error, float) else None
            interval = None if error is None else {"low": score - 1.96 * error, "high": score + 1.96 * error}
            rows.append(
                {
                    "method": settings.method,
                    "settings": {"shots": found["n-shot"].get(task), "filter": filtered, "dtype": settings.dtype},
                    "task": task,
                    "metric": metric,
                    "n": found["n-samples"].get(task, {}).get("effective"),
                    "score": score,
                    "interval": interval,
                }
            )
    return rows


def main(settings: Settings, arguments: Sequence[str] | None = None) -> None:
    """Runs, prints a table and writes the report."""
    found = measure(settings)
    report = heading("eval.harness", arguments, dataclasses.asdict(settings), "lm_eval") | found
    columns = ("method", "task", "metric", "n", "score", "low", "high")
    print_table(settings.model, [row | (row["interval"] or {}) for row in report["rows"]], columns)
    if settings.json is not None:
        write_json(settings.json, report)


if __name__ == "__main__":
    run_program(Settings, main, several_hosts=True)
