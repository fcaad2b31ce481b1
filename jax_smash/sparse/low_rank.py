"""The base's own queries and keys in a few numbers a head, as a policy."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jax_smash.cache import Entering, SelectedCache, SelectedLayer
from jax_smash.pytree import replace
from jax_smash.sparse.memory import Heard, Memory, Told
from jax_smash.sparse.projected import Projected


@dataclasses.dataclass(frozen=True, kw_only=True)
class LowRankKeys(Projected):
    """Reads the slots whose projected keys answer the base's own queries, projected likewise.

    score(s) = Σ over the query heads of a KV head of softmax over slots of (q A) · (k B) / √d

    Source: Singhania et al. 2024, "Loki: Low-rank Keys for Efficient Sparse Attention".
    Differs: both projections are learned from the base's attention, not the keys' principal components. The query heads
    of a KV head share a set of slots. Loki keeps whole keys in its components' order and reads a part of each; here the
    projected keys lie beside the cache, and may be rounded.

    By default only the first and the newest entry are read whatever they score: of a small budget, further ones take
    slots that others need more.
    """

    sinks: int = 1
    window: int = 1

    form = "low_rank"

    def entered(self, predictor: Any, cache: SelectedCache, heard: Heard | None, entering: Entering) -> Heard:
        """Remembers the projections of queries: a query is there only when its layer attends."""
        return heard or Heard(beside=predictor.w_queries[...])

    def recorded(self, predictor: Any, heard: Heard, block_kv: Any, cache: SelectedCache) -> Heard:
        """Projects the keys that the layers made."""
        return super().recorded(predictor, replace(heard, beside=None), block_kv, cache)

    def told(self, layer: int, own: Memory, heard: Heard) -> Told:
        """Returns the layer's keys, and what its queries are projected by."""
        return Told(query=None, keys=own.keys[layer], projection=heard.beside[layer])

    def asked(self, view: SelectedLayer, query: Float[Array, "B N H"]) -> Float[Array, "B N d"]:
        """Projects the query."""
        each = view.told.projection
        by_group = query.reshape(query.shape[0], self.sizes.num_kv_heads, -1, query.shape[2])
        made = jnp.einsum("BKGH,KGHD->BKGD", by_group.astype(each.dtype), each)
        return made.reshape(*query.shape[:2], -1)
