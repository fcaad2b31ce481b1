"""Whether long outputs drift from what the plain base would write: error by position, by mode of HAMburger.

    python -m eval.drift --model tiny --modules DIR --json drift.json --plot drift.png
    python -m eval.drift --model DIR --modes blind,checked --confidence 0.5,0.9 --new-tokens 512 --json drift.json

Prompts are continued greedily under each mode and confidence, and by plain decoding of the same weights (`ar`), the
control. Every text is then read again by one forward of the base without modules, whose tokens have a slot each. A
token is an error where the base, given the same text before it, would have chosen another and rounding does not explain
it (1e-5 of the largest logit's magnitude in float32, 2⁻⁷ of it in bfloat16); `nats_below_best` is how far its
log-probability then lies below the likeliest token's, at most 10. Plain decoding and the exact mode make no error.
Stop tokens are forbidden, so that all texts are as long as each other. Intervals are over texts, since the tokens of a
text are not drawn apart.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp

from eval.exact.decoded import Decoded
from eval.exact.divergence import ROUNDING, Rescorer
from eval.prompts.shipped_prompts import shipped_prompts
from eval.reports.options import Decimals, Names, check_least
from eval.reports.report import check_outputs, heading, print_table, progress, run_program, write_json, write_whole
from eval.scores.drift_rows import BY_POSITION, COLUMNS, Reread, row
from eval.scores.engine import Engine
from eval.scores.smashing import smash_options
from jax_smash.loading import Model, load
from jax_smash.methods import check_smash, fitting_modules
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.prompts import read_prompts
from jax_smash.serve.request import Request, make_request
from jax_smash.serve.turn import Completion
from jax_smash.smash.options import MODES, SmashOptions

HAMBURGER, CONTROL = "hamburger", "ar"
NUM_PROMPTS = 64


@dataclasses.dataclass(frozen=True)
class Settings:
    """Measures the errors of long outputs by position.

    Attributes:
      model: a shipped model's name, a directory or a hub id.
      modules: HAMburger modules, a folder; by default those beside the model. Where the folder holds a base, which was
        trained with them, that one decodes and reads.
      modes: of hamburger: blind, exact, checked. Plain decoding is always measured too.
      confidence: a group goes on where the modules are at least so sure that it does; a row each.
      token_confidence, micro_steps, micro_head, least_rows: of hamburger, as in `jax-smash generate`, by default as the
        modules were calibrated; but a row of a batch is decoded as it is alone.
      new_tokens: of each text.
      prompts: file of prompts, one {"prompt": …} a line; by default pieces of the texts that come with the project.
      num_prompts: prompts to take; by default the whole file, or 64 of the project's.
      prompt_tokens: of the longest of the project's prompts.
      chat: text prompts of a file are a user's message, put into the model's chat template.
      batch_size: texts that are decoded together.
      dtype: of the weights.
      json: file to write.
      plot: picture to write, a PNG.
      overwrite: replace files that exist.
    """

    model: str = "tiny"
    modules: str | None = None
    modes: Names = MODES
    confidence: Decimals = (0.5, 0.7, 0.9)
    token_confidence: float | None = None
    micro_steps: int | None = None
    micro_head: str | None = None
    least_rows: int = 1
    new_tokens: int = 512
    prompts: Path | None = None
    num_prompts: int | None = None
    prompt_tokens: int = 48
    chat: bool = False
    batch_size: int = 8
    dtype: Literal["float32", "bfloat16"] = "float32"
    json: Path | None = None
    plot: Path | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Refuses what cannot be measured, before anything is loaded.

        Raises:
          ValueError: an option is out of range or unknown, or the modules do not fit the model.
          FileExistsError, FileNotFoundError: an output file cannot be written, or there are no modules.
          ImportError: a picture is asked for and matplotlib is not installed.
        """
        for name in ("modes", "confidence"):
            if not getattr(self, name):
                raise ValueError(f"{name} must name at least one; got none")
        for smash in self.smashes():
            check_smash(HAMBURGER, smash)
        check_least(self, new_tokens=1, num_prompts=1, prompt_tokens=3, batch_size=1)
        if self.chat and self.prompts is None:
            raise ValueError("chat goes with a file of prompts; give --prompts")
        check_outputs(self.json, plot=self.plot, overwrite=self.overwrite)
        fitting_modules(self.model, self.modules, *self.smashes())

    def smashes(self) -> list[SmashOptions]:
        """Returns the options of each way to decode but the plain one."""
        confidences = dict.fromkeys(self.confidence)
        return [smash_options(self, mode=m, confidence=c) for m in dict.fromkeys(self.modes) for c in confidences]


