"""Weights that a run reads and does not change."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SHOWN = 16
"""Letters of a fingerprint that an error shows."""


@dataclasses.dataclass(frozen=True)
class Frozen:
    """Frozen weights by role, on the devices of a run and in the dtype of their files.

    They have no gradients and no optimiser's state, and are in no checkpoint: it names them by their fingerprints.

    Attributes:
      params: by role.
      fingerprints: `checkpoints.fingerprint` of each role's weights.
      sources: where each role's weights were read from.
    """

    params: Mapping[str, Any]
    fingerprints: dict[str, str]
    sources: Mapping[str, Path]


def check_frozen(frozen: Frozen | None, saved: Mapping[str, str], run: Path) -> None:
    """Refuses a checkpoint that was made beside other frozen weights.

    Args:
      frozen: weights of the run that goes on; None where nothing is frozen.
      saved: fingerprints that the checkpoint names, by role.
      run: folder of the run, named in the error.

    Raises:
      ValueError: a role's weights are others, or were not there.
    """
    now = {} if frozen is None else frozen.fingerprints
    for role in sorted({*saved, *now}):
        was, found = (marks.get(role, "none") for marks in (saved, now))
        if was != found:
            source = frozen.sources.get(role) if frozen is not None else None
            raise ValueError(
                f"{run} was begun beside a frozen {role} whose weights have fingerprint {was[:SHOWN]}; "
                f"those of {source or 'this run'} have {found[:SHOWN]}"
            )
