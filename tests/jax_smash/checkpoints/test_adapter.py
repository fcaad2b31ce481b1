"""LoRA adapters merged into their base."""

import json
import math
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file

import jax_smash
from jax_smash.checkpoints.adapter import read_adapter, with_base
from jax_smash.checkpoints.huggingface import load_params, resolve
from jax_smash.cli.errors import UsageError
from jax_smash.cli.resume import check_same, made_with
from jax_smash.loading import sources
from jax_smash.models.families import from_hf, tensor_map, tensor_shapes
from jax_smash.quantise import quantise_params
from tests.adapters import write_adapter
from tests.checkpoints import CONFIGS, LLAMA, write_checkpoint, write_tensors
from tests.model_directory import write_model

FAMILIES = ("llama-mha-biases", "gemma2", "phi4-mini", "olmo3", "granite", "smollm3")


def matrices(raw, *, without=()):
    """Returns the shape of every matrix that a LoRA may change, by its module's name."""
    shapes = tensor_shapes(tensor_map(from_hf(raw)))
    return {
        name.removesuffix(".weight"): shape
        for name, shape in shapes.items()
        if len(shape) == 2 and "embed_tokens" not in name and not name.startswith(without)
    }


def merged_by_hand(tensors, adapter, scale):
    """Returns a base's tensors plus scale · B · A, in float32."""
    merged = dict(tensors)
    for name in adapter:
        module, side = name.removeprefix("base_model.model.").split(".lora_")
        if side == "A.weight":
            a, b = (adapter[f"base_model.model.{module}.lora_{s}.weight"].astype(np.float32) for s in "AB")
            merged[f"{module}.weight"] = tensors[f"{module}.weight"].astype(np.float32) + scale(module, a) * (b @ a)
    return merged


def assert_close(params, expected, atol=1e-6):
    for (path, one), (_, other) in zip(nnx.to_flat_state(params), nnx.to_flat_state(expected), strict=True):
        np.testing.assert_allclose(one.get_value(), other.get_value(), rtol=0, atol=atol, err_msg=str(path))


@pytest.fixture
def folders(tmp_path):
    """A base and an adapter of two of its matrices, side by side; gives the adapter's folder."""
    write_checkpoint(tmp_path / "base", LLAMA)
    shapes = {
        f"model.layers.{i}.self_attn.{m}": (64 if m == "q_proj" else 32, 64)
        for i in (0, 1)
        for m in ("q_proj", "v_proj")
    }
    write_adapter(tmp_path / "adapter", shapes)
    return tmp_path / "adapter"


@pytest.mark.parametrize("name", FAMILIES)
def test_every_matrix_of_a_family_is_merged(name, tmp_path):
    tensors = write_checkpoint(tmp_path / "base", CONFIGS[name])
    adapter = write_adapter(tmp_path / "adapter", matrices(CONFIGS[name]))
    model = jax_smash.load(tmp_path / "adapter")
    write_checkpoint(tmp_path / "merged", CONFIGS[name])
    write_tensors(tmp_path / "merged", merged_by_hand(tensors, adapter, lambda module, a: 6 / 3))
    assert_close(model.params["target"], load_params(tmp_path / "merged")[1])
    base = load_params(tmp_path / "base")[1]
    changed = [
        not np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (model.params["target"], base)), strict=True)
    ]
    assert sum(changed) >= 4 * model.config.num_layers


def test_rank_and_alpha_may_differ_by_module_and_rslora_scales_by_the_root(tmp_path):
    tensors = write_checkpoint(tmp_path / "base", LLAMA)
    layer = "model.layers.1"
    shapes = {f"{layer}.self_attn.q_proj": (64, 64), f"{layer}.mlp.down_proj": (64, 96)}
    adapter = write_adapter(
        tmp_path / "adapter",
        shapes,
        ranks={f"{layer}.mlp.down_proj": 5},
        rank_pattern={"down_proj": 5},
        alpha_pattern={r"layers\.\d+\.self_attn\.q_proj": 11},
        use_rslora=True,
    )
    scale = {"q_proj": 11 / math.sqrt(3), "down_proj": 6 / math.sqrt(5)}
    write_checkpoint(tmp_path / "merged", LLAMA)
    write_tensors(
        tmp_path / "merged", merged_by_hand(tensors, adapter, lambda module, a: scale[module.rpartition(".")[2]])
    )
    merged = jax_smash.load(tmp_path / "adapter").params["target"]
    assert_close(merged, load_params(tmp_path / "merged")[1])


