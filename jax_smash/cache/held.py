"""A cache of which one forward has chosen the slots, for those behind it that read the same slots."""

from typing import Any

from jaxtyping import Array, Float, Int

from jax_smash.cache.selected import ChosenPages, LayerPlan
from jax_smash.cache.store import LayerCache
from jax_smash.pytree import pytree, static


@pytree
class HeldLayer:
    """One layer's view: the slots that its policy has chosen, side by side.

    Attributes:
      layer: the committed entries, of which they are a part.
      filled: number of committed slots.
      keys, values: of the chosen slots of each KV head.
      position: of each; `EMPTY` where none is read.
      pages: the same choice as pages, for a kernel that reads them where they lie; None where there are none.
      plan: where all rows have fewer slots than it `pays_from`, all of them are read, and nothing is chosen.
    """

    layer: LayerCache
    filled: Int[Array, "B"]
    keys: Float[Array, "B K C H"]
    values: Float[Array, "B K C H"]
    position: Int[Array, "B K C"]
    pages: ChosenPages | None
    plan: LayerPlan = static()

    sinks = None
    """As in `SelectedLayer`."""


@pytree
class HeldCache:
    """Every layer's part of a cache; it is read, never written.

    Attributes:
      layers: what each reads; one that reads everything has its whole cache.
      slot_length: entries that are committed.
      reach: as in `KVCache`.
    """

    layers: tuple[LayerCache | HeldLayer, ...]
    slot_length: Int[Array, "B"]
    reach: Any

    sinks = None
    """As in `SelectedCache`."""

    def layer(self, layer: int) -> LayerCache | HeldLayer:
        """Returns what one layer's attention reads."""
        return self.layers[layer]
