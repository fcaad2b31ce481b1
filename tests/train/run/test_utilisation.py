import dataclasses
import json

import pytest

from tests.train.run.test_settings import FIELDS
from train.run.settings import load_settings
from train.run.utilisation import peak_flops, token_flops


@pytest.fixture
def config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(FIELDS))
    return load_settings(tmp_path / "config.json").model


def test_the_operations_of_a_token_are_those_counted_by_hand(config):
    # Width 32, 4 heads and 2 KV heads of 8, MLP of 48, 300 tokens, 2 layers; a token sees 16 others on average.
    layer = 32 * 8 * (4 + 2 + 2 + 4) + 3 * 32 * 48
    assert token_flops(config, 32) == 6 * (2 * layer + 300 * 32) + 2 * 12 * 4 * 8 * 16


def test_a_window_is_all_that_a_sliding_layer_sees(config):
    sliding = dataclasses.replace(config, layer_kinds=("full", "sliding"), window=8)
    assert token_flops(config, 32) - token_flops(sliding, 32) == 12 * 4 * 8 * (16 - 4)


def test_a_device_without_a_data_sheet_is_measured():
    assert peak_flops("float32") > 1e8
