"""Drafters in folders, of every kind that is trained: read as they were written, and refused where they do not fit."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from jax_smash import generate
from jax_smash.checkpoints.chimera import load_chimera, random_drafter, save_chimera
from jax_smash.checkpoints.dflash import load_dflash, save_dflash
from jax_smash.checkpoints.dflash import random_drafter as random_dflash
from jax_smash.checkpoints.eagle import load_eagle, random_modules, save_eagle
from jax_smash.checkpoints.eagle1 import load_eagle1, random_eagle1_modules, save_eagle1
from jax_smash.checkpoints.fingerprint import fingerprint
from jax_smash.checkpoints.medusa import load_medusa, random_heads, save_medusa
from jax_smash.costs import Follower, StoppingFollower
from jax_smash.loading import quantised
from jax_smash.methods import RANDOM, DraftOptions, make_method
from jax_smash.methods.trained import _named, held_as, share_of_step
from jax_smash.models.definition import NnxModel
from jax_smash.pytree import size
from tests import medusa
from tests.chimera import random_drafter as small_chimera
from tests.dflash import random_drafter as small_dflash
from tests.tiny import tiny_config, tiny_model

KINDS = {
    "eagle": (random_modules, save_eagle, load_eagle),
    "eagle1": (random_eagle1_modules, save_eagle1, load_eagle1),
    "medusa": (random_heads, save_medusa, load_medusa),
    "chimera": (random_drafter, save_chimera, load_chimera),
    "dflash": (random_dflash, save_dflash, load_dflash),
}
METHODS = {"eagle1": "eagle"}
"""Methods whose names are not their drafters' kinds."""


def saved(kind, folder, *, base_fingerprint="", trained_length=None, **changes):
    random, save, _ = KINDS[kind]
    made = random(tiny_config(**changes))
    save(folder, made.config, made.params, base_fingerprint=base_fingerprint, trained_length=trained_length)
    return made


