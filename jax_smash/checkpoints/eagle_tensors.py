"""The weights of an EAGLE-3 drafter in the published layout and in ours. The one place that knows both."""

from collections.abc import Mapping

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
    """Returns the shape of every tensor that a published drafter has.

    Args:
      config: of the drafter.
      present: names that are there; of those that may be absent, only these are asked for.
    """
    d, f, h = config.d_model, config.mlp_width, config.head_width
    attention = "midlayer.self_attn"
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (d, len(config.taps) * d),
        **dict.fromkeys(_norms(config).values(), (d,)),
        f"{attention}.q_proj.weight": (config.num_heads * h, 2 * d),
        f"{attention}.k_proj.weight": (config.num_kv_heads * h, 2 * d),
        f"{attention}.v_proj.weight": (config.num_kv_heads * h, 2 * d),
        f"{attention}.o_proj.weight": (d, config.num_heads * h),
        "midlayer.mlp.gate_proj.weight": (f, d),
        "midlayer.mlp.up_proj.weight": (f, d),
        "midlayer.mlp.down_proj.weight": (d, f),
        "lm_head.weight": (config.head_size, d),
    }
    if config.head_size < config.vocab_size or "d2t" in present:
        shapes["d2t"] = (config.head_size,)
    optional = {"t2d": (config.vocab_size,), "embed_tokens.weight": (config.vocab_size, d)}
    return shapes | {name: shape for name, shape in optional.items() if name in present}


def to_ours(tensors: Mapping[str, np.ndarray], config: EagleConfig) -> dict[str, np.ndarray]:
    """Returns our parameters, by their dotted names, of published tensors."""
    k, h = config.num_kv_heads, config.head_width
    d = config.d_model
    heads = [tensors[f"midlayer.self_attn.{name}.weight"].reshape(k, -1, h, 2 * d) for name in PROJECTIONS]
    qkv = np.concatenate(heads, axis=1)  # [K, G+2, H, 2D]
    inner = [tensors[f"midlayer.mlp.{name}_proj.weight"].T for name in ("gate", "up")]
    return {
        "w_join": tensors["fc.weight"].T,
        **{ours: tensors[theirs] for ours, theirs in _norms(config).items()},
        "attention.w_qkv": qkv.transpose(3, 0, 1, 2).reshape(2 * d, -1),
        "attention.w_o": tensors["midlayer.self_attn.o_proj.weight"].reshape(d, k, -1, h).transpose(1, 2, 3, 0),
        "mlp.w_gate_up": np.stack(inner),
        "mlp.w_down": tensors["midlayer.mlp.down_proj.weight"].T,
        "head": tensors["lm_head.weight"],
    }


def to_published(params: Mapping[str, np.ndarray], config: EagleConfig) -> dict[str, np.ndarray]:
    """Returns published tensors of our parameters by their dotted names; the inverse of `to_ours`."""
    d, k, h = config.d_model, config.num_kv_heads, config.head_width
    qkv = params["attention.w_qkv"].reshape(2 * d, k, -1, h).transpose(1, 2, 3, 0)
    heads = dict(zip(PROJECTIONS, (qkv[:, :-2], qkv[:, -2:-1], qkv[:, -1:]), strict=True))
    gate, up = params["mlp.w_gate_up"]
    return {
        "fc.weight": params["w_join"].T,
        **{theirs: params[ours] for ours, theirs in _norms(config).items()},
        **{f"midlayer.self_attn.{name}.weight": x.reshape(-1, 2 * d) for name, x in heads.items()},
        "midlayer.self_attn.o_proj.weight": params["attention.w_o"].transpose(3, 0, 1, 2).reshape(d, -1),
        "midlayer.mlp.gate_proj.weight": gate.T,
        "midlayer.mlp.up_proj.weight": up.T,
        "midlayer.mlp.down_proj.weight": params["mlp.w_down"].T,
        "lm_head.weight": params["head"],
    }


def _norms(config: EagleConfig) -> dict[str, str]:
    """Returns our norms and the published names, those of taps where there are any."""
    taps = range(len(config.taps)) if config.tap_norms else ()
    return {**NORMS, **{f"tap_norms.{i}.scale": f"fc_norm.{i}.weight" for i in taps}}
