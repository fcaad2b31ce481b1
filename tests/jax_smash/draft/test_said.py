"""Drafters that say some tokens alone by the target's head propose nothing else, and change no text."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from jax_smash import SamplingOptions, generate
from jax_smash.checkpoints.chimera import load_chimera, save_chimera
from jax_smash.checkpoints.dflash import load_dflash, save_dflash
from jax_smash.checkpoints.eagle1 import load_eagle1, save_eagle1
from jax_smash.checkpoints.eagle1_layout import export_eagle1
from jax_smash.checkpoints.medusa import load_medusa, save_medusa
from jax_smash.checkpoints.medusa_layout import export_medusa
from jax_smash.draft.trees.tree import chain
from jax_smash.loading import quantised
from jax_smash.methods import DraftOptions, make_method
from jax_smash.serve.session import Session
from jax_smash.sharding import make_mesh, place
from tests.drafting import proposed, proposing
from tests.said import MAKERS, every, saying_all, saying_some
from tests.tiny import tiny_model

PROMPTS = [[7, 8, 9, 7, 8, 9, 7], [11, 12], [13, 14, 15]]
FILES = {
    "medusa": (save_medusa, load_medusa),
    "chimera": (save_chimera, load_chimera),
    "dflash": (save_dflash, load_dflash),
    "eagle1": (save_eagle1, load_eagle1),
}


def few(*names):
    """Returns all kinds as parameters; those that are not named are slow."""
    return [kind if kind in names else pytest.param(kind, marks=pytest.mark.slow) for kind in MAKERS]


@functools.cache
def target():
    return tiny_model(layer_kinds=("full", "full"))


def drafts(kind, drafter, model=None, sampling=None):
    """Returns what is drafted behind the prompts, the pending token first."""
    model = model or target()
    made = make_method(model, MAKERS[kind][0], draft=DraftOptions(drafter=drafter, tree="chain-3"))
    options = [sampling or SamplingOptions()] * 3
    rows = Session(model, made, slots=64, max_new_tokens=9, sampling=options, seeds=[0, 1, 2])
    rows.read(PROMPTS)
    rows.run(2)
    return proposed(proposing(made.strategy)(made.params, rows.state, chain(3)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", few("medusa"))
def test_of_all_tokens_it_proposes_what_one_without_a_list_does(kind):
    assert drafts(kind, saying_some(kind, target(), share=1)) == drafts(kind, saying_all(kind, target()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", few("dflash"))
def test_nothing_else_is_proposed(kind):
    said = {-1, *every(target(), 3).tolist()}
    drafted, free = (
        [token for row in drafts(kind, made(kind, target())) for token in row[1:]] for made in (saying_some, saying_all)
    )
    assert {*drafted} <= said
    assert any(token >= 0 for token in drafted)
    assert not {*free} <= said  # The control.


@pytest.mark.parametrize("kind", few("chimera"))
def test_the_text_is_plain_decodings(kind):
    request = {"sampling": [SamplingOptions(), SamplingOptions(temperature=0.8), SamplingOptions()], "seed": [1, 2, 3]}
    request |= {"max_new_tokens": 24, "slots": 64}
    plain = generate(target(), PROMPTS, **request)
    draft = DraftOptions(drafter=saying_some(kind, target()), tree="chain-3")
    drafted = generate(target(), PROMPTS, method=MAKERS[kind][0], draft=draft, **request)
    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]
    assert sum(c.target_forwards for c in drafted) < sum(c.target_forwards for c in plain)


@pytest.mark.slow
def test_beside_a_target_in_int8_rows_are_its_own():
    model = quantised(target())
    drafted = drafts("medusa", saying_some("medusa", target()), model)
    assert {t for row in drafted for t in row[1:]} <= {-1, *every(model, 3).tolist()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
def test_on_a_mesh_it_proposes_what_it_does_on_one_device(kind):
    divided = dataclasses.replace(target(), params=place(target().params, make_mesh("tp=2")))
    drafter = saying_some(kind, target())
    assert drafts(kind, drafter, divided) == drafts(kind, drafter)


@pytest.mark.parametrize("kind", MAKERS)
def test_it_comes_back_from_its_files_with_its_tokens(kind, tmp_path):
    save, load = FILES[kind]
    made = saying_some(kind, target())
    save(tmp_path, made.config, made.params, tokens=made.tokens)
    found = load(tmp_path)
    np.testing.assert_array_equal(found.tokens, made.tokens)
    assert found.config == made.config
    for x, y in zip(jax.tree.leaves(found.params), jax.tree.leaves(made.params), strict=True):
        np.testing.assert_array_equal(x, y)


def test_files_must_have_the_tokens_that_they_speak_of(tmp_path):
    made = saying_some("medusa", target())
    with pytest.raises(ValueError, match="tokens"):
        save_medusa(tmp_path / "a", made.config, made.params)
    with pytest.raises(ValueError, match="in rising order"):
        save_medusa(tmp_path / "a", made.config, made.params, tokens=made.tokens[::-1])
    whole = dataclasses.replace(made.config, head_size=0)
    with pytest.raises(ValueError, match="tokens"):
        save_medusa(tmp_path / "a", whole, made.params, tokens=made.tokens)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("kind", MAKERS)
def test_more_tokens_than_there_are_are_refused(kind):
    with pytest.raises(ValueError, match="head_size must be from 0 to the vocabulary's 259; got 260"):
        dataclasses.replace(saying_all(kind, target()).config, head_size=260)


def test_none_of_them_is_exported(tmp_path):
    message = "an export writes heads of all tokens, and the drafter says 87 of 259: train it with head_size 0"
    with pytest.raises(ValueError, match=message):
        export_medusa(tmp_path / "a", saying_some("medusa", target()), "vllm")
    with pytest.raises(ValueError, match=message):
        export_eagle1(tmp_path / "a", saying_some("eagle1", target()), target().config, "sglang", embedding=dict)
    assert not (tmp_path / "a").exists()
