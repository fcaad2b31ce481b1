import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from train.loop import Loop, TrainState, data_mesh, make_evaluation, make_step, read_metrics, train

ROWS = 8
TRUE = np.array([2.0, -1.0, 0.5], np.float32)


def squared_error(params, batch):
    inputs, targets = batch
    error = jnp.square(inputs @ params["w"] + params["b"] - targets)
    return error.sum(), jnp.float32(error.size)


def batches(start):
    for step in itertools.count(start):
        inputs = np.random.default_rng(step).normal(size=(ROWS, 3)).astype(np.float32)
        yield inputs, inputs @ TRUE + np.float32(4)


def held_out():
    return itertools.islice(batches(10_000), 3)


def start():
    return {"w": jnp.zeros(3), "b": jnp.zeros(())}


def run(output, *, steps=12, rate=0.1, objective=squared_error, data=batches, resume=False, params=None):
    loop = Loop(steps, log_every=4, evaluate_every=6, save_every=5)
    params = start() if params is None else params
    return train(
        objective, optax.adam(rate), params, loop=loop, batches=data, held_out=held_out, output=output, resume=resume
    )


class Cut(Exception):
    """Stands for a process that dies."""


def cut_before(step):
    def data(first):
        for number, batch in zip(itertools.count(first), batches(first), strict=False):
            if number == step:
                raise Cut
            yield batch

    return data


def new_state(optimiser):
    return TrainState(params=start(), optimiser=optimiser.init(start()), step=jnp.zeros((), jnp.int32))


def leaves_equal(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_training_finds_what_made_the_data(tmp_path):
    state = run(tmp_path, steps=100, rate=0.2)
    np.testing.assert_allclose(state.params["w"], TRUE, atol=0.1)
    np.testing.assert_allclose(state.params["b"], 4, atol=0.1)
    assert state.step == 100


def test_a_step_on_many_devices_equals_plain_gradient_descent():
    mesh = data_mesh()
    assert mesh.size == ROWS
    inputs, targets = next(batches(0))

    def loss(params):
        total, count = squared_error(params, (inputs, targets))
        return total / count

    expected = jax.tree.map(lambda p, g: p - jnp.float32(0.1) * g, start(), jax.grad(loss)(start()))
    optimiser = optax.sgd(0.1)
    state = new_state(optimiser)
    state, measured = make_step(squared_error, optimiser, mesh)(state, (inputs, targets))
    for got, wanted in zip(jax.tree.leaves(state.params), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
    np.testing.assert_allclose(measured["loss"], loss(start()), rtol=1e-5)
    np.testing.assert_allclose(measured["gradient_norm"], optax.tree.norm(jax.grad(loss)(start())), rtol=1e-5)


def test_a_row_without_targets_does_not_weaken_the_others():
    def counted(params, batch):
        inputs, targets, weights = batch
        return (weights * jnp.square(inputs @ params["w"] - targets)).sum(), weights.sum()

    inputs, targets = next(batches(0))
    weights = np.array([1, 1, 0, 0, 0, 0, 0, 0], np.float32)
    params = {"w": jnp.ones(3)}
    loss = make_evaluation(counted, data_mesh())(params, [(inputs, targets, weights)])
    np.testing.assert_allclose(loss, np.mean((inputs[:2].sum(1) - targets[:2]) ** 2), rtol=1e-5)


def test_metrics_are_lines_of_json_and_end_with_the_last_step(tmp_path):
    run(tmp_path)
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines if "loss" in line] == [4, 8, 12]
    assert [line["step"] for line in lines if "held_out_loss" in line] == [6, 12]
    assert all(line["tokens_per_second"] > 0 for line in lines if "loss" in line)
    held_out_losses = [line["held_out_loss"] for line in lines if "held_out_loss" in line]
    assert held_out_losses[-1] < held_out_losses[0]


def test_a_run_that_was_cut_off_resumes_to_the_same_weights(tmp_path):
    whole = run(tmp_path / "whole")
    with pytest.raises(Cut):
        run(tmp_path / "cut", data=cut_before(9))
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
    def seven(_):
        yield np.zeros((7, 3), np.float32), np.zeros(7, np.float32)

    with pytest.raises(ValueError, match="divide among 8 devices; got 7 rows"):
        run(tmp_path, data=seven)


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path):
    def broken(params, batch):
        total, count = squared_error(params, batch)
        return total * jnp.float32(jnp.nan), count

    with pytest.raises(ValueError, match="the loss is nan at step 4"):
        run(tmp_path, objective=broken)


def test_an_evaluation_without_targets_is_refused():
    with pytest.raises(ValueError, match="needs at least one target"):
        make_evaluation(squared_error, data_mesh())(start(), [])


def test_a_line_cut_off_by_a_crash_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps({"step": 1, "loss": 2.0}) + '\n{"step": 2, "lo')
    assert read_metrics(path) == [{"step": 1, "loss": 2.0}]


@pytest.mark.parametrize("field", ["steps", "log_every", "evaluate_every", "save_every"])
def test_a_loop_setting_below_one_is_refused(field):
    with pytest.raises(ValueError, match=f"{field} must be at least 1; got 0"):
        Loop(**({"steps": 5} | {field: 0}))
