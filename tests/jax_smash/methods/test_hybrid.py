"""Method hybrid beside a trained drafter."""

import numpy as np
import pytest

from jax_smash import SamplingOptions, generate
from jax_smash.checkpoints.eagle import save_eagle
from jax_smash.draft.trees.tree import chain
from jax_smash.methods import DraftOptions, make_method
from jax_smash.serve.session import Session
from tests import chimera, dflash
from tests.drafting import proposed, proposing
from tests.eagle import random_drafter
from tests.eagle1 import random_drafter1
from tests.medusa import random_heads
from tests.tiny import tiny_model

PROMPTS = [[7, 8, 9, 7, 8, 9, 7], [11, 12], [13, 14, 15]]


def target():
    return tiny_model(layer_kinds=("full", "full"))


def drafts(method, drafter, tree):
    """Returns what is drafted behind the prompts."""
    made = make_method(target(), method, draft=DraftOptions(drafter=drafter, tree=tree))
    rows = Session(target(), made, slots=64, max_new_tokens=9, sampling=[SamplingOptions()] * 3, seeds=[0, 1, 2])
    rows.read(PROMPTS)
    rows.run(2)
    levels = int(tree.removeprefix("chain-"))
    return proposed(proposing(made.strategy)(made.params, rows.state, chain(levels)))


def test_the_trained_drafter_has_the_first_nodes_and_the_others_chains_the_last():
    drafter = random_drafter(target())
    # Of nine nodes two are recycling's, and of the seven left one is the suffix's.
    alone, together = drafts("eagle", drafter, "chain-5"), drafts("hybrid", drafter, "chain-8")
    pending = [draft[0] for draft in together]
    assert [draft[0] for draft in alone] == pending
    assert [draft[:6] for draft in together] == alone
    assert any(token >= 0 for draft in together for token in draft[6:])


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
        ("random", "must be a folder with one of"),
    ):
        with pytest.raises(ValueError, match=message):
            make_method(target(), "hybrid", draft=DraftOptions(drafter=given))
