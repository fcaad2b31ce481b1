import dataclasses
import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import qwix
from jax import export
from jax.sharding import SingleDeviceSharding
from qwix import QArray

import jax_smash
from eval.chips.program import Program
from jax_smash import cpu, quantise
from jax_smash.cache import Block
from jax_smash.checkpoints import huggingface, orbax
from jax_smash.decode.programs import PROGRAMS
from jax_smash.loading import quantised
from jax_smash.models.projection import project
from jax_smash.plan import step_bytes, tree_bytes
from jax_smash.planning.topology import devices
from jax_smash.quantise import LOW_UNITS, UNIT_ROWS, gather, product, quantise_params, scores
from tests.model_directory import write_model
from tests.tiny import tiny_model

SHAPES = [((64, 24), (0,)), ((64, 2, 12), (0,)), ((2, 3, 8, 40), (0, 1, 2)), ((50, 64), (1,))]
"""Weights as layers have them, and the axes that are contracted."""


def normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def exact(weight: QArray) -> np.ndarray:
    return np.asarray(weight.qvalue, np.float64) * np.asarray(weight.scale, np.float64)


def rounded(x: jax.Array) -> np.ndarray:
    """Returns rows as the products see them, in float64."""
    scale = np.abs(np.asarray(x, np.float32)).max(axis=1, keepdims=True) / np.float32(127.5)
    of_scale = np.asarray(x, np.float32) / scale
    high = np.clip(np.round(of_scale), -127, 127)
    low = np.clip(np.round((of_scale - high) * LOW_UNITS), -127, 127)
    return (high + low.astype(np.float64) / LOW_UNITS) * scale.astype(np.float64)


@pytest.mark.parametrize(("shape", "contracted"), SHAPES)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_weight_is_at_most_half_a_scale_off(shape, contracted, dtype):
    weight = normal(0, *shape).astype(dtype) * jnp.asarray(3, dtype)
    held = quantise.quantise(weight, contracted)
    assert held.qvalue.dtype == jnp.int8
    assert held.scale.shape == tuple(1 if i in contracted else n for i, n in enumerate(shape))
    assert held.scale.dtype == jnp.float32
    off = np.abs(exact(held) - np.asarray(weight, np.float64))
    assert (off <= np.asarray(held.scale) * (0.5 + 1e-4)).all()
    assert off.max() > 0.4 * float(held.scale.min())


def test_integers_and_scales_are_qwixs():
    weight = normal(1, 64, 24)
    held, theirs = quantise.quantise(weight, (0,)), qwix.quantize(weight, jnp.int8, channelwise_axes=(1,))
    # Compiled, a division may differ in its last bit.
    np.testing.assert_allclose(held.scale, theirs.scale, rtol=1e-6)
    apart = np.asarray(held.qvalue, int) - np.asarray(theirs.qvalue, int)
    # The largest values lie half way between two integers, where the last bit decides.
    half_way = np.abs(np.abs(np.asarray(weight / theirs.scale, np.float64)) % 1 - 0.5) < 1e-4
    assert np.abs(apart).max() <= 1
    assert not apart[~half_way].any()


def test_a_channel_of_zeros_stays_zeros():
    weight = normal(2, 32, 8).at[:, 3].set(0.0)
    held = quantise.quantise(weight, (0,))
    assert not np.asarray(held.qvalue)[:, 3].any()
    out = jax.jit(lambda x: product(x, held, axis=0))(normal(3, 1, 32))
    assert float(out[0, 3]) == 0
    assert np.isfinite(out).all()


def test_a_row_of_zeros_gives_zeros_and_one_that_is_no_number_gives_none():
    held = quantise.quantise(normal(4, 32, 8), (0,))
    x = jnp.zeros((2, 32)).at[1, 5].set(jnp.nan)
    out = np.asarray(jax.jit(lambda x: product(x, held, axis=0))(x))
    assert (out[0] == 0).all()
    assert np.isnan(out[1]).all()


