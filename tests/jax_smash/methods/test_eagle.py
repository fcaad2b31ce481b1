import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest

from jax_smash import from_apply, generate
from jax_smash.checkpoints.eagle import CONFIG, WEIGHTS, load_eagle, save_eagle
from jax_smash.checkpoints.eagle1 import save_eagle1
from jax_smash.checkpoints.fingerprint import fingerprint
from jax_smash.loading import quantised
from jax_smash.methods import RANDOM, DraftOptions, check_draft, make_method
from jax_smash.methods.eagle import STOPPING
from jax_smash.quantise import activation_dtype, has_int8
from tests import chimera, dflash
from tests.eagle import random_drafter
from tests.eagle1 import random_drafter1
from tests.tiny import tiny_model


def eagle(model, drafter, **options):
    return make_method(model, "eagle", draft=DraftOptions(drafter=drafter, **options))


@pytest.fixture
def folder(tmp_path):
    made = random_drafter(tiny_model(), tokens=range(30, 140))
    save_eagle(tmp_path, made.config, made.params)
    return tmp_path


@pytest.mark.slow
def test_a_drafter_in_a_folder_drafts_what_it_drafts_in_memory(folder):
    options = {"method": "eagle", "max_new_tokens": 8, "slots": 64}
    prompts = ["the cat", "x"]
    made = random_drafter(tiny_model(), tokens=range(30, 140))
    drafters = (made, folder, str(folder))
    found = [generate(tiny_model(), prompts, draft=DraftOptions(drafter=d), **options) for d in drafters]
    told = [[(c.token_ids, c.drafted.tried, c.drafted.kept) for c in completions] for completions in found]
    assert told[0] == told[1] == told[2]


def test_a_folder_for_another_target_is_refused_before_its_weights_are_looked_for(folder):
    (folder / WEIGHTS).unlink()
    others = {
        r"is for a target with a width of 32; two-layer has one of 64": {"d_model": 64},
        r"with a vocabulary of \d+; two-layer has one of 99": {"vocab_size": 99},
        r"with a number of layers of 2; two-layer has one of 3": {"num_layers": 3, "layer_kinds": ("full",) * 3},
    }
    for said, changes in others.items():
        with pytest.raises(ValueError, match=said):
            eagle(tiny_model(**changes), folder)
    with pytest.raises(FileNotFoundError, match=r"eagle.safetensors is missing; eagle.json is there"):
        eagle(tiny_model(), folder)


def test_a_drafter_that_was_trained_for_other_weights_is_refused_before_its_own_are_looked_for(tmp_path):
    made, model = random_drafter(tiny_model()), tiny_model()
    save_eagle(tmp_path, made.config, made.params, base_fingerprint=fingerprint(model.config, model.params["target"]))
    assert eagle(model, tmp_path)
    assert eagle(quantised(dataclasses.replace(model)), tmp_path)
    half = jax.tree.map(lambda w: w.astype(jnp.float16), model.params)
    with pytest.raises(ValueError, match="does not tell what its rounded ones were made from"):
        eagle(dataclasses.replace(model, params=half), tmp_path)
    said = r"was trained for a target whose weights have fingerprint \w{16}…; those of two-layer have \w{16}…"
    with pytest.raises(ValueError, match=f"the drafter {said}"):
        eagle(tiny_model(spread=11.0), load_eagle(tmp_path))
    (tmp_path / WEIGHTS).unlink()
    with pytest.raises(ValueError, match=f"the drafter in .* {said}"):
        eagle(tiny_model(spread=11.0), tmp_path)


