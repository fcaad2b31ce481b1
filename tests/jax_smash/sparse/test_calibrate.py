import json

import numpy as np
import pytest

from jax_smash.sparse import named_policy
from jax_smash.sparse.calibrate import calibrated_shares, load_shares, save_shares

RECALL = np.array([[0.9, 0.5], [0.7, 0.6]])


def test_shares_are_those_of_the_formula_by_hand():
    # Ranks 3 0 2 1: wanted 0.5, 1, 2/3, 5/6 with a mean of 0.75, scaled by 2/3.
    expected = np.array([[1 / 3, 2 / 3], [4 / 9, 5 / 9]])
    np.testing.assert_allclose(calibrated_shares(RECALL, 0.5), expected, atol=1e-6)


@pytest.mark.parametrize("mean", [0.1, 0.5, 0.9, 1.0])
def test_the_mean_is_the_budget_and_no_share_is_out_of_bounds(mean):
    recall = np.random.default_rng(0).random((6, 3))
    shares = calibrated_shares(recall, mean, least=0.08)
    assert shares.mean() == pytest.approx(mean, abs=1e-6)
    assert shares.min() >= 0.08
    assert shares.max() <= 1
    order = np.argsort(recall.ravel())
    assert (np.diff(shares.ravel()[order]) <= 1e-12).all()


def test_what_is_clamped_is_shared_among_the_others():
    shares = calibrated_shares(np.arange(4.0)[None] / 4, 0.9, least=0.88)
    assert shares.mean() == pytest.approx(0.9, abs=1e-6)
    assert (shares == 0.88).any()


def test_a_file_of_shares_is_a_setting_of_every_policy_that_takes_them(tmp_path):
    path = tmp_path / "shares.json"
    save_shares(path, calibrated_shares(RECALL, 0.5), policy="oracle")
    assert json.loads(path.read_text())["policy"] == "oracle"
    policy = named_policy(f"quest:shares={path}", budget="50%")
    np.testing.assert_allclose(policy.head_shares, [[0.5, 1], [2 / 3, 5 / 6]], atol=1e-6)
    assert policy.head_shares == load_shares(path)
    with pytest.raises(ValueError, match="settings of streaming must be among"):
        named_policy(f"streaming:shares={path}")
    with pytest.raises(ValueError, match="all heads share a choice"):
        named_policy(f"tokenselect:shares={path}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((RECALL, 0.0), "mean must be over 0 and at most 1; got 0.0"),
        ((RECALL, 1.5), "mean must be over 0 and at most 1; got 1.5"),
        ((RECALL[:0], 0.5), "recall must be a number for each layer and KV head"),
        ((RECALL * np.nan, 0.5), "recall must be a number for each layer and KV head"),
        ((RECALL, 0.01), "least must be over 0 and at most the mean of 0.01; got 0.05"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        calibrated_shares(*arguments)


def test_a_file_without_shares_is_refused_by_name(tmp_path):
    path = tmp_path / "a.json"
    with pytest.raises(FileNotFoundError, match="file of shares does not exist"):
        load_shares(path)
    for content in ("no JSON", "{}", '{"shares": [[0.5], [0.5, 1]]}'):
        path.write_text(content)
        with pytest.raises(ValueError, match="cannot be read as shares of heads"):
            load_shares(path)
    path.write_text('{"shares": [[0.5, 2]]}')
    with pytest.raises(ValueError, match="must hold shares over 0 and at most 1"):
        load_shares(path)
