"""GGUF files against the checkpoints that they were made of, and against transformers' own loading of them."""

import dataclasses

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from qwix import QArray

from jax_smash.checkpoints.huggingface import load_params, read_config
from jax_smash.loading import load
from jax_smash.models.families import from_hf
from jax_smash.models.families.family import in_use
from jax_smash.models.rope import frequencies
from tests.checkpoints import CONFIGS, GEMMA2, GEMMA3, LLAMA, LLAMA3_ROPE, QWEN2, QWEN3, random_tensors, write_tensors
from tests.gguf_files import write_gguf

GEMMA = {"head_dim": 24, "query_pre_attn_scalar": 24}
VARIANTS = {
    **{name: CONFIGS[name] for name in ("llama", "llama-mha-biases", "llama-linear", "llama-yarn", "qwen2")},
    **{name: CONFIGS[name] for name in ("qwen3-tied", "mistral-full")},
    "gemma2": CONFIGS["gemma2"] | GEMMA | {"tie_word_embeddings": True},
    "gemma3": CONFIGS["gemma3"] | GEMMA,
    **{name: CONFIGS[name] for name in ("smollm3", "phi3", "phi3-within", "phi4-mini", "olmo2-mha-biases", "olmo3")},
    **{name: CONFIGS[name] for name in ("granite", "granite-biases", "gemma")},
}
"""What a GGUF file can say of each family. Gemma's attention scale, for one, follows from its sizes there."""


def written(tmp_path, raw, **options):
    """Writes a random checkpoint as a GGUF file; returns the file and its tensors."""
    tensors = random_tensors(raw)
    return write_gguf(tmp_path / "model.gguf", raw, tensors, **options), tensors


@pytest.mark.parametrize("name", VARIANTS)
def test_a_file_loads_as_the_checkpoint_that_it_was_made_of(name, tmp_path):
    raw = VARIANTS[name]
    path, tensors = written(tmp_path, raw)
    expected = in_use(from_hf(raw))
    config = in_use(read_config(path)[0])
    named = ("family", "bos_token", "eos_tokens", "pad_token")  # Of the tokenizer, which this file lacks.
    same = {field: getattr(config, field) for field in named}
    # The factor of cos and sin is a product, which float32 rounds.
    np.testing.assert_allclose(config.rope.attention_factor, expected.rope.attention_factor, rtol=1e-6)
    same["rope"] = dataclasses.replace(expected.rope, attention_factor=config.rope.attention_factor)
    assert config == dataclasses.replace(expected, **same)
    _check_params(path, raw, tensors)


def _check_params(path, raw, tensors):
    """Checks parameters against those of the same tensors saved as safetensors."""
    folder = path.parent / "checkpoint"
    folder.mkdir()
    write_tensors(folder, tensors)
    theirs = load_params(folder, from_hf(raw))[1]
    # 1 + w is stored for the norms of Gemma, and rounded.
    close = {"rtol": 0, "atol": 1e-6 if from_hf(raw).norm_offset else 0}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **close), load_params(path)[1], theirs)


def test_the_rule_of_llama_3_is_found_in_its_factors_and_no_other_is(tmp_path):
    rope = {"rope_type": "llama3", **LLAMA3_ROPE, "original_max_position_embeddings": 8192}
    raw = {**LLAMA, "rope_theta": 5e5, "head_dim": 64, "rope_scaling": rope}
    config = from_hf(raw)
    factors = frequencies(dataclasses.replace(config.rope, scaling="none"), 64) / frequencies(config.rope, 64)
    path = tmp_path / "model.gguf"
    _with_factors(path, raw, factors)
    assert read_config(path)[0].rope == config.rope
    _with_factors(path, raw, factors**2)
    with pytest.raises(ValueError, match=r"rope_freqs.weight in .* must follow the rule of Llama 3.1"):
        read_config(path)


def _with_factors(path, raw, factors):
    tensors = random_tensors(raw)
    write_gguf(path, raw, tensors | {"rope_freqs.weight": factors.astype(np.float32)})


@pytest.mark.parametrize(
    ("kind", "error"), [("Q8_0", 0.01), ("Q4_0", 0.2), ("Q4_1", 0.2), ("Q5_1", 0.1), ("BF16", 0.01), ("F16", 0.001)]
)
def test_quantised_matrices_are_decoded(kind, error, tmp_path):
    raw = {**LLAMA, "hidden_size": 64, "intermediate_size": 96}
    path, tensors = written(tmp_path, raw, quantised=gguf.GGMLQuantizationType[kind])
    params = load_params(path)[1]
    table = params["embedding"].get_value()
    plain = {"BF16": jnp.bfloat16, "F16": jnp.float16}
    assert table.dtype == plain.get(kind, jnp.float32)
    expected = tensors["model.embed_tokens.weight"]
    assert 0 < np.abs(np.asarray(table, np.float32) - expected).max() < error * np.abs(expected).max()