def test_a_target_without_taps_is_refused(folder):
    model = from_apply(lambda _, tokens: jax.nn.one_hot(tokens, 8), name="function")
    with pytest.raises(ValueError, match=r"the drafter in .* reads taps \[1, 2\] of its target; function gives none"):
        eagle(model, folder)
    with pytest.raises(ValueError, match="a random drafter needs a model of this package; function is none"):
        eagle(model, RANDOM)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "drafter must be a folder, or random to measure .*: of method eagle none is shipped for two-layer"),
        ({"drafter": RANDOM, "verify": "rejection"}, "verify rejection is for drawn tokens"),
        ({"drafter": RANDOM, "draft_model": "int8"}, "draft_model does not go with method eagle"),
        ({"drafter": RANDOM, "tree": "confident-9:top=3"}, "tree: settings of confident-N are depth=N, width=N"),
        (
            {"drafter": RANDOM, "tree": "confident-9:width=1000"},
            "at most as many children as the .* tokens that the drafter can say; got 1000 in confident-9",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        make_method(tiny_model(), "eagle", draft=DraftOptions(**options))


def test_a_tree_with_more_children_than_the_head_has_tokens_is_refused(tmp_path):
    tree = tmp_path / "wide.json"
    tree.write_text("[[0], [1], [2]]")
    drafter = random_drafter(tiny_model(), tokens=(3, 7))
    with pytest.raises(ValueError, match="at most as many children as the 2 tokens that the drafter can say; got 3"):
        eagle(tiny_model(), drafter, tree=str(tree))


def test_a_folder_is_checked_before_a_model_is_there(folder):
    check_draft("eagle", DraftOptions(drafter=folder))
    (folder / CONFIG).write_text(json.dumps({"format": 1}))
    with pytest.raises(ValueError, match=r"drafter: .*eagle.json: weights_sha256 must be a text"):
        check_draft("eagle", DraftOptions(drafter=folder))
    with pytest.raises(ValueError, match=r"absent must be a folder with one of eagle.json, .*; got none$"):
        check_draft("eagle", DraftOptions(drafter=folder / "absent"))
    (folder / "config.json").write_text("{}")
    (folder / CONFIG).rename(folder / "other.json")
    with pytest.raises(ValueError, match=r"got none: jax-smash convert .* OUT --to eagle|medusa --base MODEL reads"):
        check_draft("eagle", DraftOptions(drafter=folder))
    for name in (CONFIG, "medusa.json"):
        (folder / name).write_text("{}")
    with pytest.raises(ValueError, match=r"one of eagle.json, .*; got eagle.json and medusa.json"):
        check_draft("hybrid", DraftOptions(drafter=folder))
    with pytest.raises(ValueError, match="drafter does not go with method lookup"):
        check_draft("lookup", DraftOptions(drafter=folder))


def test_a_drafter_is_held_as_its_target_is(folder):
    model = tiny_model()
    assert has_int8(eagle(quantised(model), folder).params["drafter"])
    half = jax.tree.map(lambda w: w.astype(jnp.bfloat16), model.params)
    made = eagle(dataclasses.replace(model, params=half), folder)
    assert activation_dtype(made.params["drafter"]["final_norm"]) == jnp.bfloat16


@pytest.mark.parametrize("method", ["lookup", "recycling", "dflash", "draft-model"])
def test_trees_that_grow_are_refused_where_nothing_is_confident(method):
    said = f"tree: confident-9 needs the drafter's probabilities, so it goes with methods eagle, .*; got {method}"
    with pytest.raises(ValueError, match=said):
        check_draft(method, DraftOptions(tree="confident-9"))


def test_method_hybrid_takes_trees_that_grow_with_a_drafter_that_is_confident(folder):
    check_draft("hybrid", DraftOptions(tree="chain-3:least=0.1", drafter=folder))
    check_draft("hybrid", DraftOptions(tree="confident-9", drafter=random_drafter(tiny_model())))
    with pytest.raises(ValueError, match=r"tree: confident-9 needs .*; got hybrid"):
        check_draft("hybrid", DraftOptions(tree="confident-9"))
    check_draft("hybrid", DraftOptions(tree="confident-9", drafter=chimera.random_drafter(tiny_model())))
    with pytest.raises(ValueError, match=r"tree: confident-9 needs .*; got dflash"):
        check_draft("hybrid", DraftOptions(tree="confident-9", drafter=dflash.random_drafter(tiny_model())))


def test_the_automatic_tree_stops_where_wider_forwards_take_longer():
    made = eagle(tiny_model(), random_drafter(tiny_model()), tree="auto")
    assert made.strategy.narrows
    assert made.strategy.drafter.trees.sizes == STOPPING
    assert [tree.nodes for tree in made.memory["trees"].ladder] == [1, STOPPING.nodes + 1]
    assert not eagle(tiny_model(), random_drafter(tiny_model()), tree="chain-3").strategy.narrows
    # Where the text depends on the trees, they have the shape that is asked for.
    assert not eagle(tiny_model(), random_drafter(tiny_model()), verify="typical-lossy").strategy.narrows


def test_a_folder_with_drafters_of_both_kinds_is_refused(folder):
    made = random_drafter1(tiny_model())
    save_eagle1(folder, made.config, made.params)
    with pytest.raises(ValueError, match=r"must be a folder with one of .*; got eagle.json and eagle1.json"):
        check_draft("eagle", DraftOptions(drafter=folder))


def test_an_eagle_1_drafter_reads_no_taps_and_is_held_as_its_target_is():
    made = eagle(quantised(tiny_model()), random_drafter1(tiny_model()))
    assert made.strategy.drafter.needs.taps == ()
    assert has_int8(made.params["drafter"])
    # Another number of layers gives the same features.
    assert eagle(tiny_model(num_layers=3, layer_kinds=("full",) * 3), random_drafter1(tiny_model()))
