"""One cache, read in two ways: by the slots that a policy chooses, to draft, and whole, to check."""

import dataclasses
from typing import Any

from jaxtyping import Array, Float, Int

from jax_smash.cache import Block, HeldCache, Listening, Noted, SelectedCache
from jax_smash.loading import Model
from jax_smash.protocols import Forward, SelectingPolicy, SparsePolicy, continues_blocks
from jax_smash.pytree import replace
from jax_smash.sparse.controls import Recency
from jax_smash.sparse.model import SparseDef, SparseModel, beside_predictor
from jax_smash.sparse.streaming import StreamingLLM


class ReadWhole(SparseModel):
    """A model whose cache keeps what a policy goes by, and which reads all of it: its text is that of plain decoding.

    A draft is read as a piece of a prompt is, so what the policy keeps learns from it in the same way.
    """

    def forward(
        self, inputs: Float[Array, "B T D"], position: Int[Array, "B T"], cache: Any, block: Block, policy: Any = None
    ) -> Forward:
        """Runs all layers over a block, each over its whole cache."""
        return super().forward(inputs, position, cache, replace(block, prompt=True), policy)


class ReadInPart(SparseModel):
    """A model that reads the slots that a policy chooses, of a cache that it does not write.

    Nothing is noted for the policy. The slots that a forward chooses are its `policy_state`: a cache that the forwards
    behind it read, so that a draft has one set of slots. Where no kernel may read their pages, they are gathered once.
    """

    @property
    def continued_blocks(self) -> bool:
        """Whether a block may have entries that earlier forwards read."""
        return continues_blocks(self.model)

    def forward(
        self, inputs: Float[Array, "B T D"], position: Int[Array, "B T"], cache: Any, block: Block, policy: Any = None
    ) -> Forward:
        """Runs all layers over a block. Returns keys and values alone, without notes."""
        if not isinstance(cache, SelectedCache):
            return self.model.forward(inputs, position, cache, block, policy)
        cache = replace(cache, holds=True)
        read = cache if self.predictor is None else Listening(cache, self.predictor)
        out = self.model.forward(inputs, position, read, block, policy)
        entries = tuple(made.entries if isinstance(made, Noted) else made for made in out.block_kv)
        layers = tuple(
            made.note.held if isinstance(made, Noted) else cache.layer(i) for i, made in enumerate(out.block_kv)
        )
        held = HeldCache(layers=layers, reach=cache.reach)
        return replace(out, block_kv=entries, policy_state=held)


@dataclasses.dataclass(frozen=True)
class WholeDef(SparseDef):
    """A model without its parameters that checks by its whole cache."""

    def bind(self, params: Any) -> ReadWhole:
        """Returns the model with these parameters."""
        return ReadWhole(*self.bound(params))


@dataclasses.dataclass(frozen=True)
class PartDef(SparseDef):
    """The same model without its parameters, as it drafts."""

    def bind(self, params: Any) -> ReadInPart:
        """Returns the model with these parameters."""
        return ReadInPart(*self.bound(params))


def drafting_policy(policy: SparsePolicy) -> SelectingPolicy:
    """Returns a policy that a model can draft for itself by. For StreamingLLM that is the recency that reads the same.

    Raises:
      ValueError: it leaves nothing out, evicts slots, goes by probabilities that checks do not note, or reads prompts
        step by step.
    """
    if isinstance(policy, StreamingLLM):
        return Recency(budget=policy.slots, sinks=policy.sinks)
    name = type(policy).__name__
    if not isinstance(policy, SelectingPolicy):
        raise ValueError(f"a model drafts for itself by a part of its cache, and {name} leaves nothing out")
    if policy.evicts:
        raise ValueError(f"a model that drafts for itself checks by its whole cache, and {name} evicts slots of it")
    if policy.records:
        raise ValueError(f"a model that drafts for itself notes no probabilities, and {name} goes by them")
    if policy.stepwise:
        raise ValueError(f"a model that drafts for itself reads prompts by its whole cache; got {name} with stepwise")
    return policy


def self_drafting(model: Model, policy: SparsePolicy) -> tuple[Model, PartDef]:
    """Returns a model as it checks drafts, and its definition as it makes them, both with one cache.

    The parameters of a policy's predictor are among those of the model, under `target`; drafts need them too.

    Args:
      model: from `load`.
      policy: chooses the slots that drafts read.

    Raises:
      FileNotFoundError: the policy's predictor is missing.
      ValueError: the model has a policy already, or cannot have this one; its predictor is of another form, or was
        trained with other weights; or as `drafting_policy` says.
    """
    model, policy, predictor = beside_predictor(model, drafting_policy(policy))
    parts: Any = (model.definition, policy, model.max_positions, predictor)
    return dataclasses.replace(model, definition=WholeDef(*parts)), PartDef(*parts)
