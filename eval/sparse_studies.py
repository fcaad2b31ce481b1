r"""Studies of sparse decoding: what query heads agree on, what stays, what eviction costs, what choosing costs.

    python -m eval.sparse_studies --study agreement --model smollm2 --json agreement.json --plot agreement.png
    python -m eval.sparse_studies --study look-ahead --model smollm2 --json look-ahead.json --plot look-ahead.png
    python -m eval.sparse_studies --study calibrated --model smollm2 --policies quest --json calibrated.json
    python -m eval.sparse_studies --study oracles --model smollm2 --json oracles.json --plot oracles.png
    python -m eval.sparse_studies --study overhead --model smollm2 --policies quest,tokenselect --json overhead.json
    python -m eval.sparse_studies --study throughput --model smollm2 --lengths 1024,4096 --json throughput.json
    python -m eval.sparse_studies --study predictors --model smollm2 --runs OUT/sizes --plot predictors.png

They are those of TokenButler, section 4.5 and appendices C to E, by our own means. `calibrated` gives each KV head its
own share of a budget, by recall on texts that are not scored, and writes the shares beside the report, for
`--sparse NAME:shares=FILE`. `oracles` compares the oracle with one that evicts, and with ones that choose by an earlier
layer. `overhead` tells how much longer a step takes than one that reads the last slots, as many (`choosing_ms`); what
policies without a predictor choose by is timed by itself as well. `predictors` shows what a run of `train.butler` told
of its held-out rows: recall by the predictors' size, by the layer that they read, by tokens.
`train/recipes/smollm2-butler-ablations.json` trains such.
"""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp

from eval.reports.options import Names, Numbers, Paths, check_least
from eval.reports.report import check_folder, check_outputs, heading, print_table, run_program, write_json, write_whole
from eval.sparse.learning import read_run
from eval.sparse.studies import STEPS, STUDIES, calibratable
from eval.sparsity import Settings as Comparing
from eval.tasks.selection import FIRST_POSITION
from jax_smash.loading import load

COLUMNS = (
    *("kind", "policy", "budget", "task", "metric", "length", "n", "score", "low", "high", "difference"),
    *("slots", "share", "scorer_share", "ms_per_step", "choice_ms", "choosing_ms", "tokens_per_second", "speedup"),
    *("training_seconds", "parameters", "dense_layers", "tokens", "recent"),
)
"""Of a table; those that no row has are left out."""

