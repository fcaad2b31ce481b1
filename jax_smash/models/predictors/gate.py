"""A gate that scores whole pages of a cache, one set of pages a KV head."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jax_smash.cache import Block
from jax_smash.models.attended import Attended
from jax_smash.models.layers import Keys, weight
from jax_smash.models.predictors.config import PredictorConfig
from jax_smash.models.predictors.importance import Importance, importance
from jax_smash.models.rope import rotate, rotation
from jax_smash.pytree import pytree

XAVIER = jax.nn.initializers.glorot_uniform(batch_axis=(0, 1))
SHARED = 4
"""Layers that one producer may serve at most."""


@dataclasses.dataclass(frozen=True)
class GateConfig(PredictorConfig):
    """Sizes of the gate.

    Attributes:
      page: Z, entries of a page.
      share: layers that one producer serves: the first of them makes the scores.
      width: d, of a query and of a page's key.
    """

    page: int = 64
    share: int = 1
    width: int = 128

    kind = "gate"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(1, "page")
        if not 1 <= self.share <= SHARED:
            raise ValueError(f"share must be from 1 to {SHARED} layers; got {self.share}")
        self._even("width", self.width)

    @property
    def starts(self) -> range:
        """The layer of each producer."""
        return range(0, self.num_layers, self.share)

    @property
    def page_size(self) -> int:
        """Entries that share a score."""
        return self.page


@pytree
class Pool:
    """A page that is not full: what its keys have been so far, for one layer.

    Attributes:
      highest, lowest, total: of each element over the keys that were added.
      count: how many were.
    """

    highest: Float[Array, "B K H"]
    lowest: Float[Array, "B K H"]
    total: Float[Array, "B K H"]
    count: Int[Array, "B"]

    @classmethod
    def empty(cls, batch: int, kv_heads: int, head_width: int) -> "Pool":
        """Returns a page without keys."""
        shape = (batch, kv_heads, head_width)
        return cls(
            highest=jnp.full(shape, -jnp.inf, jnp.float32),
            lowest=jnp.full(shape, jnp.inf, jnp.float32),
            total=jnp.zeros(shape, jnp.float32),
            count=jnp.zeros(batch, jnp.int32),
        )

    def add(self, key: Float[Array, "B K H"]) -> "Pool":
        """Returns the page with one more key, which the rotary embedding has not turned."""
        wide = key.astype(jnp.float32)
        return Pool(
            highest=jnp.maximum(self.highest, wide),
            lowest=jnp.minimum(self.lowest, wide),
            total=self.total + wide,
            count=self.count + 1,
        )

    def pooled(self) -> Float[Array, "B 1 K X"]:
        """Returns max ‖ min ‖ mean of each head's keys; of one key at least."""
        mean = self.total / jnp.maximum(self.count, 1).astype(jnp.float32)[:, None, None]
        return jnp.concatenate([self.highest, self.lowest, mean], axis=-1)[:, None]


def pool_pages(keys: Float[Array, "B T K H"], page: int) -> Float[Array, "B pages K X"]:
    """Returns max ‖ min ‖ mean of the keys of every page.

    Args:
      keys: before the rotary embedding, of whole pages.
      page: entries of one.

    Raises:
      ValueError: the entries are no whole number of pages.
    """
    if keys.shape[1] % page:
        raise ValueError(f"page must divide the {keys.shape[1]} entries; got {page}")
    wide = keys.astype(jnp.float32).reshape(keys.shape[0], -1, page, *keys.shape[2:])
    return jnp.concatenate([wide.max(2), wide.min(2), wide.mean(2)], axis=-1)


class Gate(nnx.Module):
    """One map of a group's queries and one of its pooled keys, a pair for each KV head of a producer. Weights only.

    The score of a page is q · k / √d, q and k turned by a rotary embedding for the query's position and for that of the
    page's first entry. A page gets its key when it is full. The page of the query has no score and is always read.

    Source: Gao et al. 2025, "SeerAttention-R", of the gate's form; one producer for several layers as in IndexCache
    (arXiv 2603.12201).
    Differs: pages of a query's own document alone are scored, and the page that holds the query is left out.
    """

    def __init__(self, config: GateConfig, *, rngs: Keys, dtype: Any = jnp.float32):
        group, heads = config.num_heads // config.num_kv_heads, config.num_kv_heads
        self.config = config

        def maps(inputs: int) -> nnx.Param:
            shape = (len(config.starts), heads, inputs, config.width)
            return weight(rngs, shape, (None,) * 4, dtype, XAVIER)

        self.w_queries, self.w_keys = maps(group * config.head_width), maps(3 * config.head_width)

    @property
    def dtype(self) -> Any:
        """What the gate computes in."""
        return self.w_keys[...].dtype

    def queries_of(
        self, producer: int, queries: Float[Array, "B T N H"], position: Int[Array, "B T"]
    ) -> Float[Array, "B T K d"]:
        """Returns a producer's queries, from its layer's queries before the rotary embedding."""
        by_head = queries.reshape(*queries.shape[:2], self.config.num_kv_heads, -1).astype(self.dtype)
        return self._turned(jnp.einsum("BTKI,KID->BTKD", by_head, self.w_queries[...][producer]), position)

    def keys_of(
        self, producer: int, pooled: Float[Array, "B P K X"], position: Int[Array, "B P"]
    ) -> Float[Array, "B P K d"]:
        """Returns what is kept of full pages, from their layer's pooled keys.

        Args:
          producer: index of the producer.
          pooled: from `pool_pages` or `Pool.pooled`.
          position: of each page's first entry.
        """
        return self._turned(
            jnp.einsum("BPKI,KID->BPKD", pooled.astype(self.dtype), self.w_keys[...][producer]), position
        )

    def _turned(self, made: Float[Array, "B X K d"], position: Int[Array, "B X"]) -> Float[Array, "B X K d"]:
        return rotate(made, rotation(self.config.rope, self.config.width, position))

    def scores(self, queries: Float[Array, "B Q K d"], keys: Float[Array, "B P K d"]) -> Float[Array, "B K Q P"]:
        """Returns the score of every page for every KV head."""
        return importance(queries, keys)[:, :, 0]

    def read(
        self, taps: Sequence[Float[Array, "B T D"]], heads: Attended, position: Int[Array, "B T"], block: Block
    ) -> Importance:
        """Returns queries and pages' keys of whole rows, as training needs them, for every layer.

        Args:
          taps, block: not read by this form.
          heads: of the base's layers.
          position: of each entry.

        Raises:
          ValueError: rows are no whole number of pages.
        """
        config = self.config
        first = position[:, :: config.page]
        pairs = [
            (
                self.queries_of(producer, heads.plain_queries[layer], position),
                self.keys_of(producer, pool_pages(heads.plain_keys[layer], config.page), first),
            )
            for producer, layer in enumerate(config.starts)
        ]
        of_layer = jnp.arange(config.num_layers, dtype=jnp.int32) // config.share
        queries, keys = (jnp.stack(column)[of_layer] for column in zip(*pairs, strict=True))
        return Importance(queries=queries, keys=keys)
