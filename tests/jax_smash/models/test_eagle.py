import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jax_smash.config import RopeConfig
from jax_smash.models.eagle import random_eagle
from jax_smash.models.eagle_config import EagleConfig
from jax_smash.models.short_head import check_tokens
from tests.eagle import random_drafter
from tests.tiny import tiny_config, tiny_model

CONFIG = EagleConfig.for_target(tiny_config())


def test_the_usual_taps_enter_the_third_layer_the_middle_one_and_the_third_from_the_end():
    def taps(layers):
        return EagleConfig.for_target(tiny_config(num_layers=layers, layer_kinds=("full",) * layers)).taps

    assert taps(32) == (2, 16, 29)
    assert [taps(layers) for layers in (1, 2, 4, 8)] == [(0, 1), (1, 2), (1, 2), (2, 4, 5)]


def test_a_head_says_its_own_tokens_alone():
    tokens = [1, 4, 5, 90]
    made = random_drafter(tiny_model(), tokens=tokens)
    model = made.definition.bind(made.params)
    hidden = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 32)), jnp.float32)
    logits = np.asarray(model.unembed(hidden))
    assert (np.isfinite(logits).nonzero()[2].reshape(6, 4) == tokens).all()
    likeliest = model.guesses(hidden, 3, None, total=True)
    values, found = likeliest.values, likeliest.tokens
    np.testing.assert_allclose(likeliest.total, np.log(np.exp(logits).sum(-1)), rtol=1e-5)
    order = np.argsort(-logits, axis=-1)[:, :, :3]
    assert (np.asarray(found) == order).all()
    assert np.asarray(values) == pytest.approx(np.take_along_axis(logits, order, axis=-1))


def test_a_whole_head_needs_no_list_of_tokens():
    made = random_drafter(tiny_model())
    assert made.definition.bind(made.params).tokens is None


def test_a_configuration_comes_back_from_json():
    changed = dataclasses.replace(CONFIG, taps=(0, 1), rope=RopeConfig(base=5e5, partial=0.5), tap_norms=True)
    for config in (CONFIG, changed):
        assert EagleConfig.from_fields(config.to_fields()) == config


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"taps": ()}, r"taps must be one or more of the target's, in order, each once; got \[\]"),
        ({"taps": (2, 1)}, r"in order, each once; got \[2, 1\]"),
        ({"taps": (1, 3)}, r"taps must be from 0 to the target's 2 layers; got \[1, 3\]"),
        ({"head_size": 0}, "head_size must be from 1 to the vocabulary's"),
        ({"head_size": 10_000}, "head_size must be from 1 to the vocabulary's"),
        ({"max_positions": 0}, "max_positions must be at least 1; got 0"),
        ({"num_heads": 3}, "num_heads must be a multiple of num_kv_heads; got 3 and 2"),
    ],
)
def test_sizes_that_make_no_drafter_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(CONFIG, **change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"taps": None}, "taps must be a list of whole numbers; got None"),
        ({"taps": [1, 1.5]}, "taps must be a list of whole numbers"),
        ({"d_model": "32"}, "d_model must be of type int; got '32'"),
        ({"tap_norms": 1}, "tap_norms must be of type bool; got 1"),
        ({"rope": 3}, "rope must be an object; got 3"),
        ({"rope": {"bass": 1.0}}, "rope: .*bass"),
        ({"layers": 2}, "unknown field 'layers'"),
    ],
)
def test_fields_that_are_none_of_a_drafter_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        EagleConfig.from_fields(CONFIG.to_fields() | change)


def test_a_missing_field_is_named():
    fields = CONFIG.to_fields()
    del fields["head_size"]
    with pytest.raises(ValueError, match="head_size is missing"):
        EagleConfig.from_fields(fields)


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ([1, 2], r"tokens must be 3 ids; got int64 \[2\]"),
        ([1.0, 2.0, 3.0], "tokens must be 3 ids; got float64"),
        ([1, 1, 2], "in rising order, each once"),
        ([-1, 1, 2], "tokens must be ids from 0 to"),
        ([1, 2, 9_999], "tokens must be ids from 0 to"),
    ],
)
def test_tokens_that_no_head_can_have_are_refused(tokens, said):
    config = dataclasses.replace(CONFIG, head_size=3)
    with pytest.raises(ValueError, match=said):
        check_tokens(np.asarray(tokens), config.head_size, config.vocab_size)


def test_a_random_drafter_says_the_tokens_that_are_given():
    config = dataclasses.replace(CONFIG, head_size=3)
    graphdef, params = random_eagle(config, tokens=(2, 3, 9))
    assert nnx.merge(graphdef, params).tokens[...].tolist() == [2, 3, 9]
    with pytest.raises(ValueError, match="in rising order, each once"):
        random_eagle(config, tokens=(3, 2, 9))
