import jax.numpy as jnp
import pytest

from jax_smash.smash.group_limits import GroupLimits
from jax_smash.smash.options import SmashOptions
from tests.smashers import smasher_of

CONFIG = smasher_of(micro_steps=3).config


@pytest.mark.parametrize(
    ("options", "confidence", "longest", "least"),
    [
        ({}, 0.7, 3, [1, 2, 3]),
        ({"confidence": 1, "micro_steps": 2, "least_rows": 5}, 1.0, 2, [5, 5, 5]),
        ({"group_length": 2}, 0.0, 2, [1, 1, 1]),
        ({"group_length": 2, "micro_steps": 3, "least_rows": 2}, 0.0, 2, [2, 2, 2]),
    ],
)
def test_limits_are_what_options_ask(options, confidence, longest, least):
    limits = GroupLimits.of(SmashOptions(**options), CONFIG, cost=0.4)
    assert (float(limits.confidence), int(limits.longest)) == (pytest.approx(confidence), longest)
    rows = [jnp.arange(8) < running for running in (1, 5, 6)]
    assert [int(limits.least(running)) for running in rows] == least


@pytest.mark.parametrize(("cost", "least"), [(0.01, [1, 1]), (0.5, [1, 4]), (3.0, [1, 8])])
def test_a_micro_step_is_made_where_it_is_no_slower_than_plain_decoding(cost, least):
    """n rows make n tokens in `cost` forwards; plain decoding makes one for each running row in one."""
    limits = GroupLimits.of(SmashOptions(), CONFIG, cost=cost)
    assert [int(limits.least(jnp.arange(8) < running)) for running in (1, 8)] == least
    assert int(limits.least(jnp.zeros(8, bool))) == 1
