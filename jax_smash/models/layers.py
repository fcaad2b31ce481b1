"""The layers that every supported transformer is made of."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jax_smash.attention import attend
from jax_smash.cache import Block, LayerCache
from jax_smash.config import AttentionKind, ModelConfig
from jax_smash.models.projection import project
from jax_smash.models.rope import rotate
from jax_smash.sharding import constrain

INIT = jax.nn.initializers.normal(0.02)


def weight(
    rngs: nnx.Rngs,
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
    dtype: Any,
    initialiser: Any = INIT,
    contracted: tuple[int, ...] | None = None,
) -> nnx.Param:
    """Declares a weight: its shape, its logical axes, its dtype, how it is initialised and how it is multiplied.

    Logical axes are mapped to a mesh by rules; initialisation and checkpoint maps read the shape from here. A weight
    that names the axes its product sums over may be held as int8; its other axes are the output channels.
    """
    # Each weight goes to its devices before the next is made. Without a mesh, its axes are a note on it.
    value = constrain(initialiser(rngs.params(), shape, dtype), *axes)
    return nnx.Param(value, out_sharding=axes, eager_sharding=False, contracted=contracted)


def rows_axis(cache: Any) -> str:
    """Returns the logical axis of an activation's rows.

    In training (no cache) a row stays on its devices and weights are gathered for it. In decoding weights stay, and the
    few entries travel: their width is divided over `fsdp` as the weights are.
    """
    return "batch" if cache is None else "rows"


class RMSNorm(nnx.Module):
    """Scales by the root mean square over the last axis, in float32."""

    def __init__(self, width: int, config: ModelConfig, *, rngs: nnx.Rngs, dtype: Any):
        start = jax.nn.initializers.zeros if config.norm_offset else jax.nn.initializers.ones
        self.scale = weight(rngs, (width,), (None,), dtype, start)
        self.epsilon = config.norm_epsilon
        self.offset = config.norm_offset

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        scale = self.scale[...].reshape((1,) * (x.ndim - 1) + x.shape[-1:])
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.epsilon)
        if self.offset:
            return (wide * (1 + scale.astype(jnp.float32))).astype(x.dtype)
        return scale * wide.astype(x.dtype)


class Attention(nnx.Module):
    """Grouped-query attention of one layer.

    `w_qkv` holds w_q, w_k and w_v in one matrix, so that a decode step reads them in one product: for each KV head its
    G query heads, then its key head, then its value head.
    """

    def __init__(self, config: ModelConfig, kind: AttentionKind, *, rngs: nnx.Rngs, dtype: Any):
        d, n, k, h = config.d_model, config.num_heads, config.num_kv_heads, config.head_width
        self.config = config
        self.window = config.window_of(kind)
        self.w_qkv = weight(rngs, (d, k, n // k + 2, h), ("embed", "kv_heads", None, None), dtype, contracted=(0,))
        self.w_o = weight(rngs, (k, n // k, h, d), ("kv_heads", None, None, "embed"), dtype, contracted=(0, 1, 2))
        zeros = jax.nn.initializers.zeros
        self.b_qkv = (
            weight(rngs, (k, n // k + 2, h), ("kv_heads", None, None), dtype, zeros) if config.qkv_bias else None
        )
        self.b_o = weight(rngs, (d,), ("embed",), dtype, zeros) if config.output_bias else None
        self.q_norm = RMSNorm(h, config, rngs=rngs, dtype=dtype) if config.qk_norm else None
        self.k_norm = RMSNorm(h, config, rngs=rngs, dtype=dtype) if config.qk_norm else None

    def __call__(
        self,
        x: Float[Array, "B T D"],
        position: Int[Array, "B T"],
        angles: tuple[Float[Array, "B T half"], Float[Array, "B T half"]],
        cache: LayerCache | None,
        block: Block,
        asked: int | None = None,
    ) -> tuple[Float[Array, "B Q D"], tuple[Float[Array, "B T K H"], Float[Array, "B T K H"]]]:
        """Returns the output of the last `asked` entries, and the new entries' keys (rotated) and values."""
        config = self.config
        qkv = constrain(project(x, self.w_qkv[...]), "batch", None, "kv_heads")
        if self.b_qkv is not None:
            qkv += self.b_qkv[...][None, None]
        rotated, value = qkv[..., :-1, :], qkv[..., -1, :]
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(rotated[..., :-1, :]), self.k_norm(rotated[..., -1:, :])
            rotated = jnp.concatenate([query, key], axis=-2)
        rotated = rotate(rotated, angles)
        query, key = rotated[..., :-1, :], rotated[..., -1, :]
        query = query.reshape(*x.shape[:2], config.num_heads, config.head_width)[:, -(asked or x.shape[1]) :]
        out = attend(
            query,
            key,
            value,
            position,
            cache,
            block,
            scale=config.query_scale,
            window=self.window,
            softcap=config.attention_softcap,
        )
        out = constrain(out.reshape(*out.shape[:2], config.num_kv_heads, -1), rows_axis(cache), None, "kv_heads")
        # As one matrix product over all heads: contracted head by head, XLA copies w_o at every step.
        out = project(
            out.reshape(*out.shape[:2], -1), self.w_o[...].reshape(config.num_heads * config.head_width, config.d_model)
        )
        if self.b_o is not None:
            out += self.b_o[...][None, None]
        return out, (key, value)