def test_weights_may_be_held_in_another_dtype_or_as_int8(tmp_path):
    path, _ = written(tmp_path, LLAMA)
    assert load(path, dtype=jnp.bfloat16).params["target"]["embedding"].get_value().dtype == jnp.bfloat16
    assert isinstance(load(path, weights="int8").params["target"]["embedding"].get_value(), QArray)


def test_a_split_model_loads_as_the_whole_one_from_any_of_its_parts(tmp_path):
    whole, tensors = written(tmp_path, LLAMA)
    (tmp_path / "parts").mkdir()
    first = write_gguf(tmp_path / "parts" / "model.gguf", LLAMA, tensors, parts=3)
    expected = load_params(whole)[1]
    for part in (first, first.with_name("model-00003-of-00003.gguf"), first.parent):
        jax.tree.map(np.testing.assert_array_equal, load_params(part)[1], expected)
    first.with_name("model-00002-of-00003.gguf").unlink()
    with pytest.raises(FileNotFoundError, match=r"2 of 3 parts; missing: model-00002-of-00003.gguf"):
        load_params(first)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), r"missing: blk.1.ffn_up.weight \[96, 64\]"),
        (
            lambda t: t.update({"model.layers.0.self_attn.o_proj.weight": np.zeros((64, 32), np.float32)}),
            r"blk.0.attn_output.weight must be \[64, 64\], got \[64, 32\]",
        ),
        (lambda t: t.update({"model.layers.0.self_attn.q_norm.weight": np.zeros(16, np.float32)}), "unexpected: "),
        (lambda t: t["model.norm.weight"].fill(np.nan), r"output_norm.weight in .* holds NaN or infinity"),
        (lambda t: t.pop("model.embed_tokens.weight"), "missing: token_embd.weight"),
    ],
    ids=["missing", "misshapen", "unexpected", "nan", "no-embedding"],
)
def test_tensors_that_do_not_fit_are_named(change, message, tmp_path):
    tensors = random_tensors(LLAMA)
    change(tensors)
    path = write_gguf(tmp_path / "model.gguf", LLAMA, tensors)
    with pytest.raises(ValueError, match=message):
        load_params(path)


READ_BY_TRANSFORMERS = {
    "llama": LLAMA,
    "qwen2": QWEN2,
    "qwen3": {**QWEN3, "head_dim": 128},  # transformers reads no head width of this family.
    "gemma2": {**GEMMA2, "head_dim": 256, "query_pre_attn_scalar": 256, "tie_word_embeddings": True},
    "gemma3": {**GEMMA3, "head_dim": 256, "query_pre_attn_scalar": 256, "tie_word_embeddings": True},
}


@pytest.mark.parametrize("name", READ_BY_TRANSFORMERS)
def test_logits_are_those_of_transformers_loading_of_the_same_file(name, tmp_path):
    pytest.importorskip("torch", reason="transformers needs torch to run a model (extra `peers`)")
    pytest.importorskip("accelerate", reason="transformers needs accelerate to read a GGUF file (extra `peers`)")
    from eval.checkpoint_parity import logit_error
    from eval.exact.reference import LoadedReference

    raw = READ_BY_TRANSFORMERS[name]
    path, _ = written(tmp_path, raw)
    tokens = np.random.default_rng(0).integers(0, raw["vocab_size"], 30).tolist()
    with jax.default_matmul_precision("highest"):
        model, reference = load(path), LoadedReference(path)
        assert logit_error(model, reference, tokens) < 1e-5
        # The control: rows of a head in another order, as a permutation that is not undone would leave them.
        shuffled = dataclasses.replace(model, params=_swapped(model))
        assert logit_error(shuffled, reference, tokens) > 1e-3


def _swapped(model):
    """Returns a model's parameters with two rows of every head of queries, keys and values swapped."""

    def swap(path, variable):
        if path[-1] != "w_qkv":
            return variable
        heads = variable.get_value().reshape(model.config.d_model, -1, model.config.head_width)
        heads = heads.at[..., 0].set(heads[..., 1]).at[..., 1].set(heads[..., 0])
        return variable.replace(heads.reshape(variable.shape))

    flat = [(path, swap(path, v)) for path, v in nnx.to_flat_state(model.params["target"])]
    return {"target": nnx.from_flat_state(flat)}
