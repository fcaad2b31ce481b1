"""What DFlash proposes is what the plain drafter proposes, however the text was read and whatever was rejected."""

import functools

import pytest

from tests.dflash import PlainDFlash, random_drafter
from tests.jax_smash.draft.test_eagle import Chat, prompts_of, siblings, target

__all__ = ["siblings"]


@functools.cache
def drafter(**changes):
    return random_drafter(target(), **changes)


def chat(changes=None, **options):
    return Chat(drafter(**(changes or {})), method="dflash", plain=PlainDFlash, **options)


@pytest.mark.parametrize("chunk", [pytest.param(1, marks=pytest.mark.slow), 16])
def test_trees_are_the_plain_drafters_in_chunks_of_any_size(chunk, siblings):
    made = chat(chunk=chunk)
    made.turn(prompts_of((19, 1, 7)))
    # A turn goes on behind a pending token that was never read. One row ends early, and one sits a turn out.
    made.turn(prompts_of((3, 11, 2), seed=1), limits=[14, 2, 14])
    made.turn(prompts_of((1, 4, 0), seed=2), limits=[5] * 3)
    made.turn(prompts_of((2, 0, 3), seed=3), limits=[5] * 3)
    assert made.compared > 60
    assert made.differing == 0
    assert made.kept > 10
    assert made.rejected > 10
