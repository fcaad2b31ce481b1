"""What a plan is made for: a model, devices, and how it decodes there."""

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType

from jax_smash.config import ModelConfig
from jax_smash.draft.trees.acceptance import PRIOR_FIRST
from jax_smash.loading import divisible
from jax_smash.methods import INT8, SmashOptions, check_draft, check_method
from jax_smash.methods.draft_options import DraftOptions
from jax_smash.methods.self_sparse import own_policy
from jax_smash.plan import prefill_chunk
from jax_smash.planning.abstract import Abstract, AbstractModel, abstract
from jax_smash.planning.drafting import OWN
from jax_smash.planning.gains import LOOKAHEAD
from jax_smash.planning.shares import Shares, shares_of
from jax_smash.planning.topology import Topology
from jax_smash.platform import tracing_for
from jax_smash.protocols import SparsePolicy
from jax_smash.quantise import check_weights
from jax_smash.shapes import bucket
from jax_smash.sharding import AXES, MeshShape
from jax_smash.sparse import drafting_policy

KINDS = {"float32": "f32", "bfloat16": "bf16", "float16": "bf16"}
"""Element types of products by dtype; those of both 16-bit floats are as fast."""

NEW_TOKENS = 256
"""Tokens that a row has room for in its output."""


@dataclasses.dataclass(frozen=True)
class Question:
    """What a plan is made for.

    Attributes:
      config: the model's sizes.
      topology: the devices.
      mesh: how the model and its rows are divided over all of them; None for `tp` over all.
      dtype: of weights and cache: float32, bfloat16 or float16.
      weights: `plain` or `int8`.
      batch: rows that decode together, on all devices.
      context: slots of the cache a row, and what they hold: the text at its longest.
      prompt: tokens of each prompt; None for as many as the context.
      method: that decodes, of `METHODS`.
      tree: that it drafts; `auto` for the one that pays most.
      draft_model: sizes of a draft model, or `int8` for the model itself with int8 weights.
      policy: of what a step reads of the cache; None for all of it. Under self-sparse only drafts read by it, and None
        is the method's own.
      acceptance: probability that the first child of a kept node is kept; under HAMburger, that a group goes on.

    Raises:
      ValueError: an option is out of range or does not go with another one, or the mesh does not fit the devices or the
        model.
    """

    config: ModelConfig
    topology: Topology
    mesh: MeshShape | None = None
    dtype: str = "bfloat16"
    weights: str = "plain"
    batch: int = 1
    context: int = 4096
    prompt: int | None = None
    method: str = "ar"
    tree: str = "auto"
    draft_model: ModelConfig | str | None = None
    policy: SparsePolicy | None = None
    acceptance: float = PRIOR_FIRST

    def __post_init__(self) -> None:
        if self.mesh is None:
            object.__setattr__(self, "mesh", MeshShape(tp=self.topology.devices))
        _check_mesh(self.shape, self.topology)
        for name, number in {"batch": self.batch, "context": self.context, "prompt": self.tokens}.items():
            if number < 1:
                raise ValueError(f"{name} must be at least 1; got {number}")
        if self.context > self.config.max_positions:
            raise ValueError(f"context must be at most the model's {self.config.max_positions}; got {self.context}")
        if self.tokens > self.context:
            raise ValueError(f"prompt must be at most the context of {self.context} tokens; got {self.tokens}")
        if self.batch % self.divisor:
            raise ValueError(
                f"batch must be a multiple of {self.divisor}, the devices over which mesh {self.mesh} divides rows; "
                f"got {self.batch}"
            )
        if self.dtype not in KINDS:
            raise ValueError(f"dtype must be one of {', '.join(KINDS)}; got {self.dtype!r}")
        if not 0 <= self.acceptance < 1:
            raise ValueError(f"acceptance must be at least 0 and below 1; got {self.acceptance}")
        self._check_method()

    def _check_method(self) -> None:
        check_weights(self.weights)
        check_method(self.method)
        own = self.method == OWN
        check_draft(self.method, DraftOptions(tree=self.tree, sparse=self.policy if own else None))
        if self.method == LOOKAHEAD and self.tree != "auto":
            raise ValueError(f"tree must be auto with method lookahead, which has a tree of its own; got {self.tree!r}")
        if (self.draft_model is None) is (self.method == "draft-model"):
            raise ValueError(f"draft_model is for method draft-model, and it needs one; got method {self.method}")
        if isinstance(self.draft_model, str) and self.draft_model != INT8:
            raise ValueError(f"draft_model must be sizes or {INT8}; got {self.draft_model!r}")
        if self.policy is not None:
            self.policy.check(AbstractModel(self.config).model())

    @property
    def shape(self) -> MeshShape:
        """The mesh."""
        assert self.mesh is not None
        return self.mesh

    @property
    def reads(self) -> SparsePolicy | None:
        """The policy of what a step, or under self-sparse its drafts, reads; None for all of the cache."""
        if self.method != OWN:
            return self.policy
        return own_policy(self.config) if self.policy is None else drafting_policy(self.policy)

    @property
    def divisor(self) -> int:
        """Devices over which rows are divided."""
        return self.shape.data * self.shape.fsdp

    @property
    def tokens(self) -> int:
        """Tokens of each prompt."""
        return self.context if self.prompt is None else self.prompt

    @property
    def itemsize(self) -> int:
        """Bytes of an element of activations and cache."""
        return jnp.dtype(self.dtype).itemsize

    @property
    def platform(self) -> str:
        """What programs are traced for, as JAX names it."""
        if self.topology.is_tpu:
            return "tpu"
        return "cpu" if self.topology.name.startswith("cpu") else "gpu"

    @functools.cached_property
    def held(self) -> ModelConfig:
        """The model's sizes as the mesh holds it: with copies of KV heads where it has fewer than devices."""
        return _held(self.config, self.abstract_mesh)

    @property
    def abstract_mesh(self) -> AbstractMesh:
        """The mesh, without devices."""
        return AbstractMesh(self.shape.sizes, AXES, axis_types=(AxisType.Auto,) * len(AXES))

    def chunk(self, batch: int, held: int = 0) -> int:
        """Returns how many entries a row one forward of the prefill reads, as decoding chooses it.

        Args:
          batch: rows on all devices.
          held: bytes of a device that weights take.
        """
        budget = max(self.topology.device.memory - held, 0) // 4
        dtype = jnp.dtype(self.dtype)
        chunk = prefill_chunk(self.held, batch=batch, slots=self.context, dtype=dtype, budget=budget)
        longest = None if self.policy is None or self.method == OWN else self.policy.longest_block
        return min(chunk, bucket(self.context), longest or chunk)

    def arguments(
        self, where: Any = None, *, batch: int | None = None, tree: str | None = None, chunk: int | None = None
    ) -> Abstract:
        """Returns the arguments of the decoding programs as shapes.

        Args:
          where: a mesh of devices; None for one without devices.
          batch: rows; None for one of each device.
          tree: in place of the question's own.
          chunk: entries a row that one forward of the prefill reads; None for as many as an empty device allows.

        Raises:
          ValueError: an axis of a weight is not divisible by its mesh axes.
        """
        drafter = self.draft_model
        model = AbstractModel(
            self.held,
            _held(drafter, self.abstract_mesh) if isinstance(drafter, ModelConfig) else drafter,
            jnp.dtype(self.dtype),
            self.weights,
            modules=self.method == "hamburger",
            policy=None if self.method == OWN else self.policy,
        )
        with tracing_for(self.platform):
            return abstract(
                model,
                self.abstract_mesh if where is None else where,
                batch=batch or self.divisor,
                slots=self.context,
                chunk=chunk or self.chunk(self.batch),
                method=self.method,
                draft=DraftOptions(tree=tree or self.tree, sparse=self.policy if self.method == OWN else None),
                smash=SmashOptions(),
                max_new_tokens=NEW_TOKENS,
            )

    def shares(self, tree: str) -> Shares:
        """Returns what a device holds when trees of this name are drafted."""
        return shares_of(self.arguments(tree=tree), self.held)


@functools.cache
def _held(config: ModelConfig, mesh: AbstractMesh) -> ModelConfig:
    """Returns sizes as a mesh holds them; copies of KV heads are told of once."""
    return divisible(config, None, mesh)


def _check_mesh(mesh: MeshShape, topology: Topology) -> None:
    if mesh.size != topology.devices:
        raise ValueError(
            f"a mesh must have as many devices as {topology.name}, which has {topology.devices}; "
            f"got {mesh.size} in {mesh}"
        )