@pytest.mark.parametrize(
    ("rows", "inner", "dtype"),
    # By default each pair of two of the three.
    [
        pytest.param(rows, inner, dtype, marks=[pytest.mark.slow] if (i + j + k) % 2 else [])
        for i, rows in enumerate([(1, 1), (1, 4), (3, 2)])
        for j, inner in enumerate([64, 40])
        for k, dtype in enumerate([jnp.float32, jnp.bfloat16])
    ],
)
def test_a_projection_is_the_product_of_what_is_held(rows, inner, dtype):
    weight = quantise.quantise(normal(5, inner, 3, 8), (0,))
    x = normal(6, *rows, inner).astype(dtype)
    expected = np.tensordot(rounded(x.reshape(-1, inner)), exact(weight), axes=1).reshape(*rows, 3, 8)
    out = jax.jit(project)(x, weight)
    assert out.dtype == dtype
    tolerance = 1e-5 if dtype == jnp.float32 else 1e-2
    np.testing.assert_allclose(out.astype(jnp.float32), expected, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("rows", [1, 3, 9])
def test_activations_lose_at_most_a_65_thousandth_of_their_rows_largest(rows):
    x = normal(8, rows, 64) * 10.0 ** normal(7, rows, 64)  # A few values are far larger than the rest.
    high, low = jax.jit(quantise._rounded)(x)
    held = (np.asarray(high.qvalue, float) + np.asarray(low, float) / LOW_UNITS) * np.asarray(high.scale, float)
    off = np.abs(held - np.asarray(x, float)).max(axis=1) / np.abs(np.asarray(x, float)).max(axis=1)
    assert (off < 1 / 64_000).all()
    assert (np.abs(np.asarray(high.qvalue, int)) <= 127).all()


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("tile", [cpu.TILE, 512])
def test_every_platforms_way_gives_qwixs_product(monkeypatch, axis, tile):
    monkeypatch.setattr(cpu, "TILE", tile)
    weight, x = quantise.quantise(normal(9, *[(64, 48), (48, 64)][axis]), (axis,)), normal(10, 9, 64)
    high, low = quantise._rounded(x)
    dimensions = (((1,), (axis,)), ((), ()))
    both = QArray(jnp.concatenate([high.qvalue, low]), jnp.ones((18, 1)))
    with jax.numpy_dtype_promotion("standard"):
        terms = np.asarray(qwix.dot_general(both, weight, dimensions), np.float64)
    expected = (terms[:9] + terms[9:] / LOW_UNITS) / np.asarray(weight.scale.reshape(1, -1), np.float64)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6 * np.abs(expected).max())
    by_cpu = functools.partial(cpu.int8_product, unit=LOW_UNITS)
    for way in (quantise._as_integers, by_cpu):
        close(jax.jit(way, static_argnames="axis")(high.qvalue, low, weight.qvalue, axis=axis), expected)
    one = jax.jit(by_cpu, static_argnames="axis")
    for i in range(9):
        close(one(high.qvalue[i : i + 1], low[i : i + 1], weight.qvalue, axis=axis)[0], expected[i])


@pytest.mark.parametrize("axis", [0, 1])
def test_a_row_hardly_depends_on_the_rows_beside_it(axis):
    weight, x = quantise.quantise(normal(11, 48, 48), (axis,)), normal(12, 9, 48)
    multiplied = jax.jit(lambda x: product(x, weight, axis=axis))
    together = multiplied(x)
    for i in range(9):
        alone = multiplied(x[i : i + 1])[0]
        np.testing.assert_allclose(alone, together[i], rtol=0, atol=1e-6 * float(jnp.abs(alone).max()))


@pytest.mark.parametrize("rows", [1, 2])
def test_the_largest_products_fit_the_integers(rows):
    weight = QArray(jnp.full((256, 8), -128, jnp.int8), jnp.ones((1, 8)))
    x = jnp.full((rows, 256), -5.0)
    out = np.asarray(jax.jit(lambda x: product(x, weight, axis=0))(x))
    np.testing.assert_allclose(out, 128 * 256 * 5, rtol=1e-5)


def test_one_table_serves_the_tokens_and_the_head():
    table = quantise.quantise(normal(13, 50, 32), (1,))
    tokens = jnp.asarray([[3, 49, 0]], jnp.int32)
    np.testing.assert_allclose(gather(table, tokens, jnp.float32)[0], exact(table)[[3, 49, 0]], rtol=1e-6)
    many = jnp.arange(50, dtype=jnp.int32).reshape(2, 25)
    np.testing.assert_allclose(gather(table, many, jnp.float32).reshape(50, 32), exact(table), rtol=1e-6)
    hidden = normal(14, 2, 1, 32)
    expected = rounded(hidden[:, 0]) @ exact(table).T
    out = jax.jit(scores)(hidden, table)
    assert out.shape == (2, 1, 50)
    np.testing.assert_allclose(out[:, 0], expected, atol=1e-5 * np.abs(expected).max())


