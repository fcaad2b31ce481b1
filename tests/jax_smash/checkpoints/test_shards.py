"""Safetensors files in pieces."""

from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jax_smash.checkpoints.shards import BITS, PIECE, Shards, contiguous, finite, pieces, write_shards

FLOATS = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(jnp.bfloat16)]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_bit_pattern_is_told_apart(dtype):
    width = BITS[dtype.itemsize]
    bits = np.arange(2**16, dtype=np.uint32).astype(width)
    if dtype.itemsize == 4:
        bits = bits << 16  # The upper half holds sign and exponent; the lower half cannot make a number infinite.
        bits[::2] += 1
    numbers = bits.view(dtype)
    good = np.isfinite(numbers.astype(np.float32))
    assert finite(numbers[good])
    assert good.sum() < numbers.size
    for bad in np.flatnonzero(~good):
        assert not finite(numbers[bad : bad + 1])
    assert finite(np.zeros((0,), dtype))


def test_a_tensor_of_many_pieces_is_read_turned(tmp_path):
    tensor = np.random.default_rng(0).standard_normal((1500, 700)).astype(np.float32)
    assert tensor.nbytes > 3 * PIECE
    save_file({"w": tensor}, tmp_path / "model.safetensors")
    turned = np.zeros((700, 1500), np.uint32)
    with ThreadPoolExecutor(2) as pool:
        Shards(tmp_path).read_into("w", turned.T, np.dtype(np.float32), pool, start=0, rows=1500)
    np.testing.assert_array_equal(turned.view(np.float32), tensor.T)


def test_pieces_hold_everything_once():
    for shape in ((1,), (5, 3), (1024, 1025), (3, 2**19)):
        view = np.zeros(shape, np.uint16)
        rows = np.concatenate([np.arange(shape[0])[piece] for piece in pieces(view)])
        np.testing.assert_array_equal(rows, np.arange(shape[0]))


def test_a_copy_has_the_order_of_its_axes():
    array = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    for axes in ((0, 1, 2, 3), (3, 0, 1, 2), (1, 2, 3, 0)):
        copy = contiguous(array.transpose(axes))
        assert copy.flags.c_contiguous
        np.testing.assert_array_equal(copy, array.transpose(axes))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_files_are_those_of_the_package(dtype, tmp_path):
    rng = np.random.default_rng(0)
    tensors = {name: rng.standard_normal(shape).astype(dtype) for name, shape in {"a": (3, 5), "b": (7,)}.items()}
    write_shards(
        tmp_path, {n: (t.shape, t.dtype) for n, t in tensors.items()}, lambda n: iter([tensors[n]]), max_shard_bytes=999
    )
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        assert tensor.dtype == dtype
        assert tensor.tobytes() == tensors[name].tobytes()


def test_a_file_gets_no_tensor_that_makes_it_too_long(tmp_path):
    tensors = {str(i): np.full((10,), i, np.float32) for i in range(5)}
    write_shards(
        tmp_path, {n: (t.shape, t.dtype) for n, t in tensors.items()}, lambda n: iter([tensors[n]]), max_shard_bytes=80
    )
    files = sorted(tmp_path.glob("*.safetensors"))
    assert [sorted(load_file(file)) for file in files] == [["0", "1"], ["2", "3"], ["4"]]
    assert sorted(Shards(tmp_path).shapes) == sorted(tensors)
    with pytest.raises(ValueError, match=r"max_shard_bytes must be at least 1; got 0"):
        write_shards(tmp_path, {"a": ((1,), FLOATS[0])}, lambda n: iter([]), max_shard_bytes=0)


def test_a_file_cut_after_its_header_was_read_is_named(tmp_path):
    save_file({"w": np.ones((8, 8), np.float32)}, tmp_path / "model.safetensors")
    shards = Shards(tmp_path)
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.truncate(200)
    with pytest.raises(ValueError, match=r"model.safetensors is damaged or incomplete: it ends inside w"):
        shards.read("w", 0, 8)
