"""Trained drafters that come with the package."""

import dataclasses
from pathlib import Path

from jax_smash.loading import ASSETS
from jax_smash.methods.draft_options import RANDOM, READERS, SHIPPED, DraftOptions

SHIPPED_DRAFTERS = ASSETS / "drafters"
"""A folder for each target by its name, and in it one for each method."""


def with_folder(name: str, draft: DraftOptions, target: str) -> DraftOptions:
    """Returns options that name a drafter's folder, where they mean one that comes with the package.

    Args:
      name: of the method. One that needs a drafter has its own where none is given.
      draft: its options.
      target: name of the model, as `load` takes it.

    Raises:
      ValueError: none comes with the package for this target.
    """
    given = draft.drafter
    if given is None and name in READERS:
        method = name
    elif isinstance(given, str) and given.startswith(SHIPPED):
        method = given.removeprefix(SHIPPED)
    else:
        return draft
    if not is_shipped(method, target):
        found = sorted(f"{path.name} for {path.parent.name}" for path in SHIPPED_DRAFTERS.glob("*/*/"))
        raise ValueError(
            f"drafter must be a folder, or {RANDOM} to measure what drafting costs: of method {method} none is shipped "
            f"for {target} (shipped: {', '.join(found) or 'none'})"
        )
    return dataclasses.replace(draft, drafter=_folder(method, target))


def is_shipped(method: str, target: str) -> bool:
    """Returns whether a drafter of a method comes with the package for a target by this name."""
    return _folder(method, target).is_dir()


def _folder(method: str, target: str) -> Path:
    return SHIPPED_DRAFTERS / Path(target).name / method
