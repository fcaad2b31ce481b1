"""The training loop that every program of this folder calls."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import optax
from jax.sharding import Mesh
from jaxtyping import Array
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from jax_smash.hosts import decided, is_first, told_to_end, wait_for_all
from jax_smash.sharding import MeshShape, make_mesh, param_shardings, to_devices
from train.run.batches import Batches
from train.run.checkpoint import Checkpoints, only_run
from train.run.choice import Best, Choice
from train.run.frozen import Frozen, check_frozen
from train.run.metrics import Metrics, plot_losses
from train.run.step import (
    Evaluation,
    Measured,
    Objective,
    Step,
    TrainState,
    first_state,
    make_evaluation,
    make_step,
    place_rows,
)

METRICS, PLOT, CHECKPOINTS = "metrics.jsonl", "loss.png", "checkpoints"
FROZEN_NOTE = "frozen"
"""Among a checkpoint's notes: the fingerprint of the frozen weights of each role."""


@dataclasses.dataclass(frozen=True)
class Loop:
    """The length of a run and when it reports, all in steps; evaluation and saving also follow the last step made.

    Attributes:
      steps: length of the run.
      log_every: steps between lines of metrics.
      evaluate_every: steps between evaluations.
      save_every: steps between checkpoints.
      accumulate: parts of a batch that a step works on one after the other.
      saved_by: a checkpoint's step is a multiple of it, also where a run is told to end.
      until: the step that this call stops after; None for the last.
      token_flops: operations that training does a token, for the share of the device's peak; 0 leaves it out.
      peak_flops: operations a second that all devices could do.
    """

    steps: int
    log_every: int = 10
    evaluate_every: int = 200
    save_every: int = 100
    accumulate: int = 1
    saved_by: int = 1
    until: int | None = None
    token_flops: float = 0.0
    peak_flops: float = 1.0

    def __post_init__(self) -> None:
        for name in ("steps", "log_every", "evaluate_every", "save_every", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if self.until is not None and not 1 <= self.until <= self.steps:
            raise ValueError(f"until must be from 1 to the run's {self.steps} steps; got {self.until}")

    @property
    def end(self) -> int:
        """The step that this call stops after."""
        return self.steps if self.until is None else self.until


def train(
    objective: Objective,
    optimiser: optax.GradientTransformation,
    params: Any,
    *,
    loop: Loop,
    batches: Batches,
    held_out: Callable[[], Mapping[str, Iterable[Any]]],
    output: Path,
    frozen: Frozen | None = None,
    resume: bool = False,
    mesh: Mesh | None = None,
    before_step: Callable[[Any, int], None] | None = None,
    tokens_of: Callable[[Any], int] | None = None,
    evaluated: Objective | None = None,
    choice: Choice | None = None,
) -> TrainState:
    """Trains, evaluates, logs to `output/metrics.jsonl` and saves to `output/checkpoints`; returns the final state.

    A run that dies at any moment, also while it saves, resumes from its newest whole checkpoint to the same weights,
    bit for bit, on the same devices.

    Args:
      objective: what is minimised.
      optimiser: of what is trained.
      params: where a new run begins, by role where some weights are frozen. Consumed, so that no second copy of them
        is held. Of a resumed run only shapes and dtypes count.
      loop: how long, and when to report.
      batches: what is trained on; where they stand is saved with the weights.
      held_out: the named sets of batches of one evaluation.
      output: folder of the run.
      frozen: weights that the objective reads too, on the mesh's devices. Checkpoints name them and do not hold them.
      resume: go on from the newest checkpoint in `output`; without one, begin.
      mesh: the devices; None puts a share of each batch on every one.
      before_step: called with the weights and the number of steps made, before each batch is asked for.
      tokens_of: counts the tokens of this host's batch, for the speed; None for the size of its first array.
      evaluated: what held-out rows are measured by; None for the objective.
      choice: evaluations measure its sets in place of held-out ones, and `train.run.choice` keeps the best step; None
        for a run that ends with its last step.

    Raises:
      ValueError: `output` holds a run and `resume` is False, or one behind the step to stop after; another program
        trains in it, a checkpoint has other parameters or was made beside other frozen weights, a batch does not divide
        among the devices, or the loss or the gradient stops being finite; no checkpoint is made of such a step.
      OSError: a checkpoint could not be written; the one before is whole. Or one of several hosts was told to end, and
        all have saved the next step that may be saved.
    """
    mesh = make_mesh(MeshShape(data=jax.device_count())) if mesh is None else mesh
    with only_run(output), Checkpoints(output / CHECKPOINTS) as checkpoints, contextlib.ExitStack() as stack:
        newest = decided(lambda: checkpoints.latest)
        if newest is not None and not resume:
            raise ValueError(f"{output} holds a run at step {newest}; resume it or choose another folder")
        if newest is not None and newest > loop.end:
            raise ValueError(f"{output} holds a run at step {newest}, which cannot stop after step {loop.end}")
        best = None if choice is None else stack.enter_context(Best(output, choice, newest or 0))
        abstract = jax.eval_shape(lambda p: first_state(p, optimiser), params)
        shardings = param_shardings(abstract, mesh)
        if newest is None:
            params = jax.tree.map(to_devices, params, shardings.params)
            make = jax.jit(lambda p: first_state(p, optimiser), out_shardings=shardings, donate_argnums=0)
            state = make(params)
            del params
        else:
            like = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), abstract, shardings)
            state, notes = checkpoints.load(like)
            check_frozen(frozen, notes.get(FROZEN_NOTE, {}), output)
            batches.set_state(notes["batches"])
        step = make_step(objective, optimiser, mesh, shardings, accumulate=loop.accumulate)
        evaluate = make_evaluation(evaluated or objective, mesh)
        run = _Run(step, evaluate, mesh, loop, checkpoints, output, frozen, before_step, tokens_of or _first_size, best)
        return run(state, batches, held_out)


