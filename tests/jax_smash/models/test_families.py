"""Configurations and tensor names of every family, in both directions."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jax_smash.config import RopeConfig, from_fields, identity
from jax_smash.models.families import FAMILIES, from_hf, tensor_map, to_hf
from jax_smash.models.families.family import in_use
from jax_smash.models.families.presets import PRESETS, preset
from jax_smash.models.transformer import abstract_params
from tests.checkpoints import (
    CONFIGS,
    GEMMA,
    GEMMA2,
    GEMMA3,
    GRANITE,
    LLAMA,
    MISTRAL,
    OLMO2,
    OLMO3,
    PHI3,
    QWEN2,
    QWEN3,
    SIZES,
    SMOLLM3,
    factors,
)

SIZE_NAMES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")


def as_transformers_writes(raw):
    """Returns a `config.json` as transformers completes and writes it."""
    from transformers import AutoConfig

    fields = {name: value for name, value in raw.items() if name != "model_type"}
    return json.loads(AutoConfig.for_model(raw["model_type"], **fields).to_json_string(use_diff=False))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_survives_the_way_there_and_back(name):
    config = from_hf(CONFIGS[name])
    assert in_use(from_hf(to_hf(config))) == in_use(config)


@pytest.mark.parametrize("name", CONFIGS)
def test_transformers_reads_a_configuration_as_we_do(name):
    raw = CONFIGS[name]
    assert in_use(from_hf(as_transformers_writes(raw))) == in_use(from_hf(raw))
    assert in_use(from_hf(as_transformers_writes(to_hf(from_hf(raw))))) == in_use(from_hf(raw))


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "gemma3"])
def test_what_a_configuration_leaves_out_is_as_in_transformers(family):
    raw = {"model_type": family} | {name: SIZES[name] for name in SIZE_NAMES}
    if family in ("qwen2", "qwen3", "gemma"):
        raw["num_key_value_heads"] = 2  # Their default is more than the few heads here.
    if family == "mistral":
        raw["num_attention_heads"] = 8
    assert in_use(from_hf(raw)) == in_use(from_hf(as_transformers_writes(raw)))


def test_the_original_is_kept_where_it_still_holds():
    raw = CONFIGS["llama-3-tied"] | {"initializer_range": 0.1, "note": "kept"}
    config = from_hf(raw)
    assert to_hf(config, raw) == raw
    wider = dataclasses.replace(config, max_positions=512)
    assert "note" not in to_hf(wider, raw)
    assert from_hf(to_hf(wider, raw)) == wider


def test_yarn_attention_follows_the_factor_and_mscale():
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32}
    assert from_hf(LLAMA | {"rope_scaling": yarn}).rope.attention_factor == pytest.approx(1.2079441541679836)
    weighted = yarn | {"mscale": 0.5, "mscale_all_dim": 1.0}
    assert from_hf(LLAMA | {"rope_scaling": weighted}).rope.attention_factor == pytest.approx(0.9139, abs=1e-4)


def test_longrope_attention_follows_the_factor_and_the_original_context():
    stretched = PHI3 | {"max_position_embeddings": 131_072, "rope_scaling": LONGROPE | {"factor": None}}
    assert from_hf(stretched).rope.attention_factor == pytest.approx(1.1902380714238083)
    assert from_hf(stretched | {"rope_scaling": LONGROPE | {"factor": 1.0}}).rope.attention_factor == 1


@pytest.mark.parametrize("old", ["su", "yarn"])
def test_longrope_by_its_old_names_is_read(old):
    assert from_hf(PHI3 | {"rope_scaling": LONGROPE | {"type": old}}) == from_hf(PHI3 | {"rope_scaling": LONGROPE})


def test_a_dynamic_rope_makes_the_context_longer_by_its_factor():
    config = from_hf(LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 2.5}})
    assert (config.max_positions, config.rope.original_positions) == (640, 256)
    assert to_hf(config)["max_position_embeddings"] == 256


@pytest.mark.parametrize(("told", "context"), [(256, 1024), (1024, 1024), (2048, 2048)])
def test_yarn_makes_the_context_longer_where_the_file_tells_the_one_before(told, context):
    """As in Qwen's models, to whose files a user adds it."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    raw = LLAMA | {"max_position_embeddings": told, "rope_scaling": yarn}
    config = from_hf(raw)
    assert config.max_positions == context
    assert from_hf(to_hf(config)) == config


