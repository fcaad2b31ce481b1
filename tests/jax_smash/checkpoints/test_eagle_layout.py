"""EAGLE-3 drafters as vLLM and SGLang name their tensors."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from jax_smash.cache import Block
from jax_smash.checkpoints.eagle import EagleModules
from jax_smash.checkpoints.eagle_layout import CONFIG, FLAGS, IDS, WEIGHTS, export_eagle, import_eagle
from jax_smash.config import RopeConfig
from jax_smash.models.definition import NnxModel
from jax_smash.models.eagle import random_eagle
from jax_smash.models.eagle_config import EagleConfig
from jax_smash.quantise import quantise_params
from tests.tiny import tiny_config

LAYERS = 9
TARGET = tiny_config(num_layers=LAYERS, layer_kinds=("full",) * LAYERS)
TOKENS = [2, 3, 9, 40, 77]
ROPES = (
    RopeConfig(scaling="dynamic", factor=4.0, original_positions=128),
    RopeConfig(scaling="llama3", factor=8.0, original_positions=128, low=1.0, high=4.0),
    RopeConfig(scaling="yarn", factor=4.0, original_positions=128, low=1.0, high=32.0, attention_factor=1.1),
)
D, V = TARGET.d_model, TARGET.vocab_size


def drafter(dtype=jnp.float32, tokens=TOKENS, **changes):
    """Returns a random drafter whose norms differ from each other."""
    config = EagleConfig.for_target(TARGET, head_size=len(tokens) if tokens else V, **changes)
    graphdef, params = random_eagle(config, 3, dtype, tokens=tokens)
    rng = np.random.default_rng(0)
    leaves = [
        (path, v.replace(v.get_value() + jnp.asarray(rng.normal(0, 0.3, v.shape), dtype)) if path[-1] == "scale" else v)
        for path, v in nnx.to_flat_state(params)
    ]
    params = nnx.from_flat_state(leaves)
    return EagleModules(config, NnxModel(graphdef), params, base_fingerprint="ab", trained_length=64)


def change(folder, fields=None, tensors=None, drop=()):
    """Changes a published folder's fields and tensors."""
    raw = json.loads((folder / CONFIG).read_text()) | (fields or {})
    (folder / CONFIG).write_text(json.dumps({name: value for name, value in raw.items() if value != "absent"}))
    if tensors or drop:
        held = {name: x for name, x in load_file(folder / WEIGHTS).items() if name not in drop} | (tensors or {})
        save_file(held, folder / WEIGHTS)


@pytest.fixture
def folder(tmp_path):
    export_eagle(tmp_path / "published", drafter())
    return tmp_path / "published"


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("layer_ids", ["inputs", "outputs"])
@pytest.mark.parametrize(
    ("tokens", "changes"),
    [
        (TOKENS, {}),
        (None, {"tap_norms": True, "feeds_normed": True}),
        (TOKENS, {"residual_normed": True}),
        *((TOKENS, {"rope": rope, "max_positions": 512}) for rope in ROPES),
    ],
)
def test_a_drafter_comes_back_bit_for_bit(tmp_path, dtype, layer_ids, tokens, changes):
    made = drafter(dtype, tokens, **changes)
    export_eagle(tmp_path / "a", made, layer_ids=layer_ids)
    found = import_eagle(tmp_path / "a", TARGET)
    assert (found.config, found.base_fingerprint, found.trained_length) == (made.config, "ab", 64)
    before, after = (dict(nnx.to_flat_state(m.params)) for m in (made, found))
    assert {*before} == {*after}
    for path, variable in before.items():
        assert variable.get_value().dtype == after[path].get_value().dtype
        np.testing.assert_array_equal(variable.get_value(), after[path].get_value())
    export_eagle(tmp_path / "b", found, layer_ids=layer_ids)
    for name in (CONFIG, WEIGHTS):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_ids_of_layers_and_flags_of_norms_are_always_written(folder, tmp_path):
    raw = json.loads((folder / CONFIG).read_text())
    flags = {"norm_before_residual": False, "norm_output": False, "fc_norm": False, "norm_before_fc": False}
    assert raw["eagle_config"] == {IDS: [2, 4, 6], "use_aux_hidden_state": True} | flags
    assert raw | flags | {IDS: [2, 4, 6]} == raw
    assert raw["num_aux_hidden_states"] == 3
    export_eagle(tmp_path / "sglang", drafter(), layer_ids="outputs")
    raw = json.loads((tmp_path / "sglang" / CONFIG).read_text())
    assert raw["eagle_config"][IDS] == raw[IDS] == [1, 3, 5]


