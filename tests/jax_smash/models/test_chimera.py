import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jax_smash.cache import Block
from jax_smash.config import RopeConfig
from jax_smash.models.chimera import abstract_chimera, random_chimera
from jax_smash.models.chimera_config import ChimeraConfig
from jax_smash.models.grams import grams_of, vectors_of
from tests.chimera import random_drafter
from tests.tiny import tiny_config, tiny_model

CONFIG = ChimeraConfig.for_target(tiny_config())


def shapes(config):
    return {".".join(map(str, path)): v.shape for path, v in nnx.to_flat_state(abstract_chimera(config)[1])}


def test_the_weights_are_two_matrices_of_the_gram_a_layer_and_a_matrix_for_each_head():
    found = shapes(dataclasses.replace(CONFIG, decoding_heads=3, mlp_width=20))
    assert found["grams.w_in"] == (96, 32)
    assert found["grams.w_out"] == (32, 32)
    assert found["heads"] == (3, 64, 32)
    assert found["layer.mlp.w_down"] == (20, 32)
    assert found["final_norm.scale"] == (32,)
    residual = shapes(dataclasses.replace(CONFIG, gram=2, gram_encoder="residual"))
    assert [residual[f"grams.{name}"] for name in ("block.w", "block.b", "w_out")] == [(64, 64), (64,), (64, 32)]


def test_heads_say_at_first_what_the_targets_rows_say_of_the_layers_states():
    structure, params = random_chimera(CONFIG)
    model, rng = nnx.merge(structure, params), np.random.default_rng(0)
    last, full = (jnp.asarray(rng.normal(size=(1, 2, 32)), jnp.float32) for _ in range(2))
    for head in range(4):
        np.testing.assert_array_equal(model.vectors(last, full, head), full)


def test_each_head_has_a_matrix_of_its_own_over_both_states():
    made, rng = random_drafter(tiny_model()), np.random.default_rng(0)
    model = made.definition.bind(made.params)
    last, full = (jnp.asarray(rng.normal(size=(1, 2, 32)), jnp.float32) for _ in range(2))
    both = np.concatenate([last, full], axis=-1)
    for head in range(4):
        expected = full + both @ np.asarray(model.heads[...])[head]
        np.testing.assert_allclose(model.vectors(last, full, jnp.int32(head)), expected, rtol=1e-4, atol=1e-5)


def test_without_residuals_a_head_reads_the_layers_state_alone():
    made, rng = random_drafter(tiny_model(), residual_heads=False), np.random.default_rng(0)
    model = made.definition.bind(made.params)
    last, full = (jnp.asarray(rng.normal(size=(1, 2, 32)), jnp.float32) for _ in range(2))
    assert model.heads[...].shape == (4, 32, 32)
    expected = full + np.asarray(full) @ np.asarray(model.heads[...])[2]
    np.testing.assert_allclose(model.vectors(last, full, 2), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(model.vectors(last + 1, full, 2), model.vectors(last, full, 2))


def test_an_encoder_of_texts_makes_what_the_targets_first_layer_makes_and_does_not_draft():
    target = tiny_model(layer_kinds=("full", "full"), window=0)
    bound = target.definition.bind(target.params["target"])
    made = random_drafter(target, gram_encoder="layer", encoder_mlp_width=target.config.mlp_width)
    made.params["grams"]["layer"] = nnx.state(bound.layers[0])
    model = made.definition.bind(made.params)
    tokens, position = jnp.asarray([[5, 6, 7, 8]], jnp.int32), jnp.arange(4, dtype=jnp.int32)[None]
    block = Block.causal(jnp.ones((1, 4), bool))
    codes, _ = model.text_codes(tokens, position, None, block, bound)
    cache = bound.init_cache(1, 8, 4)
    np.testing.assert_allclose(
        codes, bound.forward(bound.embed(tokens), position, cache, block).taps[1], rtol=1e-4, atol=1e-5
    )
    with pytest.raises(ValueError, match="with gram_encoder layer does not draft"):
        model.codes(grams_of(jnp.full((1, 3), -1, jnp.int32), tokens), bound)


def test_a_gram_before_the_text_begins_is_0_or_its_first_token():
    model = tiny_model()
    target = model.definition.bind(model.params["target"])
    grams = grams_of(jnp.full((1, 3), -1, jnp.int32), jnp.asarray([[5, 6, 7, 8]], jnp.int32))
    assert grams[0].tolist() == [[-1, -1, 5], [-1, 5, 6], [5, 6, 7], [6, 7, 8]]
    table = np.asarray(target.embedding[...])
    for stands_in, missing in ((False, np.zeros(32)), (True, table[5])):
        found = np.asarray(vectors_of(grams, target, first_stands_in=stands_in)).reshape(4, 3, 32)
        np.testing.assert_array_equal(found[0], [missing, missing, table[5]])
        np.testing.assert_array_equal(found[1], [missing, table[5], table[6]])
        np.testing.assert_array_equal(found[3], table[6:9])


def test_a_configuration_comes_back_from_json():
    changed = dataclasses.replace(CONFIG, gram=5, gram_encoder="residual", rope=RopeConfig(base=5e5, partial=0.5))
    for config in (CONFIG, changed):
        assert ChimeraConfig.from_fields(config.to_fields()) == config


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gram": 0}, "gram must be from 1 to 5 tokens; got 0"),
        ({"gram": 6}, "gram must be from 1 to 5 tokens; got 6"),
        ({"gram_encoder": "cnn"}, "gram_encoder must be one of mlp, residual, layer; got 'cnn'"),
        (
            {"encoder_mlp_width": 8},
            "encoder_mlp_width must be above 0 with gram_encoder layer alone, .*; got 8 with mlp",
        ),
        ({"gram_encoder": "layer"}, "encoder_mlp_width must be above 0 with .*; got 0 with layer"),
        ({"decoding_heads": 0}, "decoding_heads must be at least 1; got 0"),
        ({"max_positions": 0}, "max_positions must be at least 1; got 0"),
        ({"num_heads": 3}, "num_heads must be a multiple of num_kv_heads; got 3 and 2"),
    ],
)
def test_sizes_that_make_no_drafter_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(CONFIG, **change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"d_model": "32"}, "d_model must be of type int; got '32'"),
        ({"gram": True}, "gram must be of type int; got True"),
        ({"gram_encoder": 1}, "gram_encoder must be of type str; got 1"),
        ({"rope": 3}, "rope must be an object; got 3"),
        ({"rope": {"bass": 1.0}}, "rope: .*bass"),
        ({"layers": 2}, "unknown field 'layers'"),
    ],
)
def test_fields_that_are_none_of_a_drafter_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        ChimeraConfig.from_fields(CONFIG.to_fields() | change)


def test_files_from_before_a_field_was_there_have_its_default():
    fields = CONFIG.to_fields()
    del fields["residual_heads"], fields["encoder_mlp_width"]
    assert ChimeraConfig.from_fields(fields) == CONFIG


def test_a_missing_field_is_named():
    fields = CONFIG.to_fields()
    del fields["gram"]
    with pytest.raises(ValueError, match="gram is missing"):
        ChimeraConfig.from_fields(fields)


def test_a_drafter_does_not_hold_the_targets_vocabulary():
    made = random_drafter(tiny_model())
    assert all(CONFIG.vocab_size not in x.shape for x in jax.tree.leaves(made.params))
