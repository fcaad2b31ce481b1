"""TokenButler's later predictor, of the base's own keys, as a policy."""

import dataclasses
from typing import Any

from jaxtyping import Array, Float

from jax_smash.cache import Entering, SelectedCache, SelectedLayer
from jax_smash.models.predictors import PredictorConfig
from jax_smash.pytree import replace
from jax_smash.sparse.memory import Heard
from jax_smash.sparse.projected import Projected


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupedButler(Projected):
    """Reads the slots whose projected keys answer queries that are made every few layers.

    score(s) = max over the query heads of a KV head of q · k / √d

    Source: released code of TokenButler's later generations; no paper describes them.
    Differs: that code reads 128 first entries, 512 last ones and 2,048 or 8,192 in all; here these are settings, and
    smaller by default. `heads="sum"` adds the query heads' predicted probabilities: a predictor that learned
    distributions may add any number to all scores of a head, and another to those of the next.
    """

    heads: str = "max"

    form = "grouped"

    def sized(self, predictor: PredictorConfig, trained_length: int | None = None) -> "GroupedButler":
        """Returns the policy for a predictor of certain sizes.

        Raises:
          ValueError: the predictor is of another form, or `int4` is asked of one whose own keys are in int8.
        """
        found: Any = super().sized(predictor, trained_length)
        if self.int4 and found.sizes.int8:
            raise ValueError("int4 needs a predictor whose own keys are not rounded to int8")
        return dataclasses.replace(found, int8=self.int8 or found.sizes.int8)

    def entered(self, predictor: Any, cache: SelectedCache, heard: Heard | None, entering: Entering) -> Heard:
        """Makes queries of a few layers, from the residual that enters the first of them."""
        heard, start, config = heard or Heard(), entering.index, self.sizes
        served = [i for i in self.planned(cache) if start <= i < start + config.every]
        if start not in config.starts or not served:
            return heard
        x = entering.x if config.look_ahead else entering.asking(entering.x)
        made = predictor.queries_at(start, x)
        return replace(heard, queries=heard.queries | {i: made[:, :, i - start] for i in served})

    def asked(self, view: SelectedLayer, query: Float[Array, "B N H"]) -> Float[Array, "B N d"]:
        """Returns the queries that were made for the layer."""
        return view.told.query
