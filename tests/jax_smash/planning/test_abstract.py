import jax
import jax.numpy as jnp
import pytest

from jax_smash.methods import METHODS, DraftOptions, SmashOptions
from jax_smash.planning.abstract import WITH_TRAINED, AbstractModel, abstract
from jax_smash.sharding import make_mesh
from jax_smash.sparse import Quest
from tests.tiny import tiny_config

TREES = {"ar": "auto", "lookahead": "auto", "draft-model": "chain-3", "hamburger": "auto"}
"""Of each method; of one not named here, a tree of 7 drafted nodes."""

MODELS = {"draft-model": {"drafter": "int8"}, "hamburger": {"modules": True}}


def arguments(method, *, trained=None, **options):
    model = AbstractModel(tiny_config(), dtype=jnp.float32, trained=trained, **MODELS.get(method, {}))
    draft = DraftOptions(tree=TREES.get(method, "tree-7"))
    sizes = {"batch": 3, "slots": 64, "chunk": 16}
    return abstract(model, jax.devices()[0], **sizes, method=method, draft=draft, **options)


@pytest.mark.parametrize(
    ("method", "trained"),
    [
        *((method, None) for method in METHODS),
        ("eagle", "eagle1"),
        *(("hybrid", kind) for kind in WITH_TRAINED["hybrid"]),
    ],
)
def test_every_methods_programs_take_their_shapes(method, trained):
    made = arguments(method, trained=trained)
    assert made.kind == (trained or (method if method in WITH_TRAINED and method != "hybrid" else None))
    for function, args in made.programs.values():
        returned = function.eval_shape(*args)
        state = returned[0] if isinstance(returned, tuple) else returned
        assert [(x.shape, x.dtype) for x in jax.tree.leaves(state)] == [
            (x.shape, x.dtype) for x in jax.tree.leaves(made.state)
        ]


def test_weights_are_shapes_and_take_no_memory():
    for method in ("recycling", "draft-model", "hamburger"):
        assert all(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves(arguments(method).params))


def test_nodes_are_those_of_the_tree():
    assert [arguments(name).nodes for name in ("ar", "recycling", "draft-model")] == [1, 8, 4]


@pytest.mark.parametrize("mode", ["exact", "checked"])
def test_the_modes_of_groups_have_strategies_of_their_own(mode):
    blind = arguments("hamburger", smash=SmashOptions(mode="blind"))
    assert type(arguments("hamburger", smash=SmashOptions(mode=mode)).strategy) is not type(blind.strategy)


def test_what_a_policy_keeps_of_a_head_lies_with_its_keys():
    config = tiny_config(layer_kinds=("full", "full"), window=0)
    model = AbstractModel(config, dtype=jnp.float32, policy=Quest(budget=48, dense_layers=1))
    made = abstract(model, make_mesh("tp=2"), batch=3, slots=64, chunk=16)
    assert made.channels[0] is None
    heads = config.num_kv_heads // 2
    assert made.channel_shapes == {(3, heads, 4, config.head_width)}
    assert made.cache_shapes == {(3, heads, 64, config.head_width)}
