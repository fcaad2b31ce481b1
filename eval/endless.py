r"""Texts without end, decoded by StreamingLLM: memory and speed as they grow, and equality with the paper's own way.

    python -m eval.endless --model smollm2 --new-tokens 50000 --json endless.json

The first tokens are read again by a plain program that rotates every key anew at each step (`eval.exact.rotated_anew`);
so is the text with its sinks seen from as far as they are, the control. Stop tokens do not end the text.
"""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from eval.exact.rotated_anew import logits_of_text
from eval.reports.report import check_output, heading, print_table, progress, run_program, write_json
from eval.timing.measure import peak_megabytes
from jax_smash.loading import Model, load
from jax_smash.methods import DraftOptions, check_draft, check_method, make_method
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.session import Session
from jax_smash.shapes import bucket
from jax_smash.sparse import StreamingLLM, sparsified

COLUMNS = ("tokens", "ms_per_token", "live_mb", "peak_memory_mb", "nats_per_token", "distinct_4_grams")
PROMPT = "Once upon a time, in a small village by the sea, there lived"
MEGABYTE = 1e6


@dataclasses.dataclass(frozen=True)
class Settings:
    """Decodes a text that is longer than its cache.

    Attributes:
      model: a shipped model's name, a directory or a hub id.
      slots: entries that the cache keeps.
      sinks: of them, the first of the text.
      method: that decodes; one that drafts takes a tree.
      tree: of a method that drafts.
      prompt: that the text begins with.
      temperature: of sampling; 0 is greedy.
      new_tokens: of the text.
      piece: tokens of a row of the table.
      checked_tokens: tokens from the beginning that the plain program reads again; 0 for none.
      json: file to write.
      overwrite: replace the file if it exists.
    """

    model: str = "tiny"
    slots: int = 512
    sinks: int = 4
    method: str = "ar"
    tree: str | None = None
    prompt: str = PROMPT
    temperature: float = 0.8
    new_tokens: int = 10_000
    piece: int = 2_000
    checked_tokens: int = 2_000
    json: Path | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Refuses what cannot be measured, before anything is loaded.

        Raises:
          ValueError: an option is out of range.
          FileExistsError, FileNotFoundError: the output file cannot be written.
        """
        for name, least in {"new_tokens": 2, "piece": 1, "checked_tokens": 0}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}; got {getattr(self, name)}")
        check_method(self.method)
        check_draft(self.method, self.draft)
        StreamingLLM(slots=self.slots, sinks=self.sinks)
        check_output(self.json, overwrite=self.overwrite)

    @property
    def draft(self) -> DraftOptions:
        """Options of drafting."""
        return DraftOptions() if self.tree is None else DraftOptions(tree=self.tree)


def measure(settings: Settings) -> dict[str, Any]:
    """Decodes the text; returns a row for each piece of it, and how far the plain program's figures are from ours."""
    settings.check()
    policy = StreamingLLM(slots=settings.slots, sinks=settings.sinks)
    model = dataclasses.replace(load(settings.model), stop_tokens=())
    prompt = model.encode(settings.prompt)
    session = _session(settings, sparsified(model, policy), len(prompt))
    rows, before = [], 0
    session.read([prompt])
    with progress("tokens", settings.new_tokens) as advance:
        running = True
        while running:
            began, goal = time.perf_counter(), min(before + settings.piece, settings.new_tokens)
            while running and len(session.outputs()[0]) < goal:
                running = session.run(64)
            said = session.outputs()[0]
            rows.append(_row(session, before, time.perf_counter() - began))
            for _ in range(len(said) - before):
                advance()
            before = len(said)
    cache = session.state.rows.cache
    kept = sum(x.nbytes for x in (*cache.keys, *cache.values)) / MEGABYTE
    checked = _checked(settings, model, policy, prompt, session) if settings.checked_tokens else {}
    return {"rows": rows, "cache_mb": kept, "checked": checked}


def _session(settings: Settings, model: Model, prompt: int) -> Session:
    """Makes a row that has room for the whole text."""
    slots, sampled = bucket(prompt + settings.new_tokens), settings.temperature > 0
    method = make_method(model, settings.method, sampled=sampled, log_probs=0, draft=settings.draft, slots=slots)
    return Session(
        model,
        method,
        slots=slots,
        max_new_tokens=settings.new_tokens,
        sampling=[SamplingOptions(temperature=settings.temperature)],
        seeds=[0],
        log_probs=0,
    )


def _row(session: Session, before: int, seconds: float) -> dict[str, Any]:
    """Returns the figures of the tokens behind the first `before`."""
    said = session.outputs()[0][before:]
    records = session.log_probs()
    assert records is not None
    grams = [tuple(said[i : i + 4]) for i in range(len(said) - 3)]
    return {
        "tokens": before + len(said),
        "ms_per_token": 1e3 * seconds / len(said),
        "live_mb": sum(x.nbytes for x in jax.live_arrays()) / MEGABYTE,
        "peak_memory_mb": peak_megabytes(),
        "nats_per_token": -float(np.mean([record.log_prob for record in records[0][before:]])),
        "distinct_4_grams": len(set(grams)) / max(len(grams), 1),
    }


def _checked(
    settings: Settings, model: Model, policy: StreamingLLM, prompt: list[int], session: Session
) -> dict[str, Any]:
    """Returns the largest difference of a token's log-probability from the plain program's, with the control's."""
    said, records = session.outputs()[0][: settings.checked_tokens], session.log_probs()
    assert records is not None
    ours = np.array([record.log_prob for record in records[0][: len(said)]])
    found: dict[str, Any] = {"tokens": len(said)}
    for name, near in (("paper", True), ("sinks_from_afar", False)):
        logits = logits_of_text(model, policy, prompt + said[:-1], near=near)[len(prompt) - 1 :]
        log_probs = np.asarray(jax.nn.log_softmax(logits.astype(np.float32), axis=-1))
        found[name] = float(np.abs(log_probs[np.arange(len(said)), said] - ours).max())
    return found


def main(settings: Settings, arguments: Sequence[str] | None = None) -> None:
    """Measures, prints a table, writes the report."""
    report = heading("eval.endless", arguments, dataclasses.asdict(settings)) | measure(settings)
    print_table(f"{settings.model}, {settings.slots} slots of {report['cache_mb']:.1f} MB", report["rows"], COLUMNS)
    if checked := report["checked"]:
        print(
            f"log-probabilities of the first {checked['tokens']} tokens differ by at most {checked['paper']:.1e} nats "
            f"from the paper's way, and by {checked['sinks_from_afar']:.1e} where sinks are seen from afar"
        )
    if settings.json is not None:
        write_json(settings.json, report)


if __name__ == "__main__":
    run_program(Settings, main)
