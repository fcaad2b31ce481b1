"""EAGLE-1 drafters as vLLM and SGLang name their tensors."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from jax_smash.cache import Block
from jax_smash.checkpoints.eagle1 import Eagle1Modules
from jax_smash.checkpoints.eagle1_layout import CONFIG, WEIGHTS, export_eagle1, import_eagle1, is_published_eagle1
from jax_smash.checkpoints.eagle_layout import export_eagle
from jax_smash.models.definition import NnxModel
from jax_smash.models.eagle1 import Eagle1Config, random_eagle1
from tests.eagle import random_drafter
from tests.jax_smash.checkpoints.test_eagle_layout import ROPES
from tests.tiny import tiny_config, tiny_model

TARGET = tiny_config()
D, V = TARGET.d_model, TARGET.vocab_size
VECTORS = np.random.default_rng(8).normal(size=(V, D)).astype(np.float32)


def drafter(dtype=jnp.float32, **changes):
    """Returns a random drafter whose norm and biases count."""
    config = Eagle1Config.for_target(TARGET, **changes)
    graphdef, params = random_eagle1(config, 3, dtype)
    rng = np.random.default_rng(0)
    filled = jax.tree.map(lambda w: w + jnp.asarray(rng.normal(0, 0.3, w.shape), dtype), params)
    return Eagle1Modules(config, NnxModel(graphdef), filled, base_fingerprint="ab", trained_length=64)


def export(folder, made, loader="sglang", target=TARGET, vectors=VECTORS):
    export_eagle1(folder, made, target, loader, embedding=lambda: vectors)
    return folder


def read(folder, **options):
    return import_eagle1(folder, TARGET, embedding=lambda: VECTORS, **options)


def change(folder, fields=None, tensors=None, drop=()):
    """Changes a published folder's fields and tensors."""
    raw = json.loads((folder / CONFIG).read_text()) | (fields or {})
    (folder / CONFIG).write_text(json.dumps({name: value for name, value in raw.items() if value != "absent"}))
    if tensors or drop:
        held = {name: x for name, x in load_file(folder / WEIGHTS).items() if name not in drop} | (tensors or {})
        save_file(held, folder / WEIGHTS)


@pytest.fixture
def folder(tmp_path):
    return export(tmp_path / "published", drafter())


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize(
    ("loader", "changes"),
    [
        ("sglang", {}),
        ("sglang", {"rope": ROPES[0], "max_positions": 512}),
        ("sglang", {"qkv_bias": True}),
        ("vllm", {"join_bias": False}),
        ("vllm", {"join_bias": False, "qkv_bias": True}),
    ],
)
def test_a_drafter_comes_back_bit_for_bit(tmp_path, dtype, loader, changes):
    made = drafter(dtype, **changes)
    found = read(export(tmp_path / "a", made, loader))
    assert (found.config, found.base_fingerprint, found.trained_length) == (made.config, "ab", 64)
    before, after = (dict(nnx.to_flat_state(m.params)) for m in (made, found))
    assert {*before} == {*after}
    for path, variable in before.items():
        assert variable.get_value().dtype == after[path].get_value().dtype
        np.testing.assert_array_equal(variable.get_value(), after[path].get_value())
    export(tmp_path / "b", found, loader)
    for name in (CONFIG, WEIGHTS):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_the_names_are_those_that_loaders_know(folder):
    layer = {f"self_attn.{name}_proj" for name in "qkvo"} | {f"mlp.{name}_proj" for name in ("gate", "up", "down")}
    layer |= {"post_attention_layernorm"}
    expected = {"embed_tokens.weight", "fc.weight", "fc.bias", *(f"layers.0.{name}.weight" for name in layer)}
    assert {*load_file(folder / WEIGHTS)} == expected
    raw = json.loads((folder / CONFIG).read_text())
    assert raw["architectures"] == ["LlamaForCausalLMEagle"]
    assert (raw["num_hidden_layers"], raw["hidden_size"], raw["vocab_size"]) == (1, D, V)


def test_loaders_that_pass_over_a_bias_get_none(tmp_path):
    with pytest.raises(
        ValueError, match=r"vLLM passes over fc.bias without a word.*join_bias false, or export it for S"
    ):
        export(tmp_path / "a", drafter(), "vllm")
    assert not (tmp_path / "a").exists()
    raw = json.loads((export(tmp_path / "a", drafter(join_bias=False), "vllm") / CONFIG).read_text())
    assert (raw["architectures"], raw["bias"], raw["attention_bias"]) == (["LlamaForCausalLM"], False, False)
    # Of Qwen2's layer: vLLM's Llama takes the field, and SGLang has a class of its own.
    biased = drafter(join_bias=False, qkv_bias=True)
    for loader, told in (("vllm", ("LlamaForCausalLM", "llama")), ("sglang", ("Qwen2ForCausalLMEagle", "qwen2"))):
        raw = json.loads((export(tmp_path / loader, biased, loader) / CONFIG).read_text())
        assert (*raw["architectures"], raw["model_type"], raw["qkv_bias"]) == (*told, True)
    # SGLang always reads one: without, it would have any value.
    other = export(tmp_path / "b", drafter(join_bias=False), "sglang")
    assert not load_file(other / WEIGHTS)["fc.bias"].any()
    assert "bias" not in json.loads((other / CONFIG).read_text())