def read_request(settings: Settings, model: Model) -> Request:
    """Returns the prompts, and the options that every text is decoded under and read again under.

    Raises:
      ValueError: there are too few prompts, or one is malformed or does not fit the model with its text.
      OSError: the file cannot be read.
    """
    prompts: list[Any]
    if settings.prompts is None:
        prompts = shipped_prompts(model, settings.num_prompts or NUM_PROMPTS, longest=settings.prompt_tokens)
    else:
        prompts = read_prompts(settings.prompts)
        if len(prompts) < (settings.num_prompts or 1):
            raise ValueError(
                f"num_prompts must be at most {len(prompts)}, the prompts of the file; got {settings.num_prompts}"
            )
        prompts = prompts[: settings.num_prompts]
    return make_request(
        model,
        prompts,
        max_new_tokens=settings.new_tokens,
        sampling=SamplingOptions(min_new_tokens=settings.new_tokens),
        stop=(),
        json_schema=None,
        regex=None,
        seed=0,
        chat=settings.chat,
        slots=None,
    )


def measure(settings: Settings, on_row: Callable[[dict[str, Any]], None] = lambda row: None) -> list[dict[str, Any]]:
    """Returns a row for plain decoding, and one for each mode and confidence.

    Args:
      settings: what to measure.
      on_row: called with each row when it is made.

    Raises:
      ValueError: an option, a prompt or the modules are wrong.
      OSError: a file cannot be read.
    """
    settings.check()
    model = load(settings.model, dtype=jnp.dtype(settings.dtype), modules=settings.modules or "auto")
    request = read_request(settings, model)
    # All before the first is asked: what one refuses is told at once.
    engines = {None: Engine(model, method=CONTROL, batch_size=settings.batch_size)} | {
        smash: Engine(model, method=HAMBURGER, smash=smash, batch_size=settings.batch_size)
        for smash in settings.smashes()
    }
    reader = Rescorer(model, request, dtype=settings.dtype, max_new_tokens=settings.new_tokens)
    rows = []
    with jax.default_matmul_precision("highest"):
        for smash, engine in engines.items():
            mode, confidence = (CONTROL, None) if smash is None else (smash.mode, smash.confidence)
            name = mode if confidence is None else f"{mode} {confidence:g}"
            completions = engine.continuations(
                request.tokens, max_new_tokens=settings.new_tokens, min_new_tokens=settings.new_tokens, what=name
            )
            texts = _read(reader, completions, what=f"{name}, read again")
            rows.append(row(mode, confidence, texts, engine.compression, new_tokens=settings.new_tokens))
            on_row(rows[-1])
    return rows


def _read(reader: Rescorer, completions: Sequence[Completion], *, what: str) -> list[Reread]:
    """Returns texts with what the plain base says of them."""
    decoded = [Decoded(c.token_ids, c.finish_reason, c.target_forwards, None) for c in completions]
    with progress(what, len(decoded)) as advance:
        said = reader.rescore(decoded, decoded, advance)
    return [Reread.of(completion, one) for completion, one in zip(completions, said, strict=True)]


def main(settings: Settings, arguments: Sequence[str] | None = None) -> None:
    """Measures, prints two tables and writes the files."""
    rows = measure(settings)
    report = heading("eval.drift", arguments, dataclasses.asdict(settings))
    report |= {"model": settings.model, "rounding": ROUNDING[settings.dtype], "rows": rows}
    title = f"{report['device']['kind']}: {settings.model}, {settings.dtype}, greedy, {settings.new_tokens} new tokens"
    print_table(title, rows, COLUMNS)
    positions = [one | bucket for one in rows for bucket in one["by_position"]]
    print_table("By position in the output", positions, BY_POSITION)
    if settings.plot is not None:
        from eval.scores.drift_plot import plot_drift  # matplotlib takes a second to import.

        write_whole(settings.plot, plot_drift(rows, title=title))
    if settings.json is not None:
        write_json(settings.json, report)


if __name__ == "__main__":
    run_program(Settings, main)
