"""What Medusa proposes is what its heads say of the last state, however the text was read and whatever was rejected."""

import numpy as np
import pytest

from jax_smash import generate
from jax_smash.draft.trees.tree import chain
from jax_smash.methods import DraftOptions, make_method
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.session import Session
from tests.drafting import paths_of, proposing
from tests.jax_smash.draft.test_eagle import CHOICES, Chat, prompts_of, siblings, target
from tests.medusa import PlainMedusa, random_heads

__all__ = ["siblings"]


def chat(changes=None, **options):
    return Chat(random_heads(target(), **(changes or {})), method="medusa", plain=PlainMedusa, **options)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [2, 16])
def test_trees_are_those_of_the_last_state_in_chunks_of_any_size(chunk, siblings):
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


@pytest.mark.parametrize("changes", [{"own_rows": False}, {"blocks": 0}, {"blocks": 2, "num_heads": 2}])
def test_trees_of_every_kind_of_heads_are_the_plain_ones(changes, siblings):
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
    draft = DraftOptions(tree="tree.json", drafter=random_heads(target()))
    drafted = generate(target(), prompts_of((4, 1, 9)), method="medusa", draft=draft, **request)
    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]
    assert sum(c.target_forwards for c in drafted) < sum(c.target_forwards for c in plain)


def test_another_state_gives_other_trees(siblings):
    """The control."""
    made = chat(shift=1)
    made.turn(prompts_of((4, 2, 9)))
    assert made.differing > 0.5 * made.compared


def test_nothing_is_drafted_below_the_last_head(siblings):
    made = chat({"num_heads": 2})
    made.turn(prompts_of((4, 5, 6)), limits=[3, 3, 3])
    assert made.propose(chain(3)).valid.tolist() == [[True, True, True, False]] * 3


def test_trees_that_grow_have_the_likeliest_paths_of_all():
    heads = random_heads(target(), num_heads=2)
    draft = DraftOptions(tree="confident-4:depth=3,width=4,chain=false", drafter=heads)
    made = make_method(target(), "medusa", draft=draft)
    session = Session(target(), made, slots=48, max_new_tokens=4, sampling=[SamplingOptions()] * 3, seeds=[0, 1, 2])
    prompts = prompts_of((4, 2, 9))
    session.read(prompts)
    plain = PlainMedusa(target(), heads)
    tree = proposing(made.strategy)(made.params, session.state, made.strategy.drafter.confident.topology)
    for row, (prompt, said) in enumerate(zip(prompts, session.outputs(), strict=True)):
        hidden = np.asarray(plain._hidden(prompt + said)[len(prompt) - 1], np.float64)
        likely = [np.exp(x - x.max()) / np.exp(x - x.max()).sum() for x in (plain.logits(hidden, h) for h in (0, 1))]
        products = {(a,): likely[0][a] for a in range(10)}
        products |= {(a, b): likely[0][a] * likely[1][b] for a in range(10) for b in range(10)}
        assert paths_of(tree, row) == set(sorted(products, key=products.__getitem__, reverse=True)[:4])
