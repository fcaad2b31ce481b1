import io

import matplotlib.image
import numpy as np

from eval.quality_plot import plot_scores


def row(method, task, score, metric="accuracy", weights="plain", **settings):
    interval = {"low": score * 0.9, "high": score * 1.1}
    return {
        "model": "tiny",
        "method": method,
        "task": task,
        "metric": metric,
        "score": score,
        "interval": interval,
        "settings": settings | {"weights": weights},
    }


ROWS = [row("ar", "state", 0.5, length=128), row("ar", "state", 0.2, length=512), row("b", "state", 0.4, length=128)]


def pixels(rows):
    image = matplotlib.image.imread(io.BytesIO(plot_scores(rows, title="t")))
    assert np.ptp(image[..., :3]) > 0.5
    return image


def test_another_score_is_another_picture():
    assert not np.array_equal(pixels(ROWS), pixels([ROWS[0] | {"score": 0.7}, *ROWS[1:]]))


def test_perplexities_get_a_panel_of_their_own():
    perplexity = row("ar", "perplexity", 90.0, metric="perplexity") | {"interval": None}
    assert pixels([*ROWS, perplexity]).shape[1] > pixels(ROWS).shape[1]
    pixels([perplexity])


def test_other_weights_stand_beside_the_plain_ones():
    same = [row("ar", "state", 0.5), row("ar", "state", 0.2)]
    assert not np.array_equal(pixels(same), pixels([same[0], row("ar", "state", 0.2, weights="int8")]))


def test_two_metrics_of_a_task_stand_apart():
    both = [row("ar", "variety", 0.5, metric="varied"), row("ar", "variety", 0.2, metric="distinct_4grams")]
    assert not np.array_equal(pixels(both), pixels([both[0], both[1] | {"metric": "varied"}]))


def test_shares_stand_against_tokens_a_slot_where_tokens_shared_slots():
    fused = row("hamburger", "state", 0.4, length=128, confidence=0.5) | {"output_compression": 1.8}
    assert pixels([*ROWS, fused]).shape[1] > pixels([*ROWS, row("hamburger", "state", 0.4, length=128)]).shape[1]
