"""What a process reads of a checkpoint: the part that its devices hold."""

import math
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from safetensors.numpy import save_file

from jax_smash.checkpoints import shards
from jax_smash.checkpoints.held import held_box, region_of
from jax_smash.checkpoints.shards import Shards
from jax_smash.models.families import from_hf, tensor_map
from jax_smash.models.transformer import abstract_params
from jax_smash.sharding import make_mesh, param_shardings
from tests.checkpoints import GEMMA3, LLAMA, OLMO2, PHI3, QWEN2


@pytest.mark.parametrize("raw", [LLAMA, QWEN2, GEMMA3, PHI3, OLMO2], ids=lambda raw: raw["model_type"])
@pytest.mark.parametrize("mesh", ["tp=2", "fsdp=4", "fsdp=2,tp=2"])
def test_a_region_holds_all_of_a_devices_box_and_no_more(raw, mesh):
    config = from_hf(raw)
    _, abstract = abstract_params(config)
    lie = {p: v.get_value() for p, v in nnx.to_flat_state(param_shardings(abstract, make_mesh(mesh)))}
    shapes = {p: v.shape for p, v in nnx.to_flat_state(abstract)}
    divided = 0
    for where, parts in tensor_map(config).items():
        for box in lie[where].devices_indices_map(shapes[where]).values():
            inside = np.zeros(shapes[where], bool)
            inside[box] = True
            ranges = tuple(slice(*index.indices(n)[:2]) for index, n in zip(box, shapes[where], strict=True))
            for part in parts:
                region = region_of(part, shapes[where], ranges)
                held = np.zeros_like(part.view(inside))
                held[region] = True
                np.testing.assert_array_equal(held, part.view(inside))
                divided += held.sum() < held.size
    assert divided


def test_the_box_of_a_process_is_that_of_all_its_devices():
    mesh = make_mesh("fsdp=4")
    # All eight devices are of this process, so it holds all.
    assert held_box(NamedSharding(mesh, PartitionSpec("fsdp")), (8, 3)) == (slice(0, 8), slice(0, 3))
    single = jax.sharding.SingleDeviceSharding(jax.devices()[1])
    assert held_box(single, (8, 3)) == (slice(0, 8), slice(0, 3))


class Counted(Shards):
    """Tensors of which is known how many bytes were asked for."""

    nbytes = 0

    def read(self, name, start, stop, columns=shards.ALL):
        found = super().read(name, start, stop, columns)
        type(self).nbytes += found.nbytes
        return found


@pytest.mark.parametrize(
    ("region", "asked"),
    [
        ((slice(0, 30), slice(0, 4), slice(0, 600)), 1 / 2),  # Half the rows.
        ((slice(30, 60), slice(0, 4), slice(0, 600)), 1 / 2),
        ((slice(0, 60), slice(1, 3), slice(0, 600)), 1 / 2),  # Half of each row.
        ((slice(0, 15), slice(3, 4), slice(0, 600)), 1 / 16),
        ((slice(0, 60), slice(0, 4), slice(300, 600)), 1),  # Pieces of rows apart from each other: rows are read whole.
        ((slice(0, 0), slice(0, 0), slice(0, 0)), 0),
        (None, 1),
    ],
)
def test_no_byte_outside_a_region_is_read_or_written(tmp_path, monkeypatch, region, asked):
    tensor = np.random.default_rng(0).standard_normal((60, 2400)).astype(np.float32)
    save_file({"w": tensor}, tmp_path / "model.safetensors")
    monkeypatch.setattr(shards, "RUN", 2000)
    monkeypatch.setattr(Counted, "nbytes", 0)
    view = np.zeros((60, 4, 600), np.uint32)
    with ThreadPoolExecutor(2) as pool:
        Counted(tmp_path).read_into("w", view, np.dtype(np.float32), pool, start=0, rows=60, region=region)
    expected = np.zeros_like(view)
    region = region or (slice(None),) * 3
    expected[region] = tensor.view(np.uint32).reshape(view.shape)[region]
    np.testing.assert_array_equal(view, expected)
    assert math.isclose(Counted.nbytes, asked * tensor.nbytes)
