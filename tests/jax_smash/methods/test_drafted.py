import jax.numpy as jnp
import pytest

from jax_smash import from_apply
from jax_smash.methods.drafted import check_taps
from jax_smash.protocols import Needs
from tests.tiny import tiny_model


def test_a_model_that_lacks_a_tap_is_refused_by_name():
    # Of two layers there are three taps: what enters each, and what leaves the last.
    check_taps(tiny_model(), "eagle", Needs(taps=(0, 2)))
    with pytest.raises(ValueError, match="method eagle reads tap 3 of the model; two-layer has 3 taps"):
        check_taps(tiny_model(), "eagle", Needs(taps=(1, 3)))
    table = jnp.ones((8, 8))
    told_nothing = from_apply(lambda params, tokens: params[tokens], table)
    check_taps(told_nothing, "lookup", Needs())
    with pytest.raises(ValueError, match="method eagle reads tap 0 of the model"):
        check_taps(told_nothing, "eagle", Needs(taps=(0,)))
