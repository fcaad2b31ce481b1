"""What Chimera proposes is what the plain drafter proposes, however the text was read and whatever was rejected."""

import pytest

from jax_smash import generate
from jax_smash.draft.trees.tree import chain
from jax_smash.methods import DraftOptions
from tests.chimera import PlainChimera, random_drafter
from tests.jax_smash.draft.test_eagle import CHOICES, Chat, prompts_of, siblings, target

__all__ = ["siblings"]


def chat(changes=None, **options):
    return Chat(random_drafter(target(), **(changes or {})), method="chimera", plain=PlainChimera, **options)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [1, 16])
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


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"gram": 1}, marks=pytest.mark.slow),
        {"gram": 5, "max_positions": 16},
        pytest.param({"gram_encoder": "residual"}, marks=pytest.mark.slow),
        {"gram": 2, "gram_encoder": "residual", "decoding_heads": 2},
    ],
)
def test_trees_of_every_kind_of_drafter_are_the_plain_ones(changes, siblings):
    made = chat(changes)
    made.turn(prompts_of((4, 1, 9)))
    assert made.compared > 30
    assert made.differing == 0


@pytest.mark.slow
def test_trees_of_rows_that_sample_are_the_plain_ones_with_the_noise_of_the_choice(siblings):
    made = chat(sampling=CHOICES)
    made.turn(prompts_of((4, 1, 9)))
    assert made.compared > 30
    assert made.differing == 0
    assert made.kept > 0


@pytest.mark.slow
def test_text_is_plain_decodings_and_takes_fewer_forwards(siblings):
    request = {"sampling": CHOICES, "seed": [1, 2, 3], "max_new_tokens": 24, "slots": 64}
    plain = generate(target(), prompts_of((4, 1, 9)), **request)
    draft = DraftOptions(tree="tree.json", drafter=random_drafter(target()))
    drafted = generate(target(), prompts_of((4, 1, 9)), method="chimera", draft=draft, **request)
    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]
    assert sum(c.target_forwards for c in drafted) < sum(c.target_forwards for c in plain)


def test_a_state_beside_another_gram_gives_other_trees(siblings):
    """The control."""
    made = chat(shift=1)
    made.turn(prompts_of((4, 2, 9)))
    assert made.differing > 0.5 * made.compared


@pytest.mark.slow
def test_nothing_is_drafted_below_the_last_head(siblings):
    made = chat({"decoding_heads": 2})
    made.turn(prompts_of((4, 5, 6)), limits=[3, 3, 3])
    assert made.propose(chain(3)).valid.tolist() == [[True, True, True, False]] * 3


@pytest.mark.slow
def test_nothing_is_drafted_behind_the_positions_that_the_drafter_has(siblings):
    made = chat({"max_positions": 9})
    made.turn(prompts_of((4, 5, 6)), limits=[3, 3, 3])
    # The pending tokens have positions 6, 7 and 8: tokens behind those at 6, 7 and 8 are drafted, none below.
    assert made.session.state.rows.token_length.tolist() == [7, 8, 9]
    assert made.propose(chain(3)).valid.sum(1).tolist() == [4, 3, 2]
