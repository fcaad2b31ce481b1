import pytest

from jax_smash.smash.options import SmashOptions
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
        ("micro_head", None, "micro_head must be a text: full, int8 or a number of tokens; got None"),
        ("micro_steps", 2.0, r"micro_steps must be a whole number; got 2\.0"),
        ("micro_steps", True, "micro_steps must be a whole number; got True"),
        ("least_rows", "2", "least_rows must be a whole number; got '2'"),
        ("group_length", 1.5, r"group_length must be a whole number; got 1\.5"),
        ("confidence", "0.7", "confidence must be a number; got '0.7'"),
        ("token_confidence", None, "token_confidence must be a number; got None"),
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
