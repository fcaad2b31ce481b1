import json

import jax
import jax.numpy as jnp
import pytest

from jax_smash.models.predictors import FORMS, abstract_predictor, predictor_config, predictor_for, random_predictor
from tests.predictors import SIZES, base_model, predictor_of, read_base
from tests.tiny import tiny_config


@pytest.mark.parametrize("kind", FORMS)
def test_a_configuration_comes_back_from_json(kind):
    config, _ = predictor_of(base_model().config, kind, refresh=4, **({} if kind == "low_rank" else {"look_ahead": 1}))
    assert predictor_config(kind, json.loads(json.dumps(config.to_fields()))) == config


@pytest.mark.parametrize("kind", FORMS)
def test_shapes_without_memory_are_those_of_the_weights(kind):
    config, _ = predictor_of(base_model().config, kind)
    (_, told), (_, made) = abstract_predictor(config, jnp.bfloat16), random_predictor(config, 0, jnp.bfloat16)
    assert jax.tree.structure(told) == jax.tree.structure(made)
    assert [(x.shape, x.dtype) for x in jax.tree.leaves(told)] == [(x.shape, x.dtype) for x in jax.tree.leaves(made)]


@pytest.mark.parametrize("kind", FORMS)
def test_queries_and_keys_are_there_for_every_layer(kind):
    model = base_model()
    config, predictor = predictor_of(model.config, kind)
    taps, heads, position, block = read_base()
    found = predictor.read(taps, heads, position, block)
    heads_of = config.num_kv_heads if kind == "gate" else config.num_heads
    keys_of = config.num_heads if kind == "per_head" else config.num_kv_heads
    assert found.queries.shape == (3, 2, 12, heads_of, 6)
    assert found.keys.shape == (3, 2, 12 // config.page_size, keys_of, 6)


def test_what_is_no_predictor_of_the_base_is_refused():
    base = tiny_config()
    with pytest.raises(ValueError, match="must be of one of the forms per_head, grouped, low_rank, gate; got 'oracle'"):
        predictor_for("oracle", base)
    with pytest.raises(ValueError, match="d_model is missing"):
        predictor_config("gate", {})
    with pytest.raises(ValueError, match="look_ahead must be 0 where the base's own queries are read; got 1"):
        predictor_for("low_rank", base, look_ahead=1)
    with pytest.raises(ValueError, match="width must be at most the base's head_width, 8; got 16"):
        predictor_for("low_rank", base, width=16)
    with pytest.raises(ValueError, match="a base whose num_layers is 2; got 3"):
        predictor_for("gate", base, **SIZES["gate"]).check_base(tiny_config(num_layers=3, layer_kinds=("full",) * 3))
    with pytest.raises(ValueError, match="holds each KV head once; got kv_copies 2"):
        predictor_for("gate", tiny_config(kv_copies=2), **SIZES["gate"])
