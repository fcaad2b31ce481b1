"""The weights of EAGLE's drafters in the published layout and in ours. The one place that knows both."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jax_smash.models.eagle_config import EagleConfig

NORMS = {
    "vector_norm.scale": "midlayer.input_layernorm.weight",
    "feature_norm.scale": "midlayer.hidden_norm.weight",
    "mlp_norm.scale": "midlayer.post_attention_layernorm.weight",
    "final_norm.scale": "norm.weight",
}
"""Our norms and the published names."""

PROJECTIONS = ("q_proj", "k_proj", "v_proj")


def shapes_of(config: EagleConfig, present: set[str]) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every tensor that a published EAGLE-3 drafter has.

    Args:
      config: of the drafter.
      present: names that are there; of those that may be absent, only these are asked for.
    """
    d = config.d_model
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (d, len(config.taps) * d),
        **dict.fromkeys(_norms(config).values(), (d,)),
        **layer_shapes(config, "midlayer", 2 * d),
        "lm_head.weight": (config.head_size, d),
    }
    if config.head_size < config.vocab_size or "d2t" in present:
        shapes["d2t"] = (config.head_size,)
    optional = {"t2d": (config.vocab_size,), "embed_tokens.weight": (config.vocab_size, d)}
    return shapes | {name: shape for name, shape in optional.items() if name in present}


def to_ours(tensors: Mapping[str, np.ndarray], config: EagleConfig) -> dict[str, np.ndarray]:
    """Returns an EAGLE-3 drafter's parameters, by our dotted names, of published tensors."""
    return {
        "w_join": tensors["fc.weight"].T,
        **{ours: tensors[theirs] for ours, theirs in _norms(config).items()},
        **layer_to_ours(tensors, config, "midlayer"),
        "head": tensors["lm_head.weight"],
    }


def to_published(params: Mapping[str, np.ndarray], config: EagleConfig) -> dict[str, np.ndarray]:
    """Returns published tensors of an EAGLE-3 drafter's parameters by our dotted names; the inverse of `to_ours`."""
    return {
        "fc.weight": params["w_join"].T,
        **{theirs: params[ours] for ours, theirs in _norms(config).items()},
        **layer_to_published(params, config, "midlayer"),
        "lm_head.weight": params["head"],
    }


def layer_shapes(config: Any, prefix: str, width: int) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the published matrices of a drafter's layer.

    Args:
      config: of the drafter.
      prefix: before the names.
      width: of what the attention reads.
    """
    d, f, h = config.d_model, config.mlp_width, config.head_width
    return {
        f"{prefix}.self_attn.q_proj.weight": (config.num_heads * h, width),
        f"{prefix}.self_attn.k_proj.weight": (config.num_kv_heads * h, width),
        f"{prefix}.self_attn.v_proj.weight": (config.num_kv_heads * h, width),
        f"{prefix}.self_attn.o_proj.weight": (d, config.num_heads * h),
        f"{prefix}.mlp.gate_proj.weight": (f, d),
        f"{prefix}.mlp.up_proj.weight": (f, d),
        f"{prefix}.mlp.down_proj.weight": (d, f),
    }


def layer_to_ours(tensors: Mapping[str, np.ndarray], config: Any, prefix: str) -> dict[str, np.ndarray]:
    """Returns our matrices of a drafter's layer, and its attention's biases where there are some."""
    d, k, h = config.d_model, config.num_kv_heads, config.head_width

    def joined(kind: str) -> np.ndarray:
        """Returns queries, keys and values by KV head, `[K, G + 2, H, …]`."""
        found = (tensors[f"{prefix}.self_attn.{name}.{kind}"] for name in PROJECTIONS)
        return np.concatenate([x.reshape(k, -1, h, *x.shape[1:]) for x in found], axis=1)

    qkv = joined("weight")
    inner = [tensors[f"{prefix}.mlp.{name}_proj.weight"].T for name in ("gate", "up")]
    found = {
        "attention.w_qkv": qkv.transpose(3, 0, 1, 2).reshape(qkv.shape[3], -1),
        "attention.w_o": tensors[f"{prefix}.self_attn.o_proj.weight"].reshape(d, k, -1, h).transpose(1, 2, 3, 0),
        "mlp.w_gate_up": np.stack(inner),
        "mlp.w_down": tensors[f"{prefix}.mlp.down_proj.weight"].T,
    }
    return found | ({"attention.b_qkv": joined("bias")} if f"{prefix}.self_attn.q_proj.bias" in tensors else {})


def layer_to_published(params: Mapping[str, np.ndarray], config: Any, prefix: str) -> dict[str, np.ndarray]:
    """Returns the published matrices of a drafter's layer, and biases; the inverse of `layer_to_ours`."""
    d, k, h = config.d_model, config.num_kv_heads, config.head_width

    def parted(joined: np.ndarray, kind: str) -> dict[str, np.ndarray]:
        parts = dict(zip(PROJECTIONS, (joined[:, :-2], joined[:, -2:-1], joined[:, -1:]), strict=True))
        return {f"{prefix}.self_attn.{name}.{kind}": x.reshape(-1, *x.shape[3:]) for name, x in parts.items()}

    width = params["attention.w_qkv"].shape[0]
    gate, up = params["mlp.w_gate_up"]
    return {
        **parted(params["attention.w_qkv"].reshape(width, k, -1, h).transpose(1, 2, 3, 0), "weight"),
        **(parted(params["attention.b_qkv"], "bias") if "attention.b_qkv" in params else {}),
        f"{prefix}.self_attn.o_proj.weight": params["attention.w_o"].transpose(3, 0, 1, 2).reshape(d, -1),
        f"{prefix}.mlp.gate_proj.weight": gate.T,
        f"{prefix}.mlp.up_proj.weight": up.T,
        f"{prefix}.mlp.down_proj.weight": params["mlp.w_down"].T,
    }


def _norms(config: EagleConfig) -> dict[str, str]:
    """Returns our norms and the published names, those of taps where there are any."""
    taps = range(len(config.taps)) if config.tap_norms else ()
    return {**NORMS, **{f"tap_norms.{i}.scale": f"fc_norm.{i}.weight" for i in taps}}