def plain(tensors, features, vectors, config):
    """Returns what is made of each entry, in the names of the files."""
    h, n, k = config.head_width, config.num_heads, config.num_kv_heads

    def rotated(x):
        angle = np.arange(len(x))[:, None] * config.rope.base ** -(np.arange(0, h, 2) / h)
        cos, sin = (np.tile(f(angle), 2)[:, None] for f in (np.cos, np.sin))
        return x * cos + np.concatenate([-x[..., h // 2 :], x[..., : h // 2]], axis=-1) * sin

    x = np.concatenate([vectors, features], axis=-1) @ tensors["fc.weight"].T + tensors["fc.bias"]
    q, key, value = (
        (x @ tensors[f"layers.0.self_attn.{m}_proj.weight"].T + tensors[f"layers.0.self_attn.{m}_proj.bias"]).reshape(
            len(x), -1, h
        )
        for m in "qkv"
    )
    q, key = rotated(q), np.repeat(rotated(key), n // k, axis=1)
    scores = np.einsum("tnh,snh->nts", q, key) * h**-0.5 + np.triu(np.full((len(q), len(q)), -1e9), 1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out = np.einsum("nts,snh->tnh", weights, np.repeat(value, n // k, axis=1)).reshape(len(q), -1)
    x = x + out @ tensors["layers.0.self_attn.o_proj.weight"].T
    inner = x / np.sqrt((x**2).mean(-1, keepdims=True) + config.norm_epsilon)
    inner = inner * tensors["layers.0.post_attention_layernorm.weight"]
    gate, up = (inner @ tensors[f"layers.0.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    return x + (gate / (1 + np.exp(-gate)) * up) @ tensors["layers.0.mlp.down_proj.weight"].T


def test_imported_weights_compute_what_the_names_say(tmp_path):
    made = read(export(tmp_path / "a", drafter(qkv_bias=True)))
    rng = np.random.default_rng(1)
    features, vectors = (rng.normal(size=(1, 7, D)).astype(np.float32) for _ in range(2))
    position = jnp.arange(7, dtype=jnp.int32)[None]
    model, block = made.definition.bind(made.params), Block.causal(jnp.ones((1, 7), bool))
    out = model.forward(jnp.asarray(vectors), jnp.asarray(features), position, None, block)
    expected = plain(load_file(tmp_path / "a" / WEIGHTS), features[0], vectors[0], made.config)
    np.testing.assert_allclose(out.hidden[0], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(out.hidden, out.feature)


def test_fields_inside_model_and_names_behind_model_are_read(folder):
    expected = read(folder)
    raw = json.loads((folder / CONFIG).read_text())
    nested = {"model_type": "eagle", "architectures": ["EAGLEModel"], "model": raw, "truncated_vocab_size": V}
    (folder / CONFIG).write_text(json.dumps(nested))
    save_file({f"model.{name}": x for name, x in load_file(folder / WEIGHTS).items()}, folder / WEIGHTS)
    found = read(folder)
    assert found.config == expected.config
    np.testing.assert_array_equal(found.params["w_join"][...], expected.params["w_join"][...])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"vocab_size": V + 1}, rf"the drafter has a vocabulary of {V + 1}; the target's is {V}"),
        ({"hidden_size": 64, "head_dim": 8}, "the drafter has a width of 64; the target's is 32"),
        ({"num_hidden_layers": 2}, "num_hidden_layers must be 1; got 2"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be 1; got 0"),
        ({"logit_scale": 0}, r"logit_scale must be 1\.0; got 0"),
        ({"attention_bias": True}, "attention_bias is True, but biases of queries, keys and values are not there"),
        ({"qkv_bias": True}, "qkv_bias is True, but biases of queries, keys and values are not there"),
        ({"qkv_bias": 1}, "qkv_bias is 1, but biases"),
        ({"bias": False}, "bias is False, but fc.bias is there"),
        ({"add_para_norm": True}, "add_para_norm must be False; got True"),
        ({"logit_scale": 0.5}, "logit_scale must be 1.0; got 0.5"),
        ({"draft_vocab_size": 32}, "draft_vocab_size is not of EAGLE-1; got 32"),
        ({"hot_vocab_size": 32}, "hot_vocab_size is not of EAGLE-1; got 32"),
        ({"eagle_config": {"use_aux_hidden_state": True}}, "eagle_config is not of EAGLE-1"),
        ({"truncated_vocab_size": 32}, f"truncated_vocab_size must be the vocabulary's {V}; got 32"),
        ({"hidden_act": "relu"}, "activation 'relu'"),
        ({"sliding_window": 8}, "a drafter with a window is not supported"),
        ({"mlp_bias": True}, "an MLP with biases is not supported"),
        ({"hidden_act": "gelu_new"}, "a drafter's hidden_act must be silu; got gelu_tanh"),
        ({"intermediate_size": 50}, "of another shape: layers.0.mlp.gate_proj.weight"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(folder, fields, said):
    change(folder, fields)
    with pytest.raises(ValueError, match=said):
        read(folder)


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        ({"attention_bias": False, "qkv_bias": "absent", "model_type": "llama"}, False),
        ({"attention_bias": True, "qkv_bias": False}, False),
        ({"attention_bias": True, "qkv_bias": "absent"}, True),
        ({"attention_bias": False, "qkv_bias": "absent", "model_type": "qwen2"}, True),
        ({"attention_bias": "absent", "qkv_bias": "absent"}, True),
    ],
)
def test_fields_must_agree_with_biases_that_are_there(tmp_path, fields, fits):
    made = drafter(qkv_bias=True)
    folder = export(tmp_path / "a", made)
    change(folder, fields)
    if fits:
        assert read(folder).config == made.config
        return
    with pytest.raises(ValueError, match="is False, but biases of queries, keys and values are there"):
        read(folder)


NORM = np.ones(D, np.float32)


@pytest.mark.parametrize(
    ("tensors", "drop", "said"),
    [
        ({"layers.0.input_layernorm.weight": NORM}, (), "input_layernorm.weight: EAGLE-1's layer has no norm before"),
        ({"norm.weight": NORM}, (), "EAGLE-1 has no norm behind its layer"),
        ({"lm_head.weight": VECTORS}, (), "EAGLE-1 has no head of its own"),
        ({"embedding_layernorm.weight": NORM}, (), r"norms before fc \(HASS, add_para_norm\) are not supported"),
        ({"fusion_fc.weight": NORM}, (), "speculators' names are not supported"),
        ({"layers.0.self_attn.o_proj.bias": NORM}, (), "unexpected: layers.0.self_attn.o_proj.bias"),
        ({"layers.1.mlp.up_proj.weight": NORM}, (), "unexpected: layers.1.mlp.up_proj.weight"),
        ({"layers.0.self_attn.q_proj.bias": NORM}, (), "attention_bias is False, but biases of .* are there"),
        ({}, ("fc.weight",), rf"missing: fc.weight \[{D}, {2 * D}\]"),
        ({"fc.bias": np.full(D, np.nan, np.float32)}, (), "fc.bias in .* holds NaN or infinity"),
        ({"model.fc.bias": NORM}, (), "holds a tensor under two names"),
        ({"embed_tokens.weight": VECTORS + 1}, (), "must be the target's vectors"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(folder, tensors, drop, said):
    change(folder, tensors=tensors, drop=drop)
    with pytest.raises(ValueError, match=said):
        read(folder)


def test_biases_of_queries_alone_are_refused(folder):
    change(folder, {"qkv_bias": True}, {"layers.0.self_attn.q_proj.bias": NORM})
    with pytest.raises(ValueError, match=r"missing: layers\.0\.self_attn\.k_proj\.bias"):
        read(folder)


def test_vectors_may_be_absent_and_need_the_targets_where_they_are_there(folder):
    with pytest.raises(ValueError, match="give the target's vectors, which they must be"):
        import_eagle1(folder, TARGET)
    change(folder, drop=("embed_tokens.weight",))
    assert import_eagle1(folder, TARGET).config == drafter().config


def test_pickled_and_missing_weights_are_refused(folder):
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80")
    with pytest.raises(ValueError, match=r"never opened.*torch.load\('pytorch_model.bin', weights_only="):
        read(folder)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no model.safetensors"):
        read(folder)


def test_a_target_that_does_not_go_with_the_layout_is_refused(tmp_path):
    scaled = tiny_config(embedding_scale=4.0)
    for refuse in (
        lambda: export(tmp_path / "a", drafter(), target=scaled),
        lambda: import_eagle1(export(tmp_path / "b", drafter()), scaled),
    ):
        with pytest.raises(ValueError, match="the target multiplies its vectors by 4, which published drafters do not"):
            refuse()
    with pytest.raises(ValueError, match=rf"the target's vectors must be \[{V}, {D}\]; got \[2, {D}\]"):
        export(tmp_path / "a", drafter(), vectors=VECTORS[:2])
    assert not (tmp_path / "a").exists()


def test_published_drafters_of_both_kinds_are_told_apart(folder, tmp_path):
    assert is_published_eagle1(folder)
    export_eagle(tmp_path / "three", random_drafter(tiny_model(), taps=(0, 1)))
    assert not is_published_eagle1(tmp_path / "three")
    with pytest.raises(ValueError, match="EAGLE-1 has no head of its own"):
        read(tmp_path / "three")
