import io

import matplotlib.image
import numpy as np
import pytest

from eval.scores.quality_plot import plot_scores


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


def test_perplexities_a_word_stand_with_those_a_token():
    word, token = (row("ar", "wikitext", 90.0, metric=metric) for metric in ("word_perplexity", "perplexity"))
    # In the panel of shares, which ends at 1, neither would be seen.
    assert not np.array_equal(pixels([word]), pixels([word | {"score": 50.0}]))
    assert not np.array_equal(pixels([token, word]), pixels([token, token]))


def test_other_weights_stand_beside_the_plain_ones():
    same = [row("ar", "state", 0.5), row("ar", "state", 0.2)]
    assert not np.array_equal(pixels(same), pixels([same[0], row("ar", "state", 0.2, weights="int8")]))


def test_two_metrics_of_a_task_stand_apart():
    both = [row("ar", "variety", 0.5, metric="varied"), row("ar", "variety", 0.2, metric="distinct_4grams")]
    assert not np.array_equal(pixels(both), pixels([both[0], both[1] | {"metric": "varied"}]))


def test_shares_stand_against_tokens_a_slot_where_tokens_shared_slots():
    fused = row("hamburger", "state", 0.4, length=128, confidence=0.5) | {"output_compression": 1.8}
    assert pixels([*ROWS, fused]).shape[1] > pixels([*ROWS, row("hamburger", "state", 0.4, length=128)]).shape[1]


def together(method, score, compression=None, difference=None, **settings):
    fused = {} if compression is None else {"output_compression": compression}
    bounds = difference and {"interval": {"low": difference[0], "high": difference[1]}}
    return row(method, "all tasks", score, **settings) | fused | {"difference": bounds}


TRADE = [
    together("ar", 0.8),
    together("hamburger", 0.795, 1.6, (-0.011, 0.001), confidence=0.9),
    together("hamburger", 0.75, 2.1, (-0.06, -0.04), confidence=0.5),
]


def test_all_tasks_together_take_the_place_of_each():
    alone = pixels(TRADE)
    with_tasks = pixels([*TRADE, row("ar", "state", 0.3)])
    # The last panel is as wide in both pictures, and the same but where the title stands.
    assert np.array_equal(alone[60:, -360:], with_tasks[60:, -360:])


@pytest.mark.parametrize(
    "change", [{"score": 0.74}, {"output_compression": 1.9}, {"difference": {"interval": {"low": -0.2, "high": -0.04}}}]
)
def test_score_slots_and_difference_of_all_tasks_are_drawn(change):
    assert not np.array_equal(pixels(TRADE), pixels([*TRADE[:2], TRADE[2] | change]))


def test_each_confidence_is_named_at_its_point():
    other = TRADE[2] | {"settings": TRADE[2]["settings"] | {"confidence": 0.6}}
    assert not np.array_equal(pixels(TRADE)[:, -300:], pixels([*TRADE[:2], other])[:, -300:])


def test_confidences_of_tokens_are_named_at_points_where_they_differ():
    def panel(*tokens):
        rows = [
            one | {"settings": one["settings"] | {"token_confidence": token}}
            for one, token in zip(TRADE[1:], tokens, strict=True)
        ]
        return pixels([TRADE[0], *rows])[:, -300:]

    assert np.array_equal(panel(0.9, 0.9), panel(0.8, 0.8))
    assert not np.array_equal(panel(0.9, 0.8), panel(0.9, 0.7))
    panel(0.9, None)


def test_long_names_of_folders_leave_room_for_the_panels():
    folder = "/a/very/long/way/down/to/where/the/models/are/kept/until/they/are/wanted/again/"
    named = [one | {"model": folder + name} for one, name in zip(TRADE, ("base", "model", "model"), strict=True)]
    assert np.array_equal(pixels(named), pixels([one | {"model": one["model"].split("/")[-1]} for one in named]))
