import jax.numpy as jnp
import pytest

from jax_smash.smash.options import SmashOptions, SmashSettings
from tests.smashers import smasher_of

CONFIG = smasher_of(micro_steps=3).config


@pytest.mark.parametrize(
    ("options", "error", "complaint"),
    [
        ({"mode": "blindly"}, ValueError, "smash_mode must be one of blind, exact, checked; got 'blindly'"),
        ({"confidence": 0}, ValueError, "confidence must be over 0 and at most 1; got 0"),
        ({"confidence": 1.01}, ValueError, "confidence must be over 0 and at most 1; got 1.01"),
        ({"confidence": float("nan")}, ValueError, "confidence must be over 0 and at most 1; got nan"),
        ({"confidence": True}, TypeError, "confidence must be a number; got True"),
        ({"micro_head": "int4"}, ValueError, "micro_head must be full, int8 or a number of tokens; got 'int4'"),
        ({"micro_head": "0"}, ValueError, "micro_head must be full, int8 or a number of tokens; got '0'"),
        ({"micro_steps": 0}, ValueError, "micro_steps must be at least 1; got 0"),
        ({"least_rows": 0}, ValueError, "least_rows must be at least 1; got 0"),
        ({"group_length": -1}, ValueError, "group_length must be at least 1; got -1"),
    ],
)
def test_options_out_of_range_are_refused(options, error, complaint):
    with pytest.raises(error, match=complaint):
        SmashOptions(**options).check()


@pytest.mark.parametrize("name", ["micro_steps", "group_length"])
def test_more_than_was_trained_is_refused(name):
    SmashOptions(**{name: 3}).check(CONFIG)
    SmashOptions(**{name: 4}).check()
    with pytest.raises(ValueError, match=f"{name} must be at most 3, what the modules were trained for; got 4"):
        SmashOptions(**{name: 4}).check(CONFIG)


@pytest.mark.parametrize(
    ("options", "confidence", "limit", "least"),
    [
        ({}, 0.7, 3, [1, 2, 3]),
        ({"confidence": 1, "micro_steps": 2, "least_rows": 5}, 1.0, 2, [5, 5, 5]),
        ({"group_length": 2}, 0.0, 2, [1, 1, 1]),
        ({"group_length": 2, "micro_steps": 3, "least_rows": 2}, 0.0, 2, [2, 2, 2]),
    ],
)
def test_settings_say_what_options_ask(options, confidence, limit, least):
    settings = SmashSettings.of(SmashOptions(**options), CONFIG, cost=0.4)
    assert (float(settings.confidence), int(settings.limit)) == (pytest.approx(confidence), limit)
    rows = [jnp.arange(8) < running for running in (1, 5, 6)]
    assert [int(settings.least(running)) for running in rows] == least


@pytest.mark.parametrize(("cost", "least"), [(0.01, [1, 1]), (0.5, [1, 4]), (3.0, [1, 8])])
def test_a_micro_step_is_made_where_it_is_no_slower_than_plain_decoding(cost, least):
    """n rows make n tokens in `cost` forwards; plain decoding makes one for each running row in one."""
    settings = SmashSettings.of(SmashOptions(), CONFIG, cost=cost)
    assert [int(settings.least(jnp.arange(8) < running)) for running in (1, 8)] == least
    assert int(settings.least(jnp.zeros(8, bool))) == 1


@pytest.mark.parametrize(("head", "size"), [("full", None), ("int8", None), ("300", 300)])
def test_a_number_is_a_reduced_head(head, size):
    options = SmashOptions(micro_head=head)
    options.check()
    assert options.head_size == size
