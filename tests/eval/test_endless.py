import dataclasses

import pytest

from eval.endless import Settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"new_tokens": 1}, "new_tokens must be at least 2; got 1"),
        ({"piece": 0}, "piece must be at least 1; got 0"),
        ({"checked_tokens": -1}, "checked_tokens must be at least 0; got -1"),
    ],
)
def test_what_cannot_be_measured_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(Settings(), **changes).check()


def test_two_tokens_are_enough():
    Settings(new_tokens=2).check()
