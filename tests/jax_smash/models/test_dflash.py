import dataclasses

import pytest

from jax_smash.models.dflash_config import DFlashConfig, even_taps
from tests.dflash import random_drafter
from tests.tiny import tiny_config, tiny_model

CONFIG = DFlashConfig.for_target(tiny_config())


def test_the_usual_taps_are_what_evenly_spread_layers_give_out():
    # Published ids of a target of 36 layers are 1, 9, 17, 25 and 33, and count what layers give out.
    assert even_taps(36, 5) == (2, 10, 18, 26, 34)
    assert even_taps(36, 1) == (19,)
    assert even_taps(30, 3) == (2, 15, 28)
    assert [even_taps(layers, 5) for layers in (1, 2, 3, 4, 6)] == [(1,), (2,), (2,), (2,), (2, 3, 4)]
    for layers in range(1, 9):
        config = tiny_config(num_layers=layers, layer_kinds=("full",) * layers, window=0)
        assert DFlashConfig.for_target(config).taps == even_taps(layers, 5)


def test_a_configuration_comes_back_from_json():
    for config in (CONFIG, dataclasses.replace(CONFIG, taps=(0, 1), mask_token=3, window=20)):
        assert DFlashConfig.from_fields(config.to_fields()) == config


def test_only_a_drafter_without_a_token_for_it_has_a_vector_of_the_mask():
    model = tiny_model()
    assert random_drafter(model).definition.bind(random_drafter(model).params).mask is not None
    made = random_drafter(model, mask_token=3)
    assert made.definition.bind(made.params).mask is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"taps": ()}, r"taps must be one or more of the target's, in order, each once; got \[\]"),
        ({"taps": (1, 3)}, r"taps must be from 0 to the target's 2 layers; got \[1, 3\]"),
        ({"block_size": 1}, "block_size must be from 2 to 64 entries; got 1"),
        ({"mask_token": 10_000}, "mask_token must be one of the vocabulary's"),
        ({"window": 8}, "window must be 0 or at least the block's 16 entries, which see each other; got 8"),
        ({"max_positions": 0}, "max_positions must be at least 1; got 0"),
        ({"num_layers": 0}, "num_layers must be at least 1; got 0"),
        ({"num_heads": 3}, "num_heads must be a multiple of num_kv_heads; got 3 and 2"),
    ],
)
def test_sizes_that_make_no_drafter_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(CONFIG, **change)
