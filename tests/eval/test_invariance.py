import pytest

from eval.invariance import OPTIONS, WAYS, Draw, Settings, continued, differences, measure
from tests.tiny import tiny_model


@pytest.fixture(scope="module")
def model():
    return tiny_model(num_layers=1, layer_kinds=("sliding",), window=12)


@pytest.fixture(scope="module")
def draw():
    return Draw(prompts=[[5, 6, 7, 8], [9] * 10], options=(OPTIONS[0], OPTIONS[2]), seeds=(1, 2))


@pytest.fixture(scope="module")
def expected(model, draw):
    return continued(model, draw)


@pytest.mark.parametrize("way", WAYS)
def test_a_row_is_the_same_however_it_is_decoded(way, model, draw, expected):
    assert differences(expected, WAYS[way](model, draw)) == []


def test_another_seed_changes_the_sampled_row_alone(model, draw, expected):
    other = Draw(prompts=draw.prompts, options=draw.options, seeds=(3, 4))
    assert [d["row"] for d in differences(expected, continued(model, other))] == [1]


def test_a_difference_is_named_by_its_first_token():
    assert differences([[1, 2], [3, 4, 5]], [[1, 2], [3, 9, 9]]) == [{"row": 1, "index": 1}]


def test_a_row_that_ends_early_differs():
    assert differences([[1, 2, 3]], [[1, 2]]) == [{"row": 0, "index": 2}]


def test_no_draws_are_refused():
    with pytest.raises(ValueError, match="draws must be at least 1; got 0"):
        measure(Settings(draws=0))
