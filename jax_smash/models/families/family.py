"""What one model family is: how its `config.json` is read and written, and how it names its tensors."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from jax_smash.config import AttentionKind, ModelConfig, RopeConfig
from jax_smash.models.families.fields import ACTIVATIONS, LAYER_KINDS, Fields

PRE_NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
"""The norms of a layer with a norm before attention and before the MLP: ours, and the checkpoint's name."""


def same_name(name: str) -> str:
    """Returns the name of a tensor in a checkpoint that holds the language model alone."""
    return name


@dataclasses.dataclass(frozen=True)
class Family:
    """A model family.

    Attributes:
      model_type: its name in `config.json`.
      architecture: the transformers class whose weights it has.
      read: makes a configuration of the content of `config.json`.
      write: makes the fields of a `config.json` that say what a configuration says; others are added by `to_hf`.
      norms: the checkpoint's name of each norm of a layer, by ours.
      fused: the checkpoint has one tensor for queries, keys and values, and one for both inner matrices of the MLP.
      rename: takes a tensor's name in the checkpoint to its name in a checkpoint of the language model alone; None
        for a tensor of another part, such as a vision tower.
    """

    model_type: str
    architecture: str
    read: Callable[[Mapping[str, Any]], ModelConfig]
    write: Callable[[ModelConfig], dict[str, Any]]
    norms: Mapping[str, str] = dataclasses.field(default_factory=lambda: PRE_NORMS)
    rename: Callable[[str], str | None] = same_name
    fused: bool = False


def layer_kinds_from_hf(fields: Fields, default: Callable[[int], AttentionKind]) -> tuple[AttentionKind, ...]:
    """Returns the attention kind of each layer.

    Args:
      fields: of the configuration; `layer_types` may be absent.
      default: the kind of layer i where it is.

    Raises:
      ValueError: a kind is not supported, or there are more or fewer than layers.
    """
    layers, names = fields.integer("num_hidden_layers"), fields.get("layer_types")
    if names is None:
        return tuple(default(i) for i in range(layers))
    if not isinstance(names, list | tuple):
        raise ValueError(f"layer_types must be a list; got {names!r}")
    unknown = sorted({str(name) for name in names} - set(LAYER_KINDS))
    if unknown:
        raise ValueError(f"layer type {unknown[0]!r} is not supported; supported: {', '.join(LAYER_KINDS)}")
    if len(names) != layers:
        raise ValueError(f"layer_types must name {layers} layers; got {len(names)}")
    return tuple(LAYER_KINDS[name] for name in names)


def layer_kinds_to_hf(config: ModelConfig) -> list[str]:
    """Returns the `layer_types` of a configuration."""
    return [next(theirs for theirs, ours in LAYER_KINDS.items() if ours == kind) for kind in config.layer_kinds]


def common_to_hf(config: ModelConfig, activation: str = "hidden_act") -> dict[str, Any]:
    """Returns the fields that all families write alike; the inverse of `common_from_hf`."""
    eos = config.eos_tokens
    return {
        "vocab_size": config.vocab_size,
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.d_model,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_width,
        "intermediate_size": config.mlp_width,
        "max_position_embeddings": _trained_positions(config),
        activation: next(theirs for theirs, ours in ACTIVATIONS.items() if ours == config.activation),
        "rms_norm_eps": config.norm_epsilon,
        "tie_word_embeddings": config.tied_head,
        "bos_token_id": config.bos_token,
        "eos_token_id": list(eos) if len(eos) > 1 else eos[0] if eos else None,
        "pad_token_id": config.pad_token,
    }


def in_use(config: ModelConfig) -> ModelConfig:
    """Returns the configuration with what no layer uses set to its default, so that equal models compare equal."""
    changes: dict[str, Any] = {"kv_copies": 1}  # Where a model is held says nothing of what it is.
    rotated = {kind for kind, rotated in zip(config.layer_kinds, config.rotated, strict=True) if rotated}
    if "sliding" not in config.layer_kinds:
        changes |= {"window": 0}
    if "sliding" not in rotated:
        changes |= {"rope_sliding": RopeConfig()}
    if "full" not in rotated:
        changes |= {"rope": RopeConfig()}
    if config.unrotated_layers:
        changes |= {"unrotated_layers": tuple(i for i, on in enumerate(config.rotated) if not on)}
    return dataclasses.replace(config, **changes)


def with_stretched_context(config: ModelConfig) -> ModelConfig:
    """Returns a configuration whose context is as long as its rotary embedding makes it.

    `max_position_embeddings` is the context before a `dynamic` rotary embedding stretches it. Beside `yarn` it is that
    one or the stretched one: the files of Qwen's models, to which a user adds `yarn`, keep the first.
    """
    used = in_use(config)
    stretched: dict[str, list[int]] = {"dynamic": [], "yarn": [config.max_positions]}
    for rope in (used.rope, used.rope_sliding):
        stretched.setdefault(rope.scaling, []).append(int(rope.original_positions * rope.factor))
    return dataclasses.replace(config, max_positions=max(stretched["dynamic"] or stretched["yarn"]))


def _trained_positions(config: ModelConfig) -> int:
    """Returns the context before a `dynamic` rotary embedding stretches it."""
    used = in_use(config)
    dynamic = [r.original_positions for r in (used.rope, used.rope_sliding) if r.scaling == "dynamic"]
    return dynamic[0] if dynamic else config.max_positions
