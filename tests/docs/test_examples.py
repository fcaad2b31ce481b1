import dataclasses
import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_smash
from jax_smash.cache import Block
from jax_smash.checkpoints.medusa import MedusaModules
from jax_smash.methods import make_method
from jax_smash.models.definition import NnxModel
from jax_smash.models.medusa import MedusaConfig, random_medusa
from jax_smash.protocols import honours_trees
from tests.dflash import random_drafter as random_dflash
from tests.tiny import tiny_config, tiny_model

EXAMPLES = Path(__file__).parent.parent.parent / "docs" / "examples"
PROMPTS = [[72, 101, 108], [1, 2, 3, 4, 1, 2, 3, 4], [9]]
WARM = jax_smash.SamplingOptions(temperature=0.7, repetition_penalty=1.2)


def example(name="another_model"):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tokens(completions):
    return [c.token_ids for c in completions]


def test_a_model_of_another_kind_decodes_and_rows_do_not_touch():
    model = example().make()
    assert isinstance(model.definition.bind(model.params["target"]), jax_smash.CausalLM)
    together = jax_smash.generate(model, PROMPTS, max_new_tokens=12)
    for prompt, completion in zip(PROMPTS, together, strict=True):
        alone = jax_smash.generate(model, [prompt], max_new_tokens=12)[0]
        assert completion.token_ids == alone.token_ids
    assert len({tuple(c.token_ids) for c in together}) == 3


def test_its_text_is_that_of_the_plain_recurrence():
    model = example().make()
    params = {k: np.asarray(v, np.float64) for k, v in model.params["target"].items()}
    prompt, state = [72, 101, 108], np.zeros(64)
    for token in prompt:
        state = 0.9 * state + params["embedding"][token]
    expected = []
    for _ in range(12):
        expected.append(int((params["head"] @ np.tanh(state)).argmax()))
        state = 0.9 * state + params["embedding"][expected[-1]]
    assert jax_smash.generate(model, [prompt], max_new_tokens=12)[0].token_ids == expected


def test_padding_leaves_its_state_as_it_is():
    model = example().make()
    target, position = model.definition.bind(model.params["target"]), jnp.arange(4, dtype=jnp.int32)[None]
    inputs, cache = target.embed(jnp.asarray([[0, 72, 0, 101]])), target.init_cache(1, 8, 4)
    padded = target.forward(inputs, position, cache, Block.causal(jnp.asarray([[False, True, False, True]]))).hidden
    alone = target.forward(inputs[:, 1::2], position[:, :2], cache, Block.causal(jnp.ones((1, 2), bool))).hidden
    np.testing.assert_allclose(padded[:, 1::2], alone, rtol=1e-6)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("recycling", {"tree": "chain-4"}),
        ("suffix", {}),  # A tree of automatic size is a chain.
        pytest.param("recycling", {"tree": "chain-4", "stored_probabilities": True}, marks=pytest.mark.slow),
        pytest.param("lookup", {"tree": "chain-3"}, marks=pytest.mark.slow),
        pytest.param("draft-model", {"draft_model": "itself"}, marks=pytest.mark.slow),
        pytest.param("hybrid", {"tree": "off"}, marks=pytest.mark.slow),
    ],
)
def test_drafted_chains_change_no_text_of_a_recurrent_model(method, options):
    model = example().make()
    draft = jax_smash.DraftOptions(**options | ({"draft_model": model} if "draft_model" in options else {}))
    request = {"max_new_tokens": 24, "sampling": [jax_smash.SamplingOptions(), WARM, WARM], "seed": [0, 1, 2]}
    plain = jax_smash.generate(model, PROMPTS, **request)
    drafted = jax_smash.generate(model, PROMPTS, method=method, draft=draft, **request)
    assert tokens(drafted) == tokens(plain)
    saved = sum(c.target_forwards for c in plain) - sum(c.target_forwards for c in drafted)
    assert saved == 0 if draft.tree == "off" else saved > 0


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("recycling", {"tree": "recycling-80"}, "the tree recycling-80 branches, and recurrent does not honour tree b"),
        ("hybrid", {}, "method hybrid drafts trees that branch, and recurrent does not honour tree blocks"),
        ("lookahead", {"tree": "chain-4"}, "method lookahead drafts trees that branch, and recurrent does not"),
    ],
)
def test_trees_are_refused_by_name_for_a_model_that_reads_blocks_in_order(method, options, message):
    with pytest.raises(ValueError, match=message):
        jax_smash.generate(example().make(), PROMPTS, method=method, draft=jax_smash.DraftOptions(**options))


