import io

import matplotlib.image
import numpy as np
import pytest

from eval.scores.drift_plot import plot_drift


def bucket(first, last, error):
    bounds = {"low": None, "high": None} if error == 0 else {"low": error / 2, "high": error * 2}
    nats = {"nats_below_best": error, "nats_low": bounds["low"], "nats_high": bounds["high"]}
    return {"first": first, "last": last, "error": error, **bounds, **nats}


def row(mode, confidence, *errors):
    places = [(0, 31), (32, 63), (64, 127)]
    found = [bucket(*place, error) for place, error in zip(places, errors, strict=True)]
    return {"mode": mode, "confidence": confidence, "by_position": found}


ROWS = [row("ar", None, 0.0, 0.0, 0.0), row("blind", 0.5, 0.1, 0.2, 0.3), row("checked", 0.9, 0.05, 0.0, 0.1)]


def pixels(rows):
    image = matplotlib.image.imread(io.BytesIO(plot_drift(rows, title="t")))
    assert np.ptp(image[..., :3]) > 0.5
    return image


@pytest.mark.parametrize(
    "other",
    [row("blind", 0.5, 0.1, 0.2, 0.35), row("exact", 0.5, 0.1, 0.2, 0.3), row("blind", 0.9, 0.1, 0.2, 0.3)],
    ids=["error", "mode", "confidence"],
)
def test_what_a_row_says_is_drawn(other):
    assert not np.array_equal(pixels(ROWS), pixels([ROWS[0], other, ROWS[2]]))


def test_a_bucket_without_tokens_is_left_out():
    cut = row("blind", 0.5, 0.1, 0.2, 0.3)
    cut["by_position"][2] |= dict.fromkeys(("error", "low", "high", "nats_below_best", "nats_low", "nats_high"))
    assert not np.array_equal(pixels(ROWS), pixels([ROWS[0], cut, ROWS[2]]))
