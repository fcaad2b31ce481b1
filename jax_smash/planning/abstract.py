"""The decoding programs' arguments as shapes on devices: enough to compile for them, and no memory."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, SingleDeviceSharding

from jax_smash.cache import KVCache, SelectedCache
from jax_smash.checkpoints.butler import ButlerModules
from jax_smash.checkpoints.chimera import ChimeraModules
from jax_smash.checkpoints.dflash import DFlashModules
from jax_smash.checkpoints.eagle import EagleModules
from jax_smash.checkpoints.eagle1 import Eagle1Modules
from jax_smash.checkpoints.medusa import MedusaModules
from jax_smash.checkpoints.smasher import SmashModules
from jax_smash.config import ModelConfig
from jax_smash.decode.loop import Chunk, decode, init_rows, prefill, start
from jax_smash.decode.state import DecodeState, Shared, lay_out
from jax_smash.loading import Model
from jax_smash.methods import DraftOptions, Method, SmashOptions, make_method
from jax_smash.models.chimera import abstract_chimera
from jax_smash.models.chimera_config import ChimeraConfig
from jax_smash.models.definition import NnxModel
from jax_smash.models.dflash import abstract_dflash
from jax_smash.models.dflash_config import DFlashConfig
from jax_smash.models.eagle import abstract_eagle
from jax_smash.models.eagle1 import Eagle1Config, abstract_eagle1
from jax_smash.models.eagle_config import EagleConfig
from jax_smash.models.medusa import MedusaConfig, abstract_medusa
from jax_smash.models.predictors import abstract_predictor, predictor_for
from jax_smash.models.transformer import abstract_params
from jax_smash.protocols import SparsePolicy, Strategy
from jax_smash.quantise import quantise_params
from jax_smash.sampling import SamplingOptions, processors_for
from jax_smash.shapes import bucket
from jax_smash.sharding import axes_sharding, param_shardings
from jax_smash.smash.config import SmashConfig
from jax_smash.smash.smasher import SmasherDef, abstract_smasher
from jax_smash.sparse import Learned, described
from jax_smash.sparse.model import with_policy

TRAINED: dict[str, tuple[Callable[[ModelConfig], Any], Callable[..., Any], Callable[..., Any]]] = {
    "eagle": (EagleConfig.for_target, abstract_eagle, EagleModules),
    "eagle1": (Eagle1Config.for_target, abstract_eagle1, Eagle1Modules),
    "medusa": (lambda target: MedusaConfig(target.vocab_size, target.d_model), abstract_medusa, MedusaModules),
    "chimera": (ChimeraConfig.for_target, abstract_chimera, ChimeraModules),
    "dflash": (DFlashConfig.for_target, abstract_dflash, DFlashModules),
}
"""Kinds of trained drafters: the usual configuration for a target, what makes parameters as shapes, and the modules."""

WITH_TRAINED = {"eagle": ("eagle", "eagle1"), "hybrid": tuple(TRAINED)} | {
    name: (name,) for name in ("medusa", "chimera", "dflash")
}
"""The kinds that a method drafts with."""


@dataclasses.dataclass(frozen=True)
class Abstract:
    """Arguments of the decoding programs, as shapes on one device or many, without memory.

    Attributes:
      strategy: of the method.
      params, state: its parameters by role, and its rows.
      chunk: a piece of the prompts.
      steps: how many steps a call runs.
      nodes: of the tree that a step checks, the root included; 1 where nothing is drafted.
      levels: the depth of that tree, which a hybrid's chains may exceed.
      method: that decodes.
      kind: of the trained drafter, as in `TRAINED`; None where there is none.
    """

    strategy: Strategy
    params: Any
    state: DecodeState
    chunk: Chunk
    steps: jax.ShapeDtypeStruct
    nodes: int = 1
    levels: int = 0
    method: str = "ar"
    kind: str | None = None

    @property
    def programs(self) -> dict[str, tuple[Any, tuple[Any, ...]]]:
        """The decoding functions by name, each with its arguments."""
        head = (self.strategy, self.params, self.state)
        return {
            "prefill": (prefill, (*head, self.chunk)),
            "start": (start, head),
            "decode": (decode, (*head, self.steps)),
        }

    @property
    def cache(self) -> KVCache:
        """The target's keys and values."""
        held = self.state.rows.cache
        return held.cache if isinstance(held, SelectedCache) else held

    @property
    def channels(self) -> tuple[Any, ...]:
        """What a policy keeps of each layer to choose slots; None of a layer that is read whole."""
        held = self.state.rows.cache
        return held.channels if isinstance(held, SelectedCache) else (None,) * len(held.keys)

    @property
    def cache_shapes(self) -> set[tuple[int, ...]]:
        """Shapes of the arrays of keys and values, as each device holds them."""
        return {share(array) for array in (*self.cache.keys, *self.cache.values)}

    @property
    def weight_shapes(self) -> set[tuple[int, ...]]:
        """Shapes of the weights that are matrices, as each device holds them."""
        return {share(array) for array in jax.tree.leaves(self.params) if array.ndim > 1}

    @property
    def chosen_by(self) -> Any:
        """All that a policy keeps to choose slots: its channels, and what its predictor keeps of the rows."""
        held = self.state.rows.cache
        return self.channels, held.own if isinstance(held, SelectedCache) else None

    @property
    def channel_shapes(self) -> set[tuple[int, ...]]:
        """Shapes of what a policy keeps to choose slots and is no vector, as each device holds it."""
        return {share(array) for array in jax.tree.leaves(self.chosen_by) if array.ndim > 1}

    @property
    def drafter_shapes(self) -> set[tuple[int, ...]]:
        """Shapes of what the method keeps beside the target's cache and is no vector, as each device holds them."""
        own = {role: memory for role, memory in self.state.rows.memory.items() if role != "target"}
        kept = (own, self.state.shared.memory)
        return {share(array) for array in jax.tree.leaves(kept) if array.ndim > 1} - self.cache_shapes


