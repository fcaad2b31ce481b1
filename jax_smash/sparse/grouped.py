"""TokenButler's later predictor, of the base's own keys, as a policy."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jax_smash.cache import Entering, SelectedCache, SelectedLayer
from jax_smash.models.predictors import PredictorConfig, importance, int4_keys, int8_keys
from jax_smash.pytree import replace
from jax_smash.sparse.learned import Learned
from jax_smash.sparse.memory import Heard, Parts, joined, parted


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupedButler(Learned):
    """Reads the slots whose projected keys answer queries that are made every few layers.

    score(s) = max over the query heads of a KV head of q · k / √d

    Source: released code of TokenButler's later generations; no paper describes them.
    Differs: that code reads 128 first entries, 512 last ones and 2,048 or 8,192 in all; here these are settings, and
    smaller by default.

    Attributes:
      int8: projected keys are kept in a byte a number, as they also are where the predictor's own sizes say so.
      int4: in half a byte a number. They then take half of the bytes, so that a budget holds more slots.

    Raises:
      ValueError: as of `Selecting`, or `int8` and `int4` are both asked for.
    """

    sinks: int = 4
    window: int = 16
    int8: bool = False
    int4: bool = False

    form = "grouped"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.int8 and self.int4:
            raise ValueError("keys are kept in int8 or in int4; got both")

    def sized(self, predictor: PredictorConfig, trained_length: int | None = None) -> "GroupedButler":
        """Returns the policy for a predictor of certain sizes.

        Raises:
          ValueError: the predictor is of another form, or `int4` is asked of one whose own keys are in int8.
        """
        found: Any = super().sized(predictor, trained_length)
        if self.int4 and found.sizes.int8:
            raise ValueError("int4 needs a predictor whose own keys are not rounded to int8")
        return dataclasses.replace(found, int8=self.int8 or found.sizes.int8)

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

    def entered(self, predictor: Any, cache: SelectedCache, heard: Heard | None, entering: Entering) -> Heard:
        """Makes queries of a few layers, from the residual that enters the first of them."""
        heard, start, config = heard or Heard(), entering.index, self.sizes
        served = [i for i in self.planned(cache) if start <= i < start + config.every]
        if start not in config.starts or not served:
            return heard
        x = entering.x if config.look_ahead else entering.asking(entering.x)
        made = predictor.queries_at(start, x)
        return replace(heard, queries=heard.queries | {i: made[:, :, i - start] for i in served})

    def recorded(self, predictor: Any, heard: Heard, block_kv: Any, cache: SelectedCache) -> Heard:
        """Projects the keys that the layers made."""
        heard = super().recorded(predictor, heard, block_kv, cache)

        def projected(layer: int) -> Parts:
            keys, _ = block_kv[layer]
            made = predictor.keys_of(layer, keys)
            if not self.sizes.int8:  # Else they are rounded already.
                made = int4_keys(made) if self.int4 else int8_keys(made) if self.int8 else made
            return parted(made)

        return replace(heard, keys={i: projected(i) for i in self.planned(cache)})

    def scores(self, view: SelectedLayer) -> Float[Array, "B K X"]:
        """Returns the highest score of each KV head's query heads."""
        found: Array = importance(view.told.query[:, None], joined(view.told.keys))
        return found.max(2)[:, :, 0]

    def key_bytes(self, slots: int, itemsize: int) -> int:
        """Returns the bytes of a projected key of each KV head and slot; where it is rounded, with its scale."""
        width = self.sizes.width
        each = -(-width // 2) + 2 if self.int4 else width + 4 if self.int8 else width * itemsize
        return self.sizes.num_kv_heads * slots * each
