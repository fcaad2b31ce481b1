"""Cost curves as such, and their picture."""

import io

import matplotlib.image
import numpy as np
import pytest

from jax_smash.costs.curve import CostCurve
from jax_smash.costs.plot import plot_costs

FIELDS = {"entries": (1, 4, 8), "seconds": (1.0, 1.6, 1.5), "batch": 2, "slots": 64, "source": "test"}


def test_between_two_points_the_cost_lies_on_a_straight_line():
    curve = CostCurve(**FIELDS)
    assert [curve.at(m) for m in (1, 4, 8)] == [1.0, 1.6, 1.5]
    assert curve.at(2) == pytest.approx(1.2)
    assert curve.at(6) == pytest.approx(1.55)
    assert curve.relative() == (1.0, 1.6, 1.5)


@pytest.mark.parametrize("entries", [0, 9, -1])
def test_beyond_its_ends_a_curve_tells_nothing(entries):
    with pytest.raises(ValueError, match=f"from 1 to 8 entries.*got {entries}"):
        CostCurve(**FIELDS).at(entries)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"entries": (2, 4, 8)}, "rise from 1"),
        ({"entries": (1, 8, 4)}, "rise from 1"),
        ({"entries": (1, 4, 4)}, "rise from 1"),
        ({"entries": (), "seconds": ()}, "got none"),
        ({"seconds": (1.0, 2.0)}, "one for each of 3 points; got 2"),
        ({"seconds": (1.0, 0.0, 2.0)}, "over 0"),
        ({"seconds": (1.0, float("nan"), 2.0)}, "over 0"),
        ({"batch": 0}, "at least 1"),
    ],
)
def test_what_is_no_curve_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        CostCurve(**(FIELDS | changes))


def test_another_curve_is_another_picture():
    def pixels(*curves: CostCurve) -> np.ndarray:
        return matplotlib.image.imread(io.BytesIO(plot_costs(curves, title="t")))

    one, other = CostCurve(**FIELDS), CostCurve(**(FIELDS | {"seconds": (1.0, 2.0, 4.0)}))
    assert np.ptp(pixels(one)[..., :3]) > 0.5
    assert not np.array_equal(pixels(one), pixels(other))
    assert not np.array_equal(pixels(one), pixels(one, other))
