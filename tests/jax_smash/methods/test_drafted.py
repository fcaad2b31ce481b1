from pathlib import Path

import jax.numpy as jnp
import pytest

from jax_smash import from_apply, generate
from jax_smash.methods import DraftOptions, check_draft, make_method
from jax_smash.methods.drafted import STOPPING, check_taps
from jax_smash.platform import tracing_for
from jax_smash.protocols import Needs
from tests.tiny import tiny_model


def test_a_model_that_lacks_a_tap_is_refused_by_name():
    # Of two layers there are three taps: what enters each, and what leaves the last.
    check_taps(tiny_model(), "eagle", Needs(taps=(0, 2)))
    with pytest.raises(ValueError, match="method eagle reads tap 3 of the model; two-layer has 3 taps"):
        check_taps(tiny_model(), "eagle", Needs(taps=(1, 3)))
    table = jnp.ones((8, 8))
    told_nothing = from_apply(lambda params, tokens: params[tokens], table)
    check_taps(told_nothing, "lookup", Needs())
    with pytest.raises(ValueError, match="method eagle reads tap 0 of the model"):
        check_taps(told_nothing, "eagle", Needs(taps=(0,)))


@pytest.mark.slow
def test_behind_the_positions_of_a_draft_model_nothing_is_drafted(caplog):
    prompt, short = [[7, 8, 9, 10]], tiny_model(max_positions=12)
    draft = DraftOptions(draft_model=short, tree="chain-3")
    done = generate(tiny_model(), prompt, method="draft-model", draft=draft, max_new_tokens=24, slots=64)[0]
    assert "rows have room for 64 tokens, and the drafter has positions for 12: later ones are" in caplog.text
    assert done.token_ids == generate(tiny_model(), prompt, max_new_tokens=24, slots=64)[0].token_ids
    # The same weights draft, so every draft is kept, and behind position 12 there is none.
    assert len(done.token_ids) == 24
    assert 0 < done.drafted.tried[0] == done.drafted.kept[0] <= 3
    caplog.clear()
    make_method(tiny_model(), "draft-model", draft=DraftOptions(draft_model=short), slots=12)
    assert not caplog.text


def test_a_draft_model_of_the_readers_own_must_have_positions_for_all_slots():
    table = jnp.ones((tiny_model().vocab_size,) * 2)
    short = from_apply(lambda params, tokens: params[tokens], table, max_positions=32)
    with pytest.raises(ValueError, match=r"rows have room for 64 tokens, and the draft model .* has positions for 32"):
        make_method(tiny_model(), "draft-model", draft=DraftOptions(draft_model=short), slots=64)
    make_method(tiny_model(), "draft-model", draft=DraftOptions(draft_model=short, tree="chain-2"), slots=32)


@pytest.mark.parametrize("method", ["lookup", "suffix"])
def test_chains_of_lookups_may_stop(method):
    draft = DraftOptions(tree="chain-3:least=0.1")
    check_draft(method, draft)
    made = make_method(tiny_model(), method, draft=draft)
    assert (made.strategy.drafter.least, made.strategy.levels) == (0.1, 3)
    assert made.source == "the tree chain-3:least=0.1"
    with pytest.raises(ValueError, match=r"tree: confident-9:least=0.1 needs"):
        check_draft(method, DraftOptions(tree="confident-9:least=0.1"))


@pytest.mark.parametrize("method", ["lookup", "suffix"])
def test_automatic_chains_of_lookups_stop_where_wider_forwards_take_longer(method):
    made = make_method(tiny_model(), method)
    assert made.strategy.narrows
    assert made.strategy.drafter.least == STOPPING.least
    assert [tree.nodes for tree in made.memory["trees"].ladder] == [1, STOPPING.nodes + 1]
    with tracing_for("tpu"):
        wide = make_method(tiny_model(), method)
    lossy = make_method(tiny_model(), method, draft=DraftOptions(verify="typical-lossy"))
    assert not wide.strategy.drafter.least
    assert not lossy.strategy.drafter.least


def test_chains_of_recycled_tokens_and_of_a_corpus_do_not_stop(tmp_path):
    (tmp_path / "corpus.txt").write_text("a cat sat")
    for method, more in (("recycling", {}), ("lookup", {"lookup_corpus": tmp_path / "corpus.txt"})):
        with pytest.raises(ValueError, match=r"chain-3:least=0.1 needs .* and as a chain with lookup and suffix"):
            check_draft(method, DraftOptions(tree="chain-3:least=0.1", **more))


@pytest.mark.parametrize("option", ["costs", "warm_start", "save_warm_start", "lookup_corpus"])
def test_the_home_folder_may_be_written_short(option, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for given in (Path("~/file"), tmp_path / "file"):
        assert getattr(DraftOptions(**{option: given}), option) == tmp_path / "file"
