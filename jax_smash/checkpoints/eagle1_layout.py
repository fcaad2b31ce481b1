"""EAGLE-1 drafters in the layout that vLLM and SGLang load: `config.json` and `model.safetensors`.

Tensors: `fc.weight`, `fc.bias`, `layers.0.*` without an input norm, and `embed_tokens.weight`, the target's own vectors
of tokens. There is no norm behind the layer and no head: the target's own reads what the layer makes. EAGLE-2 has the
same drafter.

Loaders differ in what they pass over without a word:

| | `fc.bias` | where it differs |
|---|---|---|
| the authors | unless `bias` is false | a name too many or too few is an error |
| vLLM | never: a bias in the file is skipped | `bias` true gives the layer's attention biases that are in no file |
| SGLang | always: one that is not in the file has any value | likewise |

So vLLM gets drafters without a bias alone, and SGLang one of 0 where there is none.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flax import nnx
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from jax_smash.checkpoints.described import check_finite, check_savable, dtype_of, read_fields
from jax_smash.checkpoints.directory import new_directory
from jax_smash.checkpoints.eagle1 import Eagle1Modules, eagle1_of
from jax_smash.checkpoints.eagle_layout import check_embedding, weights_file
from jax_smash.checkpoints.eagle_tensors import PROJECTIONS, layer_shapes, layer_to_ours, layer_to_published
from jax_smash.checkpoints.fit import check_fit, dotted
from jax_smash.checkpoints.module_files import check_says_all
from jax_smash.checkpoints.published import (
    check_activation,
    check_full_attention,
    layer_fields,
    marks_of,
    read_marks,
    target_vectors,
)
from jax_smash.config import ModelConfig
from jax_smash.models.eagle1 import Eagle1Config
from jax_smash.models.families import from_hf
from jax_smash.quantise import check_plain

CONFIG, WEIGHTS = "config.json", "model.safetensors"

LAYER, EMBEDDING, BIAS = "layers.0", "embed_tokens.weight", "fc.bias"

NORM = f"{LAYER}.post_attention_layernorm.weight"

Loader = Literal["vllm", "sglang"]

REFUSED = {
    "layers.0.input_layernorm.weight": "EAGLE-1's layer has no norm before its attention",
    "norm.weight": "EAGLE-1 has no norm behind its layer",
    "lm_head.weight": "EAGLE-1 has no head of its own: the target's reads what it makes",
    "embedding_layernorm.weight": "norms before fc (HASS, add_para_norm) are not supported",
    "hidden_states_layernorm.weight": "norms before fc (HASS, add_para_norm) are not supported",
    "fusion_fc.weight": "speculators' names are not supported",
}
"""Tensors that other drafters have, and what is said of each."""


def is_published_eagle1(folder: str | Path) -> bool:
    """Returns whether a folder's tensors are those of EAGLE-1: EAGLE-3 has a norm of features, EAGLE-1 has none.

    Raises:
      FileNotFoundError: there are no weights.
      ValueError: they are pickled or damaged, or in several files.
    """
    file = weights_file(Path(folder).expanduser().resolve())
    try:
        with safe_open(file, framework="numpy") as stored:
            return not any(name.endswith("hidden_norm.weight") for name in list(stored.keys()))
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged: {error}") from error


def import_eagle1(
    folder: str | Path, target: ModelConfig, *, embedding: Callable[[], Any] | None = None, dtype: Any = None
) -> Eagle1Modules:
    """Reads a published EAGLE-1 drafter. Every tensor is used or refused, and shapes are compared before one is read.

    Args:
      folder: with `config.json` and safetensors.
      target: configuration of the model that it drafts for.
      embedding: returns the target's vectors of tokens, `[V, D]`: asked where the drafter brings vectors, which must be
        these.
      dtype: of the weights in memory; None keeps the files'.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: one is damaged or pickled; the drafter is for another target, or of another kind; a tensor is missing,
        unexpected, of another shape, NaN or infinite.
    """
    folder = Path(folder).expanduser().resolve()
    raw, file = _unwrapped(read_fields(folder / CONFIG)), weights_file(folder)
    try:
        with safe_open(file, framework="numpy") as stored:
            found = list(stored.keys())
            names = {name.removeprefix("model."): name for name in found}
            if len(names) < len(found):
                raise ValueError(f"{file} holds a tensor under two names")
            for name in names:
                if name in REFUSED:
                    raise ValueError(f"{file} holds {names[name]}: {REFUSED[name]}")
            config = _config(raw, target, {*names}, folder / CONFIG)
            shapes = {ours: tuple(stored.get_slice(name).get_shape()) for ours, name in names.items()}
            check_fit(file, shapes_of(config, {*names}), shapes)
            tensors = {ours: stored.get_tensor(name) for ours, name in names.items()}
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    check_embedding(tensors.pop(EMBEDDING, None), embedding, file)
    made_of = dtype_of(file, tensors, dtype)
    check_finite(file, tensors, made_of)
    ours = {
        "w_join": tensors["fc.weight"].T,
        "mlp_norm.scale": tensors[NORM],
        **layer_to_ours(tensors, config, LAYER),
        **({"b_join": tensors[BIAS]} if config.join_bias else {}),
    }
    held = {name: x.astype(made_of, copy=False) for name, x in ours.items()}
    return eagle1_of(config, held, made_of, **read_marks(raw, folder / CONFIG))


def export_eagle1(
    folder: str | Path, drafter: Eagle1Modules, target: ModelConfig, loader: Loader, *, embedding: Callable[[], Any]
) -> None:
    """Writes a drafter for a loader; the folder appears whole or not at all. The authors' program reads SGLang's too.

    Args:
      folder: absent or empty.
      drafter: with plain weights.
      target: configuration of the model that it drafts for.
      loader: that is to read it.
      embedding: returns the target's vectors of tokens, `[V, D]`, which go into the file.

    Raises:
      FileExistsError: the folder has something in it.
      ValueError: weights are int8 or not finite; the target is another or scales its vectors; the loader would pass
        over a bias; the layout cannot tell the rotary embedding.
      OSError: the disk is full.
    """
    config = drafter.config
    check_says_all(config)
    check_plain(drafter.params)
    _check_target(config, target)
    if loader == "vllm" and config.join_bias:
        raise ValueError(
            "vLLM passes over fc.bias without a word, and would draft badly: train the drafter with join_bias false, "
            "or export it for SGLang"
        )
    params = {dotted(path): np.asarray(v.get_value()) for path, v in nnx.to_flat_state(drafter.params)}
    tensors = {
        "fc.weight": params["w_join"].T,
        NORM: params["mlp_norm.scale"],
        **layer_to_published(params, config, LAYER),
    }
    if loader == "sglang":
        tensors[BIAS] = params.get("b_join", np.zeros_like(params["mlp_norm.scale"]))
    tensors[EMBEDDING] = target_vectors(embedding(), config).astype(tensors["fc.weight"].dtype)
    check_savable(tensors)
    fields = _fields(config, loader) | {"torch_dtype": str(tensors["fc.weight"].dtype)} | marks_of(drafter)
    with new_directory(folder, sum(x.nbytes for x in tensors.values())) as work:
        save_file({name: np.ascontiguousarray(x) for name, x in tensors.items()}, work / WEIGHTS, {"format": "pt"})
        (work / CONFIG).write_text(json.dumps(fields, indent=2) + "\n")


def shapes_of(config: Eagle1Config, present: set[str]) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every tensor that a published drafter has.

    Args:
      config: of the drafter.
      present: names that are there; the vectors of tokens are asked for only where they are.
    """
    d, h = config.d_model, config.head_width
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (d, 2 * d), NORM: (d,), **layer_shapes(config, LAYER, d)}
    if config.join_bias:
        shapes[BIAS] = (d,)
    if config.qkv_bias:
        heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        shapes |= {f"{LAYER}.self_attn.{name}.bias": (n * h,) for name, n in zip(PROJECTIONS, heads, strict=True)}
    return shapes | ({EMBEDDING: (config.vocab_size, d)} if EMBEDDING in present else {})