def method(kind, drafter, *, slots=512, **options):
    draft = DraftOptions(drafter=drafter, **options)
    return make_method(tiny_model(), METHODS.get(kind, kind), draft=draft, slots=slots)


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_holds_what_was_saved(kind, tmp_path):
    made = saved(kind, tmp_path, base_fingerprint="a" * 64, trained_length=12)
    read = KINDS[kind][2](tmp_path)
    assert (read.config, size(read.params)) == (made.config, size(made.params))
    assert (read.base_fingerprint, read.trained_length) == ("a" * 64, 12)
    for before, after in zip(*(map(np.asarray, leaves(one)) for one in (made, read)), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("kind", KINDS)
def test_a_length_that_is_none_is_refused_and_may_be_missing(kind, tmp_path):
    saved(kind, tmp_path)
    file = tmp_path / f"{kind}.json"
    fields = json.loads(file.read_text())
    assert "trained_length" not in fields
    assert KINDS[kind][2](tmp_path).trained_length is None
    file.write_text(json.dumps(fields | {"trained_length": 0}))
    with pytest.raises(ValueError, match=rf"{kind}\.json: trained_length must be a number of entries from 1; got 0"):
        method(kind, tmp_path)


def leaves(drafter):
    return jax.tree.leaves(drafter.params)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"d_model": 64}, "is for a target with a width of 64; two-layer has one of 32"),
        ({"vocab_size": 300}, "is for a target with a vocabulary of 300; two-layer has one of"),
        ({"base_fingerprint": "a" * 64}, "was trained for a target whose weights have fingerprint aaaaaaaaaaaaaaaa…"),
    ],
)
def test_a_drafter_of_another_target_is_refused(kind, changes, said, tmp_path):
    saved(kind, tmp_path, **changes)
    with pytest.raises(ValueError, match=said):
        method(kind, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_are_not_those_of_the_description_are_refused(kind, tmp_path):
    saved(kind, tmp_path)
    file = tmp_path / f"{kind}.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match=rf"{kind}\.safetensors"):
        method(kind, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_is_read_once_for_a_model_while_its_files_stay(kind, tmp_path):
    model = dataclasses.replace(tiny_model())
    saved(kind, tmp_path)

    def drafter():
        draft = DraftOptions(drafter=tmp_path)
        return make_method(model, METHODS.get(kind, kind), draft=draft, slots=64).params["drafter"]

    first = jax.tree.leaves(drafter())
    assert all(a is b for a, b in zip(first, jax.tree.leaves(drafter()), strict=True))
    weights = tmp_path / f"{kind}.safetensors"
    weights.write_bytes(weights.read_bytes())
    assert not any(a is b for a, b in zip(first, jax.tree.leaves(drafter()), strict=True))
    weights.unlink()
    with pytest.raises(FileNotFoundError, match=rf"{kind}\.safetensors is missing"):
        drafter()


def test_a_drafter_is_refused_when_the_targets_weights_became_others(tmp_path):
    model = dataclasses.replace(tiny_model(), params=dict(tiny_model().params))
    target = model.params["target"]
    saved("eagle", tmp_path, base_fingerprint=fingerprint(model.config, target))
    for drafter in (tmp_path, load_eagle(tmp_path)):
        options = {"draft": DraftOptions(drafter=drafter), "slots": 64}
        make_method(model, "eagle", **options)
        model.params["target"] = tiny_model(spread=11.0).params["target"]
        with pytest.raises(ValueError, match="was trained for a target whose weights have fingerprint"):
            make_method(model, "eagle", **options)
        model.params["target"] = target


@pytest.mark.parametrize(
    ("kind", "other"), [("eagle", "medusa"), ("medusa", "eagle"), ("chimera", "medusa"), ("dflash", "eagle")]
)
def test_a_drafter_of_another_kind_is_refused(kind, other, tmp_path):
    with pytest.raises(ValueError, match=rf"method {kind} needs [\w ]+ as its drafter; got \w+Modules"):
        method(kind, KINDS[other][0](tiny_config()))
    saved(other, tmp_path)
    with pytest.raises(ValueError, match=f"holds a drafter of method {other}; got method {kind}"):
        method(kind, tmp_path)


@pytest.mark.parametrize("kind", ["chimera", "medusa"])
def test_a_tree_of_a_size_has_no_node_that_there_is_no_head_for(kind):
    deep = method("eagle", RANDOM, tree="tree-80").memory["trees"].ladder[0]
    (tree,) = method(kind, RANDOM, tree="tree-80").memory["trees"].ladder
    assert (tree.nodes, deep.nodes) == (81, 81)
    assert (int(tree.depth.max()), int(deep.depth.max())) == (4, 6)
    # A chain is what was asked for.
    assert method(kind, RANDOM, tree="chain-6").nodes == 7


def test_drawn_blocks_have_no_node_that_the_block_does_not_reach():
    drafter = small_dflash(tiny_model(), block_size=4, taps=(0, 1))
    draft = DraftOptions(drafter=drafter, tree="tree-32", verify="rejection")
    (tree,) = make_method(tiny_model(), "dflash", draft=draft, sampled=True).memory["trees"].ladder
    assert (tree.nodes, int(tree.depth.max())) == (33, 3)


def test_steps_of_a_hybrid_and_of_its_drafter_alone_are_measured_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_SMASH_HOME", str(tmp_path))
    drafter = random_modules(tiny_config())
    alone, again, hybrid = (method(name, drafter, tree="auto") for name in ("eagle", "eagle", "hybrid"))
    assert alone.follower is again.follower
    assert alone.follower is not hybrid.follower
    other = method("eagle", random_modules(tiny_config()), tree="auto")
    assert other.follower is not alone.follower


def test_a_drafter_in_the_place_of_one_that_is_gone_has_another_name():
    made = random_modules(tiny_config())
    places, names = [], []
    for _ in range(8):
        drafter = dataclasses.replace(made)
        assert _named(drafter) == _named(drafter)
        places.append(id(drafter))
        names.append(_named(drafter))
        del drafter
    assert len(set(places)) < len(places)
    assert len(set(names)) == len(names)


def test_chains_that_stop_and_other_trees_learn_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_SMASH_HOME", str(tmp_path))
    drafter = random_modules(tiny_config())
    for verify in ("typical-lossy", "coupling", "typical-lossy"):
        method("eagle", drafter, tree="auto", verify=verify)
    assert isinstance(method("eagle", drafter, tree="auto").follower, StoppingFollower)
    assert isinstance(method("chimera", RANDOM, tree="auto").follower, Follower)


def test_the_curve_that_a_run_writes_down_has_no_drafting_in_it(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_SMASH_HOME", str(tmp_path))
    first = method("chimera", RANDOM, tree="auto")
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(first.curve.to_json()))
    again = method("chimera", RANDOM, tree="auto", costs=path)
    assert again.curve.seconds == first.curve.seconds
    np.testing.assert_array_equal(*(made.memory["trees"].sizing.seconds for made in (first, again)))


def test_an_int8_target_makes_drafting_no_dearer():
    shares = [drafted_share(model) for model in (tiny_model(), quantised(tiny_model()))]
    assert shares[1] == pytest.approx(shares[0], rel=0.25)


def drafted_share(model):
    drafter = held_as(model, random_modules(model.config).params)
    return share_of_step(model, drafter, head=model.vocab_size)


@pytest.mark.parametrize("kind", ["eagle", "eagle1", "chimera", "dflash"])
def test_rows_beyond_the_drafters_positions_are_told_of(kind, caplog):
    drafter = KINDS[kind][0](tiny_config(max_positions=48))
    method(kind, drafter, slots=48)
    assert not caplog.text
    method(kind, drafter, slots=64)
    assert "rows have room for 64 tokens, and the drafter has positions for 48: later ones are not" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_rows_longer_than_those_of_training_are_told_of(kind, tmp_path, caplog):
    saved(kind, tmp_path, trained_length=48)
    method(kind, tmp_path, slots=48)
    assert not caplog.text
    for drafter in (tmp_path, KINDS[kind][2](tmp_path)):
        caplog.clear()
        method(kind, drafter, slots=64)
        assert "rows have room for 64 tokens, and the drafter was trained on rows of 48: of later" in caplog.text
    caplog.clear()
    make_method(tiny_model(), "hybrid", draft=DraftOptions(drafter=drafter, tree="chain-2"), slots=64)
    assert "the drafter was trained on rows of 48" in caplog.text


class Plainest:
    """A model of the reader's own, which says its logits and has no other way to find the likeliest tokens."""

    tree_blocks = True

    def __init__(self, bound):
        self.vocab_size, self.init_cache = bound.vocab_size, bound.init_cache
        self.embed, self.forward, self.unembed = bound.embed, bound.forward, bound.unembed


@dataclasses.dataclass(frozen=True)
class PlainestDef:
    definition: NnxModel

    def bind(self, params):
        return Plainest(self.definition.bind(params))


def random_shared(kind):
    """Returns a drafter that says tokens by the target's head."""
    made = KINDS[kind][0](tiny_config())
    return made if kind == "chimera" else medusa.random_heads(tiny_model(), num_heads=2, own_rows=False)


@pytest.mark.parametrize("kind", ["chimera", "medusa"])
def test_any_model_that_says_its_logits_is_drafted_for(kind):
    model = dataclasses.replace(tiny_model(), definition=PlainestDef(tiny_model().definition))
    drafter = random_shared(kind)
    request = {"max_new_tokens": 8, "slots": 64}
    plain = generate(model, [[7, 8, 9]], **request)[0]
    drafted = generate(model, [[7, 8, 9]], method=kind, draft=DraftOptions(tree="chain-2", drafter=drafter), **request)
    assert drafted[0].token_ids == plain.token_ids


def test_a_model_without_a_fingerprint_is_told_so_and_not_of_rounded_weights():
    model = dataclasses.replace(tiny_model(), definition=PlainestDef(tiny_model().definition), config=None)
    drafter = dataclasses.replace(random_shared("medusa"), base_fingerprint="0" * 64)
    with pytest.raises(ValueError, match="two-layer is no model of this package, and has no fingerprint to compare"):
        make_method(model, "medusa", draft=DraftOptions(tree="chain-2", drafter=drafter))


def text_chimera(model):
    return small_chimera(model, gram_encoder="layer", encoder_mlp_width=model.config.mlp_width, residual_heads=False)


def test_a_chimera_whose_encoder_only_trains_is_refused_before_anything_runs(tmp_path):
    made = text_chimera(tiny_model())
    save_chimera(tmp_path, made.config, made.params)
    with pytest.raises(ValueError, match=r"the drafter in .* encodes texts by a layer, .* which only trains"):
        make_method(tiny_model(), "chimera", draft=DraftOptions(drafter=tmp_path))


def test_a_loaded_chimera_whose_encoder_only_trains_is_made_but_does_not_draft():
    draft = DraftOptions(tree="chain-2", drafter=text_chimera(tiny_model()))
    assert make_method(tiny_model(), "chimera", draft=draft).strategy.drafter.model is draft.drafter.definition
    with pytest.raises(ValueError, match="a Chimera drafter with gram_encoder layer does not draft"):
        generate(tiny_model(), [[7, 8, 9]], method="chimera", max_new_tokens=4, slots=64, draft=draft)


def test_what_drawn_blocks_cost_decides_nothing(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(method("chimera", RANDOM, tree="auto").curve.to_json()))
    draft = DraftOptions(drafter=random_dflash(tiny_config()), verify="rejection", costs=path)
    with pytest.raises(ValueError, match="costs: drawn blocks of method dflash are whole, whatever they cost"):
        make_method(tiny_model(), "dflash", draft=draft, sampled=True)
