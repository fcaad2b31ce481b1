"""Cost curves that automatic trees begin with: measured here, and wrong by a known factor."""

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Hashable, Iterator, Sequence
from unittest import mock

from eval.exact.exactness_report import say
from jax_smash import ladder
from jax_smash.costs import CostCurve, Follower, save_costs
from jax_smash.costs.store import cost_key
from jax_smash.loading import Model
from jax_smash.serve.tuning import measure_costs

ENTRIES = (1, 2, 4, 8, 16, 32)

FACTORS: dict[str, float | None] = {"none": None, "right": 1.0, "cheap": 1 / 3, "dear": 3.0}
"""By the name of a curve, what drafted steps are said to cost of what was measured; None for no curve."""


def cost_curves(model: Model, names: Sequence[str], *, batch: int, slots: int) -> dict[str, CostCurve | None]:
    """Returns the curves of these names; measures once if any of them rests on a measurement.

    Args:
      model: to measure.
      names: of `FACTORS`.
      batch: rows.
      slots: cache slots a row.
    """
    if all(FACTORS[name] is None for name in names):
        return dict.fromkeys(names)
    measured = measure_costs(model, batch=batch, slots=slots, entries=ENTRIES)
    told = ", ".join(f"{m}: {ratio:.2f}" for m, ratio in zip(ENTRIES, measured.relative(), strict=True))
    say(f"batch {batch}: T(m)/T(1) {told}; spread {measured.spread:.0%}")
    return {name: None if FACTORS[name] is None else scaled(measured, FACTORS[name]) for name in names}


def scaled(curve: CostCurve, factor: float) -> CostCurve:
    """Returns a curve whose drafted steps cost another multiple of a plain one, which they never fall below."""
    plain, *drafted = curve.seconds
    return dataclasses.replace(curve, seconds=(plain, *(max(plain, factor * seconds) for seconds in drafted)))


@contextlib.contextmanager
def beginning_with(
    curve: CostCurve | None, model: Model, learned: dict[Hashable, dict[Hashable, Follower]]
) -> Iterator[None]:
    """Makes methods in this context begin with a curve, whatever this machine has stored.

    Args:
      curve: None for no curve.
      model: whose curve it is.
      learned: what is known beyond the curve, in place of what this process knows; it grows by what is learned.
    """
    with (
        tempfile.TemporaryDirectory() as home,
        mock.patch.dict(os.environ, {"JAX_SMASH_HOME": home}),
        mock.patch.object(ladder, "FOLLOWERS", learned),
    ):
        if curve is not None:
            assert model.config is not None
            save_costs(curve, cost_key(model.config, model.params["target"], batch=curve.batch, slots=curve.slots))
        yield
