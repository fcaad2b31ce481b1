"""The training loop that every program of this folder calls."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from jax_smash.pytree import pytree
from train.checkpoint import Checkpoints

Objective = Callable[[Any, Any], tuple[Float[Array, ""], Float[Array, ""]]]
"""Parameters and a batch (a pytree of `[B, …]` arrays) to the sum of a loss over targets, and the targets' number."""


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


@dataclasses.dataclass(frozen=True)
class Loop:
    """The length of a run and when it reports, all in steps; evaluation and saving also follow the last step."""

    steps: int
    log_every: int = 10
    evaluate_every: int = 200
    save_every: int = 100

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"{field.name} must be at least 1; got {getattr(self, field.name)}")


def data_mesh() -> Mesh:
    """Returns all devices in a row; each takes a share of a batch."""
    return jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))


def make_step(
    objective: Objective, optimiser: optax.GradientTransformation, mesh: Mesh
) -> Callable[[TrainState, Any], tuple[TrainState, dict[str, Array]]]:
    """Returns the jitted step. It consumes the state; the batch's rows are divided among the mesh.

    Its second result holds `loss`, the mean over the batch's targets, and `gradient_norm`, before clipping.
    """

    def local(params: Any, batch: Any) -> Any:
        (total, count), gradient = jax.value_and_grad(objective, has_aux=True)(params, batch)
        return jax.lax.psum((total, count, gradient), "data")

    rows, same = PartitionSpec("data"), PartitionSpec()
    summed = jax.shard_map(local, mesh=mesh, in_specs=(same, rows), out_specs=same, check_vma=False)

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: TrainState, batch: Any) -> tuple[TrainState, dict[str, Array]]:
        total, count, gradient = summed(state.params, batch)
        count = jnp.maximum(count, 1)
        gradient = jax.tree.map(lambda g: g / count.astype(g.dtype), gradient)
        with jax.numpy_dtype_promotion("standard"):  # Optax mixes its int32 count with floats.
            updates, optimiser_state = optimiser.update(gradient, state.optimiser, state.params)
        params = optax.apply_updates(state.params, updates)
        measured = {"loss": total / count, "gradient_norm": optax.tree.norm(gradient)}
        return TrainState(params=params, optimiser=optimiser_state, step=state.step + 1), measured

    return step


def make_evaluation(objective: Objective, mesh: Mesh) -> Callable[[Any, Iterable[Any]], float]:
    """Returns a function of parameters and batches that gives the mean loss a target over all of them."""
    rows, same = PartitionSpec("data"), PartitionSpec()

    def local(params: Any, batch: Any) -> Any:
        return jax.lax.psum(objective(params, batch), "data")

    summed = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(same, rows), out_specs=same, check_vma=False))

    def evaluate(params: Any, batches: Iterable[Any]) -> float:
        params = jax.device_put(params, NamedSharding(mesh, same))
        sums = [summed(params, jax.device_put(batch, NamedSharding(mesh, rows))) for batch in batches]
        if not sums or not (count := math.fsum(float(n) for _, n in sums)):
            raise ValueError("evaluation needs at least one target; got none")
        return math.fsum(float(total) for total, _ in sums) / count

    return evaluate


