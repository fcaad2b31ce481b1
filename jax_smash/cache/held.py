"""A cache of which one forward has chosen the slots, for those behind it that read the same slots."""

from jaxtyping import Array, Float, Int

from jax_smash.cache.selected import ChosenPages, LayerPlan
from jax_smash.cache.store import LayerCache
from jax_smash.pytree import pytree, static


@pytree
class HeldLayer:
    """One layer's view: the slots that its policy has chosen.

    Attributes:
      layer: the committed entries, of which they are a part.
      filled: number of committed slots.
      pages: the pages, where a kernel may read them; a level of a draft, whose queries are fewer than the keys of its
        block, gathers them. Else None.
      gathered: else the keys, values and positions of the slots of each KV head, side by side; positions are `EMPTY`
        where none is read.
      plan: where all rows have fewer slots than it `pays_from`, all of them are read, and nothing is chosen.
    """

    layer: LayerCache
    filled: Int[Array, "B"]
    pages: ChosenPages | None
    gathered: tuple[Float[Array, "B K C H"], Float[Array, "B K C H"], Int[Array, "B K C"]] | None
    plan: LayerPlan = static()

    sinks = None
    """As in `SelectedLayer`."""


@pytree
class HeldCache:
    """Every layer's part of a cache; it is read, never written.

    Attributes:
      layers: what each reads; one that reads everything has its whole cache.
      reach: as in `KVCache`.
    """

    layers: tuple[LayerCache | HeldLayer, ...]
    reach: Int[Array, "B"] | None

    sinks = None
    """As in `SelectedCache`."""

    def layer(self, layer: int) -> LayerCache | HeldLayer:
        """Returns what one layer's attention reads."""
        return self.layers[layer]