def _unwrapped(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of the drafter's layer: older versions of vLLM have them inside `model`."""
    inner = raw.get("model")
    if not isinstance(inner, Mapping):
        return dict(raw)
    outer = {name: value for name, value in raw.items() if name not in ("model", "architectures", "model_type")}
    return {**inner, **outer}


def _config(raw: Mapping[str, Any], target: ModelConfig, names: set[str], file: Path) -> Eagle1Config:
    """Returns the configuration that a file and the tensors' names tell, which must be one for the target."""
    try:
        for name, wanted in (("num_hidden_layers", 1), ("add_para_norm", False), ("logit_scale", 1.0)):
            if raw.get(name) not in (None, wanted):
                raise ValueError(f"{name} must be {wanted}; got {raw[name]!r}")
        for name in ("eagle_config", "draft_vocab_size", "hot_vocab_size", "speculators_model_type"):
            if raw.get(name) is not None:
                raise ValueError(f"{name} is not of EAGLE-1; got {raw[name]!r}")
        check_full_attention(raw)
        # Biases go by the tensors' names, with which fields must agree: the field `bias` is the join's to one program
        # and the layer's to another.
        changes = {"model_type": "llama", "architectures": None, "num_hidden_layers": 1, "attention_bias": False}
        layer = from_hf({**raw, **changes})
        check_activation(layer.activation)
        if layer.mlp_bias:
            raise ValueError("an MLP with biases is not supported")
        join_bias, qkv_bias = BIAS in names, f"{LAYER}.self_attn.q_proj.bias" in names
        if raw.get("bias") is not None and bool(raw["bias"]) != join_bias:
            raise ValueError(f"bias is {raw['bias']}, but fc.bias is {'' if join_bias else 'not '}there")
        _check_biases(raw, qkv_bias)
        truncated = raw.get("truncated_vocab_size") or layer.vocab_size
        if truncated != layer.vocab_size:
            raise ValueError(f"truncated_vocab_size must be the vocabulary's {layer.vocab_size}; got {truncated}")
        config = Eagle1Config(
            vocab_size=layer.vocab_size,
            d_model=layer.d_model,
            num_heads=layer.num_heads,
            num_kv_heads=layer.num_kv_heads,
            head_width=layer.head_width,
            mlp_width=layer.mlp_width,
            max_positions=layer.max_positions,
            norm_epsilon=layer.norm_epsilon,
            rope=layer.rope,
            join_bias=join_bias,
            qkv_bias=qkv_bias,
        )
        _check_target(config, target)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file}: {error}") from error
    return config