BRANCHING = [("medusa", "confident-3:chain=false"), ("medusa", "confident-3"), ("dflash", "tree-3"), ("hybrid", "auto")]


@pytest.mark.parametrize(("method", "tree"), [*BRANCHING, ("hybrid", "confident-3:least=0.1")])
def test_trees_of_a_trained_drafter_that_may_branch_are_refused_though_their_size_is_a_chains(method, tree):
    drafter = trained(example().make(), "dflash" if method == "dflash" else "medusa")
    draft = jax_smash.DraftOptions(drafter=drafter, tree=tree)
    with pytest.raises(ValueError, match="trees that branch, and recurrent does not honour tree blocks"):
        jax_smash.generate(example().make(), PROMPTS, method=method, draft=draft)


@pytest.mark.parametrize(("kind", "tree"), [("medusa", "confident-3:width=1"), ("medusa", "auto"), ("dflash", "auto")])
def test_trained_drafters_draft_chains_for_a_model_that_reads_blocks_in_order(kind, tree):
    model = example().make()
    draft = jax_smash.DraftOptions(drafter=trained(model, kind), tree=tree)
    made = make_method(model, kind, draft=draft)
    assert made.strategy.drafter.width == 1
    drafted = jax_smash.generate(model, PROMPTS, method=kind, draft=draft, max_new_tokens=12)
    assert tokens(drafted) == tokens(jax_smash.generate(model, PROMPTS, max_new_tokens=12))


def trained(model, kind):
    """Returns a small drafter for the recurrent model, with random weights."""
    if kind == "dflash":
        shape = tiny_config(num_layers=1, layer_kinds=("full",), d_model=model.width, vocab_size=model.vocab_size)
        return random_dflash(dataclasses.replace(tiny_model(), config=shape), num_layers=1, taps=(1,))
    config = MedusaConfig(model.vocab_size, model.width, num_heads=3, own_rows=False)
    structure, params = random_medusa(config, 0)
    return MedusaModules(config=config, definition=NnxModel(structure), params=params)


def test_a_draft_model_that_reads_blocks_in_order_drafts_chains_alone(tmp_path):
    drafting, target = example().make(), tiny_model(vocab_size=256, max_positions=64)
    siblings = tmp_path / "siblings.json"
    siblings.write_text("[[0], [1]]")
    draft = jax_smash.DraftOptions(draft_model=drafting, tree=str(siblings))
    with pytest.raises(ValueError, match="branches, and recurrent does not honour tree blocks"):
        jax_smash.generate(target, [[1, 2]], method="draft-model", draft=draft, max_new_tokens=4)


def test_a_model_that_does_not_say_is_taken_to_read_blocks_in_order():
    module = example()
    del module.Recurrent.tree_blocks
    model = module.make()
    target = model.definition.bind(model.params["target"])
    assert isinstance(target, jax_smash.CausalLM)
    assert not honours_trees(target)
    module.Recurrent.tree_blocks = True
    assert honours_trees(target)


def test_a_tree_would_change_the_text_of_a_model_that_ignores_blocks():
    """The control: told to be honoured, the same tree is not."""
    module = example()
    module.Recurrent.tree_blocks = True
    draft = jax_smash.DraftOptions(tree="recycling-80")
    plain = jax_smash.generate(module.make(), PROMPTS, max_new_tokens=24)
    drafted = jax_smash.generate(module.make(), PROMPTS, method="recycling", draft=draft, max_new_tokens=24)
    assert tokens(plain) != tokens(drafted)


@pytest.mark.slow
def test_reinforcement_raises_the_reward():
    with jax.numpy_dtype_promotion("standard"):  # As optax needs it.
        rewards = list(example("reinforce").train(steps=12))
    assert sum(rewards[-3:]) > 1.2 * sum(rewards[:3])