@pytest.mark.parametrize("layer_ids", ["inputs", "outputs"])
def test_the_names_are_those_that_loaders_know(tmp_path, layer_ids):
    export_eagle(tmp_path / "a", drafter(tap_norms=True, feeds_normed=True), layer_ids=layer_ids)
    layer = {f"self_attn.{name}_proj" for name in "qkvo"} | {f"mlp.{name}_proj" for name in ("gate", "up", "down")}
    layer |= {"input_layernorm", "hidden_norm", "post_attention_layernorm"}
    named = {"fc", "norm", "lm_head", *(f"midlayer.{name}" for name in layer), *(f"fc_norm.{i}" for i in range(3))}
    held = load_file(tmp_path / "a" / WEIGHTS)
    assert {*held} == {"d2t", "t2d", *(f"{name}.weight" for name in named)}
    assert (held["d2t"].dtype, held["t2d"].dtype) == (np.int64, bool)
    np.testing.assert_array_equal(held["d2t"] + np.arange(len(TOKENS)), TOKENS)


def test_norms_of_taps_without_what_goes_on_are_refused(tmp_path):
    export_eagle(tmp_path / "a", drafter(tap_norms=True, feeds_normed=True))
    change(tmp_path / "a", {"norm_output": "absent", "eagle_config": {}})
    with pytest.raises(ValueError, match=r"norm_output must be told beside fc_norm: true in EAGLE-3\.1"):
        import_eagle(tmp_path / "a", TARGET)


def test_a_head_of_all_tokens_needs_no_offsets(tmp_path):
    made = drafter(tokens=None)
    export_eagle(tmp_path / "a", made)
    change(tmp_path / "a", drop=("d2t", "t2d"))
    found = import_eagle(tmp_path / "a", TARGET)
    assert found.config == made.config
    np.testing.assert_array_equal(found.params["head"][...], made.params["head"][...])
    assert "tokens" not in found.params


