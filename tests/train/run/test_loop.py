import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jax_smash.sharding import make_mesh
from train.run.loop import Loop, train
from train.run.metrics import read_metrics

ROWS = 8
TRUE = np.array([2.0, -1.0, 0.5], np.float32)


def squared_error(params, batch):
    inputs, targets = batch
    error = jnp.square(inputs @ params["w"] + params["b"] - targets)
    return error.sum(), jnp.float32(error.size)


def batch_of(number, rows=ROWS):
    inputs = np.random.default_rng(number).normal(size=(rows, 3)).astype(np.float32)
    return inputs, inputs @ TRUE + np.float32(4)


class Numbered:
    """Batches that a counter decides; that of number `broken` holds NaN."""

    def __init__(self, rows=ROWS, cut=None, broken=None):
        self.number, self.rows, self.cut, self.broken = 0, rows, cut, broken

    def __next__(self):
        if self.number == self.cut:
            raise Cut
        self.number += 1
        inputs, targets = batch_of(self.number, self.rows)
        return inputs, targets * np.float32(np.nan if self.number == self.broken else 1)

    def get_state(self):
        return {"number": self.number}

    def set_state(self, state):
        self.number = state["number"]


class Cut(Exception):
    """Stands for a process that dies."""


def held_out():
    return {"near": [batch_of(10_000), batch_of(10_001)], "far": [batch_of(10_002)]}


def start():
    return {"w": jnp.zeros(3), "b": jnp.zeros(())}


def run(output, *, steps=12, rate=0.1, objective=squared_error, data=None, resume=False, params=None, **options):
    return train(
        objective,
        optax.adam(rate),
        start() if params is None else params,
        loop=Loop(steps, **({"log_every": 4, "evaluate_every": 6, "save_every": 5} | options)),
        batches=data or Numbered(),
        held_out=held_out,
        output=output,
        resume=resume,
    )


def leaves_equal(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_training_finds_what_made_the_data(tmp_path):
    state = run(tmp_path, steps=100, rate=0.2)
    np.testing.assert_allclose(state.params["w"], TRUE, atol=0.1)
    np.testing.assert_allclose(state.params["b"], 4, atol=0.1)
    assert state.step == 100


def test_metrics_are_lines_of_json_and_end_with_the_last_step(tmp_path):
    run(tmp_path, token_flops=10.0, peak_flops=1e9)
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines if "loss" in line] == [4, 8, 12]
    assert [line["step"] for line in lines if "held_out_loss" in line] == [6, 12]
    for line in lines:
        if "loss" in line:
            assert line["tokens_per_second"] > 0
            assert line["share_of_peak"] == pytest.approx(line["tokens_per_second"] * 1e-8, abs=1e-4)
        else:
            assert [*line["held_out"]] == ["near", "far"]
            mean = (2 * line["held_out"]["near"] + line["held_out"]["far"]) / 3
            assert line["held_out_loss"] == pytest.approx(mean, rel=1e-5)
    held_out_losses = [line["held_out_loss"] for line in lines if "held_out_loss" in line]
    assert held_out_losses[-1] < held_out_losses[0]


def test_the_losses_are_drawn(tmp_path):
    run(tmp_path)
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_was_cut_off_resumes_to_the_same_weights(tmp_path):
    whole = run(tmp_path / "whole")
    with pytest.raises(Cut):
        run(tmp_path / "cut", data=Numbered(cut=9))
    resumed = run(tmp_path / "cut", resume=True)
    assert leaves_equal(whole, resumed)
    steps = [line["step"] for line in read_metrics(tmp_path / "cut/metrics.jsonl") if "loss" in line]
    assert steps == [4, 8, 12]


def test_resuming_reads_the_checkpoint_and_not_the_given_weights(tmp_path):
    finished = run(tmp_path)
    again = run(tmp_path, resume=True, params={"w": jnp.full(3, 9.0), "b": jnp.full((), 9.0)})
    assert leaves_equal(finished, again)


def test_resuming_where_nothing_was_saved_begins(tmp_path):
    assert leaves_equal(run(tmp_path / "a", resume=True), run(tmp_path / "b"))


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path):
    run(tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(ValueError, match="holds a run at step 12"):
        run(tmp_path)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_a_checkpoint_of_another_shape_is_named(tmp_path):
    run(tmp_path)
    with pytest.raises(ValueError, match=r"w must be of shape \(4,\); got \(3,\)"):
        run(tmp_path, resume=True, params={"w": jnp.zeros(4), "b": jnp.zeros(())})


def test_a_batch_that_does_not_divide_among_the_devices_is_refused(tmp_path):
    with pytest.raises(ValueError, match="divide among 8 devices; got 7 rows"):
        run(tmp_path, data=Numbered(rows=7))


def test_a_smaller_mesh_takes_part_of_the_devices(tmp_path):
    state = train(
        squared_error,
        optax.adam(0.1),
        start(),
        loop=Loop(3),
        batches=Numbered(rows=4),
        held_out=lambda: {"one": [batch_of(1, 4)]},
        output=tmp_path,
        mesh=make_mesh("data=2,fsdp=2"),
    )
    assert state.step == 3


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path):
    def broken(params, batch):
        total, count = squared_error(params, batch)
        return total * jnp.float32(jnp.nan), count

    with pytest.raises(ValueError, match="the loss is nan at step 4"):
        run(tmp_path, objective=broken)


