import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train.checkpoint import KEPT, Checkpoints


def tree(value):
    return {"a": jnp.full((3, 2), value), "b": [jnp.int32(value), jnp.full(4, value, jnp.bfloat16)]}


def test_the_newest_checkpoint_comes_back_bit_by_bit(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        for step in (1, 2, 30):
            checkpoints.save(step, tree(step))
    again = Checkpoints(tmp_path)
    assert again.latest == 30
    loaded = again.load(tree(0))
    for got, wanted in zip(jax.tree.leaves(loaded), jax.tree.leaves(tree(30)), strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)


def test_only_the_newest_stay_on_disk(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        for step in range(1, 6):
            checkpoints.save(step, tree(step))
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == list(range(6 - KEPT, 6))


def test_an_empty_folder_has_no_checkpoint(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest is None
    with pytest.raises(ValueError, match="must hold a checkpoint; got none"):
        checkpoints.load(tree(0))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"a": jnp.zeros((3, 5)), "b": tree(0)["b"]}, r"a must be of shape \(3, 5\); got \(3, 2\)"),
        ({"a": jnp.zeros((3, 2))}, r"b.0 must be of shape None; got \(\)"),
        (tree(0) | {"c": jnp.zeros(2)}, r"c must be of shape \(2,\); got None"),
    ],
)
def test_a_checkpoint_of_other_arrays_is_refused(tmp_path, other, message):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, tree(1))
        with pytest.raises(ValueError, match=message):
            checkpoints.load(other)


def test_who_only_reads_leaves_a_save_that_is_under_way_alone(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, tree(1))
    under_way = tmp_path / "2.orbax-checkpoint-tmp"
    under_way.mkdir()
    reader = Checkpoints(tmp_path, reading=True)
    reader.load(tree(0))
    assert (reader.latest, under_way.exists()) == (1, True)
    assert Checkpoints(tmp_path).latest == 1
    assert not under_way.exists()
