"""What policies share whose predictor projects the base's keys: how the projected keys are kept, and their scores."""

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jax_smash.attention.formula import MASKED
from jax_smash.cache import SelectedCache, SelectedLayer
from jax_smash.models.predictors import RoundedKeys, importance, int4_keys, int8_keys
from jax_smash.pytree import replace
from jax_smash.sparse.learned import Learned, committed_slots
from jax_smash.sparse.memory import Heard, Parts, joined, parted


@dataclasses.dataclass(frozen=True, kw_only=True)
class Projected(Learned):
    """A policy that keeps a projected key of each KV head and entry.

    Attributes:
      heads: how a KV head's query heads agree: `sum` of their predicted probabilities, or `max` of their scores.
      int8: projected keys are kept in a byte a number, as they also are where the predictor rounds them itself.
      int4: in half a byte a number. They then take half of the bytes, so that a budget holds more slots.

    Raises:
      ValueError: as of `Selecting`, `heads` is neither, or `int8` and `int4` are both asked for.
    """

    sinks: int = 4
    window: int = 16
    heads: str = "sum"
    int8: bool = False
    int4: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads not in ("sum", "max"):
            raise ValueError(f"heads must be sum or max; got {self.heads!r}")
        if self.int8 and self.int4:
            raise ValueError("keys are kept in int8 or in int4; got both")

    @property
    def queries_a_layer(self) -> int:
        """N."""
        return self.sizes.num_heads

    def empty_keys(self, predictor: Any, cache: SelectedCache) -> dict[int, Parts]:
        """Makes room for a projected key of each KV head and entry."""
        shape = (cache.slot_length.shape[0], self.sizes.num_kv_heads, cache.slots, self.sizes.width)

        def empty() -> Parts:
            if self.int4:
                return jnp.zeros(shape, jnp.int4), jnp.zeros((*shape[:3], 1), jnp.bfloat16)
            if self.int8:
                return jnp.zeros(shape, jnp.int8), jnp.zeros((*shape[:3], 1), jnp.float32)
            return (jnp.zeros(shape, predictor.dtype),)

        return {i: empty() for i in self.planned(cache)}

    def recorded(self, predictor: Any, heard: Heard, block_kv: Any, cache: SelectedCache) -> Heard:
        """Projects the keys that the layers made."""
        heard = super().recorded(predictor, heard, block_kv, cache)

        def projected(layer: int) -> Parts:
            keys, _ = block_kv[layer]
            made = predictor.keys_of(layer, keys)
            if not isinstance(made, RoundedKeys):  # Some predictors round by themselves.
                made = int4_keys(made) if self.int4 else int8_keys(made) if self.int8 else made
            return parted(made)

        return replace(heard, keys={i: projected(i) for i in self.planned(cache)})

    @abc.abstractmethod
    def asked(self, view: SelectedLayer, query: Float[Array, "B N H"]) -> Float[Array, "B N d"]:
        """Returns what the projected keys are to answer, of a layer and the base's own query."""

    def scores(self, view: SelectedLayer, query: Float[Array, "B N H"]) -> Float[Array, "B K X"]:
        """Returns what the query heads of each KV head agree on."""
        asked, keys = self.asked(view, query)[:, None], joined(view.told.keys)
        if self.heads == "max":
            highest: Array = importance(asked, keys)[:, :, :, 0].max(2)
            return highest
        # Several passes over the scores make them probabilities: a predictor in bfloat16 has scores of half the bytes.
        found = importance(asked, keys, asked.dtype)[:, :, :, 0].astype(jnp.float32)
        return jax.nn.softmax(jnp.where(committed_slots(view)[:, None, None], found, MASKED), axis=-1).sum(2)

    def key_bytes(self, slots: int, itemsize: int) -> int:
        """Returns the bytes of a projected key of each KV head and slot; where it is rounded, with its scale."""
        width = self.sizes.width
        each = -(-width // 2) + 2 if self.int4 else width + 4 if self.int8 else width * itemsize
        return self.sizes.num_kv_heads * slots * each
