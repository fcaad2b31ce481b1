import dataclasses

import jax
import numpy as np
import pytest

from jax_smash.decode.checked import CheckedDecoding
from jax_smash.decode.smashed import SmashedDecoding
from jax_smash.decode.speculative import Speculative
from jax_smash.methods import METHODS, SmashOptions, check_smash, fitting_modules, make_method
from jax_smash.methods.hamburger import step_cost
from jax_smash.quantise import quantise_params
from jax_smash.smash.micro_head import ROLE
from jax_smash.sparse import Recency, sparsified
from tests.model_directory import write_model, write_modules
from tests.smashed import smashed_model
from tests.tiny import tiny_model


@pytest.mark.parametrize(("mode", "strategy"), [("blind", SmashedDecoding), ("checked", CheckedDecoding)])
def test_a_mode_is_a_strategy(mode, strategy):
    made = make_method(smashed_model(), "hamburger", smash=SmashOptions(mode=mode))
    assert isinstance(made.strategy, strategy)
    assert (made.nodes, made.source) == (1, f"groups {mode}")


def with_own(**options):
    model = smashed_model()
    return dataclasses.replace(model, modules=dataclasses.replace(model.modules, options=SmashOptions(**options)))


def test_modules_decode_as_they_were_calibrated_and_as_is_asked_before_that():
    model = with_own(mode="checked", confidence=0.4, token_confidence=0.9, micro_steps=3, micro_head="8")
    own = make_method(model, "hamburger")
    assert isinstance(own.strategy, CheckedDecoding)
    assert own.strategy.longest == 3
    assert (float(own.memory["limits"].confidence), float(own.memory["limits"].token_confidence)) == pytest.approx(
        (0.4, 0.9)
    )
    assert own.params[ROLE].tokens.shape == (8,)
    asked = SmashOptions(mode="blind", confidence=0.8, token_confidence=0, micro_steps=2, micro_head="full")
    made = make_method(model, "hamburger", smash=asked)
    assert isinstance(made.strategy, SmashedDecoding)
    assert (float(made.memory["limits"].confidence), float(made.memory["limits"].token_confidence)) == pytest.approx(
        (0.8, 0.0)
    )
    assert (int(made.memory["limits"].longest), ROLE in made.params) == (2, False)


def test_modules_without_settings_decode_carefully():
    limits = make_method(with_own(), "hamburger").memory["limits"]
    assert (float(limits.confidence), float(limits.token_confidence)) == pytest.approx((0.7, 0.995))
    with pytest.raises(ValueError, match="micro_head must be at most the vocabulary's 259 tokens; got 300"):
        make_method(with_own(micro_head="300"), "hamburger")


@pytest.mark.parametrize(("options", "nodes"), [({}, 4), ({"micro_steps": 2}, 2), ({"group_length": 1}, 1)])
def test_exact_groups_are_chains_of_the_tree_verifier(options, nodes):
    made = make_method(smashed_model(), "hamburger", smash=SmashOptions(mode="exact", **options))
    assert isinstance(made.strategy, Speculative)
    assert made.nodes == nodes
    # Of the two layers that are tapped, tap 1 is the first one's output; the hidden state stands for the last one's.
    assert made.strategy.drafter.needs.taps == (1,)


def test_options_go_with_their_method_alone():
    for name in METHODS:
        check_smash(name, SmashOptions())
    check_smash("hamburger", SmashOptions(confidence=0.5))
    with pytest.raises(ValueError, match="confidence does not go with method ar: it is for hamburger"):
        check_smash("ar", SmashOptions(confidence=0.5))
    with pytest.raises(ValueError, match="smash_mode does not go with method suffix"):
        make_method(smashed_model(), "suffix", smash=SmashOptions(mode="exact"))


def test_a_model_without_modules_is_refused():
    with pytest.raises(ValueError, match="two-layer has no HAMburger modules: load it with modules"):
        make_method(tiny_model(), "hamburger")


@pytest.mark.parametrize("name", ["micro_steps", "group_length"])
def test_more_than_was_trained_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be at most 4, what the modules were trained for; got 5"):
        make_method(smashed_model(), "hamburger", smash=SmashOptions(**{name: 5}))


@pytest.mark.parametrize("head", ["int8", "8"])
def test_a_model_with_a_sparse_cache_has_the_same_micro_heads(head):
    plain, smash = smashed_model(), SmashOptions(micro_head=head)
    heads = [
        make_method(model, "hamburger", smash=smash).params[ROLE]
        for model in (plain, sparsified(plain, Recency(budget=16)))
    ]
    jax.tree.map(np.testing.assert_array_equal, *heads)


def test_a_reduced_head_that_cannot_be_is_refused():
    model = smashed_model()
    with pytest.raises(ValueError, match="micro_head 3 can tell at most 3 likeliest tokens; got 5"):
        make_method(model, "hamburger", smash=SmashOptions(micro_head="3", mode="blind"), log_probs=5)
    # In the other modes log-probabilities are the base's own.
    make_method(model, "hamburger", smash=SmashOptions(micro_head="3", mode="exact"), log_probs=5)
    with pytest.raises(ValueError, match="micro_head must be at most the vocabulary's 259 tokens; got 300"):
        make_method(model, "hamburger", smash=SmashOptions(micro_head="300"))
    uncounted = dataclasses.replace(model, modules=dataclasses.replace(model.modules, token_counts=None))
    with pytest.raises(ValueError, match="micro_head 9 needs the modules' token_counts"):
        make_method(uncounted, "hamburger", smash=SmashOptions(micro_head="9"))


def test_modules_and_options_that_fit_are_found_before_weights_are_read(tmp_path):
    base = write_model(tmp_path / "base")
    write_modules(base / "hamburger", base, micro_steps=3)
    for file in (base / "model.safetensors", base / "hamburger" / "smasher.safetensors"):
        file.unlink()
    assert fitting_modules(base, None, SmashOptions(), SmashOptions(micro_head="259")) == base / "hamburger"
    assert fitting_modules(base, base / "hamburger") == base / "hamburger"
    with pytest.raises(ValueError, match="micro_head must be at most the vocabulary's 259 tokens; got 300"):
        fitting_modules(base, None, SmashOptions(), SmashOptions(micro_head="300"))
    with pytest.raises(ValueError, match="group_length must be at most 3, what the modules were trained for; got 4"):
        fitting_modules(base, None, SmashOptions(group_length=4))
    with pytest.raises(FileNotFoundError, match=r"has no HAMburger modules: smasher\.json is missing"):
        fitting_modules(base, tmp_path)


def test_a_reduced_head_keeps_the_tokens_that_end_a_text():
    model = smashed_model(stop_tokens=(10,))
    made = make_method(model, "hamburger", smash=SmashOptions(micro_head="3"))
    assert made.params[ROLE].tokens.tolist() == [7, 9, 10]


@pytest.mark.slow
def test_a_micro_step_costs_the_weights_that_it_reads():
    model = smashed_model()

    def size(tree):
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))

    base, modules = model.params["target"], model.params["smasher"]
    forward = size(base) - size(base["embedding"])
    layers = size(modules["micro_decoder"]) + size(modules["stop_head"])
    assert step_cost(model.params) == pytest.approx((layers + size(base["head"])) / forward)
    reduced = make_method(model, "hamburger", smash=SmashOptions(micro_head="8")).params
    assert step_cost(reduced) == pytest.approx((layers + 8 * 4 * model.config.d_model) / forward)
    halved = {**model.params, "smasher": quantise_params(modules)}
    assert step_cost(halved) < step_cost(model.params)