def test_what_a_configuration_was_known_by_stays_when_fields_are_added():
    fields = identity(from_hf(LLAMA))
    assert "unrotated_layers" not in fields
    assert "short_factors" not in fields["rope"]
    changed = dataclasses.replace(from_hf(LLAMA), unrotated_layers=(1,), rope=RopeConfig(partial=0.5))
    assert identity(changed)["unrotated_layers"] == (1,)
    assert identity(changed)["rope"]["partial"] == 0.5


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_survives_json(name):
    config = from_hf(CONFIGS[name])
    assert from_fields(json.loads(json.dumps(dataclasses.asdict(config)))) == config


def test_rope_length_beside_the_rope_parameters_wins():
    rope = CONFIGS["llama-3-tied"]["rope_scaling"]
    config = from_hf(LLAMA | {"rope_scaling": rope, "original_max_position_embeddings": 16})
    assert config.rope.original_positions == 16


def test_a_multimodal_gemma_is_its_text_model():
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    text |= {"model_type": "gemma3_text", "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}
    raw = {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "eos_token_id": [1, 106],
        "text_config": text,
        "vision_config": {"model_type": "siglip_vision_model"},
    }
    config = from_hf(raw)
    assert (config.family, config.num_heads, config.vocab_size) == ("gemma3_text", 8, 262_208)
    assert config.eos_tokens == (1, 106)
    assert config.rope == RopeConfig(base=1e6, scaling="linear", factor=8.0)
    assert config.rope_sliding == RopeConfig(base=1e4)
    assert config.layer_kinds[:6] == ("sliding",) * 5 + ("full",)
    saved = to_hf(config, raw)
    assert saved["model_type"] == "gemma3_text"
    assert saved["architectures"] == ["Gemma3ForCausalLM"]
    assert from_hf(saved) == config


LONGROPE = {"type": "longrope", "short_factor": factors(8, 1.0), "long_factor": factors(8, 2.0), "factor": 4.0}

REFUSED = {
    "unknown model_type": (
        {**LLAMA, "model_type": "mamba"},
        "model_type 'mamba' is not supported; supported: gemma, gemma2",
    ),
    "no model_type": (SIZES, "model_type None is not supported"),
    "other head": (
        {**LLAMA, "architectures": ["LlamaForSequenceClassification"]},
        "architecture 'LlamaForSequenceClassification' is not supported",
    ),
    "quantised": ({**LLAMA, "quantization_config": {"bits": 4}}, "quantization_config is not supported"),
    "rope type": ({**LLAMA, "rope_scaling": {"type": "proportional"}}, "rope type 'proportional' is not supported"),
    "rope field": ({**QWEN2, "rope_scaling": {"mrope_section": [1]}}, "rope parameter mrope_section"),
    "partial rope": ({**LLAMA, "partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not supported for llama"),
    "rope without factor": ({**LLAMA, "rope_scaling": {"type": "linear"}}, "rope type linear must have factor"),
    "rope of another kind": ({**LLAMA, "rope_scaling": 2}, "rope parameters must be an object; got 2"),
    "activation": ({**LLAMA, "hidden_act": "relu"}, r"activation 'relu' \(hidden_act\) is not supported"),
    "exact gelu": ({**GEMMA2, "hidden_activation": "gelu"}, "activation 'gelu'"),
    "layer type": ({**QWEN3, "layer_types": ["full_attention", "linear_attention"]}, "layer type 'linear_attention'"),
    "layer count": ({**QWEN3, "layer_types": ["full_attention"]}, "layer_types must name 2 layers; got 1"),
    "sliding llama": ({**LLAMA, "layer_types": ["sliding_attention"] * 2}, "'sliding_attention' is not supported"),
    "sliding without window": (
        {**QWEN2, "layer_types": ["full_attention", "sliding_attention"]},
        "needs use_sliding_window",
    ),
    "mixed mistral": (
        {**MISTRAL, "layer_types": ["full_attention", "sliding_attention"]},
        "layer_types=.* is not supported for mistral",
    ),
    "mistral biases": ({**MISTRAL, "attention_bias": True}, "attention_bias=True is not supported for mistral"),
    "rope of no kind here": (
        {**PHI3, "rope_scaling": {"type": "linear", "factor": 2.0}},
        "'linear' is not .* for phi3",
    ),
    "too few factors": (
        {**PHI3, "rope_scaling": LONGROPE | {"long_factor": [1.0]}},
        r"long_factors must be 8 numbers above 0 for rope longrope; got \[1.0\]",
    ),
    "factor of 0": (
        {**PHI3, "rope_scaling": LONGROPE | {"short_factor": [0.0] * 8}},
        "short_factors must be 8 numbers above 0",
    ),
    "no factors": (
        {**PHI3, "rope_scaling": LONGROPE | {"short_factor": None}},
        "longrope must have short_factor, a list of numbers; got None",
    ),
    "longrope of length 1": (
        {**PHI3, "original_max_position_embeddings": 1, "rope_scaling": LONGROPE},
        "longrope must have attention_factor where the original context is 1",
    ),
    "odd partial rope": ({**PHI3, "partial_rotary_factor": 0.6}, "must be an even number of its 16 elements; got 9"),
    "partial rope elsewhere": (
        {**OLMO2, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        "partial_rotary_factor=0.5 is not supported for olmo2",
    ),
    "rope factor 0": ({**LLAMA, "rope_scaling": {"type": "linear", "factor": 0}}, "factor must be above 0; got .* 0"),
    "rope base 0": (
        {**LLAMA, "rope_parameters": {"rope_type": "default", "rope_theta": 0}},
        "rope_theta and factor must be above 0; got 0",
    ),
    "yarn without a context": (
        {**LLAMA, "rope_scaling": {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 0}},
        "original_max_position_embeddings must be at least 1; got 0",
    ),
    "layer types that are none": ({**QWEN3, "layer_types": 5}, "layer_types must be a list; got 5"),
    "several model types": ({**LLAMA, "model_type": ["llama"]}, r"model_type \['llama'\] is not supported"),
    "shrinking dynamic rope": ({**LLAMA, "rope_scaling": {"type": "dynamic", "factor": 0.5}}, "must be at least 1"),
    "dynamic rope without factor": ({**LLAMA, "rope_scaling": {"type": "dynamic"}}, "dynamic must have factor"),
    "phi biases": ({**PHI3, "attention_bias": True}, "attention_bias=True is not supported for phi3"),
    "mixed phi": (
        {**PHI3, "layer_types": ["full_attention", "sliding_attention"]},
        "layer_types=.* is not supported for phi3",
    ),
    "too few nope layers": ({**SMOLLM3, "no_rope_layers": [1, 0]}, "no_rope_layers must be a 0 or 1 for each of 4"),
    "nope layers of another kind": ({**SMOLLM3, "no_rope_layers": [1, 0, 2, 1]}, "no_rope_layers must be a 0 or 1"),
    "sliding smollm without window": (
        {**SMOLLM3, "layer_types": ["full_attention", "sliding_attention"] * 2},
        "needs use_sliding_window",
    ),
    "clipped olmo": ({**OLMO2, "clip_qkv": 8.0}, "clip_qkv=8.0 is not supported for olmo2"),
    "sliding olmo 2": ({**OLMO2, "layer_types": ["sliding_attention"] * 2}, "is not supported for olmo2"),
    "flat rope of olmo 3": (
        {**OLMO3, "rope_parameters": {"rope_theta": 1e6}},
        "olmo3 must be given for full_attention",
    ),
    "granite without logits": ({**GRANITE, "logits_scaling": 0}, "logits_scaling must be above 0; got 0"),
    "granite scale of another kind": (
        {**GRANITE, "residual_multiplier": "x"},
        "residual_multiplier must be a number; got 'x'",
    ),
    "bidirectional gemma": ({**GEMMA, "use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
    "activation beside gemma's": ({**GEMMA, "hidden_activation": "relu"}, "hidden_activation='relu' is not supported"),
    "bidirectional": ({**GEMMA3, "use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
    "softcap of gemma 3": ({**GEMMA3, "attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0"),
    "flat rope of gemma 3": ({**GEMMA3, "rope_parameters": {"rope_theta": 1e6}}, "must be given for full_attention"),
    "no text": ({"model_type": "gemma3"}, "must have text_config"),
    "missing size": ({k: v for k, v in LLAMA.items() if k != "hidden_size"}, "must have hidden_size; it is missing"),
    "size of another kind": (
        {**LLAMA, "hidden_size": "64"},
        "hidden_size must be a whole number of at least 1; got '64'",
    ),
    "negative size": ({**LLAMA, "vocab_size": -1}, "vocab_size must be a whole number of at least 1; got -1"),
    "uneven heads": ({**LLAMA, "num_key_value_heads": 3}, "num_heads must be a multiple of num_kv_heads; got 4 and 3"),
    "uneven width": ({**LLAMA, "hidden_size": 65}, "hidden_size must be a multiple of num_attention_heads"),
    "number of another kind": ({**LLAMA, "rms_norm_eps": "small"}, "rms_norm_eps must be a number; got 'small'"),
    "flag of another kind": ({**LLAMA, "tie_word_embeddings": 1}, "tie_word_embeddings must be true or false; got 1"),
    "token of another kind": ({**LLAMA, "eos_token_id": ["x"]}, "eos_token_id must be a token id or a list"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_supported_is_refused_by_name(name):
    raw, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        from_hf(raw)


def test_what_a_family_cannot_say_is_not_saved():
    config = dataclasses.replace(from_hf(LLAMA), attention_softcap=30.0)
    with pytest.raises(ValueError, match=r"llama cannot say attention_softcap=30.0"):
        to_hf(config)


@pytest.mark.parametrize("name", CONFIGS)
def test_checkpoint_tensors_fill_every_parameter_once(name):
    config = from_hf(CONFIGS[name])
    shapes = {path: v.shape for path, v in nnx.to_flat_state(abstract_params(config)[1])}
    parts = tensor_map(config)
    assert set(parts) == set(shapes)
    for path, shape in shapes.items():
        numbers = np.arange(np.prod(shape)).reshape(shape)
        views = [part.view(numbers) for part in parts[path]]
        seen = np.concatenate([view.reshape(-1) for view in views])
        np.testing.assert_array_equal(np.sort(seen), np.arange(numbers.size))
        for part, view in zip(parts[path], views, strict=True):
            assert view.base is not None, "a view must not copy"
            assert view.size == np.prod(part.shape)
            assert part.shape[0] % view.shape[0] == 0


PARAMETERS = {
    "gemma-2b": 2_506_172_416,
    "gemma-2-2b": 2_614_341_888,
    "gemma-3-1b": 999_885_952,
    "granite-3.1-2b": 2_533_531_648,
    "llama-100m": 95_534_720,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "olmo-2-1b": 1_484_916_736,
    "olmo-3-7b": 7_298_011_136,
    "phi-3-mini": 3_821_079_552,
    "phi-4-mini": 3_836_021_760,
    "qwen2.5-0.5b": 494_032_768,
    "qwen3-0.6b": 596_049_920,
    "smollm3-3b": 3_075_098_624,
}
"""Counts of the released checkpoints."""


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_as_many_parameters_as_the_real_model(name):
    config = preset(name)

    def parameters(layers):
        shorter = dataclasses.replace(config, num_layers=layers, layer_kinds=config.layer_kinds[:layers])
        return sum(v.size for _, v in nnx.to_flat_state(abstract_params(shorter, jnp.bfloat16)[1]))

    # Layers are of one size.
    layer = parameters(2) - parameters(1)
    assert parameters(1) + (config.num_layers - 1) * layer == PARAMETERS[name]


def test_an_unknown_preset_is_refused():
    with pytest.raises(ValueError, match="no preset 'llama-9'; there are gemma-2-2b"):
        preset("llama-9")