def _check_biases(raw: Mapping[str, Any], there: bool) -> None:
    """Refuses fields that tell of other biases of queries, keys and values than the tensors' names do."""
    told = {name: raw[name] for name in ("qkv_bias", "attention_bias") if raw.get(name) is not None}
    if told.get("attention_bias") is False and (told.get("qkv_bias") or raw.get("model_type") == "qwen2"):
        # Beside `qkv_bias`, and of Qwen2's layer, which always has the others, it is of the output's alone.
        del told["attention_bias"]
    for name, biased in told.items():
        if biased is not there:
            raise ValueError(
                f"{name} is {biased}, but biases of queries, keys and values are {'' if there else 'not '}there"
            )


def _check_target(config: Eagle1Config, target: ModelConfig) -> None:
    """Refuses another target than the drafter is for, and one whose vectors are not the stored ones."""
    for ours, theirs, wanted in (
        ("vocabulary", config.vocab_size, target.vocab_size),
        ("width", config.d_model, target.d_model),
    ):
        if theirs != wanted:
            raise ValueError(f"the drafter has a {ours} of {theirs}; the target's is {wanted}")
    if target.embedding_scale != 1.0:
        raise ValueError(
            f"the target multiplies its vectors by {target.embedding_scale:g}, which published drafters do not"
        )


def _fields(config: Eagle1Config, loader: Loader) -> dict[str, Any]:
    """Returns the content of `config.json`."""
    # vLLM's Llama layer takes `qkv_bias`, and it has no EAGLE drafter of another family; SGLang has one of Qwen2's.
    family = "Qwen2" if config.qkv_bias and loader == "sglang" else "Llama"
    fields: dict[str, Any] = {
        # vLLM puts `Eagle` before the name itself.
        "architectures": [f"{family}ForCausalLM" + ("" if loader == "vllm" else "Eagle")],
        "model_type": family.lower(),
        **layer_fields(config),
    }
    if config.qkv_bias:
        fields["qkv_bias"] = True
    # Where there is a bias the field is left out: true would give the layer's attention biases, too.
    return fields if loader == "sglang" else fields | {"bias": False}
