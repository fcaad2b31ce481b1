"""The layers that every supported transformer is made of."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jax_smash.attention import attend, attend_held, attend_selected
from jax_smash.cache import Block, HeldLayer, KeyValue, LayerCache, Noted, SelectedLayer, SideBySide
from jax_smash.config import AttentionKind, ModelConfig
from jax_smash.models.projection import project, project_pair
from jax_smash.models.rope import Angles, rotate, rotate_beside
from jax_smash.platform import target_platform
from jax_smash.sharding import constrain, is_divided


class OneKey:
    """Gives every parameter the same key: for models without values, where counting keys takes most of the time."""

    def params(self) -> jax.Array:
        """Returns the key."""
        return jax.random.key(0)


Keys = nnx.Rngs | OneKey
"""What gives a key to each parameter."""

INIT = jax.nn.initializers.normal(0.02)


def weight(
    rngs: Keys,
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
    dtype: Any,
    initialiser: Any = INIT,
    contracted: tuple[int, ...] | None = None,
    units: int | None = None,
) -> nnx.Param:
    """Declares a weight: its shape, its logical axes, its dtype, how it is initialised and how it is multiplied.

    Logical axes are mapped to a mesh by rules; initialisation and checkpoint maps read the shape from here. A weight
    that names the axes its product sums over may be held as int8; its other axes are the output channels. The last axis
    may consist of equal `units`, such as heads, that stay whole where it is divided.
    """
    made = shape if units is None else (*shape[:-1], units, shape[-1] // units)
    # Each weight goes to its devices before the next is made. Without a mesh, its axes are a note on it.
    value = constrain(initialiser(rngs.params(), made, dtype), *axes).reshape(shape)
    return nnx.Param(value, out_sharding=axes, eager_sharding=False, contracted=contracted, units=units)


def rows_axis(cache: Any) -> str:
    """Returns the logical axis of an activation's rows.

    In training (no cache) a row stays on its devices and weights are gathered for it. In decoding weights stay, and the
    few entries travel: their width is divided over `fsdp` as the weights are.
    """
    return "batch" if cache is None else "rows"


def _drawn_side_by_side(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Initialises two matrices `[2, D, F]`, drawn as `[D, 2, F]`: a seed gives the weights that it always gave."""
    return INIT(key, (shape[1], 2, shape[2]), dtype).swapaxes(0, 1)


class RMSNorm(nnx.Module):
    """Scales by the root mean square over the last axis, or over that of several heads at once, in float32."""

    def __init__(
        self, width: int, config: ModelConfig, *, heads: tuple[int, int] | None = None, rngs: Keys, dtype: Any
    ):
        """Makes the norm.

        Args:
          width: of the last axis.
          config: of the model.
          heads: KV heads and heads of each, the two axes before the last, that are normed together.
          rngs, dtype: of the scale.
        """
        start = jax.nn.initializers.zeros if config.norm_offset else jax.nn.initializers.ones
        axes = (None,) if heads is None else ("kv_heads", None, None)
        self.scale = weight(rngs, (*(heads or ()), width), axes, dtype, start)
        self.normed = -1 if heads is None else (-3, -2, -1)
        self.epsilon = config.norm_epsilon
        self.offset = config.norm_offset
        self.late_rounding = config.late_rounding

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        scale = self.scale[...]
        scale = scale.reshape((1,) * (x.ndim - scale.ndim) + scale.shape)
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=self.normed, keepdims=True) + self.epsilon)
        if self.offset:
            return (wide * (1 + scale.astype(jnp.float32))).astype(x.dtype)
        if self.late_rounding:
            return (wide * scale.astype(jnp.float32)).astype(x.dtype)
        return scale * wide.astype(x.dtype)


