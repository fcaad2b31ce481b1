"""TokenButler's predictor as the paper has it, as a policy."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jax_smash.attention.formula import MASKED
from jax_smash.cache import Entering, SelectedCache, SelectedLayer, Write
from jax_smash.models.predictors import importance
from jax_smash.sparse.learned import Learned, committed_slots
from jax_smash.sparse.memory import Heard, Memory, Parts, joined


@dataclasses.dataclass(frozen=True, kw_only=True)
class Butler(Learned):
    """Reads the slots that a small predictor expects the query heads to attend to, in all layers from one residual.

    score(s) = Σ over the query heads of a KV head of softmax over slots of q · k / √d

    Source: Akhauri et al. 2025, "TokenButler: Token Importance Is Predictable", section 3; the first 4 entries are
    always read, and layers before the one that the predictor reads are dense.
    Differs: the query heads of a KV head share a set, by the sum of their predicted probabilities. Prompts are read
    densely, or step by step. Slots are those of the masked forward; released code rotates kept keys again at each step.
    """

    sinks: int = 4

    form = "per_head"

    @property
    def queries_a_layer(self) -> int:
        """N."""
        return self.sizes.num_heads

    def empty_keys(self, predictor: Any, cache: SelectedCache) -> dict[int, Parts]:
        """Makes room for a key of each query head and entry."""
        shape = (cache.slot_length.shape[0], self.sizes.num_heads, cache.slots, self.sizes.width)
        return {i: (jnp.zeros(shape, predictor.dtype),) for i in self.planned(cache)}

    def empty_beside(self, predictor: Any, cache: SelectedCache, block: int) -> Any:
        """Makes the empty cache of the predictor's small attention."""
        return predictor.init_cache(cache.slot_length.shape[0], cache.slots, block)

    def entered(self, predictor: Any, cache: SelectedCache, heard: Heard | None, entering: Entering) -> Heard:
        """Reads the residual that enters the layer where the predictor stands."""
        heard = heard or Heard()
        if entering.index != self.sizes.attach:
            return heard
        made = predictor.read_entries(entering.x, entering.position, cache.own.beside, entering.block)
        queries = made.queries if self.sizes.look_ahead else entering.asking(made.queries)
        return Heard(
            queries={i: queries[:, :, i] for i in self.planned(cache)},
            keys={i: (made.keys[:, :, i],) for i in self.planned(cache)},
            beside=made.block_kv,
        )

    def with_beside(self, own: Memory, record: Heard, write: Write, filled: Int[Array, "B"]) -> Any:
        """Commits the entries to the small attention's cache."""
        return own.beside.commit(record.beside, write)

    def scores(self, view: SelectedLayer, query: Float[Array, "B N H"]) -> Float[Array, "B K X"]:
        """Returns predicted probabilities, summed over the query heads of each KV head."""
        told, heads = view.told, view.layer.keys.shape[1]
        found = importance(told.query[:, None], joined(told.keys))[:, :, 0, 0]
        likely = jax.nn.softmax(jnp.where(committed_slots(view)[:, None], found, MASKED), axis=-1)
        return likely.reshape(likely.shape[0], heads, -1, likely.shape[2]).sum(2)

    def key_bytes(self, slots: int, itemsize: int) -> int:
        """Returns the bytes of a key of each query head and slot."""
        return self.sizes.num_heads * self.sizes.width * slots * itemsize

    def beside_bytes(self, slots: int, itemsize: int) -> int:
        """Returns the bytes of the small attention's cache."""
        return 2 * self.sizes.reduced * slots * itemsize
