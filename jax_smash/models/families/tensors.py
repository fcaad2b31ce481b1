"""Which checkpoint tensors each parameter is made of. The one place that knows both layouts.

A parameter may hold several checkpoint tensors. Each is a view of the parameter with its axes in the checkpoint's
order: writing a tensor into its view loads it, reading the view saves it, so both directions are one description.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jax_smash.config import ModelConfig

ParamPath = tuple[Any, ...]
"""Where a parameter stands in the model, as in `("layers", 0, "attention", "w_qkv")`."""


@dataclasses.dataclass(frozen=True)
class Part:
    """One checkpoint tensor, or some rows of it, and the part of a parameter that they are.

    Where a checkpoint has one tensor for several matrices, each matrix is a part of that name, one behind the other
    along the tensor's first axis.

    Attributes:
      name: of the tensor.
      shape: of the tensor, or of its rows that are this part.
      view: takes the parameter to the elements that are this part's, in the tensor's order. The view's first axis
        divides the part's first axis evenly.
      start: the part's first row in the tensor.
    """

    name: str
    shape: tuple[int, ...]
    view: Callable[[np.ndarray], np.ndarray]
    start: int = 0


TensorMap = Mapping[ParamPath, tuple[Part, ...]]


def tensor_shapes(parts: TensorMap) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every checkpoint tensor, by name."""
    rows: dict[str, int] = {}
    rest: dict[str, tuple[int, ...]] = {}
    for part in (part for of_one in parts.values() for part in of_one):
        rows[part.name] = rows.get(part.name, 0) + part.shape[0]
        rest[part.name] = part.shape[1:]
    return {name: (rows[name], *rest[name]) for name in rows}


def tensor_map(config: ModelConfig, norms: Mapping[str, str], *, fused: bool = False) -> TensorMap:
    """Returns the parts of every parameter of a model.

    Args:
      config: of the model.
      norms: the checkpoint's name of each norm of a layer, by ours.
      fused: the checkpoint has one tensor for queries, keys and values, and one for both inner matrices of the MLP.
    """
    parts: dict[ParamPath, tuple[Part, ...]] = {}
    vocabulary = (config.vocab_size, config.d_model)
    parts["embedding",] = (Part("model.embed_tokens.weight", vocabulary, _whole),)
    for i in range(config.num_layers):
        prefix = f"model.layers.{i}"
        for ours, theirs in norms.items():
            parts["layers", i, ours, "scale"] = (Part(f"{prefix}.{theirs}.weight", (config.d_model,), _whole),)
        for name, layer_parts in _attention(config, f"{prefix}.self_attn", fused).items():
            parts["layers", i, "attention", *name] = layer_parts
        for name, layer_parts in _mlp(config, f"{prefix}.mlp", fused).items():
            parts["layers", i, "mlp", *name] = layer_parts
    parts["final_norm", "scale"] = (Part("model.norm.weight", (config.d_model,), _whole),)
    if not config.tied_head:
        parts["head",] = (Part("lm_head.weight", vocabulary, _whole),)
    return parts