@dataclasses.dataclass
class _Run:
    step: Step
    evaluate: Evaluation
    mesh: Mesh
    loop: Loop
    checkpoints: Checkpoints
    output: Path
    frozen: Frozen | None
    before_step: Callable[[Any, int], None] | None
    tokens_of: Callable[[Any], int]
    best: Best | None

    def __call__(
        self, state: TrainState, batches: Batches, held_out: Callable[[], Mapping[str, Iterable[Any]]]
    ) -> TrainState:
        loop, first = self.loop, int(state.step)
        frozen, fingerprints = (None, {}) if self.frozen is None else (self.frozen.params, self.frozen.fingerprints)
        metrics = Metrics(self.output / METRICS, first)
        since, measured, tokens, told = time.perf_counter(), [], 0, False
        with _progress() as progress:
            task = progress.add_task("", total=loop.steps, completed=first, note="compiling")
            for done in range(first + 1, loop.end + 1):
                if self.before_step is not None:
                    self.before_step(state.params, done - 1)
                batch = next(batches)
                tokens += self.tokens_of(batch) * jax.process_count()
                state, values = self.step(state, place_rows(batch, self.mesh), frozen)
                measured.append(values)
                if done == first + 1:  # The first step compiles, which is no part of the speed.
                    jax.block_until_ready(values)
                    since, tokens = time.perf_counter(), 0
                last = done == loop.end
                if done % loop.log_every == 0 or last:
                    mean = _means(measured)
                    _check_finite(mean, done)
                    speed = self._speed(tokens / (time.perf_counter() - since))
                    metrics.write(step=done, **mean, **speed)
                    progress.update(task, note=_note(mean["loss"], speed))
                    since, measured, tokens = time.perf_counter(), [], 0
                progress.update(task, completed=done)
                evaluates, saves = (done % every == 0 or last for every in (loop.evaluate_every, loop.save_every))
                told = told or (not last and told_to_end(done))
                ends = told and not last and done % loop.saved_by == 0
                saves |= ends
                if evaluates or saves:
                    jax.block_until_ready(values)  # What is still being computed is no part of the pause.
                    _check_finite(values, done)  # Weights that are lost must not replace good checkpoints.
                paused = time.perf_counter()
                if evaluates:
                    sets = held_out() if self.best is None else self.best.choice.sets
                    line = self._told(done, state.params, self.evaluate(state.params, sets, frozen), metrics)
                    progress.console.print(f"step {done}: {line}")
                    if is_first():
                        plot_losses(metrics.path, self.output / PLOT)
                if saves:
                    if self.best is not None:
                        self.best.wait()  # A run that goes on from this step does not evaluate it again.
                    notes = {"batches": batches.get_state(), FROZEN_NOTE: fingerprints}
                    self.checkpoints.save(done, state, notes)
                if ends:
                    self.checkpoints.wait()
                    wait_for_all("saved")
                    raise InterruptedError(f"told to end; step {done} of {loop.steps} is saved, and --resume goes on")
                since += time.perf_counter() - paused
        return state

    def _told(self, step: int, params: Any, measured: Measured, metrics: Metrics) -> str:
        """Notes what was measured, and offers the step where one is chosen; returns a line of it.

        A step that only ends this call is no candidate: where a run stops on its way does not change what it exports.
        """
        if self.best is None:
            metrics.measured(step, "held_out", measured)
            return f"held-out loss {measured.loss:.4f}"
        candidate = step % self.loop.evaluate_every == 0 or step == self.loop.steps
        score = self.best.offer(step, params, measured).score if candidate else self.best.choice.score(measured)
        metrics.measured(step, "choice", measured, choice_score=score)
        return f"choice score {score:.4f}, loss {measured.loss:.4f}"

    def _speed(self, tokens_per_second: float) -> dict[str, float]:
        speed = {"tokens_per_second": round(tokens_per_second, 1)}
        if self.loop.token_flops:
            speed["share_of_peak"] = round(tokens_per_second * self.loop.token_flops / self.loop.peak_flops, 4)
        return speed


def _first_size(batch: Any) -> int:
    return int(jax.tree.leaves(batch)[0].size)


def _note(loss: float, speed: dict[str, float]) -> str:
    note = f"loss {loss:.3f}  {speed['tokens_per_second']:,.0f} tokens/s"
    return f"{note}  {speed['share_of_peak']:.0%} of peak" if "share_of_peak" in speed else note


def _means(measured: list[dict[str, Array]]) -> dict[str, float]:
    return {name: math.fsum(float(values[name]) for values in measured) / len(measured) for name in measured[0]}


def _check_finite(values: Mapping[str, Any], step: int) -> None:
    """Raises ValueError where the loss or the gradient of a step is not finite."""
    for name in ("loss", "gradient_norm"):
        if not math.isfinite(value := float(values[name])):
            raise ValueError(f"the {name.replace('_', ' ')} is {value} at step {step}; lower the learning rate")


def _progress() -> Progress:
    note = TextColumn("{task.fields[note]}")
    return Progress(
        MofNCompleteColumn(),
        BarColumn(),
        note,
        TimeRemainingColumn(elapsed_when_finished=True),
        console=Console(stderr=True, quiet=not is_first()),
        disable=not is_first(),
    )
