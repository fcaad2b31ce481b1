import dataclasses

import pytest

from jax_smash.smash.options import CALIBRATED, UNCALIBRATED, SmashOptions
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
        ({"token_confidence": -0.1}, ValueError, "token_confidence must be from 0 to 1; got -0.1"),
        ({"token_confidence": float("nan")}, ValueError, "token_confidence must be from 0 to 1; got nan"),
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


@pytest.mark.parametrize(("head", "size"), [("full", None), ("int8", None), ("300", 300)])
def test_a_number_is_a_reduced_head(head, size):
    options = SmashOptions(micro_head=head)
    options.check()
    assert options.head_size == size


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("micro_head", 300, "micro_head must be a text: full, int8 or a number of tokens; got 300"),
        ("micro_head", 9.5, "micro_head must be a text: full, int8 or a number of tokens; got 9.5"),
        ("micro_steps", 2.0, r"micro_steps must be a whole number; got 2\.0"),
        ("micro_steps", True, "micro_steps must be a whole number; got True"),
        ("least_rows", "2", "least_rows must be a whole number; got '2'"),
        ("group_length", 1.5, r"group_length must be a whole number; got 1\.5"),
        ("confidence", "0.7", "confidence must be a number; got '0.7'"),
        ("token_confidence", False, "token_confidence must be a number; got False"),
    ],
)
def test_options_of_another_type_are_refused_by_name(name, value, complaint):
    options = SmashOptions()
    # Past the shape checker of the tests, which users do not have.
    object.__setattr__(options, name, value)
    for config in (None, CONFIG):
        with pytest.raises(TypeError, match=complaint):
            options.check(config)


def test_a_reduced_head_of_more_tokens_than_there_are_is_refused():
    SmashOptions(micro_head="259").check(CONFIG, 259)
    SmashOptions(micro_head="260").check(CONFIG)
    with pytest.raises(ValueError, match="micro_head must be at most the vocabulary's 259 tokens; got 260"):
        SmashOptions(micro_head="260").check(CONFIG, 259)


OWN = SmashOptions(mode="checked", confidence=0.4, token_confidence=0.9, micro_steps=2, micro_head="int8")


def test_what_is_not_given_is_the_modules_own():
    assert SmashOptions().settled(OWN) == OWN
    assert SmashOptions(least_rows=3).settled(OWN) == dataclasses.replace(OWN, least_rows=3)


@pytest.mark.parametrize(
    ("name", "value"),
    [("mode", "blind"), ("confidence", 1), ("token_confidence", 0), ("micro_steps", 1), ("micro_head", "full")],
)
def test_what_is_given_wins(name, value):
    assert SmashOptions(**{name: value}).settled(OWN) == dataclasses.replace(OWN, **{name: value})


def test_modules_without_settings_decode_with_careful_ones():
    for own in (None, SmashOptions()):
        assert SmashOptions().settled(own) == UNCALIBRATED
    assert UNCALIBRATED.token_confidence > 0.9
    partly = SmashOptions(confidence=0.5)
    assert SmashOptions().settled(partly) == dataclasses.replace(UNCALIBRATED, confidence=0.5)


def test_groups_of_one_length_may_be_longer_than_calibrated():
    forced = SmashOptions(group_length=3).settled(OWN)
    forced.check(CONFIG)
    assert forced.longest(CONFIG) == 3
    with pytest.raises(ValueError, match="group_length must be at most the micro_steps of 2; got 3"):
        SmashOptions(group_length=3, micro_steps=2).settled(OWN).check(CONFIG)


def test_settings_come_back_as_they_were_written():
    assert SmashOptions.from_fields(OWN.to_fields(), CONFIG) == OWN
    assert {*OWN.to_fields()} == {*CALIBRATED}
    assert SmashOptions.from_fields({}, CONFIG) == SmashOptions()
    assert SmashOptions(least_rows=2, confidence=0.5).to_fields() == {"confidence": 0.5}


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        (None, "options must be an object; got None"),
        ({"least_rows": 1}, "options must be of mode, confidence, .*; got 'least_rows'"),
        ({"confidence": "0.7"}, "confidence must be a number; got '0.7'"),
        ({"token_confidence": 2}, "token_confidence must be from 0 to 1; got 2"),
        ({"mode": 3}, "smash_mode must be one of blind, exact, checked; got 3"),
        ({"micro_steps": 4}, "micro_steps must be at most 3, what the modules were trained for; got 4"),
    ],
)
def test_damaged_settings_are_refused(fields, complaint):
    with pytest.raises(ValueError, match=complaint):
        SmashOptions.from_fields(fields, CONFIG)
