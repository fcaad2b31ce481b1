"""What predictors of a training run hold of a top set: by their size, by the layer that they read, by tokens."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from jax_smash.config import ModelConfig
from jax_smash.models.predictors import abstract_predictor, predictor_for

SETTINGS, METRICS = "settings.json", "metrics.jsonl"
"""What a training run leaves in its folder."""


def read_run(run: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the settings of a training run and the lines of its metrics, without a last one that was cut off.

    Raises:
      FileNotFoundError: the folder holds no run.
      ValueError: a file is damaged.
    """
    for name in (SETTINGS, METRICS):
        if not (run / name).is_file():
            raise FileNotFoundError(f"a training run has {METRICS} and {SETTINGS}; {run} has not")
    try:
        told = json.loads((run / SETTINGS).read_text(encoding="utf-8"))
        lines = (run / METRICS).read_text(encoding="utf-8").splitlines(keepends=True)
        return told, [json.loads(line) for line in lines if line.endswith("\n")]
    except json.JSONDecodeError as error:
        raise ValueError(f"{run}: {SETTINGS} or {METRICS} is damaged: {error}") from error


def learned(run: Path, base: ModelConfig) -> list[dict[str, Any]]:
    """Returns a row for each predictor of a run and each time that held-out rows were read.

    A row has the predictor's `policy` (its name), `kind`, `parameters`, `dense_layers` (those before the first that is
    predicted, in which nothing is left out), the `tokens` trained on until then, `score` (its recall) and `recent`
    (what the last entries hold, as many). Recalls are means over the predicted layers, from the run's `recall_layer`
    on.

    Args:
      run: folder of `train.butler`.
      base: the configuration of the base that its predictors are for.

    Raises:
      FileNotFoundError: the folder holds no run.
      ValueError: the run trained no predictors or read no held-out rows, or its predictors are not for this base.
    """
    told, lines = read_run(run)
    if not isinstance(predictors := told.get("predictors"), dict):
        raise ValueError(f"runs must be ones of train.butler; {run} trained no predictors")
    measured = {line["step"]: line["held_out_means"] for line in lines if line.get("held_out_means")}
    if not measured:
        raise ValueError(f"{run} must have read held-out rows; it has not")
    a_step, rows = told["batch_size"] * told["length"], []
    for name, fields in predictors.items():
        config = predictor_for(fields["kind"], base, **{k: v for k, v in fields.items() if k != "kind"})
        same = {
            "run": run.name,
            "policy": name,
            "kind": config.kind,
            "parameters": sum(x.size for x in jax.tree.leaves(abstract_predictor(config)[1])),
            "dense_layers": config.first_layer,
            "budget": told["recall_share"],
        }
        for step, means in sorted(measured.items()):
            recalls = {"score": means[f"{name} recall"], "recent": means[f"{name} recent_recall"]}
            rows.append(same | {"tokens": step * a_step} | recalls)
    return rows


def last_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the last row of each predictor, in the order of the predictors."""
    return list({(row["run"], row["policy"]): row for row in rows}.values())
