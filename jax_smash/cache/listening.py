"""A cache while a forward reads it, of which a trained predictor chooses the slots."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jax_smash.cache.block import Block
from jax_smash.cache.selected import SelectedCache, SelectedLayer
from jax_smash.cache.store import LayerCache
from jax_smash.pytree import replace


@dataclasses.dataclass(frozen=True)
class Entering:
    """What enters a layer.

    Attributes:
      index: of the layer.
      layer: the layer itself.
      x: the residual.
      position: of each entry.
      block: which entries see which.
    """

    index: int
    layer: Any
    x: Float[Array, "B T D"]
    position: Int[Array, "B T"]
    block: Block

    def asking(self, entries: Any) -> Any:
        """Returns of `[B, T, …]` what belongs to the entry that chooses for the forward, the first valid one."""
        first = jnp.argmax(self.block.valid[:, -entries.shape[1] :], axis=1).astype(jnp.int32)
        return jnp.take_along_axis(entries, first.reshape(-1, *(1,) * (entries.ndim - 1)), axis=1)


@dataclasses.dataclass(frozen=True)
class Listening:
    """A cache that a forward reads, and what a predictor makes of the residuals on the way.

    A model calls `entered` before each layer. A later layer's view has what its choice follows from.

    Attributes:
      cache: that is read.
      predictor: bound to its parameters.
      heard: what it has made so far.
    """

    cache: SelectedCache
    predictor: Any
    heard: Any = None

    sinks = None
    """As in `SelectedCache`."""

    @property
    def reach(self) -> Int[Array, "B"] | None:
        """As in `KVCache`."""
        return self.cache.reach

    def entered(self, entering: Entering) -> "Listening":
        """Returns the cache as the entered layer and those behind it see it."""
        heard = self.cache.policy.entered(self.predictor, self.cache, self.heard, entering)
        return dataclasses.replace(self, heard=heard)

    def layer(self, layer: int) -> LayerCache | SelectedLayer:
        """Returns what one layer's attention reads, or chooses from."""
        view = self.cache.layer(layer)
        if not isinstance(view, SelectedLayer):
            return view
        return replace(view, told=self.cache.policy.told(layer, self.cache.own, self.heard))
