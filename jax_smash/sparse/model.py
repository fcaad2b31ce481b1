"""A model whose cache is kept by a policy."""

import dataclasses
from typing import Any

from jax_smash.loading import Model
from jax_smash.protocols import CausalLM, ModelDef, SparsePolicy


class SparseModel:
    """A model that is as it was, but for what its cache keeps; satisfies `CausalLM`."""

    def __init__(self, model: CausalLM, policy: SparsePolicy):
        """Takes a model that is bound to its parameters."""
        self.model, self.policy = model, policy

    @property
    def longest_block(self) -> int | None:
        """The most entries that one forward may read."""
        return self.policy.longest_block

    def init_cache(self, batch: int, slots: int, block: int) -> Any:
        """Makes an empty cache for texts of `slots` entries, for commits of at most `block` entries."""
        return self.policy.init_cache(self.model, batch, slots, block)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


@dataclasses.dataclass(frozen=True)
class SparseDef:
    """A model without its parameters, and the policy of its cache.

    Attributes:
      definition: the model.
      policy: says what its cache keeps.
      max_positions: the longest text that it reads; None for no limit.
    """

    definition: ModelDef
    policy: SparsePolicy
    max_positions: int | None = None

    def bind(self, params: Any) -> Any:
        """Returns the model with these parameters."""
        return SparseModel(self.definition.bind(params), self.policy)


def sparsified(model: Model, policy: SparsePolicy) -> Model:
    """Returns a model whose cache is kept by a policy, whatever method decodes it.

    Args:
      model: from `load`.
      policy: such as `StreamingLLM()`.

    Raises:
      ValueError: the policy does not go with the model.
    """
    policy.check(model)
    longest = None if policy.endless else model.max_positions
    return dataclasses.replace(model, definition=SparseDef(model.definition, policy, longest))