class Metrics:
    """A JSONL file of what a run measured; lines after the step that a run resumes from are dropped."""

    def __init__(self, path: Path, step: int):
        self.path = path
        kept = [line for line in read_metrics(path) if line["step"] <= step] if step else []
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in kept))
        os.replace(temporary, path)

    def write(self, **values: float) -> None:
        """Appends one line."""
        with self.path.open("a") as file:
            file.write(json.dumps(values) + "\n")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a metrics file; a last line cut off by a crash is left out."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def train(
    objective: Objective,
    optimiser: optax.GradientTransformation,
    params: Any,
    *,
    loop: Loop,
    batches: Callable[[int], Iterator[Any]],
    held_out: Callable[[], Iterable[Any]],
    output: Path,
    resume: bool = False,
) -> TrainState:
    """Trains, evaluates, logs to `output/metrics.jsonl` and saves to `output/checkpoints`; returns the final state.

    Args:
      objective: what is minimised.
      optimiser: of all parameters.
      params: where a new run begins; a resumed run takes only shapes and dtypes from them. Consumed.
      loop: how long, and when to report.
      batches: the batches from a step on; the same step must give the same batch, so that a run can resume.
      held_out: the batches of one evaluation.
      output: folder of the run.
      resume: go on from the newest checkpoint in `output`; without one, begin.

    Raises:
      ValueError: `output` holds a run and `resume` is False, a checkpoint has other parameters, a batch does not
        divide among the devices, or the loss stops being finite.
    """
    mesh = data_mesh()
    checkpoints = Checkpoints(output / "checkpoints")
    if checkpoints.latest is not None and not resume:
        raise ValueError(f"{output} holds a run at step {checkpoints.latest}; resume it or choose another folder")
    state = TrainState(params=params, optimiser=optimiser.init(params), step=jnp.zeros((), jnp.int32))
    state = jax.device_put(state, NamedSharding(mesh, PartitionSpec()))
    if checkpoints.latest is not None:
        state = checkpoints.load(state)
    run = _Run(make_step(objective, optimiser, mesh), make_evaluation(objective, mesh), mesh, loop, checkpoints)
    with checkpoints:
        return run(state, batches, held_out, Metrics(output / "metrics.jsonl", int(state.step)))


@dataclasses.dataclass
class _Run:
    step: Callable[[TrainState, Any], tuple[TrainState, dict[str, Array]]]
    evaluate: Callable[[Any, Iterable[Any]], float]
    mesh: Mesh
    loop: Loop
    checkpoints: Checkpoints

    def __call__(
        self,
        state: TrainState,
        batches: Callable[[int], Iterator[Any]],
        held_out: Callable[[], Iterable[Any]],
        metrics: Metrics,
    ) -> TrainState:
        loop, first = self.loop, int(state.step)
        since, measured, tokens = time.perf_counter(), [], 0
        with _progress() as progress:
            task = progress.add_task("", total=loop.steps, completed=first, note="compiling")
            for done, batch in zip(range(first + 1, loop.steps + 1), batches(first), strict=False):
                state, values = self.step(state, self._placed(batch))
                measured.append(values)
                tokens += jax.tree.leaves(batch)[0].size
                if done == first + 1:  # The first step compiles, which is no part of the speed.
                    jax.block_until_ready(values)
                    since, tokens = time.perf_counter(), 0
                if done % loop.log_every == 0 or done == loop.steps:
                    mean = _means(measured)
                    if not math.isfinite(mean["loss"]):
                        raise ValueError(f"the loss is {mean['loss']} at step {done}; lower the learning rate")
                    speed = tokens / (time.perf_counter() - since)
                    metrics.write(step=done, **mean, tokens_per_second=round(speed, 1))
                    progress.update(task, note=f"loss {mean['loss']:.3f}  {speed:,.0f} tokens/s")
                    since, measured, tokens = time.perf_counter(), [], 0
                progress.update(task, completed=done)
                paused = time.perf_counter()
                if done % loop.evaluate_every == 0 or done == loop.steps:
                    loss = self.evaluate(state.params, held_out())
                    metrics.write(step=done, held_out_loss=loss)
                    progress.console.print(f"step {done}: held-out loss {loss:.4f}")
                if done % loop.save_every == 0 or done == loop.steps:
                    self.checkpoints.save(done, state)
                since += time.perf_counter() - paused
        return state

    def _placed(self, batch: Any) -> Any:
        rows = jax.tree.leaves(batch)[0].shape[0]
        if rows % self.mesh.size:
            raise ValueError(f"a batch must divide among {self.mesh.size} devices; got {rows} rows")
        return jax.device_put(batch, NamedSharding(self.mesh, PartitionSpec("data")))


def _means(measured: list[dict[str, Array]]) -> dict[str, float]:
    return {name: math.fsum(float(values[name]) for values in measured) / len(measured) for name in measured[0]}


def _progress() -> Progress:
    note = TextColumn("{task.fields[note]}")
    return Progress(MofNCompleteColumn(), BarColumn(), note, TimeRemainingColumn(elapsed_when_finished=True))