REPORT, PICTURE = "study.json", "study.png"
"""What `output` holds."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Studies sparse decoding.

    Attributes:
      study: calibrated (budgets a head beside uniform ones), agreement (of query heads and layers on their top slots),
        look-ahead (of steps and layers on later ones), oracles (the oracle beside ones that evict, or that choose by
        an earlier layer), overhead (bytes and milliseconds of choosing), throughput (tokens a second by the length of
        the context), predictors (recall of trained ones by size, layer and tokens).
      model: a shipped model's name, a directory or a hub id.
      policies: of calibrated, overhead and throughput, as in `eval.sparsity`.
      budgets: shares; agreement and look-ahead take the first, of the slots, for what a top set is; overhead and
        throughput give every policy the first share of the slots, whatever its scorer reads.
      num: texts that are read or scored.
      calibration: texts behind these, for the shares of heads.
      length: tokens of a text.
      lengths: of contexts in throughput and overhead.
      new_tokens: that are timed.
      repeats: of what is timed; medians count.
      page_size: consecutive slots that are chosen together; by default each policy's own.
      runs: folders of training runs: of predictors, or those whose seconds overhead tells.
      batch_size: texts that are read together.
      dtype: of the weights.
      json: file to write.
      plot: picture to write, a PNG.
      output: folder to make with both of them, in their place.
      overwrite: replace files that exist.
    """

    study: Literal["calibrated", "agreement", "look-ahead", "oracles", "overhead", "throughput", "predictors"]
    model: str = "tiny"
    policies: Names = ("oracle",)
    budgets: Names = ("50%",)
    num: int = 8
    calibration: int = 4
    length: int = 512
    lengths: Numbers = (512,)
    new_tokens: int = 32
    repeats: int = 5
    page_size: int | None = None
    runs: Paths = ()
    batch_size: int = 8
    dtype: Literal["float32", "bfloat16"] = "float32"
    json: Path | None = None
    plot: Path | None = None
    output: Path | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Refuses what cannot be studied, before anything is loaded.

        Raises:
          ValueError: an option is out of range or unknown, or another study's.
          FileExistsError, FileNotFoundError: a run is missing, or an output file cannot be written.
          ImportError: a picture is asked for and matplotlib is not installed.
        """
        check_least(self, calibration=1, new_tokens=2, repeats=1)
        if not self.lengths or min(self.lengths) < 2:
            raise ValueError(f"lengths must be one or more, each at least 2; got {self.lengths}")
        if self.length <= FIRST_POSITION:
            raise ValueError(f"length must be over {FIRST_POSITION}, the first position that counts; got {self.length}")
        least = FIRST_POSITION + min(STEPS) + 1
        if self.study == "look-ahead" and self.length < least:
            raise ValueError(f"length of look-ahead must be at least {least} tokens; got {self.length}")
        if self.study == "calibrated":
            self._check_calibrated()
        if self.runs and self.study not in ("overhead", "predictors"):
            raise ValueError(f"runs go with overhead and predictors; got {self.study}")
        if self.study == "predictors" and not self.runs:
            raise ValueError("predictors shows runs of train.butler: give --runs")
        names = [run.resolve().name for run in self.runs]
        if len({*names}) < len(names):
            raise ValueError(f"runs are told apart by their folders' names, which must differ; got {', '.join(names)}")
        for run in self.runs:
            read_run(run)
        self.comparing().check()
        check_folder(self.output, self.json, self.plot, overwrite=self.overwrite)
        check_outputs(self.json, plot=self.plot, overwrite=self.overwrite)

    def _check_calibrated(self) -> None:
        if self.json is None:
            raise ValueError("calibrated writes shares of heads beside its report: give --json")
        for name in self.policies:
            calibratable(name, page_size=self.page_size)
        if max(self.comparing().shares()) >= 1:
            raise ValueError("budgets of calibrated must be below 100%, of which every head reads all; got 100%")

    def comparing(self, **changes: Any) -> Comparing:
        """Returns the settings of a comparison of the same policies on the same texts, with some changes."""
        same = {
            name: getattr(self, name)
            for name in ("model", "policies", "budgets", "num", "length", "page_size", "batch_size", "dtype")
        }
        return Comparing(**same | {"tasks": ("perplexity", "recall")} | changes)

    def shares_file(self, policy: str, share: float) -> Path:
        """Returns where a policy's shares of heads are written."""
        assert self.json is not None
        name = re.sub(r"[^\w.-]+", "-", policy)
        return self.json.with_name(f"{self.json.stem}.{name}-{100 * share:g}.shares.json")


def main(settings: Settings, arguments: Sequence[str] | None = None) -> None:
    """Studies, prints a table and writes the files."""
    settings.check()
    model = load(settings.model, dtype=jnp.dtype(settings.dtype))
    study = STUDIES[settings.study]
    found = study.measure(settings, model)
    title = f"{settings.study}: {settings.model}, {settings.dtype}"
    report = heading("eval.sparse_studies", arguments, dataclasses.asdict(settings)) | {"model": model.name} | found
    flat = [study.shown(row) for row in found["rows"]]
    print_table(title, flat, [c for c in COLUMNS if any(row.get(c) is not None for row in flat)])
    json, plot = settings.json, settings.plot
    if settings.output is not None:
        settings.output.mkdir(parents=True, exist_ok=True)
        json, plot = settings.output / REPORT, settings.output / PICTURE
    if json is not None:
        write_json(json, report)
    if plot is not None:
        write_whole(plot, study.plot(found, title))


if __name__ == "__main__":
    run_program(Settings, main)
