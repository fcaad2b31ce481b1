"""Whether a drafter's folder fits a target, told from what both say of themselves: no weights are read."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jax_smash.loading import Model, stored_base
from jax_smash.methods.chimera import check_target as check_chimera
from jax_smash.methods.draft_options import RANDOM, READERS, DraftOptions, drafts_with
from jax_smash.methods.eagle import check_target as check_eagle
from jax_smash.methods.trained import check_shape, check_tapped
from jax_smash.planning.abstract import AbstractModel

CHECKS: dict[str, Callable[[Any, Model, str], None]] = {
    "eagle": check_eagle,
    "medusa": check_shape,
    "chimera": check_chimera,
    "dflash": check_tapped,
}
"""What refuses a target that a drafter's configuration is not for, by its method."""


def check_fits(name: str, draft: DraftOptions, target: str | Path) -> None:
    """Refuses a drafter's folder that was made for a target of other sizes.

    Args:
      name: of the method.
      draft: its options.
      target: name of the model, as `load` takes it.

    Raises:
      ValueError: the drafter is for another width, vocabulary or number of layers, or the target's files are damaged.
      FileNotFoundError: there is no such target.
    """
    given = draft.drafter
    if not isinstance(given, str | Path) or str(given) == RANDOM:
        return
    method = drafts_with(given) if name == "hybrid" else name
    model = AbstractModel(stored_base(target)[0]).model()
    described = READERS[method](given)
    CHECKS[method](described.config, dataclasses.replace(model, name=Path(target).name), f"the drafter in {given}")