def _attention(config: ModelConfig, prefix: str, fused: bool) -> dict[ParamPath, tuple[Part, ...]]:
    d, n, k, h = config.d_model, config.num_heads, config.num_kv_heads, config.head_width
    heads_first = functools.partial(_heads_first, kv_heads=config.held_kv_heads, width=h)
    widths = {"q_proj": n * h, "k_proj": k * h, "v_proj": k * h}
    # Of all KV heads, or of the first copy of each; along the head axis of one: its query heads, its key, its value.
    once = slice(None, None, config.kv_copies)
    heads = {"q_proj": (slice(None), slice(-2)), "k_proj": (once, slice(-2, -1)), "v_proj": (once, slice(-1, None))}
    parts: dict[ParamPath, tuple[Part, ...]] = {
        ("w_qkv",): _one_behind_the_other(
            [
                Part(f"{prefix}.{name}.weight", (width, d), _then(heads_first, heads[name]))
                for name, width in widths.items()
            ],
            f"{prefix}.qkv_proj.weight" if fused else None,
        ),
        ("w_o",): (Part(f"{prefix}.o_proj.weight", (d, n * h), _model_first),),
    }
    if config.qkv_bias:
        parts["b_qkv",] = tuple(
            Part(f"{prefix}.{name}.bias", (width,), _then(_whole, heads[name])) for name, width in widths.items()
        )
    if config.output_bias:
        parts["b_o",] = (Part(f"{prefix}.o_proj.bias", (d,), _whole),)
    if config.qk_norm:
        for norm in ("q_norm", "k_norm"):
            parts[norm, "scale"] = (Part(f"{prefix}.{norm}.weight", (h,), _whole),)
    if config.joint_qk_norm:
        for norm, count, held in (("q_norm", n, slice(None)), ("k_norm", k, once)):
            parts[norm, "scale"] = (Part(f"{prefix}.{norm}.weight", (count * h,), _then(_whole, held)),)
    return parts


def fill_copies(name: ParamPath, parameter: np.ndarray, config: ModelConfig) -> None:
    """Writes the copies of KV heads, of which a parameter's parts are the first ones."""
    if name[-1] == "w_qkv":
        copied = _heads_first(parameter, kv_heads=config.held_kv_heads, width=config.head_width)[:, -2:]
    elif name[-1] == "b_qkv":
        copied = parameter[:, -2:]
    elif name[-2:] == ("k_norm", "scale") and config.joint_qk_norm:
        copied = parameter
    else:
        return
    for i in range(1, config.kv_copies):
        copied[i :: config.kv_copies] = copied[:: config.kv_copies]


def _mlp(config: ModelConfig, prefix: str, fused: bool) -> dict[ParamPath, tuple[Part, ...]]:
    d, f = config.d_model, config.mlp_width
    inner = ("gate_proj", "up_proj")
    parts: dict[ParamPath, tuple[Part, ...]] = {
        ("w_gate_up",): _one_behind_the_other(
            [Part(f"{prefix}.{name}.weight", (f, d), _then(_hidden_first, i)) for i, name in enumerate(inner)],
            f"{prefix}.gate_up_proj.weight" if fused else None,
        ),
        ("w_down",): (Part(f"{prefix}.down_proj.weight", (d, f), np.transpose),),
    }
    if config.mlp_bias:
        parts["b_gate_up",] = tuple(
            Part(f"{prefix}.{name}.bias", (f,), _then(_whole, i)) for i, name in enumerate(inner)
        )
        parts["b_down",] = (Part(f"{prefix}.down_proj.bias", (d,), _whole),)
    return parts


def _one_behind_the_other(parts: Sequence[Part], name: str | None) -> tuple[Part, ...]:
    """Returns parts as those of one tensor; as they are where there is none."""
    if name is None:
        return tuple(parts)
    starts = itertools.accumulate((part.shape[0] for part in parts[:-1]), initial=0)
    return tuple(dataclasses.replace(p, name=name, start=start) for p, start in zip(parts, starts, strict=True))


def _whole(parameter: np.ndarray) -> np.ndarray:
    return parameter


def _heads_first(w_qkv: np.ndarray, *, kv_heads: int, width: int) -> np.ndarray:
    # [D, K·(G+2)·H] as [K, G+2, H, D].
    return w_qkv.reshape(len(w_qkv), kv_heads, -1, width).transpose(1, 2, 3, 0)


def _model_first(w_o: np.ndarray) -> np.ndarray:
    return w_o.transpose(3, 0, 1, 2)  # [K, G, H, D] as [D, K, G, H].


def _hidden_first(w_gate_up: np.ndarray) -> np.ndarray:
    return w_gate_up.transpose(0, 2, 1)  # [2, D, F] as [2, F, D].


def _then(view: Callable[[np.ndarray], np.ndarray], part: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a view that then takes a part, by an index."""
    return lambda parameter: view(parameter)[part]
