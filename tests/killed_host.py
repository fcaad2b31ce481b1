"""A program for tests of several hosts: `train.base`, which notes the documents that it reads and may kill itself.

python -m tests.killed_host --notes FOLDER [--victim PROCESS --moment MOMENT --step STEP] …options of train.base…
"""

import argparse
import dataclasses
import json
import os
import signal
import sys
from pathlib import Path

import jax
import numpy as np
from orbax.checkpoint.experimental.v1._src.synchronization import multihost

from train import base
from train.parts.language_model.part import LanguageModel
from train.run.program import run_program

MOMENTS = {
    "asked": "a step's rows are asked for",
    "written": "the process has written its part of the step's checkpoint, and has not told the others",
    "merged": "process 0 has put the parts together or does so, and the checkpoint has no final name yet",
}
"""At which a process kills itself, in order."""

BARRIERS = {"written": "commit_complete", "merged": "finalize_complete"}
"""What Orbax calls the places where processes wait for each other then."""


class Noted:
    """Batches that note the documents of each step's rows in a file of this process's.

    Attributes:
      batches: what is read.
      file: of lines, each a step and the tokens of its documents.
      victim: kills itself when it is asked for the rows of this step; None for no step.
      step: the last that was read.
    """

    def __init__(self, batches, file, victim=None):
        self.batches, self.file, self.victim, self.step = batches, file, victim, 0

    def __next__(self):
        self.step += 1
        if self.step == self.victim:
            os.kill(os.getpid(), signal.SIGKILL)
        batch = next(self.batches)
        with self.file.open("a") as file:
            file.write(json.dumps({"step": self.step, "read": documents(batch)}) + "\n")
        return batch

    def get_state(self):
        return {"batches": self.batches.get_state(), "step": self.step}

    def set_state(self, state):
        self.batches.set_state(state["batches"])
        self.step = state["step"]


def documents(batch):
    """Returns the tokens of each document of a batch that no row cuts."""
    found = []
    for tokens, targets, segments in zip(batch.tokens, batch.targets, batch.segments, strict=True):
        for number in range(1, segments.max() + 1):
            (here,) = np.nonzero(segments == number)
            found.append([*tokens[here].tolist(), int(targets[here[-1]])])
    return found


def noting(folder, victim=None, reader=Noted):
    """Returns a language model whose batches are noted in a folder; others than `Noted` may read them."""

    class NotedModel(LanguageModel):
        token_flops = 0.0  # What the devices could do is not measured.

        def rows(self, held_out, share):
            rows = super().rows(held_out, share)
            return dataclasses.replace(
                rows, batches=reader(rows.batches, folder / f"{jax.process_index()}.jsonl", victim)
            )

    return NotedModel


def kill_in_save(barrier, number):
    """Has this process kill itself where it would wait for the others, in so many-th of its saves."""
    wait, saves = multihost.sync_global_processes, []

    async def sync(key, **options):
        if key.endswith(barrier):
            saves.append(key)
            if len(saves) == number:
                os.kill(os.getpid(), signal.SIGKILL)
        await wait(key, **options)

    multihost.sync_global_processes = sync


def main() -> None:
    """Takes its own options from the command line and trains by the others."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--notes", type=Path)
    parser.add_argument("--victim", type=int)
    parser.add_argument("--moment", choices=MOMENTS)
    parser.add_argument("--step", type=int)
    own, rest = parser.parse_known_args()
    words = dict(zip(rest[::2], rest[1::2], strict=False))
    dies = own.victim is not None and own.victim == int(words["--process-id"])
    if dies and own.moment in BARRIERS:
        kill_in_save(BARRIERS[own.moment], own.step // int(words["--save-every"]))
    base.LanguageModel = noting(own.notes, own.step if dies and own.moment == "asked" else None)
    sys.argv[1:] = rest
    run_program(base.main)


if __name__ == "__main__":
    main()
