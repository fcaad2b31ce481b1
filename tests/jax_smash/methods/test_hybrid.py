"""Method hybrid beside a trained drafter."""

import jax
import numpy as np
import pytest

from jax_smash import SamplingOptions, generate
from jax_smash.checkpoints.eagle import save_eagle
from jax_smash.decode.state import context
from jax_smash.draft.suffix import Suffix
from jax_smash.draft.trees.confident import confident
from jax_smash.draft.trees.tree import chain
from jax_smash.methods import DraftOptions, make_method
from jax_smash.methods.hybrid import SURE
from jax_smash.serve.session import Session
from tests import chimera, dflash
from tests.drafting import plain_agreeing, proposed, proposing
from tests.eagle import random_drafter
from tests.eagle1 import random_drafter1
from tests.medusa import random_heads
from tests.tiny import tiny_model

PROMPTS = [[7, 8, 9, 7, 8, 9, 7], [11, 12], [13, 14, 15]]


def target():
    return tiny_model(layer_kinds=("full", "full"))


def session(made):
    return Session(target(), made, slots=64, max_new_tokens=24, sampling=[SamplingOptions()] * 3, seeds=[0, 1, 2])


def rows_of(method, drafter, tree, *, steps=2):
    """Returns the method, and its rows behind the prompts and some steps."""
    made = make_method(target(), method, draft=DraftOptions(drafter=drafter, tree=tree))
    rows = session(made)
    rows.read(PROMPTS)
    rows.run(steps)
    return made, rows


def drafts(method, drafter, tree):
    """Returns what is drafted behind the prompts and two steps."""
    made, rows = rows_of(method, drafter, tree)
    levels = int(tree.removeprefix("chain-"))
    return proposed(proposing(made.strategy)(made.params, rows.state, chain(levels)))


def test_the_trained_drafter_has_the_first_nodes_and_the_others_chains_the_last():
    drafter = random_drafter(target())
    alone, together = drafts("eagle", drafter, "chain-7"), drafts("hybrid", drafter, "chain-8")
    texts = [p + said for p, said in zip(PROMPTS, rows_of("hybrid", drafter, "chain-8")[1].outputs(), strict=True)]
    longest = [max(plain_agreeing(text, i, 3) for i in range(len(text) - 1)) for text in texts]
    assert len(set(longest)) > 1
    for mine, its, agreeing in zip(together, alone, longest, strict=True):
        # Of eight drafted nodes one is recycling's, and of the seven left a quarter for each token is the suffix's.
        own = 7 - [0, 2, 4, 5][agreeing]
        assert mine[: own + 1] == its[: own + 1]
    assert any(draft[8] >= 0 for draft in together)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "made"), [("eagle", random_drafter), ("chimera", chimera.random_drafter)])
def test_a_drafter_that_stops_learns_where_the_suffix_drafts(method, made):
    """Its drafts are those of one that reads the whole text as a prompt."""
    drafter, name = made(target()), "chain-4:least=0.0001"
    made, rows = rows_of("hybrid", drafter, name, steps=14)
    kept = [of.state.rows.memory["drafts"].kept.sum() for of in (rows, rows_of(method, drafter, name, steps=14)[1])]
    assert kept[0] > kept[1]
    assert made.strategy.narrows
    relay, tree = made.strategy.drafter, confident(name).topology
    assert relay.first == Suffix(least=SURE)
    texts = [p + said[:-1] for p, said in zip(PROMPTS, rows.outputs(), strict=True)]
    anew = session(made)
    anew.read(texts)
    assert [said[-1:] for said in rows.outputs()] == anew.outputs()

    def second(state):
        own = state.rows.memory["drafter"][1]
        propose = jax.jit(lambda own, now: relay.second.propose(made.params, own, None, now, tree)[0])
        return proposed(propose(own, context(state)))

    drafts = second(rows.state)
    assert drafts == second(anew.state)
    assert all(draft[1] >= 0 for draft in drafts)


@pytest.mark.parametrize(
    ("method", "made"),
    [
        ("eagle", random_drafter),
        *(
            pytest.param(method, made, marks=pytest.mark.slow)
            for method, made in [
                ("eagle", random_drafter1),
                ("medusa", random_heads),
                ("chimera", chimera.random_drafter),
                ("dflash", dflash.random_drafter),
            ]
        ),
    ],
)
def test_the_text_is_plain_decodings(method, made):
    request = {"sampling": [SamplingOptions(), SamplingOptions(temperature=0.8), SamplingOptions()], "seed": [1, 2, 3]}
    request |= {"max_new_tokens": 24, "slots": 64}
    plain = generate(target(), PROMPTS, **request)
    draft = DraftOptions(drafter=made(target()), tree="chain-8")
    drafted = generate(target(), PROMPTS, method="hybrid", draft=draft, **request)
    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]
    assert sum(c.target_forwards for c in drafted) < sum(c.target_forwards for c in plain)


def test_a_folder_tells_which_drafter_it_holds(tmp_path):
    drafter = random_drafter(target())
    save_eagle(tmp_path / "drafter", drafter.config, drafter.params)
    np.testing.assert_array_equal(
        drafts("hybrid", tmp_path / "drafter", "chain-8"), drafts("hybrid", drafter, "chain-8")
    )
    (tmp_path / "empty").mkdir()
    for given, message in (
        (tmp_path / "empty", "drafter: .*empty must be a folder with one of eagle.json, eagle1.json, medusa.json"),
        ("random", "must be a folder or shipped:METHOD, which tells what drafts; got random"),
    ):
        with pytest.raises(ValueError, match=message):
            make_method(target(), "hybrid", draft=DraftOptions(drafter=given))