def test_a_change_is_added_in_float32_and_rounded_once(tmp_path):
    tensors = write_checkpoint(tmp_path / "base", LLAMA, dtype="BF16")
    adapter = write_adapter(tmp_path / "adapter", {"model.layers.0.mlp.up_proj": (96, 64)}, dtype="F16")
    params = jax_smash.load(tmp_path / "adapter").params["target"]
    exact = merged_by_hand(tensors, adapter, lambda module, a: 2)["model.layers.0.mlp.up_proj.weight"]
    held = params["layers"][0]["mlp"]["w_gate_up"].get_value()[1].T
    assert held.dtype == jnp.bfloat16
    # Sums differ by the order of three terms, which may round the other way.
    assert (np.asarray(held) == exact.astype(jnp.bfloat16)).mean() > 0.99
    wide = jax_smash.load(tmp_path / "adapter", dtype="float32").params["target"]
    np.testing.assert_allclose(wide["layers"][0]["mlp"]["w_gate_up"].get_value()[1].T, exact, rtol=0, atol=1e-6)


def test_int8_weights_are_made_of_merged_ones(folders):
    plain = quantise_params(jax_smash.load(folders).params["target"])
    jax.tree.map(np.testing.assert_array_equal, jax_smash.load(folders, weights="int8").params["target"], plain)


def test_a_conversion_writes_the_merged_model_with_its_tokenizer(tmp_path):
    write_model(tmp_path / "base")
    write_adapter(tmp_path / "adapter", {"model.layers.0.mlp.up_proj": (96, 64)})
    (tmp_path / "adapter" / "chat_template.jinja").write_text("own")
    loaded = jax_smash.load(tmp_path / "adapter")
    jax_smash.convert(tmp_path / "adapter", tmp_path / "out", to="huggingface")
    converted = jax_smash.load(tmp_path / "out")
    jax.tree.map(np.testing.assert_array_equal, converted.params, loaded.params)
    assert loaded.encode("abc") == converted.encode("abc")
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == "own"
    assert not list((tmp_path / "out").glob("adapter*"))


def test_info_tells_of_the_adapter(folders):
    from jax_smash.cli.info import describe, rows

    facts = describe(str(folders), slots=64)
    assert facts["adapter"] == {"path": str(folders), "ranks": [3], "matrices": 4}
    assert ("adapter", f"{folders} (LoRA of rank 3 on 4 matrices)") in rows(facts)


def test_a_base_is_found_from_the_adapter_or_from_here(folders, monkeypatch, tmp_path):
    assert with_base(folders, resolve)[0].resolve() == (tmp_path / "base").resolve()
    monkeypatch.chdir(tmp_path)
    edit(folders, base_model_name_or_path="base")
    assert with_base(folders, resolve)[0].resolve() == (tmp_path / "base").resolve()
    edit(folders, base_model_name_or_path="tiny")
    assert with_base(folders, jax_smash.loading.find)[0].name == "tiny"


def edit(folder, **settings):
    """Changes an adapter's settings."""
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


