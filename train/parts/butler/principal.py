"""First weights of a low-rank predictor: projections that keep most of the products of a base's queries and keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from jax_smash.cache import Block
from jax_smash.models.attended import attended
from jax_smash.models.depth import tapped_without_cache
from jax_smash.models.predictors import LowRankConfig
from jax_smash.models.rope import longest
from jax_smash.models.transformer import Transformer
from train.data.rows import Batch
from train.parts.butler.recall import SINKS
from train.parts.butler.settings import ButlerSettings
from train.run.step import place_rows

FLOOR = 1e-6
"""Of a head's largest variance, the least that is taken for one."""


def moments_of(
    base: nnx.GraphDef, params: Any, settings: ButlerSettings, batches: Iterable[Batch], mesh: Mesh
) -> tuple[Float[np.ndarray, "L K H H"], Float[np.ndarray, "L K H H"]]:
    """Returns the second moments of the queries and of the keys of each KV head, sinks left out.

    Keys are measured from their mean over a row: what all keys have in common changes no attention.

    Args:
      base: structure of the base.
      params: of the base.
      settings: of the run.
      batches: this host's rows.
      mesh: the devices.
    """

    def moments(params: Any, batch: Batch) -> tuple[Array, Array, Array]:
        model: Transformer = nnx.merge(base, params)
        block = Block.causal(batch.segments > 0, batch.segments)
        inputs, position = model.embed(batch.tokens), batch.positions
        _, taps = tapped_without_cache(model, inputs, position, block, scan=settings.scan)
        heads = attended(model, taps, position, longest(position, block.valid))
        counted = (block.valid & (position >= SINKS)).astype(jnp.float32)[None, :, :, None, None]
        keys = heads.keys.astype(jnp.float32)
        mean = (keys * counted).sum(2, keepdims=True) / jnp.maximum(counted.sum(2, keepdims=True), 1)
        keys = (keys - mean) * counted
        queries = heads.queries.astype(jnp.float32) * counted
        queries = queries.reshape(*keys.shape[:4], -1, keys.shape[4])
        return (
            jnp.einsum("LBTKGH,LBTKGI->LKHI", queries, queries) / queries.shape[4],
            jnp.einsum("LBTKH,LBTKI->LKHI", keys, keys),
            counted.sum(),
        )

    compiled = jax.jit(moments, out_shardings=NamedSharding(mesh, PartitionSpec()))
    sums = [jax.tree.map(lambda x: np.asarray(x, np.float64), compiled(params, place_rows(b, mesh))) for b in batches]
    queries, keys, count = (sum(parts) for parts in zip(*sums, strict=True))
    return queries / count, keys / count


def principal_weights(
    of_queries: Float[np.ndarray, "L K H H"],
    of_keys: Float[np.ndarray, "L K H H"],
    config: LowRankConfig,
    scale: float,
    seed: int,
) -> tuple[Float[np.ndarray, "L K G H d"], Float[np.ndarray, "L K H d"]]:
    """Returns A and B, the projections of queries and of keys, with the least mean of (q · k − (q A) · (k B))².

    With C and D the moments of queries and keys, and V the first eigenvectors of √D C √D, that is A = √D V and
    B = √D⁻¹ V. Both are made equally long, and turned at random, so that rounding a key to few bits meets all of its
    numbers alike.

    Args:
      of_queries, of_keys: second moments of each KV head's queries and keys.
      config: of the predictor.
      scale: of the base's scores.
      seed: of the turns.
    """
    root, inverse = _roots(of_keys)
    value, vector = np.linalg.eigh(root @ of_queries @ root)
    value, vector = (x[..., ::-1][..., : config.width] for x in (value, vector))  # The largest first.
    turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(*value.shape, config.width)))[0]
    length = np.maximum(value, value[..., :1] * FLOOR)[..., None, :] ** 0.25
    # Scores are q · k / √d.
    share = (scale * config.width**0.5) ** 0.5
    queries, keys = share * (root @ vector / length) @ turn, share * (inverse @ vector * length) @ turn
    group = config.num_heads // config.num_kv_heads
    return np.repeat(queries[:, :, None], group, axis=2), keys


def _roots(moments: Float[np.ndarray, "L K H H"]) -> tuple[Float[np.ndarray, "L K H H"], Float[np.ndarray, "L K H H"]]:
    """Returns the square root of each matrix, and its inverse."""
    value, vector = np.linalg.eigh(moments)
    value = np.sqrt(np.maximum(value, value[..., -1:] * FLOOR))[..., None, :]
    turned = np.swapaxes(vector, -1, -2)
    return (vector * value) @ turned, (vector / value) @ turned