class Attention(nnx.Module):
    """Grouped-query attention of one layer.

    `w_qkv` holds w_q, w_k and w_v in one matrix, so that a decode step reads them in one product: for each KV head its
    G query heads, then its key head, then its value head. It has two axes: with more, a TPU copies it at every step.
    """

    def __init__(
        self, config: ModelConfig, kind: AttentionKind, *, rngs: Keys, dtype: Any, input_width: int | None = None
    ):
        """Makes the layer's attention.

        Args:
          config: of the model.
          kind: of the layer.
          rngs, dtype: of the weights.
          input_width: of the entries that are read; None for those of the model's width, as wide as the output is.
        """
        d, n, k, h = config.d_model, config.num_heads, config.held_kv_heads, config.head_width
        self.config = config
        self.window = config.window_of(kind)
        width = (n + 2 * k) * h
        self.w_qkv = weight(rngs, (input_width or d, width), ("embed", "kv_heads"), dtype, contracted=(0,), units=k)
        self.w_o = weight(rngs, (k, n // k, h, d), ("kv_heads", None, None, "embed"), dtype, contracted=(0, 1, 2))
        zeros = jax.nn.initializers.zeros
        self.b_qkv = (
            weight(rngs, (k, n // k + 2, h), ("kv_heads", None, None), dtype, zeros) if config.qkv_bias else None
        )
        self.b_o = weight(rngs, (d,), ("embed",), dtype, zeros) if config.output_bias else None
        q_heads, k_heads = ((k, n // k), (k, 1)) if config.joint_qk_norm else (None, None)
        normed = config.qk_norm or config.joint_qk_norm
        self.q_norm = RMSNorm(h, config, heads=q_heads, rngs=rngs, dtype=dtype) if normed else None
        self.k_norm = RMSNorm(h, config, heads=k_heads, rngs=rngs, dtype=dtype) if normed else None

    def __call__(
        self,
        x: Float[Array, "B T I"],
        position: Int[Array, "B T"],
        angles: Angles | None,
        cache: LayerCache | SelectedLayer | HeldLayer | None,
        block: Block,
        num_queries: int | None = None,
        far: Angles | None = None,
    ) -> tuple[Float[Array, "B Q D"], KeyValue]:
        """Returns the output of the last `num_queries` entries, and the new entries' keys (rotated) and values."""
        config = self.config
        rotated, value = self.heads(x)
        sinks = None if cache is None else cache.sinks
        far_query = None if sinks is None else self._queries(rotated, far, num_queries)
        if angles is not None:
            rotated, value = rotate_beside(rotated, value, angles, late_rounding=config.late_rounding)
        query, note = self._queries(rotated, None, num_queries), None
        new = block.behind_earlier(rotated[..., -1, :], value, position)
        if isinstance(cache, SelectedLayer):
            out, note = attend_selected(query, *new, cache, block)
        elif isinstance(cache, HeldLayer):
            out = attend_held(query, *new, cache, block)
        else:
            out = attend(
                query,
                *new,
                cache,
                block,
                scale=config.query_scale,
                window=self.window if sinks is None else sinks.window,
                softcap=config.attention_softcap,
                far_query=far_query,
            )
        out = constrain(out.reshape(*out.shape[:2], config.held_kv_heads, -1), rows_axis(cache), None, "kv_heads")
        # As one matrix product over all heads: contracted head by head, XLA copies w_o at every step.
        out = project(
            out.reshape(*out.shape[:2], -1), self.w_o[...].reshape(config.num_heads * config.head_width, config.d_model)
        )
        if self.b_o is not None:
            out += self.b_o[...][None, None]
        entries = _for_cache(rotated, value)
        return out, entries if note is None else Noted(entries=entries, note=note)

    def heads(self, x: Float[Array, "B T I"]) -> tuple[Float[Array, "B T K X H"], Float[Array, "B T K H"]]:
        """Returns the queries and the key of each KV head before they are rotated, and its value."""
        config = self.config
        k, h = config.held_kv_heads, config.head_width
        # The barrier keeps a TPU from laying the weight out for what follows, at every call.
        qkv = jax.lax.optimization_barrier(project(x, self.w_qkv[...])).reshape(*x.shape[:2], k, -1, h)
        qkv = constrain(qkv, "batch", None, "kv_heads")
        if self.b_qkv is not None:
            qkv += self.b_qkv[...][None, None]
        rotated, value = qkv[..., :-1, :], qkv[..., -1, :]
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(rotated[..., :-1, :]), self.k_norm(rotated[..., -1:, :])
            rotated = jnp.concatenate([query, key], axis=-2)
        return rotated, value

    def _queries(
        self, heads: Float[Array, "B T K X H"], angles: Angles | None, count: int | None
    ) -> Float[Array, "B Q N H"]:
        """Returns the queries of the last `count` entries out of all heads, turned by angles if there are any."""
        query = heads[..., :-1, :]
        if angles is not None:
            query = rotate(query, angles, late_rounding=self.config.late_rounding)
        width = heads.shape[1]
        return query.reshape(*heads.shape[:2], self.config.num_heads, self.config.head_width)[:, -(count or width) :]


def _for_cache(rotated: Float[Array, "B T K X H"], value: Float[Array, "B T K H"]) -> KeyValue:
    """Returns keys and values for the cache's `commit`."""
    if target_platform() != "tpu":
        return rotated[..., -1, :], value
    pairs = jnp.stack([rotated[..., -1, :], value], axis=-2)
    if is_divided():
        return SideBySide(pairs=pairs)
    # The same, cut from entries' rows, which the compiler knows the heads to be: nothing is laid out anew.
    row = jnp.concatenate([rotated, value[..., None, :]], axis=-2).reshape(*value.shape[:2], -1)
    pair, lanes = 2 * value.shape[3], row.shape[2] // value.shape[2]
    cut = [row[:, :, end - pair : end] for end in range(lanes, row.shape[2] + 1, lanes)]
    return SideBySide(pairs=jnp.concatenate(cut, axis=-1).reshape(pairs.shape))


class MLP(nnx.Module):
    """The gated MLP: SwiGLU or GeGLU. `w_gate_up` holds w_gate and w_up, one behind the other."""

    def __init__(self, config: ModelConfig, *, rngs: Keys, dtype: Any):
        d, f = config.d_model, config.mlp_width
        self.activation = config.activation
        axes = (None, "embed", "mlp")
        self.w_gate_up = weight(rngs, (2, d, f), axes, dtype, _drawn_side_by_side, contracted=(1,))
        self.w_down = weight(rngs, (f, d), ("mlp", "embed"), dtype, contracted=(0,))
        zeros = jax.nn.initializers.zeros
        self.b_gate_up = weight(rngs, (2, f), (None, "mlp"), dtype, zeros) if config.mlp_bias else None
        self.b_down = weight(rngs, (d,), ("embed",), dtype, zeros) if config.mlp_bias else None

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        gate, up = project_pair(x, self.w_gate_up[...])
        if self.b_gate_up is not None:
            gate, up = gate + self.b_gate_up[0][None, None], up + self.b_gate_up[1][None, None]
        gate = jax.nn.silu(gate) if self.activation == "silu" else jax.nn.gelu(gate, approximate=True)
        out = project(gate * up, self.w_down[...])
        if self.b_down is not None:
            out += self.b_down[...][None, None]
        return out


class Layer(nnx.Module):
    """One transformer layer: attention and MLP, each normed before, after or both."""

    def __init__(self, config: ModelConfig, kind: AttentionKind, *, rngs: Keys, dtype: Any):
        def norm() -> RMSNorm:
            return RMSNorm(config.d_model, config, rngs=rngs, dtype=dtype)

        self.attention_norm = norm() if config.pre_norms else None
        self.mlp_norm = norm() if config.pre_norms else None
        self.attention_post_norm = norm() if config.post_norms else None
        self.mlp_post_norm = norm() if config.post_norms else None
        self.attention = Attention(config, kind, rngs=rngs, dtype=dtype)
        self.mlp = MLP(config, rngs=rngs, dtype=dtype)
        self.residual_scale = config.residual_scale

    @property
    def dtype(self) -> Any:
        """What the layer computes in; its matrices may be int8."""
        norm = self.attention_norm or self.attention_post_norm
        assert norm is not None
        return norm.scale[...].dtype

    def __call__(
        self,
        x: Float[Array, "B T D"],
        position: Int[Array, "B T"],
        angles: Angles | None,
        cache: LayerCache | SelectedLayer | HeldLayer | None,
        block: Block,
        num_queries: int | None = None,
        far: Angles | None = None,
    ) -> tuple[Float[Array, "B Q D"], KeyValue]:
        """Returns the residual after the layer and the new entries' keys and values.

        Args:
          x: the residual before it.
          position: of each new entry.
          angles: of the rotary embedding there; None where the layer has none.
          cache: what the layer has committed; None where there is nothing.
          block: which new entries see which.
          num_queries: returns the residual of the last so many entries alone, as is enough behind a last layer; by
            default of all.
          far: angles of the rotary embedding where entries see a cache's sinks from; None without sinks.
        """
        rows = rows_axis(cache)
        read = x if self.attention_norm is None else self.attention_norm(x)
        out, key_value = self.attention(read, position, angles, cache, block, num_queries, far)
        out = constrain(out, rows, None, "embed")
        x = x[:, -(num_queries or x.shape[1]) :] + self._scaled(
            out if self.attention_post_norm is None else self.attention_post_norm(out)
        )
        out = constrain(self.mlp(x if self.mlp_norm is None else self.mlp_norm(x)), rows, None, "embed")
        return x + self._scaled(out if self.mlp_post_norm is None else self.mlp_post_norm(out)), key_value

    def _scaled(self, out: Float[Array, "B Q D"]) -> Float[Array, "B Q D"]:
        if self.residual_scale == 1.0:
            return out
        return (out.astype(jnp.float32) * jnp.float32(self.residual_scale)).astype(out.dtype)