class MLP(nnx.Module):
    """The gated MLP: SwiGLU or GeGLU. `w_gate_up` holds w_gate and w_up in one matrix."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs, dtype: Any):
        d, f = config.d_model, config.mlp_width
        self.activation = config.activation
        self.w_gate_up = weight(rngs, (d, 2, f), ("embed", None, "mlp"), dtype, contracted=(0,))
        self.w_down = weight(rngs, (f, d), ("mlp", "embed"), dtype, contracted=(0,))
        zeros = jax.nn.initializers.zeros
        self.b_gate_up = weight(rngs, (2, f), (None, "mlp"), dtype, zeros) if config.mlp_bias else None
        self.b_down = weight(rngs, (d,), ("embed",), dtype, zeros) if config.mlp_bias else None

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        both = project(x, self.w_gate_up[...])
        if self.b_gate_up is not None:
            both += self.b_gate_up[...][None, None]
        gate, up = both[..., 0, :], both[..., 1, :]
        gate = jax.nn.silu(gate) if self.activation == "silu" else jax.nn.gelu(gate, approximate=True)
        out = project(gate * up, self.w_down[...])
        if self.b_down is not None:
            out += self.b_down[...][None, None]
        return out


class Layer(nnx.Module):
    """One transformer layer: attention and MLP, each normed before (and, in some families, after)."""

    def __init__(self, config: ModelConfig, kind: AttentionKind, *, rngs: nnx.Rngs, dtype: Any):
        def norm() -> RMSNorm:
            return RMSNorm(config.d_model, config, rngs=rngs, dtype=dtype)

        self.attention_norm, self.mlp_norm = norm(), norm()
        self.attention_post_norm = norm() if config.post_norms else None
        self.mlp_post_norm = norm() if config.post_norms else None
        self.attention = Attention(config, kind, rngs=rngs, dtype=dtype)
        self.mlp = MLP(config, rngs=rngs, dtype=dtype)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        position: Int[Array, "B T"],
        angles: tuple[Float[Array, "B T half"], Float[Array, "B T half"]],
        cache: LayerCache | None,
        block: Block,
        asked: int | None = None,
    ) -> tuple[Float[Array, "B Q D"], tuple[Float[Array, "B T K H"], Float[Array, "B T K H"]]]:
        """Returns the residual after the layer and the new entries' keys and values.

        Args:
          x: the residual before it.
          position: of each new entry.
          angles: of the rotary embedding there.
          cache: what the layer has committed; None where there is nothing.
          block: which new entries see which.
          asked: returns the residual of the last so many entries alone, as is enough behind a last layer; by default of
            all.
        """
        rows = rows_axis(cache)
        out, key_value = self.attention(self.attention_norm(x), position, angles, cache, block, asked)
        out = constrain(out, rows, None, "embed")
        x = x[:, -(asked or x.shape[1]) :] + (
            out if self.attention_post_norm is None else self.attention_post_norm(out)
        )
        out = constrain(self.mlp(self.mlp_norm(x)), rows, None, "embed")
        return x + (out if self.mlp_post_norm is None else self.mlp_post_norm(out)), key_value
