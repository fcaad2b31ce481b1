"""What EAGLE-1 proposes is what its own full forward proposes, however the text was read and whatever was rejected."""

import functools

import pytest

from jax_smash import generate
from jax_smash.methods import DraftOptions
from tests.eagle1 import PlainEagle1, random_drafter1
from tests.jax_smash.draft.test_eagle import CHOICES, Chat, prompts_of, siblings, target

__all__ = ["siblings"]


@functools.cache
def drafter(**changes):
    return random_drafter1(target(), **changes)


def chat(made, **options):
    return Chat(made, plain=PlainEagle1, **options)


def test_trees_are_those_of_the_drafters_whole_forward_across_turns(siblings):
    found = chat(drafter(), chunk=5)
    found.turn(prompts_of((19, 1, 7)))
    # A turn goes on behind a pending token that was never read. One row ends early, and one sits a turn out.
    found.turn(prompts_of((3, 11, 2), seed=1), limits=[14, 2, 14])
    found.turn(prompts_of((1, 4, 0), seed=2), limits=[5] * 3)
    assert found.compared > 60
    assert found.differing == 0
    assert found.kept > 5
    assert found.rejected > 5


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"join_bias": False, "max_positions": 12}, {"qkv_bias": True}])
def test_trees_of_every_kind_of_drafter_are_the_plain_ones(changes, siblings):
    found = chat(drafter(**changes))
    found.turn(prompts_of((4, 1, 9)), limits=[8] * 3)
    assert found.compared > 20
    assert found.differing == 0


@pytest.mark.slow
def test_trees_of_rows_that_sample_are_the_plain_ones_with_the_noise_of_the_choice(siblings):
    found = chat(drafter(), sampling=CHOICES)
    found.turn(prompts_of((4, 1, 9)))
    assert found.compared > 30
    assert found.differing == 0


@pytest.mark.slow
def test_text_is_plain_decodings_and_takes_fewer_forwards(siblings):
    request = {"sampling": CHOICES, "seed": [1, 2, 3], "max_new_tokens": 24, "slots": 64}
    plain = generate(target(), prompts_of((4, 1, 9)), **request)
    draft = DraftOptions(tree="tree.json", drafter=drafter())
    drafted = generate(target(), prompts_of((4, 1, 9)), method="eagle", draft=draft, **request)
    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]
    assert sum(c.target_forwards for c in drafted) < sum(c.target_forwards for c in plain)


def test_a_feature_beside_another_token_gives_other_trees(siblings):
    """The control."""
    found = chat(drafter(), shift=1)
    found.turn(prompts_of((4, 2, 9)), limits=[6] * 3)
    assert found.differing > 0.5 * found.compared