@pytest.mark.parametrize("at", ["saves", "evaluates"])
def test_a_run_that_diverges_ends_before_it_replaces_a_good_checkpoint(tmp_path, at):
    often = {"saves": {"save_every": 2}, "evaluates": {"save_every": 2, "evaluate_every": 5}}[at]
    step = {"saves": 6, "evaluates": 5}[at]
    with pytest.raises(ValueError, match=f"the loss is nan at step {step}; lower the learning rate"):
        run(tmp_path, data=Numbered(broken=5), log_every=10, **({"evaluate_every": 10} | often))
    kept = sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir())
    assert kept == [2, 4]
    state = run(tmp_path, resume=True, log_every=10, evaluate_every=10, save_every=2)
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert all(np.isfinite(line["loss"]) for line in lines if "loss" in line)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))


def test_a_gradient_that_is_not_finite_ends_the_run_before_it_is_saved(tmp_path):
    def steep(params, batch):
        total, count = squared_error(params, batch)
        return total + jnp.sqrt(params["w"][0] - params["w"][0]), count  # √0 is 0, its gradient is not finite.

    with pytest.raises(ValueError, match=r"the gradient norm is (nan|inf) at step 1"):
        run(tmp_path, objective=steep, save_every=1, log_every=10)
    assert not [*(tmp_path / "checkpoints").iterdir()]


@pytest.mark.parametrize(("saved_by", "step"), [(1, 3), (5, 5), (3, 3)])
def test_a_run_that_is_told_to_end_goes_on_to_a_step_that_may_be_saved(tmp_path, monkeypatch, saved_by, step):
    """Of several hosts, as the jobs of a cluster are told; here it is said once, after step 3."""
    whole = run(tmp_path / "whole", save_every=15)
    with monkeypatch.context() as patch:
        patch.setattr("train.run.loop.told_to_end", lambda done: done == 3)
        with pytest.raises(InterruptedError, match=f"told to end; step {step} of 12 is saved"):
            run(tmp_path / "told", save_every=15, saved_by=saved_by)
    assert [path.name for path in (tmp_path / "told/checkpoints").iterdir()] == [str(step)]
    assert leaves_equal(whole, run(tmp_path / "told", resume=True, save_every=15))


def test_a_disk_that_fills_is_told_and_leaves_the_last_checkpoint_whole(tmp_path, monkeypatch):
    whole = run(tmp_path / "whole")
    with pytest.raises(Cut):
        run(tmp_path / "full", data=Numbered(cut=6))
    from orbax.checkpoint import v1 as ocp

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ocp.training.Checkpointer, "save_async", full)
        with pytest.raises(OSError, match="No space left on device; the newest whole one is of step 5"):
            run(tmp_path / "full", resume=True)
    assert leaves_equal(whole, run(tmp_path / "full", resume=True))


def test_a_line_cut_off_by_a_crash_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps({"step": 1, "loss": 2.0}) + '\n{"step": 2, "lo')
    assert read_metrics(path) == [{"step": 1, "loss": 2.0}]


@pytest.mark.parametrize("field", ["steps", "log_every", "evaluate_every", "save_every", "accumulate"])
def test_a_loop_setting_below_one_is_refused(field):
    with pytest.raises(ValueError, match=f"{field} must be at least 1; got 0"):
        Loop(**({"steps": 5} | {field: 0}))


def test_a_run_may_stop_early_and_go_on_as_if_it_had_not(tmp_path):
    whole = run(tmp_path / "whole")
    early = run(tmp_path / "early", until=7)
    assert early.step == 7
    assert leaves_equal(whole, run(tmp_path / "early", resume=True))


@pytest.mark.parametrize("until", [0, 13])
def test_a_stop_outside_the_run_is_refused(until):
    with pytest.raises(ValueError, match=f"until must be from 1 to the run's 12 steps; got {until}"):
        Loop(12, until=until)


def test_batches_are_asked_for_one_a_step(tmp_path):
    data = Numbered()
    run(tmp_path, data=data)
    assert data.get_state() == {"number": 12}
