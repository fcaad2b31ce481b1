"""Prompts that are read once for many policies: a cache that keeps what each of them would keep of a prompt."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jax_smash.cache import Entering, SelectedCache, SelectedLayer, Selection, Step, Write
from jax_smash.loading import Model
from jax_smash.models.definition import NnxModel
from jax_smash.models.predictors import with_predictor, without_predictor
from jax_smash.pytree import replace
from jax_smash.sparse import Dense, Learned, Selecting, SparseDef

LEAST = 1e-9
"""The budget of a policy that only reads prompts; as a share it is raised to what is always read."""


@dataclasses.dataclass(frozen=True)
class Together:
    """Keeps of a prompt, which is read densely, what each of some policies keeps. It decodes nothing.

    The channels of a layer, what is kept of rows and what a forward is heard to say are dictionaries, with an entry for
    each policy that has such by its number. Satisfies `protocols.PredictingPolicy`.

    Attributes:
      policies: whatever their budgets, none of which bears on what is kept of a prompt.
    """

    policies: tuple[Selecting, ...]

    endless = False
    longest_block = None
    evicts = False
    records = False
    remembers = False
    stepwise = False

    @property
    def keeps_queries(self) -> bool:
        """Whether a policy needs them."""
        return any(policy.keeps_queries for policy in self.policies)

    def check(self, model: Any) -> None:
        """Refuses what one of the policies refuses."""
        for policy in self.policies:
            policy.check(model)

    def init_cache(self, model: Any, batch: int, slots: int, block: int) -> Any:
        """Makes an empty cache; where no policy would choose of so many slots, the model's own."""
        parts = [policy.init_cache(model, batch, slots, block) for policy in self.policies]
        chosen = {i: part for i, part in enumerate(parts) if isinstance(part, SelectedCache)}
        cache = model.init_cache(batch, slots, block)
        if not chosen:
            return cache
        layers = range(model.config.num_layers)
        planned = [{i: part for i, part in chosen.items() if part.plans[layer]} for layer in layers]
        return SelectedCache(
            cache=cache,
            alive=(None,) * len(layers),
            channels=tuple({i: part.channels[layer] for i, part in planned[layer].items()} for layer in layers),
            policy=self,
            plans=tuple(next((part.plans[layer] for part in planned[layer].values()), None) for layer in layers),
        )

    def select(self, view: SelectedLayer, query: Float[Array, "B N H"]) -> Selection:
        """Refuses: `of_policy` makes a cache that can be decoded from."""
        raise NotImplementedError("policies that read a prompt together do not decode together")

    def committed(self, view: SelectedLayer, step: Step) -> Any:
        """Returns what each policy keeps of a layer, after a piece of the prompt."""
        marks = jnp.ones(view.layer.keys.shape[:3], bool)

        def kept(policy: Selecting, channels: Any) -> Any:
            alone = replace(view, channels=channels, policy=policy, alive=marks if policy.evicts else None)
            return policy.committed(alone, step)

        return {i: kept(self.policies[i], channels) for i, channels in view.channels.items()}

    @property
    def learned(self) -> dict[int, Learned]:
        """The policies that have a predictor, by their numbers."""
        return {i: policy for i, policy in enumerate(self.policies) if isinstance(policy, Learned)}

    def memory(self, predictor: Any, cache: SelectedCache, block: int) -> Any:
        """Makes what each predictor keeps of rows that have seen nothing."""
        return {i: policy.memory(predictor[i], self._part(cache, i), block) for i, policy in self.learned.items()}

    def entered(self, predictor: Any, cache: SelectedCache, heard: Any, entering: Entering) -> Any:
        """Returns what each predictor has made once a layer is entered."""
        return {
            i: policy.entered(predictor[i], self._part(cache, i), None if heard is None else heard[i], entering)
            for i, policy in self.learned.items()
        }

    def told(self, layer: int, own: Any, heard: Any) -> Any:
        """Returns nothing: no slots are chosen."""
        return None

    def recorded(self, predictor: Any, heard: Any, block_kv: Any, cache: SelectedCache) -> Any:
        """Returns what each predictor's commit is told."""
        return {
            i: policy.recorded(predictor[i], heard[i], block_kv, self._part(cache, i))
            for i, policy in self.learned.items()
        }

    def remembered(self, own: Any, record: Any, write: Write, filled: Int[Array, "B"]) -> Any:
        """Returns what each predictor keeps after a commit."""
        return {i: policy.remembered(own[i], record[i], write, filled) for i, policy in self.learned.items()}

    def _part(self, cache: SelectedCache, number: int) -> SelectedCache:
        """Returns the cache as one of the policies has it."""
        plans = tuple(plan if number in kept else None for plan, kept in zip(cache.plans, cache.channels, strict=True))
        return replace(
            cache,
            channels=tuple(kept.get(number) for kept in cache.channels),
            own=None if cache.own is None else cache.own.get(number),
            policy=self.policies[number],
            plans=plans,
        )

    def of_policy(self, cache: Any, policy: Any, model: Any) -> Any:
        """Returns the cache of prompts that were read, as a policy would have it after it has read them alone.

        Args:
          cache: that this policy has made.
          policy: one of the policies, with any budget; or `Dense`.
          model: with its `config`.
        """
        if not isinstance(cache, SelectedCache):
            return cache
        plans = () if isinstance(policy, Dense) else policy.plans(model.config, cache.slots)
        if not any(plans):
            return cache.cache
        part = self._part(cache, self.policies.index(reading(policy)))

        def marks(layer: int) -> Bool[Array, "B K S"] | None:
            # An array for each layer: a state whose fields are donated has none twice.
            return jnp.ones(cache.cache.layer(layer).keys.shape[:3], bool) if plans[layer] and policy.evicts else None

        return replace(part, alive=tuple(map(marks, range(len(plans)))), policy=policy, plans=plans)


@dataclasses.dataclass(frozen=True)
class Predictors:
    """The predictors of several policies without their parameters; None of one that has none."""

    definitions: tuple[NnxModel | None, ...]

    def bind(self, params: Any) -> tuple[Any, ...]:
        """Returns each with its parameters, which are kept under its number."""
        return tuple(None if one is None else one.bind(params[str(i)]) for i, one in enumerate(self.definitions))


def reading(policy: Selecting) -> Selecting:
    """Returns a policy whatever its budget: what it keeps of a prompt does not depend on it."""
    return dataclasses.replace(policy, budget=LEAST, head_shares=None, pays_from=0)


def reading_together(model: Model, arms: Sequence[Model]) -> Model:
    """Returns a model that reads prompts for many policies at once.

    Args:
      model: without a policy.
      arms: from `sparsified`, with policies that choose slots and read prompts densely. Those that differ by their
        budgets alone share what is kept.
    """
    found: dict[Selecting, tuple[NnxModel | None, Any]] = {}
    for arm in arms:
        definition = arm.definition
        assert isinstance(definition, SparseDef)
        assert isinstance(definition.policy, Selecting)
        _, own = without_predictor(arm.params["target"])
        found.setdefault(reading(definition.policy), (definition.predictor, own))
    own = nnx.State({str(i): params for i, (_, params) in enumerate(found.values()) if params is not None})
    predictors = Predictors(tuple(predictor for predictor, _ in found.values()))
    definition = SparseDef(model.definition, Together(tuple(found)), model.max_positions, predictors)
    params = {**model.params, "target": with_predictor(model.params["target"], own)}
    return dataclasses.replace(model, params=params, definition=definition)
