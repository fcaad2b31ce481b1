"""Weights that a run reads and never changes: where they are, and where they are not."""

import re
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jax_smash.sharding import make_mesh
from tests.checkpoints import LLAMA, write_checkpoint
from train.run.checkpoint import Checkpoints
from train.run.frozen import Frozen
from train.run.loop import Loop, train
from train.run.start import stored_weights
from train.run.step import STEP, TrainState, first_state, make_step

BASE = np.array([[1.0, 2.0], [3.0, 4.0], [-1.0, 0.5]], np.float32)


def error(params, batch):
    """Of a scale that is learned behind a matrix that is not."""
    inputs, targets = batch
    assert {*params} - {STEP} == {"base", "part"}  # Evaluations tell no step.
    made = (inputs @ params["base"].astype(jnp.float32)) * params["part"][None]
    return jnp.square(made - targets).sum(), jnp.float32(targets.size)


class Same:
    """The same batch again and again."""

    def __next__(self):
        inputs = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
        return inputs, (inputs @ BASE) * np.array([[2.0, -1.0]], np.float32)

    def get_state(self):
        return {}

    def set_state(self, state):
        pass


def frozen_of(mark="a" * 64, role="base"):
    params = {role: jax.device_put(jnp.asarray(BASE, jnp.bfloat16))}
    return Frozen(params=params, fingerprints={role: mark}, sources={role: Path("BASE")})


def run(output, frozen, *, until=None, resume=False):
    params = {"part": jnp.ones(2)}
    return train(
        error,
        optax.adam(0.1),
        params,
        loop=Loop(60, log_every=30, evaluate_every=30, save_every=10, until=until),
        batches=Same(),
        held_out=lambda: {"same": [next(Same())]},
        output=output,
        frozen=frozen,
        resume=resume,
        mesh=make_mesh("data=1"),
    )


def test_a_part_learns_beside_weights_that_stay(tmp_path):
    frozen = frozen_of()
    state = run(tmp_path, frozen)
    np.testing.assert_allclose(state.params["part"], [2, -1], atol=0.05)
    assert frozen.params["base"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(frozen.params["base"], np.float32), BASE)
    names = {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(state)}
    assert not any("base" in name for name in names)


def test_checkpoints_hold_no_frozen_weight_and_name_them(tmp_path):
    run(tmp_path, frozen_of(), until=20)
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        like = jax.eval_shape(lambda p: first_state(p, optax.adam(0.1)), {"part": jnp.ones(2)})
        whole = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
        state, notes = checkpoints.load(whole)
    assert isinstance(state, TrainState)
    assert notes["frozen"] == {"base": "a" * 64}


def test_a_run_beside_other_weights_is_refused_by_their_name(tmp_path):
    whole = run(tmp_path / "whole", frozen_of())
    run(tmp_path / "parts", frozen_of(), until=20)
    said = f"parts was begun beside a frozen base whose weights have fingerprint {'a' * 16}; those of BASE have "
    with pytest.raises(ValueError, match=re.escape(said + "b" * 16)):
        run(tmp_path / "parts", frozen_of("b" * 64), resume=True)
    resumed = run(tmp_path / "parts", frozen_of(), resume=True)
    np.testing.assert_array_equal(whole.params["part"], resumed.params["part"])


def test_first_weights_are_given_up_to_the_run(tmp_path):
    params = {"part": jax.device_put(jnp.ones(2), jax.devices()[0])}
    train(
        error,
        optax.adam(0.1),
        params,
        loop=Loop(1),
        batches=Same(),
        held_out=lambda: {"same": [next(Same())]},
        output=tmp_path,
        frozen=frozen_of(),
        mesh=make_mesh("data=1"),
    )
    assert params["part"].is_deleted()


@pytest.mark.parametrize("mesh", ["data=2", "fsdp=2"])
def test_steps_on_a_mesh_are_those_of_one_device(mesh):
    optimiser, batch = optax.sgd(0.1), next(Same())
    states = []
    for shape, accumulate in (("data=1", 1), (mesh, 2)):
        step = make_step(error, optimiser, make_mesh(shape), accumulate=accumulate)
        frozen = {"base": jnp.asarray(BASE, jnp.bfloat16)}
        states.append(step(first_state({"part": jnp.ones(2)}, optimiser), batch, frozen)[0])
    np.testing.assert_allclose(states[0].params["part"], states[1].params["part"], rtol=1e-5)


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_stored_weights_keep_their_dtype_and_go_to_their_devices(tmp_path, dtype):
    tensors = write_checkpoint(tmp_path / "base", LLAMA, dtype=dtype)
    mesh = make_mesh("fsdp=2,tp=2")
    stored = stored_weights(tmp_path / "base")
    params, mark = stored.load(mesh)
    wide, other = stored.load(mesh, dtype=jnp.float32)
    assert mark == other
    assert (
        {leaf.dtype for leaf in jax.tree.leaves(params)}
        == {stored.dtype}
        == {jnp.dtype(jnp.bfloat16 if dtype == "BF16" else jnp.float32)}
    )
    embedding = params["embedding"].get_value()
    np.testing.assert_array_equal(embedding, tensors["model.embed_tokens.weight"])
    assert {shard.data.size for shard in embedding.addressable_shards} == {embedding.size // 2}
    assert {leaf.dtype for leaf in jax.tree.leaves(wide)} == {jnp.dtype(jnp.float32)}
    shutil.rmtree(tmp_path / "base")  # Nothing is read later.
    jax.block_until_ready(params)
