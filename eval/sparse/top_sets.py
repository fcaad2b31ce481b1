"""The slots with most attention of every query head, over whole texts that a dense forward reads."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from eval.sparse.truth import wanted
from eval.tasks.selection import SINKS
from jax_smash.attention.formula import MASKED
from jax_smash.cache import Block
from jax_smash.loading import Model
from jax_smash.models.attended import attended
from jax_smash.threshold import mark_highest


def top_sets(
    model: Model, tokens: Sequence[Sequence[int]], *, share: float, first: int, sinks: int = SINKS
) -> Iterator[tuple[Bool[np.ndarray, "L N Q S"], Bool[np.ndarray, "L Q S"]]]:
    """Yields of each text the top sets of every query head, and those of all heads of a layer together.

    The set of a query at position p has the ⌈share · p⌉ − sinks slots with most attention among those from `sinks` to
    p − 1, which are all that a step would have in its cache.

    Args:
      model: a dense one.
      tokens: texts of equal length T.
      share: of the slots, over 0 and at most 1.
      first: position of the first query; Q = T − `first`.
      sinks: first slots, which are left out.

    Raises:
      ValueError: the model is not of this package; its layers do not see the whole of a text, or its rotary angles
        depend on the text's length; or there is no query.
    """
    config = model.config
    if config is None:
        raise ValueError(f"{model.name} must be a model of this package: its attention is looked into")
    if config.follows_length:
        raise ValueError(f"the rotary embedding of {model.name} must not depend on the length of the text")
    window = min((size for size in map(config.window_of, config.kinds) if size), default=None)
    for text in tokens:
        if len(text) <= first:
            raise ValueError(f"a text must have more than {first} tokens; got {len(text)}")
        if window is not None and len(text) > window:
            raise ValueError(f"a text must be at most the {window} tokens of {model.name}'s window; got {len(text)}")
    for text in tokens:
        row = jnp.asarray(text, jnp.int32)[None]
        found = _sets(model.definition, model.params["target"], row, share, first, sinks)
        by_head, by_layer = map(np.asarray, found)
        yield by_head, by_layer


@functools.partial(jax.jit, static_argnums=(0, 3, 4, 5))
def _sets(
    model_def: Any, params: Any, tokens: Int[Array, "1 T"], share: float, first: int, sinks: int
) -> tuple[Bool[Array, "L N Q S"], Bool[Array, "L Q S"]]:
    model = model_def.bind(params)
    width = tokens.shape[1]
    place = jnp.arange(width, dtype=jnp.int32)[None]
    out = model.forward(model.embed(tokens), place, None, Block.causal(jnp.ones(tokens.shape, bool)))
    made, config = attended(model, out.taps, place), model.config
    position = jnp.arange(first, width, dtype=jnp.int32)
    slot = jnp.arange(width, dtype=jnp.int32)
    committed = slot[None] < position[:, None]
    candidate = (committed & (slot >= sinks)[None])[:, None]
    count = wanted(position, share, sinks)

    def layer(pair: tuple[Float[Array, "T N H"], Float[Array, "T K H"]]) -> tuple[Array, Array]:
        query, key = pair
        grouped = query[first:].reshape(width - first, key.shape[1], -1, key.shape[2])
        scores = jnp.einsum("QKGH,SKH->QKGS", grouped, key, preferred_element_type=jnp.float32) * config.query_scale
        if config.attention_softcap:
            scores = config.attention_softcap * jnp.tanh(scores / config.attention_softcap)
        mass = jax.nn.softmax(jnp.where(committed[:, None, None], scores, MASKED), axis=-1)
        mass = mass.reshape(width - first, -1, width)
        by_head = mark_highest(mass, candidate, count[:, None])
        by_layer = mark_highest(mass.sum(1, keepdims=True), candidate, count[:, None])
        return by_head.swapaxes(0, 1), by_layer[:, 0]

    return jax.lax.map(layer, (made.queries[:, 0], made.keys[:, 0]))