def plain(tensors, taps, vectors, config, flags):
    """Returns the head's logits of each entry, and the feature that goes on to its children, in the files' names."""
    h, n, k = config.head_width, config.num_heads, config.num_kv_heads

    def norm(x, name):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + config.norm_epsilon) * tensors[f"{name}.weight"]

    def rotated(x):
        angle = np.arange(len(x))[:, None] * config.rope.base ** -(np.arange(0, h, 2) / h)
        cos, sin = (np.tile(f(angle), 2)[:, None] for f in (np.cos, np.sin))
        half = np.concatenate([-x[..., h // 2 :], x[..., : h // 2]], axis=-1)
        return x * cos + half * sin

    if flags["fc_norm"]:
        taps = [norm(tap, f"fc_norm.{i}") for i, tap in enumerate(taps)]
    joined = np.concatenate(taps, axis=-1) @ tensors["fc.weight"].T
    normed = norm(joined, "midlayer.hidden_norm")
    read = np.concatenate([norm(vectors, "midlayer.input_layernorm"), normed], axis=-1)
    q, key, value = (
        (read @ tensors[f"midlayer.self_attn.{name}_proj.weight"].T).reshape(len(read), -1, h) for name in "qkv"
    )
    q, key = rotated(q), np.repeat(rotated(key), n // k, axis=1)
    scores = np.einsum("tnh,snh->nts", q, key) * h**-0.5 + np.triu(np.full((len(q), len(q)), -1e9), 1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out = np.einsum("nts,snh->tnh", weights, np.repeat(value, n // k, axis=1)).reshape(len(q), -1)
    x = (normed if flags["norm_before_residual"] else joined) + out @ tensors["midlayer.self_attn.o_proj.weight"].T
    inner = norm(x, "midlayer.post_attention_layernorm")
    gate, up = (inner @ tensors[f"midlayer.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    x = x + (gate / (1 + np.exp(-gate)) * up) @ tensors["midlayer.mlp.down_proj.weight"].T
    hidden = norm(x, "norm")
    return hidden @ tensors["lm_head.weight"].T, hidden if flags["norm_output"] else x


@pytest.mark.parametrize(
    "on",
    [
        (),
        ("fc_norm", "norm_output"),
        ("fc_norm", "norm_output", "norm_before_residual"),
        ("norm_before_residual",),
    ],
    ids="+".join,
)
def test_imported_weights_compute_what_the_names_and_flags_say(tmp_path, on):
    folder, flags = tmp_path / "published", {name: name in on for name in FLAGS}
    export_eagle(folder, drafter(**{FLAGS[name]: True for name in on}))
    assert {name: json.loads((folder / CONFIG).read_text())[name] for name in FLAGS} == flags
    rng = np.random.default_rng(1)
    tensors = {
        name: x if x.dtype in (np.int64, bool) else rng.normal(0, 0.3, x.shape).astype(np.float32)
        for name, x in load_file(folder / WEIGHTS).items()
    }
    save_file(tensors, folder / WEIGHTS)
    made = import_eagle(folder, TARGET)
    model = made.definition.bind(made.params)
    taps, vectors = rng.normal(size=(3, 1, 7, D)).astype(np.float32), rng.normal(size=(1, 7, D)).astype(np.float32)
    features = model.join([jnp.asarray(tap) for tap in taps])
    position = jnp.arange(7, dtype=jnp.int32)[None]
    block = Block.causal(jnp.ones((1, 7), bool))
    out = model.forward(jnp.asarray(vectors), features, position, None, block)
    logits = np.asarray(model.unembed(out.hidden))[0]
    expected, feature = plain(tensors, taps[:, 0], vectors[0], made.config, flags)
    np.testing.assert_allclose(logits[:, TOKENS], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(out.feature[0], feature, rtol=1e-4, atol=1e-4)
    assert np.isneginf(np.delete(logits, TOKENS, axis=1)).all()


@pytest.mark.parametrize("prefix", ["layers.0.", "model.layers.0."])
def test_other_names_of_the_layer_are_read(folder, prefix):
    tensors = {name.replace("midlayer.", prefix): x for name, x in load_file(folder / WEIGHTS).items()}
    before = import_eagle(folder, TARGET)
    save_file(tensors, folder / WEIGHTS)
    found = import_eagle(folder, TARGET)
    np.testing.assert_array_equal(before.params["attention"]["w_o"][...], found.params["attention"]["w_o"][...])


@pytest.mark.parametrize(
    ("ids", "reading", "taps"),
    [
        ([2, 4, 6], None, (2, 4, 6)),
        ([1, 3, 5], None, (2, 4, 6)),
        ([1, 3, 5], "inputs", (1, 3, 5)),
        ([0, 4, 8], "outputs", (1, 5, 9)),
        (None, None, (2, 4, 6)),
    ],
)
def test_ids_are_what_enters_or_what_leaves_layers(folder, ids, reading, taps):
    # They stand in either place, or in both.
    for outer, inner in ((None, {IDS: ids}), (ids, {}), (ids, {IDS: None}), (ids, {IDS: ids})):
        change(folder, {IDS: outer, "eagle_config": inner})
        assert import_eagle(folder, TARGET, layer_ids=reading).config.taps == taps


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {IDS: [1, 4, 7], "eagle_config": {}},
            r"\[1, 4, 7\] may mean what enters these layers \(vLLM\) or what leaves",
        ),
        ({IDS: [2, 4, 9], "eagle_config": {}}, r"must be from 0 to 8, the target's layers; got \[2, 4, 9\]"),
        ({IDS: "2,4,6", "eagle_config": {}}, "must be a list of whole numbers; got '2,4,6'"),
        ({"eagle_config": {IDS: [1, 4, 6]}}, r"is \[2, 4, 6\], and within eagle_config \[1, 4, 6\]"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state must be true"),
        ({"eagle_config": [1]}, r"config.json: eagle_config must be an object; got \[1\]"),
        ({"num_aux_hidden_states": 4}, "num_aux_hidden_states must be 3, as many as there are ids of layers; got 4"),
        ({"sliding_window": 8}, "a drafter with a window is not supported; got sliding_window 8"),
        ({"is_causal": False}, "is_causal must be true; got False"),
        ({"base_fingerprint": 3}, "base_fingerprint must be a text; got 3"),
        ({"trained_length": -1}, "trained_length must be a number of entries from 1; got -1"),
        ({"vocab_size": 99}, rf"the drafter has a vocabulary of 99; the target's is {V}"),
        ({"hidden_size": 64, "head_dim": 8}, "the drafter has a width of 64; the target's is 32"),
        ({"target_hidden_size": 64}, "the drafter has a width of the target of 64; the target's is 32"),
        ({"num_hidden_layers": 2}, "num_hidden_layers must be 1; got 2"),
        ({"hidden_act": "relu"}, "activation 'relu'"),
        ({"hidden_act": "gelu_new"}, "a drafter's hidden_act must be silu; got gelu_tanh"),
        ({"attention_bias": True}, "a drafter with biases is not supported"),
        ({"eagle_config": {"norm_before_fc": True}}, "norm_before_fc, one norm over all joined taps, is not supported"),
        ({"norm_before_fc": True}, "norm_before_fc, one norm over all joined taps, is not supported"),
        ({"norm_output": True}, "norm_output must be true or false; got True and False"),
        ({"norm_output": 0}, "norm_output must be true or false; got 0 and False"),
        ({"norm_before_residual": 1, "eagle_config": {}}, "norm_before_residual must be true or false; got 1"),
        ({"norm_before_residual": [True], "eagle_config": {}}, r"norm_before_residual must be .*; got \[True\]"),
        ({"fc_norm": True, "eagle_config": {}}, "fc_norm is True, but tensors fc_norm are not there"),
        (
            {"speculators_model_type": "eagle3", "norm_before_residual": "absent", "eagle_config": {}},
            "norm_before_residual must be told",
        ),
        ({"intermediate_size": 50}, r"do not fit its configuration: of another shape: midlayer.mlp.gate_proj.weight"),
        ({"draft_vocab_size": 6}, r"d2t must be \[6\], got \[5\]"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(folder, fields, said):
    change(folder, fields)
    with pytest.raises(ValueError, match=said):
        import_eagle(folder, TARGET)


@pytest.mark.parametrize(
    ("tensors", "drop", "said"),
    [
        (
            {"midlayer.self_attn.q_proj.bias": np.zeros(32, np.float32)},
            (),
            "unexpected: midlayer.self_attn.q_proj.bias",
        ),
        ({}, ("fc.weight",), r"missing: fc.weight \[32, 96\]"),
        ({}, ("d2t",), r"missing: d2t \[5\]"),
        ({"d2t": np.full(5, V, np.int64)}, (), f"d2t in .*: tokens must be ids from 0 to {V - 1} in rising order"),
        ({"d2t": np.array([0, -1, 0, 0, 0])}, (), "in rising order, each once"),
        ({"d2t": np.full(5, 0.5, np.float32)}, (), "d2t in .* must hold whole numbers; got float32"),
        # A cast of NaN would warn.
        ({"d2t": np.full(5, np.nan)}, (), "d2t in .* must hold whole numbers; got float64"),
        ({"d2t": np.ones(5, bool)}, (), "d2t in .* must hold whole numbers; got bool"),
        ({"t2d": np.full(V, 0.5, np.float32)}, (), "t2d in .* must hold true or false, or 0 or 1; got float32"),
        ({"t2d": np.full(V, 2, np.int64)}, (), "t2d in .* must hold true or false, or 0 or 1; got int64"),
        ({"t2d": np.zeros(V, bool)}, (), "t2d in .* must mark the tokens that d2t names"),
        ({"norm.weight": np.full(32, np.nan, np.float32)}, (), "norm.weight in .* holds NaN or infinity"),
        ({"layers.0.hidden_norm.weight": np.ones(32, np.float32)}, (), "holds a tensor under two names"),
        ({"input_norm.weight": np.ones(3 * D, np.float32)}, (), "norm_before_fc, one norm over all joined taps"),
        ({"embed_tokens.weight": np.ones((V, D), np.float32)}, (), "give the target's vectors, which they must be"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(folder, tensors, drop, said):
    change(folder, tensors=tensors, drop=drop)
    with pytest.raises(ValueError, match=said):
        import_eagle(folder, TARGET)


def test_the_tokens_may_be_marked_by_numbers(folder):
    held = load_file(folder / WEIGHTS)
    change(folder, tensors={"t2d": held["t2d"].astype(np.int64), "d2t": held["d2t"].astype(np.int32)})
    np.testing.assert_array_equal(import_eagle(folder, TARGET).params["tokens"][...], TOKENS)


def test_a_drafters_vectors_must_be_the_targets(folder):
    vectors = np.random.default_rng(0).normal(size=(V, D)).astype(np.float32)
    change(folder, tensors={"embed_tokens.weight": vectors})
    assert import_eagle(folder, TARGET, embedding=lambda: jnp.asarray(vectors, jnp.bfloat16))
    with pytest.raises(ValueError, match="must be the target's vectors"):
        import_eagle(folder, TARGET, embedding=lambda: vectors + 1)


def test_a_field_of_a_window_that_is_off_and_an_empty_mark_say_nothing(folder):
    change(folder, {"sliding_window": 8, "use_sliding_window": False, "base_fingerprint": None})
    assert import_eagle(folder, TARGET).base_fingerprint == ""


def test_ropes_that_the_layout_cannot_tell_are_not_exported(tmp_path):
    for rope, said in (
        (RopeConfig(partial=0.5), "rotates whole heads; the drafter rotates 0.5 of each"),
        (RopeConfig(scaling="dynamic", factor=4.0, original_positions=100), "100 one of 400; the drafter has 512"),
    ):
        with pytest.raises(ValueError, match=said):
            export_eagle(tmp_path / "a", drafter(rope=rope, max_positions=512))
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("rows", [np.ones((V, D - 1), np.float32), np.ones((5, D), np.float32)])
def test_rows_of_another_target_are_not_exported(tmp_path, rows):
    with pytest.raises(ValueError, match=rf"the target's vectors must be \[{V}, {D}\]; got"):
        export_eagle(tmp_path / "a", drafter(own_rows=False), rows=lambda: rows)
    assert not (tmp_path / "a").exists()


def test_weights_in_int8_are_not_exported(tmp_path):
    made = drafter()
    with pytest.raises(ValueError, match="weights to save must be plain; got int8"):
        export_eagle(tmp_path / "a", dataclasses.replace(made, params=quantise_params(made.params)))


def test_pickled_weights_are_refused_with_the_way_to_convert_them(folder):
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80")
    with pytest.raises(
        ValueError, match=r"is pickled: .* never opened.*torch.load\('pytorch_model.bin', weights_only="
    ):
        import_eagle(folder, TARGET)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no model.safetensors"):
        import_eagle(folder, TARGET)


def test_taps_that_ids_cannot_tell_are_not_exported(tmp_path):
    config = EagleConfig.for_target(TARGET, taps=(3, LAYERS))
    graphdef, params = random_eagle(config)
    made = EagleModules(config, NnxModel(graphdef), params)
    with pytest.raises(ValueError, match=r"taps \[3, 9\] cannot be told by what enters layers"):
        export_eagle(tmp_path / "a", made)
    with pytest.raises(ValueError, match="only where the first tap is 2"):
        export_eagle(tmp_path / "a", dataclasses.replace(made), layer_ids="outputs")
    with pytest.raises(ValueError, match="SGLang does not join a single tap"):
        export_eagle(tmp_path / "a", drafter(taps=(2,)), layer_ids="outputs")
    assert not (tmp_path / "a").exists()
