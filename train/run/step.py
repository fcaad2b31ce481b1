"""One training step and one evaluation, compiled for the devices of a mesh."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from jax_smash.pytree import pytree
from train.run.batches import Share


@pytree
class Tally:
    """The number of targets, and what is measured beside the loss.

    Attributes:
      count: targets, by what they count.
      means: sums and what they are to be divided by, by name.
    """

    count: Float[Array, ""]
    means: dict[str, tuple[Float[Array, ""], Float[Array, ""]]]


Objective = Callable[[Any, Any], tuple[Float[Array, ""], Float[Array, ""] | Tally]]
"""Parameters and a batch (a pytree of `[B, …]` arrays) to the sum of a loss over targets, and the targets' number.

Where weights are frozen, the parameters are those of all roles, by name: trained and frozen ones, and in training
`STEP`.
"""

STEP = "step"
"""Role of the number of steps made, which an objective may depend on."""

FrozenParams = Mapping[str, Any] | None
"""Parameters by role that are read and never changed; None where there are none."""

ROWS = PartitionSpec(("data", "fsdp"))
"""How a batch's rows lie on a mesh."""


@pytree
class TrainState:
    """What a step reads and replaces.

    Attributes:
      params: what is trained.
      optimiser: the optimiser's state.
      step: steps done.
    """

    params: Any
    optimiser: Any
    step: Int[Array, ""]


def first_state(params: Any, optimiser: optax.GradientTransformation) -> TrainState:
    """Returns the state of a run that has made no step."""
    return TrainState(params=params, optimiser=optimiser.init(params), step=jnp.zeros((), jnp.int32))


class Step(Protocol):
    """A jitted training step."""

    def __call__(
        self, state: TrainState, batch: Any, frozen: FrozenParams = None
    ) -> tuple[TrainState, dict[str, Array]]:
        """Returns the next state and what was measured. It consumes the state, not the frozen weights."""

    def lower(self, state: TrainState, batch: Any, frozen: FrozenParams = None) -> Any:
        """Returns the step as it is lowered for arguments, or for their shapes on devices."""


def make_step(
    objective: Objective,
    optimiser: optax.GradientTransformation,
    mesh: Mesh,
    shardings: Any = None,
    *,
    accumulate: int = 1,
) -> Step:
    """Returns the jitted step. It consumes the state; the batch's rows are divided among the mesh.

    Its second result holds `loss`, the mean over the batch's targets, `gradient_norm`, before clipping, and the means
    of a `Tally`. Frozen weights have neither gradients nor a place in the state.

    Args:
      objective: what is minimised.
      optimiser: of all parameters.
      mesh: axes `data`, `fsdp`, `tp`.
      shardings: of the state, a tree like it; None keeps the whole state on every device.
      accumulate: parts of a batch that are worked on one after the other, for less memory; see `check_rows`.
    """

    def gradient(params: Any, frozen: FrozenParams, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            return objective(all_roles(params, frozen), batch)

        (total, tally), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        return total, tally, gradients

    def accumulated(params: Any, frozen: FrozenParams, batch: Any) -> Any:
        if accumulate == 1:
            return gradient(params, frozen, batch)
        parts = jax.tree.map(lambda x: x.reshape(-1, accumulate, *x.shape[1:]).swapaxes(0, 1), batch)

        def add(sums: Any, part: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, sums, gradient(params, frozen, part)), None

        zeros = jax.tree.map(
            lambda x: jnp.zeros(x.shape, x.dtype),
            jax.eval_shape(gradient, params, frozen, jax.tree.map(lambda x: x[0], parts)),
        )
        return jax.lax.scan(add, zeros, parts)[0]

    summed = _over_rows(accumulated, mesh)
    whole = NamedSharding(mesh, PartitionSpec())
    out = (whole if shardings is None else shardings, whole)

    @functools.partial(jax.jit, donate_argnums=0, out_shardings=out)
    def step(state: TrainState, batch: Any, frozen: FrozenParams = None) -> tuple[TrainState, dict[str, Array]]:
        roles = None if frozen is None else {**frozen, STEP: state.step}
        total, tally, gradients = summed(state.params, roles, batch)
        count, means = (tally.count, tally.means) if isinstance(tally, Tally) else (tally, {})
        count = jnp.maximum(count, 1)
        gradients = jax.tree.map(lambda g: g / count.astype(g.dtype), gradients)
        with jax.numpy_dtype_promotion("standard"):  # Optax mixes its int32 count with floats.
            updates, optimiser_state = optimiser.update(gradients, state.optimiser, state.params)
        params = optax.apply_updates(state.params, updates)
        measured = {"loss": total / count, "gradient_norm": optax.tree.norm(gradients)}
        measured |= {name: sum_ / jnp.where(of > 0, of, 1) for name, (sum_, of) in means.items()}
        return TrainState(params=params, optimiser=optimiser_state, step=state.step + 1), measured

    return step


def all_roles(params: Any, frozen: FrozenParams) -> Any:
    """Returns the parameters that an objective is given: what is trained, and by other names what is frozen."""
    return params if frozen is None else {**frozen, **params}


def _over_rows(sums: Callable[..., Any], mesh: Mesh) -> Callable[..., Any]:
    """Returns a function of trained and frozen parameters and a batch whose sums are over all the mesh's rows.

    Where every device holds the whole model, each sums over its own rows and the sums are added once: the compiler
    would add up within the loops over layers and over logits. Where weights are divided, it knows best.
    """
    if is_divided(mesh):

        def on_mesh(params: Any, frozen: FrozenParams, batch: Any) -> Any:
            with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
                return sums(params, frozen, batch)

        return on_mesh
    return jax.shard_map(
        lambda params, frozen, batch: jax.lax.psum(sums(params, frozen, batch), "data"),
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec(), ROWS),
        out_specs=PartitionSpec(),
        check_vma=False,
    )


