import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P
from qwix import QArray

import jax_smash
from jax_smash import SamplingOptions, generate
from jax_smash.cache import Block
from jax_smash.checkpoints import huggingface, orbax
from jax_smash.decode.programs import PROGRAMS
from jax_smash.decode.state import Rows
from jax_smash.loading import quantised, random_model
from jax_smash.methods import make_method
from jax_smash.models.transformer import abstract_params
from jax_smash.quantise import quantise_params
from jax_smash.serve.session import Session
from jax_smash.sharding import (
    PRESETS,
    MeshShape,
    add_virtual_devices,
    axes_sharding,
    check_mesh,
    constrain,
    is_divided,
    make_mesh,
    mesh_of,
    on_each_device,
    on_mesh,
    param_shardings,
    parse_mesh,
    place,
)
from tests.model_directory import write_model
from tests.smashers import base_of
from tests.tiny import tiny_config, tiny_model

WARM = SamplingOptions(temperature=1.0, top_k=50, top_p=0.95, repetition_penalty=1.1)
PROMPTS = ["Once upon a time there was a fox", "Tea?", "The river ran down to the old mill and", "abc abc abc"]
REQUEST = {
    "max_new_tokens": 14,
    "sampling": [SamplingOptions(), WARM, WARM, SamplingOptions()],
    "seed": [7, 8, 9, 10],
    "batch_size": 4,
    "stop": ["jI", "(A"],
}
"""Greedy rows and sampled ones, past the window of the sliding layer; two of them come to a stop string."""

MESHES = ["data=8", "tp=2", "tp=4", "fsdp=2,tp=2", "fsdp=4,tp=2"]
ALIKE = ["tp=2", "fsdp=2,tp=2"]


@pytest.fixture(autouse=True)
def exact():
    with jax.default_matmul_precision("highest"):
        yield


def on(mesh: str, model=None):
    """Returns the small model with its parameters on a mesh."""
    model = tiny_model() if model is None else model
    return dataclasses.replace(model, params={"target": place(model.params["target"], make_mesh(mesh))})


def specs(params) -> dict[str, P]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf.sharding.spec
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }


# Meshes


@pytest.mark.parametrize(
    ("text", "sizes", "shown"),
    [
        ("fsdp=4,tp=2", (1, 4, 2), "fsdp=4,tp=2"),
        ("tp=2, data=3", (3, 1, 2), "data=3,tp=2"),
        ("tp=1", (1, 1, 1), "data=1"),
    ],
)
def test_a_text_names_the_axes_sizes(text, sizes, shown):
    shape = parse_mesh(text)
    assert (shape.sizes, str(shape)) == (sizes, shown)
    assert shape.size == np.prod(sizes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "AXIS=SIZE"),
        ("ep", "AXIS=SIZE"),
        ("tp+fsdp", "AXIS=SIZE pairs, as in fsdp=4,tp=2, or one of dp, fsdp, tp, fsdp\\+tp; got 'tp\\+fsdp'"),
        ("tp=2,", "AXIS=SIZE"),
        ("tp=two", "AXIS=SIZE"),
        ("tp=-2", "AXIS=SIZE"),
        ("tp=2.0", "AXIS=SIZE"),
        ("tp=²", "AXIS=SIZE"),
        ("4,2", "AXIS=SIZE"),
        ("ep=2", "one of data, fsdp, tp; got 'ep'"),
        ("tp=2,tp=2", "named once; got tp twice"),
        ("tp=0", "tp must be at least 1; got 0"),
    ],
)
def test_a_malformed_text_is_refused(text, said):
    for parse in (parse_mesh, check_mesh, make_mesh):
        with pytest.raises(ValueError, match=said):
            parse(text)


