"""First weights that already look back: what followed a token before is expected to follow it again.

Each token's vector is first given a part of the token before it (layer 0); a head then finds earlier positions whose
token before is the current one, and adds the vectors of the tokens that stand there (layer 1). Training makes these
weights its own; from random ones it finds nothing like them in the first millions of tokens.

Source: the circuit, Olsson et al. 2022 (induction heads); weights that begin with the structure of trained ones,
Trockman & Kolter 2023 (mimetic initialisation).
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from flax import nnx

from jax_smash.config import ModelConfig
from jax_smash.models.rope import frequencies
from jax_smash.models.transformer import Transformer

PREVIOUS_HEADS = 2
"""KV heads of layer 0 that look one position back."""

POSITION_BIAS = 7.0
"""Size of the biases that point there: attention falls to 1% at the positions beside it."""

CONTENT_SHARE = 0.1
"""What is left there of the random weights from tokens to queries and keys."""

WRITTEN = 1.0
"""Size of what one such head writes, in sizes of an embedding."""

MATCH = 1.2
"""Size of layer 1's queries and keys, in sizes of an input."""

COPIED = 40.0
"""Size of what layer 1 writes, as `WRITTEN`: at least the next token's logit must exceed the current one's."""

SPAN, TURN = 512, 2.0
"""Tokens are compared in rotary pairs that turn by less than so many radians over so many positions."""


def look_back(graphdef: nnx.GraphDef, params: nnx.State, config: ModelConfig, seed: int) -> nnx.State:
    """Returns a model's parameters with layers 0 and 1 looking back.

    Args:
      graphdef: the model's structure.
      params: its random parameters, as `first_params` makes them, float32.
      config: of a model with biases on queries and keys, at least two layers, and a tied head.
      seed: of what is random in the two layers.
    """
    model: Transformer = nnx.merge(graphdef, params)
    rng = np.random.default_rng(seed)
    wide = config.d_model**-0.5
    model.embedding[...] = model.embedding[...] * np.float32(wide / np.std(model.embedding[...]))
    first, second = model.layers[0].attention, model.layers[1].attention
    unit = wide * config.head_width**-0.5
    """Of an output weight: what reaches the residual through it has the size of an embedding."""
    turns = frequencies(config.rope_of(config.layer_kinds[0]), config.head_width)
    groups = config.num_heads // config.num_kv_heads
    heads = min(PREVIOUS_HEADS, config.num_kv_heads)

    assert first.b_qkv is not None
    by_head = (config.d_model, config.num_kv_heads, groups + 2, config.head_width)
    w_qkv, b_qkv, w_o = (np.array(x[...]) for x in (first.w_qkv, first.b_qkv, first.w_o))
    w_qkv = w_qkv.reshape(by_head)
    w_qkv[:, :heads, : groups + 1] *= CONTENT_SHARE
    # Key and query are the same vector, the query turned by one position: they agree most one position apart.
    ones = np.ones_like(turns)
    b_qkv[:heads, groups] = POSITION_BIAS * np.concatenate([ones, 0 * ones])
    for query in range(groups):
        back = (1 + query) * turns
        b_qkv[:heads, query] = POSITION_BIAS * np.concatenate([np.cos(back), -np.sin(back)])
    w_o[:heads, 0] = WRITTEN * unit * rng.normal(size=w_o[:heads, 0].shape)
    values, written = w_qkv[:, :heads, -1], w_o[:heads, 0]
    for old, new in ((first.w_qkv, w_qkv), (first.b_qkv, b_qkv), (first.w_o, w_o)):
        old[...] = jnp.asarray(new.reshape(old.shape), jnp.float32)

    turns = frequencies(config.rope_of(config.layer_kinds[1]), config.head_width)
    slow = np.tile(turns * SPAN < TURN, 2)
    size = MATCH * slow * np.sqrt(len(slow) / max(1, slow.sum()))
    w_qkv, w_o = np.array(second.w_qkv[...]).reshape(by_head), np.array(second.w_o[...])
    for head in range(config.num_kv_heads):
        source = head % heads
        read = written[source] / np.linalg.norm(written[source], axis=1, keepdims=True)
        w_qkv[:, head, :groups] = (values[:, source] * size)[:, None]
        w_qkv[:, head, groups] = read.T * size
        w_o[head] = COPIED * unit * w_qkv[:, head, -1].T
    second.w_qkv[...] = jnp.asarray(w_qkv.reshape(config.d_model, -1), jnp.float32)
    second.w_o[...] = jnp.asarray(w_o, jnp.float32)
    return nnx.state(model)
