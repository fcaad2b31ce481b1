import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("torch", reason="the reference runs on torch")

from eval.exact.random_models import random_fields
from eval.exact.reference import both
from eval.parity import NEAR_TIE, Difference, Draw, Settings, compare, continue_draw, main, measure, random_draws


@pytest.fixture(scope="module")
def pair():
    return both(random_fields("gemma2", np.random.default_rng(5)), seed=5)


@pytest.fixture(scope="module")
def draw():
    return Draw(prompts=[[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2, 7]], max_new_tokens=16)


@pytest.fixture(scope="module")
def ours(pair, draw):
    return continue_draw(pair[0], draw)


def test_ours_are_the_reference_s_tokens(pair, draw, ours):
    assert compare(pair[1], draw, ours) == []
    assert [len(row) for row in ours] == [16, 16]
    assert len({token for row in ours for token in row}) > 4


def test_a_wrong_token_is_reported_with_its_place_and_gap(pair, draw, ours):
    wrong = [list(row) for row in ours]
    wrong[1][6] = (wrong[1][6] + 1) % 50
    found = compare(pair[1], draw, wrong)
    # What follows the wrong token is no longer what the reference would say either.
    assert (found[0].row, found[0].index) == (1, 6)
    assert (found[0].ours, found[0].theirs) == (wrong[1][6], ours[1][6])
    assert found[0].gap > NEAR_TIE
    assert not found[0].near_tie
    assert {d.row for d in found} == {1}


def test_a_weight_that_differs_a_little_is_reported(pair, draw):
    model, reference = pair

    def uneven(w):
        return w * jnp.linspace(0.9, 1.1, w.shape[-1], dtype=jnp.float32)[None, None] if w.ndim == 3 else w

    params = jax.tree.map(uneven, model.params)
    broken = dataclasses.replace(model, params=params)
    assert any(not d.near_tie for d in compare(reference, draw, continue_draw(broken, draw)))


def test_a_row_of_another_length_is_an_error(pair, draw, ours):
    with pytest.raises(ValueError, match="row 0 has 15 new tokens; the reference has 16"):
        compare(pair[1], draw, [ours[0][:-1], ours[1]])


def test_only_a_gap_of_rounding_is_a_near_tie():
    close = Difference(row=0, index=0, ours=1, theirs=2, gap=0.9 * NEAR_TIE)
    assert close.near_tie
    assert not dataclasses.replace(close, gap=1.1 * NEAR_TIE).near_tie


def test_draws_of_a_configuration_share_their_batch_and_vary_their_prompts():
    draws = list(random_draws(np.random.default_rng(0), 10, 50))
    assert len({(len(d.prompts), d.max_new_tokens) for d in draws}) == 1
    lengths = {len(p) for d in draws for p in d.prompts}
    assert len(lengths) > 10
    assert all(0 <= t < 50 for d in draws for p in d.prompts for t in p)


@pytest.mark.parametrize(
    ("families", "each"),
    [(("qwen3",), [20]), pytest.param(("qwen3", "mistral"), [10, 10], marks=pytest.mark.slow)],
    ids=lambda value: "-".join(map(str, value)),
)
def test_twenty_draws_agree(tmp_path, families, each):
    path = tmp_path / "parity.json"
    status = main(Settings(draws=20, configurations=len(families), families=families, json=path))
    report = json.loads(path.read_text())
    assert status == 0
    assert report["draws"] == 20
    assert report["beyond_near_ties"] == 0
    assert report["tokens"] >= 20 * 16
    # A model that repeats itself would agree by chance.
    assert report["distinct_tokens"] > report["tokens"] / 4
    assert [row["draws"] for row in report["rows"]] == each


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"draws": 0}, "draws must be at least 1; got 0"),
        ({"families": ("gpt2",)}, "family must be one of llama, .*; got 'gpt2'"),
        ({"families": ()}, "family must be one of"),
    ],
)
def test_what_cannot_be_compared_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        measure(Settings(**changes))