@pytest.mark.parametrize(
    ("preset", "devices", "kv_heads", "sizes"),
    [
        ("dp", 8, None, (8, 1, 1)),
        ("fsdp", 8, 4, (1, 8, 1)),
        ("tp", 6, 4, (1, 1, 6)),
        ("fsdp+tp", 8, 4, (1, 2, 4)),
        ("fsdp+tp", 8, 16, (1, 1, 8)),
        ("fsdp+tp", 12, 8, (1, 3, 4)),
        ("fsdp+tp", 8, 3, (1, 8, 1)),
        (" dp ", 1, None, (1, 1, 1)),
    ],
)
def test_a_preset_divides_the_devices_at_hand(preset, devices, kv_heads, sizes):
    assert parse_mesh(preset, devices=devices, kv_heads=kv_heads).sizes == sizes


def test_a_preset_takes_all_devices_that_it_may_choose_from():
    assert dict(make_mesh("fsdp+tp", kv_heads=2).shape) == {"data": 1, "fsdp": jax.device_count() // 2, "tp": 2}
    assert make_mesh("tp", devices=jax.devices()[:2]) == make_mesh("tp=2")
    assert parse_mesh("dp").size == jax.device_count()


def test_a_preset_by_heads_needs_to_be_told_of_them():
    for preset in PRESETS:
        check_mesh(preset)
    with pytest.raises(ValueError, match=r"mesh fsdp\+tp needs the model's number of KV heads; give sizes"):
        make_mesh("fsdp+tp")


def test_a_mesh_has_all_axes_and_takes_the_first_devices():
    mesh = make_mesh("tp=2")
    assert dict(mesh.shape) == {"data": 1, "fsdp": 1, "tp": 2}
    assert list(mesh.devices.flat) == jax.devices()[:2]


@dataclasses.dataclass(frozen=True)
class Chip:
    """A device of a TPU topology, as far as the making of a mesh asks."""

    id: int
    coords: tuple[int, ...]
    platform: str = "tpu"
    device_kind: str = "TPU v5"
    core_on_chip: int = 0
    process_index: int = 0
    slice_index: int = 0


def test_a_mesh_may_divide_an_axis_of_the_topology():
    """No axes of 4x4x4 multiply to 8."""
    chips = [Chip(i, coords) for i, coords in enumerate(np.ndindex(4, 4, 4))]
    mesh = inspect.unwrap(make_mesh)("data=8,tp=8", devices=chips)  # Types are not checked: they are no devices of JAX.
    assert dict(mesh.shape) == {"data": 8, "fsdp": 1, "tp": 8}
    assert {chip.id for chip in mesh.devices.flat} == set(range(64))
    for group in mesh.devices[:, 0]:
        sides = [len(set(side)) for side in zip(*(chip.coords for chip in group), strict=True)]
        assert sorted(sides) == [1, 2, 4]  # Those that exchange the most are neighbours.


def test_a_mesh_larger_than_the_devices_is_refused():
    with pytest.raises(ValueError, match=f"mesh fsdp=16,tp=2 needs 32 devices; got {jax.device_count()}"):
        make_mesh("fsdp=16,tp=2")


def test_devices_in_use_stay_as_many_as_they_are():
    jax.devices()
    before = jax.config.jax_num_cpu_devices
    for text in ("tp=16", "tp=1000000", "tp", "fsdp+tp", None):
        add_virtual_devices(text)
    assert jax.config.jax_num_cpu_devices == before


# Rules


def test_every_weight_is_divided_by_its_axes():
    _, params = abstract_params(tiny_config(tied_head=False))
    mesh = make_mesh("data=2,fsdp=2,tp=2")
    shardings = {path: v.get_value().spec for path, v in nnx.to_flat_state(param_shardings(params, mesh))}
    layer = ("layers", 0)
    assert shardings["embedding",] == shardings["head",] == P(None, "fsdp")  # 259 tokens do not divide by two.
    assert shardings[(*layer, "attention", "w_qkv")] == P("fsdp", "tp")
    assert shardings[(*layer, "attention", "w_o")] == P("tp", None, None, "fsdp")
    assert shardings[(*layer, "mlp", "w_gate_up")] == P(None, "fsdp", "tp")
    assert shardings[(*layer, "mlp", "w_down")] == P("tp", "fsdp")
    assert shardings[(*layer, "mlp_norm", "scale")] == P()


def test_heads_and_vocabulary_that_do_not_divide_are_whole():
    _, params = abstract_params(tiny_config(vocab_size=260))
    specs = {p: v.get_value().spec for p, v in nnx.to_flat_state(param_shardings(params, make_mesh("tp=4")))}
    assert specs["embedding",] == P("tp")
    assert specs["layers", 0, "attention", "w_qkv"] == P()
    assert specs["layers", 0, "mlp", "w_down"] == P("tp")


@pytest.mark.parametrize(
    ("changes", "mesh", "said"),
    [
        ({"mlp_width": 50}, "tp=4", r"mlp.*'mlp' must be divisible by the mesh's tp=4; got size 50"),
        ({"d_model": 36}, "fsdp=8", r"'embed' must be divisible by the mesh's fsdp=8; got size 36"),
    ],
)
def test_a_weight_that_does_not_divide_is_named(changes, mesh, said):
    _, params = abstract_params(tiny_config(**changes))
    with pytest.raises(ValueError, match=said):
        param_shardings(params, make_mesh(mesh))


def test_an_axis_without_a_rule_is_named():
    params = nnx.State({"w": nnx.Param(jnp.ones((2, 2)), out_sharding=("embed", "width"), eager_sharding=False)})
    with pytest.raises(ValueError, match=r"w must have axes with a rule .*; got 'width'"):
        param_shardings(params, make_mesh("tp=2"))


def test_an_optimisers_moments_lie_as_their_weights_do():
    _, params = abstract_params(tiny_config())
    mesh = make_mesh("fsdp=2,tp=2")
    state = jax.eval_shape(optax.adamw(1e-3).init, params)
    moments = param_shardings(state, mesh)[0]
    assert jax.tree.leaves(moments.mu) == jax.tree.leaves(moments.nu) == jax.tree.leaves(param_shardings(params, mesh))
    assert moments.count.spec == P()


def test_int8_weights_lie_as_the_floats_do_and_scales_with_their_channels():
    _, params = abstract_params(tiny_config())
    mesh = make_mesh("fsdp=2,tp=2")
    plain = nnx.to_flat_state(param_shardings(params, mesh))
    small = nnx.to_flat_state(param_shardings(jax.eval_shape(quantise_params, params), mesh))
    quantised_ones = 0
    for (path, whole), (_, pair) in zip(plain, small, strict=True):
        held = pair.get_value()
        if isinstance(held, QArray):
            quantised_ones += 1
            assert held.qvalue == whole.get_value(), path
        else:
            assert held == whole.get_value(), path
    assert quantised_ones == 10  # Four a layer, the table and the head.
    scale = dict(small)["layers", 0, "attention", "w_qkv"].get_value().scale
    assert scale.spec == P(None, "tp")  # The contracted axis has one entry.


@pytest.mark.parametrize(
    ("shape", "axes", "spec"),
    [
        ((8, 3), ("batch",), P(("data", "fsdp"))),
        ((2, 3), ("batch",), P("data")),
        ((1, 3), ("batch",), P()),
        ((6, 5), ("batch", "kv_heads"), P("data")),
        ((4, 6), ("batch", "kv_heads"), P(("data", "fsdp"), "tp")),
        ((4, 6), ("rows", "embed"), P("data", "fsdp")),
        ((4, 4, 4), ("mlp", None, "vocab"), P("tp")),
    ],
)
def test_an_axis_takes_the_mesh_axes_that_divide_it_once_each(shape, axes, spec):
    assert axes_sharding(shape, axes, make_mesh("data=2,fsdp=2,tp=2")).spec == spec


def test_constraints_mean_nothing_without_a_mesh_and_the_mesh_with_one():
    def f(x):
        return constrain(x + 1, "rows", "embed"), constrain(x + 2, ..., "vocab"), jnp.int32(is_divided())

    x = jnp.zeros((4, 8))
    assert [str(e.primitive) for e in jax.make_jaxpr(f)(x).eqns].count("sharding_constraint") == 0
    assert not jax.jit(f)(x)[2]
    with on_mesh(make_mesh("fsdp=2,tp=2")):
        first, last, divided = jax.jit(f)(x)
    assert (first.sharding.spec, last.sharding.spec[-1]) == (P(None, "fsdp"), "tp")
    assert divided


def test_a_device_works_on_its_own_share():
    def function(pair, row):
        return tuple(x + row[:, None] * pair[0].shape[0] for x in pair)

    x, row = jnp.arange(16.0).reshape(4, 4), jnp.arange(4.0)
    arguments = (((x, 2 * x), ("batch", "embed")), (row, ("batch",)))
    np.testing.assert_array_equal(on_each_device(function, *arguments)[1], 2 * x + 4 * row[:, None])
    with on_mesh(make_mesh("data=2,tp=2")):
        first, second = jax.jit(lambda: on_each_device(function, *arguments))()
    np.testing.assert_array_equal(second, 2 * x + 2 * row[:, None])
    assert first.sharding.spec == P("data")


# Loading


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """One model in both layouts."""
    folder = tmp_path_factory.mktemp("models")
    plain = write_model(folder / "plain")
    config = huggingface.read_config(plain)[0]
    orbax.save(folder / "orbax", config, huggingface.load_params(plain)[1])
    return {"huggingface": plain, "orbax": folder / "orbax"}


@pytest.mark.parametrize("weights", ["plain", "int8"])
@pytest.mark.parametrize("layout", ["huggingface", "orbax"])
def test_tensors_are_read_onto_their_devices(directories, layout, weights):
    whole = jax_smash.load(directories[layout], weights=weights)
    divided = jax_smash.load(directories[layout], weights=weights, mesh="fsdp=2,tp=2")
    expected = place(whole.params["target"], make_mesh("fsdp=2,tp=2"))
    assert specs(divided.params["target"]) == specs(expected)
    assert P(None, "fsdp", "tp") in specs(divided.params["target"]).values()
    for got, wanted in zip(jax.tree.leaves(divided.params), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert mesh_of(whole.params) is None


def test_a_mesh_that_does_not_fit_the_model_is_refused_before_weights_are_read(directories, monkeypatch):
    monkeypatch.setattr(huggingface, "_aligned", None)  # Whoever reads a tensor asks for memory first.
    with pytest.raises(TypeError):
        jax_smash.load(directories["huggingface"])
    with pytest.raises(ValueError, match="must be divisible by the mesh's"):
        jax_smash.load(directories["huggingface"], mesh=make_mesh(MeshShape(fsdp=7)))


def test_random_weights_are_the_same_on_any_mesh(directories):
    shape = str(directories["huggingface"])
    whole, divided = random_model(shape), random_model(shape, mesh="data=2,fsdp=2,tp=2")
    for got, wanted in zip(jax.tree.leaves(divided.params), jax.tree.leaves(whole.params), strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert P("tp", "fsdp") in specs(divided.params).values()


def test_a_preset_goes_by_the_models_heads(directories):
    heads = huggingface.read_config(directories["huggingface"])[0].num_kv_heads
    expected = make_mesh("fsdp+tp", kv_heads=heads)
    assert 1 < expected.shape["tp"] < jax.device_count()
    assert mesh_of(jax_smash.load(directories["huggingface"], mesh="fsdp+tp").params) == expected


# Decoding


def told(completions):
    return [(c.token_ids, c.text, c.finish_reason, c.target_forwards) for c in completions]


@pytest.fixture(scope="module")
def alone():
    """What a single device makes of the request."""
    with jax.default_matmul_precision("highest"):
        completions = generate(tiny_model(), PROMPTS, **REQUEST)
    assert sorted(c.finish_reason for c in completions) == ["length", "length", "stop_string", "stop_string"]
    return completions


# The other two divide what these divide.
@pytest.mark.parametrize("mesh", [pytest.param(m, marks=pytest.mark.slow) if m in ALIKE else m for m in MESHES])
def test_every_mesh_gives_a_single_devices_tokens(alone, mesh):
    model = on(mesh)
    assert told(generate(model, PROMPTS, **REQUEST)) == told(alone)
    compiled, pieces = PROGRAMS.compiled, dict.fromkeys(range(len(PROMPTS)), "")

    def add(row, text):
        pieces[row] += text

    again = generate(model, PROMPTS, steps=3, on_text=add, **REQUEST)
    assert told(again) == told(alone)
    assert list(pieces.values()) == [c.text for c in alone]
    assert PROGRAMS.compiled == compiled


@pytest.mark.slow
def test_one_row_decodes_on_a_mesh_of_many(alone):
    options = REQUEST | {"sampling": WARM, "seed": 8}
    assert told(generate(on("fsdp=4,tp=2"), PROMPTS[1], **options)) == told(alone[1:2])


def test_rows_and_cache_are_divided():
    model = on("fsdp=4,tp=2")
    session = Session(
        model,
        make_method(model, "ar"),
        slots=64,
        max_new_tokens=8,
        sampling=[SamplingOptions()] * 4,
        seeds=[0] * 4,
    )

    def check(rows: Rows):
        assert {x.sharding.spec for x in (*rows.cache.keys, *rows.cache.values)} == {P("fsdp", "tp")}
        own = {x.sharding.spec for x in jax.tree.leaves(rows) if x.ndim < 4}
        assert own == {P("fsdp")}

    check(session.state.rows)
    session.read([[5, 6, 7], [8], [9, 10], [11]])
    check(session.state.rows)
    session.run(4)
    check(session.state.rows)
    compiled = PROGRAMS.compiled
    session.read([[5], [6], [], [7]])
    check(session.state.rows)
    session.run(4)
    assert PROGRAMS.compiled == compiled


@pytest.mark.slow
def test_samples_and_log_probabilities_are_a_single_devices():
    options = {"max_new_tokens": 10, "sampling": WARM, "num_samples": 4, "seed": 3, "log_probs": 2}
    results = [
        generate(model, PROMPTS[:2], prompt_log_probs=1, **options) for model in (tiny_model(), on("fsdp=2,tp=2"))
    ]
    assert told(results[0]) == told(results[1])
    for one, other in zip(*results, strict=True):
        for name in ("log_probs", "prompt_log_probs"):
            ours, theirs = getattr(one, name), getattr(other, name)
            assert [(e.token, [t for t, _ in e.top]) for e in ours] == [
                (e.token, [t for t, _ in e.top]) for e in theirs
            ]
            np.testing.assert_allclose([e.log_prob for e in ours], [e.log_prob for e in theirs], atol=1e-4)


@pytest.mark.slow
def test_int8_weights_give_a_single_devices_tokens():
    model = quantised(tiny_model())
    options = {"max_new_tokens": 12}
    expected = generate(model, PROMPTS[:2], **options)
    divided = quantised(on("fsdp=2,tp=2"))
    assert specs(divided.params) == specs(on("fsdp=2,tp=2", model).params)
    assert told(generate(divided, PROMPTS[:2], **options)) == told(expected)


@pytest.mark.parametrize("weights", ["plain", "int8"])
@pytest.mark.parametrize("name", ["olmo2", "granite-smollm3"])
def test_a_model_with_other_norms_and_scales_says_the_same_over_devices(name, weights):
    graphdef, params = nnx.split(base_of(name))
    params = quantise_params(params) if weights == "int8" else params
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 255, (2, 9)), jnp.int32)

    def logits(params):
        model = nnx.merge(graphdef, params)
        position = jnp.broadcast_to(jnp.arange(9, dtype=jnp.int32)[None], tokens.shape)
        block = Block.causal(jnp.ones(tokens.shape, bool))
        return model.unembed(model.forward(model.embed(tokens), position, model.init_cache(2, 16, 9), block).hidden)

    whole = jax.jit(logits)(params)
    mesh = make_mesh("fsdp=2,tp=2")
    with on_mesh(mesh):
        divided = jax.jit(logits)(place(params, mesh))
    np.testing.assert_allclose(divided, whole, rtol=0, atol=1e-4 * float(np.abs(whole).max()))