@dataclasses.dataclass(frozen=True)
class AbstractModel:
    """A model, and what is grafted on it or drafts for it, without weights.

    Attributes:
      config: its sizes.
      drafter: sizes of a draft model, or `int8` for the model itself with int8 weights; None for a method without one.
      dtype: of the weights.
      weights: `plain` or `int8`.
      modules: it has HAMburger's modules, of the sizes that `SmashConfig.for_base` gives.
      trained: the kind of its trained drafter, as in `TRAINED`; None for that of the method's own name, if it has one.
      policy: of its cache; None reads all of it. A predictor that it has no folder of has the usual sizes of its form.
    """

    config: ModelConfig
    drafter: ModelConfig | str | None = None
    dtype: Any = jnp.bfloat16
    weights: str = "plain"
    modules: bool = False
    trained: str | None = None
    policy: SparsePolicy | None = None

    def model(self) -> Model:
        """Returns the model; its parameters are shapes."""
        model = self._shapes("target", self.config, self.weights)
        model = model if self.policy is None else with_policy(model, self.policy, self.predictor())
        if not self.modules:
            return model
        sizes = SmashConfig.for_base(self.config)
        structure, params = abstract_smasher(self.config, sizes, self.dtype)
        modules = SmashModules(
            config=sizes, definition=SmasherDef(structure), params=self._stored(params, self.weights)
        )
        return dataclasses.replace(model, params=model.params | {"smasher": modules.params}, modules=modules)

    def predictor(self) -> ButlerModules | None:
        """Returns what the policy chooses by; its parameters are shapes. None for a policy without a predictor.

        Raises:
          FileNotFoundError: the policy names a folder that has none.
          ValueError: the predictor there is of another form, or for other sizes.
        """
        policy = self.policy
        if not isinstance(policy, Learned):
            return None
        found = described(policy, "", self.config).predictor if policy.path else policy.predictor
        config = found or predictor_for(policy.form, self.config)
        structure, params = abstract_predictor(config, self.dtype)
        return ButlerModules(config=config, definition=NnxModel(structure), params=params, base_fingerprint="")

    def draft_model(self) -> Model | None:
        """Returns the draft model; its parameters are shapes. None where there is none."""
        if isinstance(self.drafter, str):
            return self._shapes("drafter", self.config, "int8")
        return None if self.drafter is None else self._shapes("drafter", self.drafter, self.weights)

    def trained_drafter(self, kind: str) -> Any:
        """Returns a drafter of a kind and of the usual sizes; its parameters are shapes."""
        configured, shapes, modules = TRAINED[kind]
        config = configured(self.config)
        structure, params = shapes(config, self.dtype)
        return modules(config=config, definition=NnxModel(structure), params=self._stored(params, self.weights))

    def _shapes(self, name: str, config: ModelConfig, weights: str) -> Model:
        structure, params = abstract_params(config, self.dtype)
        held = {"target": self._stored(params, weights)}
        return Model(name=name, definition=NnxModel(structure), params=held, config=config)

    def _stored(self, params: Any, weights: str) -> Any:
        return jax.eval_shape(quantise_params, params) if weights == "int8" else params


