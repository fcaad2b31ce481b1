"""A model whose cache is kept, or read, by a policy."""

import dataclasses
import logging
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jax_smash.cache import AfterReading, Block, Listening, Recorded, SelectedCache, Write, after, reaching
from jax_smash.checkpoints.butler import ButlerModules
from jax_smash.loading import Model
from jax_smash.models.definition import NnxModel
from jax_smash.models.predictors import with_predictor, without_predictor
from jax_smash.models.rope import longest
from jax_smash.protocols import (
    CausalLM,
    Forward,
    ModelDef,
    PredictingPolicy,
    SelectingPolicy,
    SparsePolicy,
    continues_blocks,
)
from jax_smash.pytree import replace
from jax_smash.sharding import mesh_of, place
from jax_smash.sparse.learned import Learned
from jax_smash.sparse.named import told
from jax_smash.sparse.predictors import check_predictor, load_predictor

LOG = logging.getLogger("jax_smash")


class SparseModel:
    """A model that is as it was, but for what its cache keeps or what is read of it; satisfies `CausalLM`."""

    def __init__(self, model: CausalLM, policy: SparsePolicy, predictor: Any = None):
        """Takes a model, and what predicts its attention where there is such, both bound to their parameters."""
        self.model, self.policy, self.predictor = model, policy, predictor

    # Written out, for a protocol is not met by what `__getattr__` finds.

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.model.vocab_size

    def embed(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Returns the input vector of each token."""
        return self.model.embed(tokens)

    def unembed(self, hidden: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
        """Returns float32 logits of the token after each entry."""
        return self.model.unembed(hidden)

    @property
    def longest_block(self) -> int | None:
        """The most entries that one forward may read."""
        return self.policy.longest_block

    @property
    def continued_blocks(self) -> bool:
        """Whether a block may have entries that earlier forwards read."""
        remembers = isinstance(self.policy, SelectingPolicy) and self.policy.remembers
        return continues_blocks(self.model) and not remembers and self.predictor is None

    def init_cache(self, batch: int, slots: int, block: int) -> Any:
        """Makes an empty cache for texts of `slots` entries, for commits of at most `block` entries."""
        cache = self.policy.init_cache(self.model, batch, slots, block)
        if isinstance(self.policy, PredictingPolicy) and isinstance(cache, SelectedCache):
            return replace(cache, own=self.policy.memory(self.predictor, cache, block))
        return cache

    def forward(
        self, inputs: Float[Array, "B T D"], position: Int[Array, "B T"], cache: Any, block: Block, policy: Any = None
    ) -> Forward:
        """Runs all layers over a block, as the model itself does.

        A policy that is `stepwise` reads a prompt, and a text without a cache, an entry at a time.

        Raises:
          ValueError: a text that is read stepwise has documents packed in a row, or its entries see each other as a
            tree.
        """
        stepwise = isinstance(self.policy, SelectingPolicy) and self.policy.stepwise
        if stepwise and (cache is None or block.prompt):
            if block.ancestors is not None or block.segments is not None:
                raise ValueError("a text that is read step by step must be one document in order")
            rows, width = position.shape
            read = cache
            if cache is None:
                read = reaching(self.init_cache(rows, width, width), longest(position, block.valid))
            if isinstance(read, SelectedCache):
                return self._stepwise(inputs, position, read, block)
        return self._read(inputs, position, cache, block, policy)

    def _read(
        self, inputs: Float[Array, "B T D"], position: Int[Array, "B T"], cache: Any, block: Block, policy: Any = None
    ) -> Forward:
        """Runs all layers; a predictor hears what enters them, and the commit is told what it made of that."""
        if not isinstance(self.policy, PredictingPolicy) or not isinstance(cache, SelectedCache):
            return self.model.forward(inputs, position, cache, block, policy)
        if block.earlier is not None:
            raise ValueError("a policy with a predictor must read a block in one forward; got earlier entries")
        out = self.model.forward(inputs, position, Listening(cache, self.predictor), block, policy)
        record = self.policy.recorded(self.predictor, out.policy_state, out.block_kv, cache)
        return replace(out, block_kv=Recorded(entries=out.block_kv, record=record), policy_state=None)

    def _stepwise(
        self, inputs: Float[Array, "B T D"], position: Int[Array, "B T"], cache: SelectedCache, block: Block
    ) -> Forward:
        """Reads and commits an entry at a time; the record of the forward is the cache after it."""

        def step(cache: SelectedCache, entry: tuple[Array, Array, Array]) -> tuple[SelectedCache, Any]:
            x, place, valid = (part[:, None] for part in entry)
            out = self._read(x, place, cache, Block.causal(valid))
            count = after(valid[:, 0].astype(jnp.int32), out.hidden[:, 0, 0])
            cache = cache.commit(out.block_kv, Write(position=place, count=count))
            return cache, jax.tree.map(lambda made: made[:, 0], (out.hidden, out.taps))

        entries = jax.tree.map(lambda part: part.swapaxes(0, 1), (inputs, position, block.valid))
        cache, made = jax.lax.scan(step, cache, entries)
        hidden, taps = jax.tree.map(lambda part: part.swapaxes(0, 1), made)
        return Forward(hidden=hidden, taps=taps, block_kv=AfterReading(cache=cache))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


@dataclasses.dataclass(frozen=True)
class SparseDef:
    """A model without its parameters, and the policy of its cache.

    Attributes:
      definition: the model.
      policy: says what its cache keeps, or what is read of it.
      max_positions: the longest text that it reads; None for no limit.
      predictor: what the policy chooses by, a `NnxModel` or likewise bound to its parameters, which are among the
        model's. None without one.
    """

    definition: ModelDef
    policy: SparsePolicy
    max_positions: int | None = None
    predictor: Any = None

    def bind(self, params: Any) -> Any:
        """Returns the model with these parameters."""
        return SparseModel(*self.bound(params))

    def bound(self, params: Any) -> tuple[CausalLM, SparsePolicy, Any]:
        """Returns the model with its parameters, the policy, and the predictor with its own; None without one."""
        base, own = without_predictor(params)
        predictor = None if self.predictor is None else self.predictor.bind(own)
        return self.definition.bind(base), self.policy, predictor


def sparsified(model: Model, policy: SparsePolicy, predictor: ButlerModules | None = None) -> Model:
    """Returns a model whose cache is kept or read by a policy, whatever method decodes it.

    The parameters of a predictor are then among those of the model, under `target`. What `told` says of the policy's
    budget is logged.

    Args:
      model: from `load`.
      policy: such as `StreamingLLM()` or `Quest(budget=512)`.
      predictor: for a policy with a trained predictor, such as `Butler()`; None reads the one that the policy names, or
        the one that is shipped with the model.

    Raises:
      FileNotFoundError: the predictor's files are missing, or none is shipped.
      ValueError: the policy does not go with the model, or the model has one; the predictor is of another form, or was
        trained with other weights.
    """
    sparse = with_policy(model, policy, predictor)
    assert isinstance(sparse.definition, SparseDef)
    if (known := told(sparse.definition.policy)) is not None:
        LOG.warning("jax-smash: %s", known)
    return sparse


def with_policy(model: Model, policy: SparsePolicy, predictor: ButlerModules | None = None) -> Model:
    """Returns what `sparsified` does, and logs nothing. Arguments and errors are the same."""
    longest = None if policy.endless else model.max_positions
    model, policy, definition = beside_predictor(model, policy, predictor)
    return dataclasses.replace(model, definition=SparseDef(model.definition, policy, longest, definition))


def beside_predictor(
    model: Model, policy: SparsePolicy, predictor: ButlerModules | None = None
) -> tuple[Model, SparsePolicy, NnxModel | None]:
    """Returns a model whose parameters have those of a policy's predictor among them, the policy, and the predictor.

    A policy without a predictor, and its model, stay as they are. Arguments and errors are those of `sparsified`.
    """
    if isinstance(model.definition, SparseDef):
        raise ValueError(f"{model.name} must have a cache without a policy; it has {model.definition.policy}")
    policy.check(model)
    if not isinstance(policy, Learned):
        if predictor is not None:
            raise ValueError(f"{type(policy).__name__} takes no predictor; got {predictor}")
        return model, policy, None
    if predictor is None:
        predictor = load_predictor(model, policy)
    else:
        check_predictor(model, predictor)
    policy = policy.sized(predictor.config, predictor.trained_length)
    policy.check(model)
    mesh = mesh_of(model.params)
    own = predictor.params if mesh is None else place(predictor.params, mesh)
    params = {**model.params, "target": with_predictor(model.params["target"], own)}
    return dataclasses.replace(model, params=params), policy, predictor.definition
