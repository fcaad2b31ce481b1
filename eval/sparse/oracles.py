"""Oracles that are kept from something: what the best choice of slots loses without it."""

import dataclasses
from typing import Any, Literal

from jaxtyping import Array, Float

from jax_smash.cache import Entering, SelectedCache, SelectedLayer, Selection, Write
from jax_smash.models.attended import turned_heads
from jax_smash.models.rope import rotations
from jax_smash.sparse import Oracle


class EvictingOracle(Oracle):
    """Chooses as the oracle does among the slots that are left, and evicts all others.

    Source: TokenButler, appendix C, figure 12 (oracle with prefill eviction).
    """

    evicts = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class GuidedOracle(Oracle):
    """Chooses the slots of a layer by what an earlier layer attends to, all of its heads together.

    The first layer has no earlier one, and chooses by itself. Satisfies `protocols.PredictingPolicy`.

    Attributes:
      guide: the layer that chooses, the `first` or the `previous` one.

    Source: TokenButler, appendix C, figure 12 (first layer, and look-ahead by the previous one).
    Differs: a layer's heads share a set, for its heads are not those of its guide.
    """

    guide: Literal["first", "previous"] = "previous"

    def check(self, model: Any) -> None:
        """Refuses what `Selecting` refuses, and layers without a choice, which could guide no other.

        Raises:
          ValueError: the model has layers with a sliding window, or another fault of `Selecting.check`.
        """
        super().check(model)
        if self.dense_layers or set(model.config.layer_kinds) != {"full"}:
            raise ValueError(f"every layer must choose its slots to guide others; some of {model.name} have none")

    def memory(self, predictor: Any, cache: SelectedCache, block: int) -> Any:
        """Keeps nothing of rows."""
        return ()

    def entered(
        self, predictor: Any, cache: SelectedCache, heard: tuple[Array, Array] | None, entering: Entering
    ) -> tuple[Float[Array, "B 1 S"], Float[Array, "B 1 S"]]:
        """Returns what the newest guide attends to, and the one that the entered layer has."""
        if heard is not None and self.guide == "first":
            return heard
        view, layer = cache.layer(entering.index), entering.layer
        assert isinstance(view, SelectedLayer)
        angles = rotations(layer.attention.config, entering.position, cache.reach)[entering.index]
        heads = turned_heads(layer, entering.x, angles)[1]
        query = heads[..., :-1, :].reshape(*heads.shape[:2], -1, heads.shape[-1])
        own = self.attention(view, entering.asking(query)[:, 0]).sum(1, keepdims=True)
        return own, own if heard is None else heard[0]

    def told(self, layer: int, own: Any, heard: tuple[Array, Array]) -> Float[Array, "B 1 S"]:
        """Returns what the layer's guide attends to."""
        return heard[1]

    def recorded(self, predictor: Any, heard: Any, block_kv: Any, cache: SelectedCache) -> Any:
        """Tells commits nothing."""
        return ()

    def remembered(self, own: Any, record: Any, write: Write, filled: Any) -> Any:
        """Keeps nothing of commits."""
        return own

    def select(self, view: SelectedLayer, query: Float[Array, "B N H"]) -> Selection:
        """Takes the guide's probabilities as scores."""
        return self.best(view, view.told)