def abstract(
    model: AbstractModel,
    where: jax.Device | Mesh | AbstractMesh,
    *,
    batch: int,
    slots: int,
    chunk: int,
    method: str = "ar",
    draft: DraftOptions = DraftOptions(),  # noqa: B008 - frozen
    smash: SmashOptions = SmashOptions(),  # noqa: B008 - frozen
    max_new_tokens: int = 256,
    sampled: bool = False,
) -> Abstract:
    """Makes the arguments of the decoding programs without memory.

    Args:
      model: the model's sizes.
      where: device or mesh to compile for; it need not be there. An abstract mesh will do to count bytes.
      batch: rows.
      slots: capacity of the cache a row.
      chunk: entries a row that one prefill reads.
      method: of `METHODS`.
      draft, smash: its options; a draft model is the model's own.
      max_new_tokens: of each row.
      sampled: rows sample, with top-k and top-p.

    Raises:
      ValueError: an option does not go with the method.
    """
    options = [SamplingOptions(temperature=0.8, top_k=50, top_p=0.9) if sampled else SamplingOptions()] * batch
    made = _made(model, method, sampled=sampled, draft=draft, smash=smash, batch=batch, slots=slots)

    def state(params: Any) -> DecodeState:
        shared = Shared(
            processors=processors_for(options, stop_tokens=(), vocab_size=model.config.vocab_size),
            stop_tokens=jnp.zeros((1,), jnp.int32),
            memory=made.memory,
        )
        rows = init_rows(
            made.strategy,
            params,
            shared,
            jax.random.split(jax.random.key(0), batch),
            slots=slots,
            output=bucket(max_new_tokens),
            block=max(chunk, made.strategy.block),
        )
        return DecodeState(rows=rows, shared=shared)

    def pieces() -> Chunk:
        return Chunk(tokens=jnp.zeros((batch, chunk), jnp.int32), valid=jnp.ones((batch, chunk), bool))

    def put(x: Any, *axes: str | None) -> Any:
        sharding = (
            axes_sharding(x.shape, axes, where)
            if isinstance(where, Mesh | AbstractMesh)
            else SingleDeviceSharding(where)
        )
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return Abstract(
        strategy=made.strategy,
        params=_placed(made.params, where),
        state=lay_out(jax.eval_shape(state, made.params), put),
        chunk=jax.tree.map(lambda x: put(x, "batch"), jax.eval_shape(pieces)),
        steps=put(jax.ShapeDtypeStruct((), jnp.int32)),
        nodes=made.nodes,
        levels=made.levels,
        method=method,
        kind=_kind(model, method),
    )


def _kind(model: AbstractModel, method: str) -> str | None:
    """Returns the kind of the trained drafter that a method drafts with."""
    if method not in WITH_TRAINED:
        return None
    return model.trained or (method if method in TRAINED else None)


def _made(model: AbstractModel, name: str, *, draft: DraftOptions, **options: Any) -> Method:
    """Returns a method whose parameters are shapes; what it shares between rows at the start is small, and is there."""
    if name == "draft-model":
        draft = dataclasses.replace(draft, draft_model=model.draft_model())
    if (kind := _kind(model, name)) is not None:
        draft = dataclasses.replace(draft, drafter=model.trained_drafter(kind))
    return make_method(model.model(), name, draft=draft, **options)


def share_bytes(tree: Any) -> int:
    """Returns the bytes that one device holds of a tree of shapes on devices."""
    return sum(math.prod(share(x)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _placed(params: Any, where: jax.Device | Mesh | AbstractMesh) -> Any:
    """Returns parameters' shapes on their devices."""
    if isinstance(where, Mesh | AbstractMesh):
        shardings = param_shardings(params, where)
    else:
        shardings = jax.tree.map(lambda _: SingleDeviceSharding(where), params)
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), params, shardings)


def share(array: Any) -> tuple[int, ...]:
    """Returns the shape of what one device holds."""
    return array.sharding.shard_shape(array.shape)
