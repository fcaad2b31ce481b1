import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train.run.checkpoint import KEPT, Checkpoints, load_newest


def tree(value):
    return {"a": jnp.full((3, 2), value), "b": [jnp.int32(value), jnp.full(4, value, jnp.bfloat16)]}


def test_the_newest_checkpoint_comes_back_bit_by_bit(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        for step in (1, 2, 30):
            checkpoints.save(step, tree(step))
    again = Checkpoints(tmp_path)
    assert again.latest == 30
    loaded, _ = again.load(tree(0))
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


def test_a_checkpoint_of_an_earlier_version_is_refused_before_its_arrays_are_compared(tmp_path, monkeypatch):
    monkeypatch.setattr("train.run.checkpoint.FORMAT", 1)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(4, tree(4) | {"base": jnp.zeros(3)})
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"4 must have format 2 of checkpoints; got 1, of another version"):
        load_newest(tmp_path, tree(0))


def files(folder):
    """Returns size and time of the last change of every file and folder below, and of the folder itself."""
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in (folder, *folder.rglob("*"))}


def test_who_only_reads_changes_nothing(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, tree(1), {"rows": [7]})
    under_way = tmp_path / "2.orbax-checkpoint-tmp" / "state"
    under_way.mkdir(parents=True)
    (under_way / "half").write_bytes(b"half of it")
    before = files(tmp_path)
    loaded, notes = load_newest(tmp_path, tree(0))
    assert (int(loaded["b"][0]), notes) == (1, {"rows": [7]})
    assert files(tmp_path) == before
    with Checkpoints(tmp_path) as checkpoints:  # Who saves removes what a run that died left.
        assert checkpoints.latest == 1
        checkpoints.save(3, tree(3))
    assert not under_way.exists()


def test_a_folder_that_is_not_there_is_not_made_by_reading(tmp_path):
    with pytest.raises(ValueError, match="must hold a checkpoint; got none"):
        load_newest(tmp_path / "absent", tree(0))
    assert not (tmp_path / "absent").exists()


def test_a_damaged_checkpoint_is_named_and_the_one_before_still_loads(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, tree(step))
    shutil.rmtree(tmp_path / "2" / "state")
    with pytest.raises(ValueError, match=r"2 is damaged: .*; remove it to go back to step 1"):
        load_newest(tmp_path, tree(0))
    shutil.rmtree(tmp_path / "2")
    assert int(load_newest(tmp_path, tree(0))[0]["b"][0]) == 1