@functools.cache
def both(*, tied: bool) -> tuple[jax_smash.Model, jax_smash.Model]:
    """Returns a model, and the same with int8 weights."""
    model = tiny_model(tied_head=tied, layer_kinds=("full", "full"), window=0)
    # Compiled as a whole, in a tenth of the time that it takes an operation at a time.
    return model, dataclasses.replace(model, params=jax.jit(quantise_each)(model.params))


def quantise_each(params):
    return {role: quantise_params(weights) for role, weights in params.items()}


@pytest.fixture
def pair():
    return both(tied=True)


TOKENS = np.random.default_rng(0).integers(0, 255, (2, 24), np.int32)


@functools.partial(jax.jit, static_argnums=0)
def forward(definition, params, tokens):
    bound = definition.bind(params)
    position = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32)[None], tokens.shape)
    block = Block.causal(jnp.ones(tokens.shape, bool))
    return bound.unembed(bound.forward(bound.embed(tokens), position, None, block).hidden)


def logits(model: jax_smash.Model) -> np.ndarray:
    return np.asarray(forward(model.definition, model.params["target"], TOKENS))


@pytest.mark.parametrize("tied", [True, False])
def test_a_models_logits_are_near(tied):
    plain, small = (logits(model) for model in both(tied=tied))
    assert 1e-4 < np.abs(small - plain).max() / np.abs(plain).max() < 0.2
    assert np.corrcoef(small.ravel(), plain.ravel())[0, 1] > 0.99


@pytest.mark.parametrize("tied", [True, False])
def test_matrices_are_held_in_a_quarter_and_norms_as_they_were(tied):
    pair = both(tied=tied)
    plain, small = (model.params["target"] for model in pair)
    assert tree_bytes(small) < 0.33 * tree_bytes(plain)
    assert (small["final_norm"]["scale"].get_value() == plain["final_norm"]["scale"].get_value()).all()
    kinds = {type(leaf) for leaf in jax.tree.leaves(small, is_leaf=lambda x: isinstance(x, QArray)) if leaf.ndim > 1}
    assert kinds == {QArray}
    config = pair[0].config
    step = step_bytes(config, small, batch=1, slots=64)
    assert step.cache == step_bytes(config, plain, batch=1, slots=64).cache
    unread = 0 if config.tied_head else config.vocab_size * (config.d_model + 4)
    assert step.weights == tree_bytes(small) - unread


def test_scales_keep_the_weights_logical_axes(pair):
    layer = pair[1].params["target"]["layers"][0]["attention"]["w_qkv"]
    assert layer.get_metadata()["out_sharding"] == ("embed", "kv_heads")
    assert layer.get_value().scale.shape == (1, *layer.get_value().qvalue.shape[1:])


def test_what_integers_stand_for_gives_nearly_the_same_logits(pair):
    plain = dataclasses.replace(pair[1], params={"target": quantise.dequantise_params(pair[1].params["target"])})
    assert not any(x.dtype == jnp.int8 for x in jax.tree.leaves(plain.params))
    ours, theirs = logits(pair[1]), logits(plain)
    assert np.abs(ours - theirs).max() / np.abs(theirs).max() < 0.2


def test_biases_stay_as_they_are():
    model = quantised(tiny_model(qkv_bias=True, mlp_bias=True, output_bias=True))
    layer = model.params["target"]["layers"][0]
    assert layer["attention"]["b_qkv"].get_value().dtype == jnp.float32
    assert isinstance(layer["attention"]["w_qkv"].get_value(), QArray)
    assert layer["mlp"]["b_gate_up"].get_value().dtype == jnp.float32


def test_a_second_text_compiles_nothing(pair):
    model = pair[1]
    (first,) = jax_smash.generate(model, "The cat", max_new_tokens=12)
    compiled = PROGRAMS.compiled
    (second,) = jax_smash.generate(model, "The dog", max_new_tokens=12)
    assert PROGRAMS.compiled == compiled
    assert first.new_tokens == second.new_tokens == 12


