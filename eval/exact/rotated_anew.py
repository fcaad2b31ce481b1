"""StreamingLLM as its paper says: every key rotated anew, for its place in the cache, at every step. Slow, and plain.

Source: Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks", section 3.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.loading import Model
from jax_smash.models.rope import rotate, rotation
from jax_smash.sparse import StreamingLLM

Kept = tuple[Float[Array, "S K H"], Float[Array, "S K H"]]
"""A layer's keys, not rotated, and values: the sinks, then the last entries, the latest behind the others."""


def logits_of_text(model: Model, policy: StreamingLLM, tokens: list[int], *, near: bool = True) -> Float[Array, "T V"]:
    """Returns the logits after each token of a text, read token by token.

    Args:
      model: a Llama without biases and without norms of queries and keys, its weights not int8.
      policy: how much is kept.
      tokens: of the text.
      near: sinks are seen from where the cache ends, as the paper has it; False sees them from where the text ends.

    Raises:
      ValueError: the model has another form.
    """
    config = model.config
    if config is None or config.kinds != ("full",) or config.qk_norm or config.joint_qk_norm or config.qkv_bias:
        raise ValueError(f"the reference reads plain Llamas alone; {model.name} is none")
    places = jnp.arange(policy.slots, dtype=jnp.int32)
    read = functools.partial(_read, model.definition, places, policy.sinks, near)
    return jax.jit(read)(model.params["target"], jnp.asarray(tokens, jnp.int32))


def _read(
    definition: Any, places: Int[Array, "S"], sinks: int, near: bool, params: Any, tokens: Int[Array, "T"]
) -> Float[Array, "T V"]:
    model, slots = definition.bind(params), places.shape[0]
    config = model.config

    def step(carry: tuple[list[Kept], Array], token: Int[Array, ""]) -> tuple[tuple[list[Kept], Array], Array]:
        kept, position = carry
        x, after = model.embed(token[None, None])[0, 0], []
        at = jnp.minimum(position, slots - 1)
        away = 0 if near else position - at
        held = jnp.where(places < sinks, places, places + away)
        for layer, (keys, values) in zip(model.layers, kept, strict=True):
            heads = layer.attention_norm(x) @ layer.attention.w_qkv[...]
            heads = heads.reshape(config.num_kv_heads, -1, config.head_width)
            keys, values = (
                _kept(kind, new, position, sinks) for kind, new in ((keys, heads[:, -2]), (values, heads[:, -1]))
            )
            mixed = _attended(config, heads[:, :-2], keys, values, held, at + away, places <= at)
            after.append((keys, values))
            x += mixed @ layer.attention.w_o[...].reshape(-1, config.d_model)
            x += layer.mlp(layer.mlp_norm(x)[None, None])[0, 0]
        return (after, position + 1), model.unembed(model.final_norm(x)[None])[0]

    empty = jnp.zeros((slots, config.num_kv_heads, config.head_width), model.dtype)
    return jax.lax.scan(step, ([(empty, empty)] * config.num_layers, jnp.int32(0)), tokens)[1]


def _kept(
    kept: Float[Array, "S K H"], new: Float[Array, "K H"], position: Int[Array, ""], sinks: int
) -> Float[Array, "S K H"]:
    """Puts an entry behind the others; where there is no room, those behind the sinks move on by one place."""
    slots = kept.shape[0]
    moved = jnp.concatenate([kept[:sinks], kept[sinks + 1 :], kept[:1]])
    return jnp.where(position < slots, kept, moved).at[jnp.minimum(position, slots - 1)].set(new)


def _attended(
    config: Any,
    query: Float[Array, "K G H"],
    keys: Float[Array, "S K H"],
    values: Float[Array, "S K H"],
    places: Int[Array, "S"],
    place: Int[Array, ""],
    seen: Bool[Array, "S"],
) -> Float[Array, "out"]:
    """Returns attention with the keys rotated at their places and the queries at theirs."""

    def rotated(x: Float[Array, "T *heads H"], at: Int[Array, "T"]) -> Float[Array, "T *heads H"]:
        return rotate(x[None], rotation(config.rope, config.head_width, at[None]))[0]

    turned, query = rotated(keys, places), rotated(query[None], place[None])[0]
    scores = jnp.einsum("KGH,SKH->KGS", query, turned, preferred_element_type=jnp.float32) * config.query_scale
    weights = jax.nn.softmax(jnp.where(seen[None, None], scores, -jnp.inf), axis=-1).astype(values.dtype)
    return jnp.einsum("KGS,SKH->KGH", weights, values).reshape(-1)