def is_divided(mesh: Mesh) -> bool:
    """Whether weights are divided over the mesh."""
    return mesh.shape["fsdp"] * mesh.shape["tp"] > 1


class Measured(NamedTuple):
    """What held-out rows say of parameters.

    Attributes:
      loss: mean a target, in nats, over all sets.
      by_set: the same of each set that has targets.
      means: those of the objective's `Tally`, over all sets.
    """

    loss: float
    by_set: dict[str, float]
    means: dict[str, float]


class Evaluation(Protocol):
    """A function of parameters and named sets of batches."""

    def __call__(self, params: Any, sets: Mapping[str, Iterable[Any]], frozen: FrozenParams = None) -> Measured:
        """Returns what they measure; raises ValueError where no set has a target."""


def make_evaluation(objective: Objective, mesh: Mesh) -> Evaluation:
    """Returns a function that measures parameters on named sets of batches.

    Batches are whole ones, the same on all hosts; each host reads its share of their rows.
    """
    share = Share.of_this_process()

    def sums(params: Any, frozen: FrozenParams, batch: Any) -> Any:
        total, tally = objective(all_roles(params, frozen), batch)
        return (total, tally.count, tally.means) if isinstance(tally, Tally) else (total, tally, {})

    summed = jax.jit(_over_rows(sums, mesh))

    def evaluate(params: Any, sets: Mapping[str, Iterable[Any]], frozen: FrozenParams = None) -> Measured:
        sums = {
            name: [summed(params, frozen, place_rows(share.rows_of(batch), mesh)) for batch in batches]
            for name, batches in sets.items()
        }
        totals = {name: tuple(math.fsum(float(s[i]) for s in found) for i in (0, 1)) for name, found in sums.items()}
        counted = {name: total for name, total in totals.items() if total[1]}
        if not counted:
            raise ValueError("evaluation needs at least one target; got none")
        loss, count = (math.fsum(column) for column in zip(*counted.values(), strict=True))
        tallies = [s[2] for found in sums.values() for s in found]
        means = {name: _quotient([tally[name] for tally in tallies]) for name in tallies[0]}
        return Measured(loss / count, {name: total / count for name, (total, count) in counted.items()}, means)

    return evaluate


def _quotient(pairs: list[tuple[Array, Array]]) -> float:
    total, of = (math.fsum(map(float, column)) for column in zip(*pairs, strict=True))
    return total / of if of else 0.0


def check_rows(rows: int, mesh: Mesh, *, accumulate: int = 1) -> None:
    """Checks that a batch's rows, those of all hosts, divide among the devices and among a step's parts.

    Raises:
      ValueError: they do not, or several hosts would need the same rows.
    """
    shares = mesh.shape["data"] * mesh.shape["fsdp"]
    if shares % jax.process_count():
        raise ValueError(f"data and fsdp of a mesh must divide among {jax.process_count()} hosts; got {shares} shares")
    if rows % shares:
        raise ValueError(f"a batch must divide among {shares} devices; got {rows} rows")
    if not is_divided(mesh) and rows % (shares * accumulate):  # Each device divides its own rows.
        raise ValueError(f"a batch must divide among {shares} devices and {accumulate} parts of each; got {rows} rows")


def place_rows(batch: Any, mesh: Mesh) -> Any:
    """Returns the batch with its rows divided among the mesh; of several hosts, each brings its own rows.

    Raises:
      ValueError: they do not divide.
    """
    check_rows(jax.tree.leaves(batch)[0].shape[0] * jax.process_count(), mesh)
    sharding = NamedSharding(mesh, ROWS)
    if jax.process_count() > 1:
        return jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, x), batch)
    return jax.device_put(batch, sharding)