REFUSED = {
    "another type": ({"peft_type": "PREFIX_TUNING"}, "adapters of type PREFIX_TUNING are not supported"),
    "another task": ({"task_type": "SEQ_CLS"}, "task_type must be CAUSAL_LM; got 'SEQ_CLS'"),
    "DoRA": ({"use_dora": True}, "use_dora=True is not supported"),
    "saved modules": ({"modules_to_save": ["lm_head"]}, r"modules_to_save=\['lm_head'\] is not supported"),
    "biases": ({"bias": "all"}, "bias='all' is not supported; it must be none"),
    "biases of the change": ({"lora_bias": True}, "lora_bias=True is not supported"),
    "trained tokens": ({"trainable_token_indices": [3]}, r"trainable_token_indices=\[3\] is not supported"),
    "a changed base": (
        {"init_lora_weights": "pissa"},
        "init_lora_weights='pissa' is not supported: it changes the base",
    ),
    "something new": ({"alora_invocation_tokens": [1]}, r"alora_invocation_tokens=\[1\] is not supported"),
    "no base": ({"base_model_name_or_path": None}, "must name its base in base_model_name_or_path; got None"),
    "a revision": ({"base_model_name_or_path": "own/er", "revision": "v2"}, "revision='v2' of the base"),
    "another rank": ({"r": 4}, r"must have rank 4, as adapter_config.json says; got \[3, 64\] and \[64, 3\]"),
    "no rank": ({"r": None}, "r of model.layers.0.self_attn.q_proj must be at least 1; got None"),
    "a list of patterns": ({"rank_pattern": ["q_proj"]}, "rank_pattern must be an object"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_low_rank_change_is_refused_by_name(name, folders):
    settings, message = REFUSED[name]
    edit(folders, **settings)
    with pytest.raises(ValueError, match=message) as caught:
        jax_smash.load(folders)
    assert "\n" not in str(caught.value)


def test_a_missing_base_names_the_adapter(folders):
    edit(folders, base_model_name_or_path="nowhere")
    with pytest.raises(FileNotFoundError, match=r"the base of the adapter in .*adapter is missing: no model 'nowhere'"):
        jax_smash.load(folders)


def test_a_base_that_is_no_checkpoint_is_refused(folders, tmp_path):
    jax_smash.convert(tmp_path / "base", tmp_path / "orbax", to="orbax")
    edit(folders, base_model_name_or_path="../orbax")
    with pytest.raises(ValueError, match=r"must be a Hugging Face checkpoint; .*orbax holds"):
        jax_smash.load(folders)
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "model-q4.gguf").touch()
    edit(folders, base_model_name_or_path="../gguf")
    with pytest.raises(
        ValueError, match=r"must be a Hugging Face checkpoint; .*gguf holds a GGUF model \(model-q4.gguf\)"
    ):
        jax_smash.load(folders)
    edit(folders, base_model_name_or_path=".")
    with pytest.raises(ValueError, match=r"must be a Hugging Face checkpoint; .* holds a PEFT adapter"):
        jax_smash.load(folders)


def test_a_quantised_base_is_refused(folders, tmp_path):
    config = LLAMA | {"quantization_config": {"quant_method": "bitsandbytes"}}
    (tmp_path / "base" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="quantization_config is not supported"):
        jax_smash.load(folders)


@pytest.mark.parametrize(
    ("shapes", "raw", "message"),
    [
        ({"model.layers.7.mlp.up_proj": (96, 64)}, LLAMA, r"unexpected: model.layers.7.mlp.up_proj.weight \[96, 64\]"),
        ({"model.layers.0.mlp.up_proj": (90, 64)}, LLAMA, r"up_proj.weight must be \[96, 64\], got \[90, 64\]"),
        ({"model.norm": (64, 64)}, LLAMA, r"unexpected: model.norm.weight"),
        ({"model.embed_tokens": (101, 64)}, LLAMA, "changes the base's embedding; that is not supported"),
        ({"lm_head": (101, 64)}, CONFIGS["llama-3-tied"], "embedding that it shares with the head"),
        (
            {"vision_tower.layers.0.q_proj": (8, 8)},
            CONFIGS["gemma3"],
            "changes vision_tower.layers.0.q_proj, which is no part of the language model",
        ),
    ],
)
def test_a_change_of_something_else_is_refused_before_weights_are_read(shapes, raw, message, tmp_path):
    write_checkpoint(tmp_path / "base", raw)
    write_adapter(tmp_path / "adapter", shapes)
    with pytest.raises(ValueError, match=message) as caught:
        jax_smash.load(tmp_path / "adapter")
    assert "\n" not in str(caught.value)


def test_damaged_adapters_are_named(folders):
    weights, settings = folders / "adapter_model.safetensors", folders / "adapter_config.json"
    whole, said = weights.read_bytes(), settings.read_text()
    weights.write_bytes(whole[:500])
    with pytest.raises(ValueError, match=r"adapter_model.safetensors is damaged or incomplete"):
        read_adapter(folders)
    weights.rename(folders / "adapter_model.bin")
    with pytest.raises(FileNotFoundError, match=r"only adapter_model.bin: pickled weights can run code"):
        read_adapter(folders)
    (folders / "adapter_model.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"adapter_model.safetensors is missing"):
        read_adapter(folders)
    weights.write_bytes(whole)
    settings.write_text("{")
    with pytest.raises(ValueError, match=r"adapter_config.json is damaged: it must be JSON"):
        read_adapter(folders)
    settings.write_text(said)
    assert len(read_adapter(folders).changes) == 4


def test_a_factor_that_is_missing_or_no_number_is_named(folders):
    from safetensors.numpy import load_file, save_file

    file = folders / "adapter_model.safetensors"
    tensors = load_file(file)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"
    save_file({n: t for n, t in tensors.items() if n != name}, file)
    with pytest.raises(ValueError, match=rf"{name} in .* is missing"):
        read_adapter(folders)
    tensors[name][0, 0] = np.nan
    save_file(tensors, file)
    with pytest.raises(ValueError, match=rf"{name} in .* holds NaN or infinity"):
        read_adapter(folders)
    tensors = {"base_model.model.score.weight": np.ones((2, 2), np.float32)}
    save_file(tensors, file)
    with pytest.raises(ValueError, match=r"score.weight \[2, 2\] in .* is no LoRA of a matrix"):
        read_adapter(folders)


def test_a_head_that_was_saved_along_must_be_the_base_s(tmp_path):
    tensors = write_checkpoint(tmp_path / "base", LLAMA, dtype="BF16")
    adapter = write_adapter(tmp_path / "adapter", {"lm_head": (101, 64)})
    copy = "base_model.model.lm_head.base_layer.weight"
    head = tensors["lm_head.weight"].astype(np.float32)
    save_file(adapter | {copy: head}, tmp_path / "adapter" / "adapter_model.safetensors")
    merged = jax_smash.load(tmp_path / "adapter", dtype="float32").params["target"]["head"].get_value()
    expected = merged_by_hand(tensors, adapter, lambda module, a: 2)["lm_head.weight"]
    np.testing.assert_allclose(merged, expected, rtol=0, atol=1e-6)
    for other in (head * 2, np.concatenate([head, head[:1]])):
        save_file(adapter | {copy: other}, tmp_path / "adapter" / "adapter_model.safetensors")
        with pytest.raises(ValueError, match=r"lm_head.base_layer.weight in .* must be the base's own weights"):
            jax_smash.load(tmp_path / "adapter")


def test_a_tied_head_that_was_saved_along_must_be_the_embedding(tmp_path):
    raw = CONFIGS["llama-3-tied"]
    tensors = write_checkpoint(tmp_path / "base", raw, dtype="F32")
    adapter = write_adapter(tmp_path / "adapter", {"model.layers.0.self_attn.q_proj": (64, 64)})
    vectors = tensors["model.embed_tokens.weight"]
    for factor, fits in ((1, True), (2, False)):
        copies = {"base_model.model.lm_head.weight": factor * vectors}
        save_file(adapter | copies, tmp_path / "adapter" / "adapter_model.safetensors")
        if fits:
            jax_smash.load(tmp_path / "adapter")
            continue
        with pytest.raises(ValueError, match=r"lm_head.weight in .* must be the base's own weights"):
            jax_smash.load(tmp_path / "adapter")


def test_nothing_of_the_bases_tokenizer_stays_beside_the_adapters_own(tmp_path):
    write_model(tmp_path / "base")
    write_adapter(tmp_path / "adapter", {"model.layers.0.mlp.up_proj": (96, 64)})
    # As older programs write it: the template is in the tokenizer's settings, not in a file of its own.
    (tmp_path / "base" / "chat_template.jinja").write_text("BASE {{ messages[0]['content'] }}")
    shutil.copyfile(tmp_path / "base" / "tokenizer.json", tmp_path / "adapter" / "tokenizer.json")
    settings = json.loads((tmp_path / "base" / "tokenizer_config.json").read_text())
    template = {"chat_template": "ADAPTER {{ messages[0]['content'] }}"}
    (tmp_path / "adapter" / "tokenizer_config.json").write_text(json.dumps(settings | template))
    jax_smash.convert(tmp_path / "adapter", tmp_path / "merged", to="huggingface")
    texts = [[{"role": "user", "content": "cat"}]]
    found = [jax_smash.load(tmp_path / name).encode_chat(*texts) for name in ("adapter", "merged", "base")]
    assert found[0] == found[1] != found[2]


def test_an_adapter_beside_a_whole_model_is_refused(folders, tmp_path):
    shutil.copyfile(tmp_path / "base" / "model.safetensors", folders / "model.safetensors")
    with pytest.raises(ValueError, match=r"holds a model \(model.safetensors\) and an adapter .*; keep them apart"):
        jax_smash.load(folders)


def test_a_file_made_with_an_adapter_is_not_continued_with_another_base(folders):
    def made():
        return made_with("adapter", options={}, prompts=[], paths={"model": sources(folders)})

    before = made()
    assert sources(folders)[0] == folders
    assert made() == before
    config = folders.parent / "base/config.json"
    config.write_text(config.read_text() + "\n")
    with pytest.raises(UsageError, match="was made with another model"):
        check_same(before, made(), folders / "out.jsonl")
    assert made()["sha256"]["model"].split("+")[0] == before["sha256"]["model"].split("+")[0]