def test_rows_decode_as_they_do_alone(pair):
    prompts = ["The cat", "A dog and", "Once", "x", "We saw", "Two"]
    together = jax_smash.generate(pair[1], prompts, max_new_tokens=10, batch_size=6)
    alone = [jax_smash.generate(pair[1], p, max_new_tokens=10)[0] for p in prompts]
    assert [c.token_ids for c in together] == [c.token_ids for c in alone]


def big_floats(program: Program, size: int) -> list[str]:
    """Returns what stores an array of floats as large as a weight; the inside of a fusion stores nothing."""
    inside = {name for i in program.instructions() if i.opcode == "fusion" for name in i.called}
    stored = (i for name, c in program.computations.items() if name not in inside for i in c)
    return [i.shape for i in stored if any(a.kind in ("f32", "bf16", "s32") and a.elements >= size for a in i.arrays)]


def in_a_loop(x, weight):
    def step(_, x):
        return jnp.tanh(product(x, weight, axis=0)).astype(x.dtype)

    return jax.lax.fori_loop(0, 9, step, x)


def test_a_cpus_loop_stores_no_weight_as_floats(optimised):
    weight = QArray(jnp.ones((256, 256), jnp.int8), jnp.ones((1, 256)))
    program = Program.of(jax.jit(in_a_loop).lower(jnp.ones((1, 256)), weight).compile())
    assert not big_floats(program, 256 * 256)


@pytest.mark.xdist_group("tpu")
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="compiling for a TPU needs libtpu")
@pytest.mark.parametrize("rows", [1, 2 * UNIT_ROWS])
def test_a_tpu_multiplies_integers(optimised, rows):
    chip = SingleDeviceSharding(devices("v5e:1x1")[0])

    def abstract(shape, dtype):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=chip)

    weight = QArray(abstract((512, 512), jnp.int8), abstract((1, 512), jnp.float32))
    program = Program.of(jax.jit(in_a_loop).lower(abstract((rows, 512), jnp.bfloat16), weight).compile())
    products = [i for i in program.instructions() if i.opcode in ("dot", "convolution")]
    assert products
    assert all(array.kind == "s32" for i in products for array in i.arrays)
    assert not big_floats(program, 512 * 512)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_other_platforms_are_given_integers_to_multiply(platform):
    weight = QArray(jnp.ones((64, 32), jnp.int8), jnp.ones((1, 32)))
    text = export.export(jax.jit(lambda x: product(x, weight, axis=0)), platforms=[platform])(
        jnp.ones((1, 64))
    ).mlir_module()
    dots = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
    assert len(dots) == 1
    assert "(tensor<8x64xi8>, tensor<64x32xi8>) -> tensor<8x32xi32>" in dots[0]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("int8") / "model")


@pytest.mark.parametrize(("layout", "dtype"), [("huggingface", "bfloat16"), ("orbax", None)])
def test_a_model_is_quantised_while_it_is_loaded(directory, tmp_path, layout, dtype):
    path = jax_smash.convert(directory, tmp_path / layout, to=layout)
    loaded = jax_smash.load(path, weights="int8", dtype=dtype)
    expected = quantise_params(jax_smash.load(path, dtype=dtype).params["target"])
    assert jax.tree.structure(loaded.params["target"]) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(loaded.params), jax.tree.leaves(expected), strict=True):
        assert ours.dtype == theirs.dtype
        assert (ours == theirs).all()
    assert quantise.activation_dtype(loaded.params["target"]) == jnp.dtype(dtype or jnp.float32)


def test_unknown_weights_are_refused_before_anything_is_read():
    with pytest.raises(ValueError, match="weights must be one of plain, int8; got 'int3'"):
        jax_smash.load("no/such-model", weights="int3")


@pytest.mark.parametrize("save", [huggingface.save_params, orbax.save])
def test_int8_weights_are_not_saved(pair, save, tmp_path):
    model = pair[1]
    with pytest.raises(ValueError, match="weights to save must be plain; got int8"):
        save(tmp_path / "out", model.config, model.params["target"])
    assert not (tmp_path / "out").exists()
    save(tmp_path / "out", model.config, quantise.dequantise_params(model.params["target"]))
    assert jax_smash.load(tmp_path / "out").config.num_layers == 2
