"""What a run of a part keeps in memory and on disk, and what it refuses."""

import dataclasses
import gc
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

from jax_smash.sharding import make_mesh
from tests.checkpoints import LLAMA, write_checkpoint
from tests.train.corpus_files import make_packed
from train.parts.hamburger.part import Hamburger
from train.run.flow import run
from train.run.loop import CHECKPOINTS
from train.segment import main as segment

CONFIG = {
    "base": "frozen",
    "micro_layers": 1,
    "micro_steps": 3,
    "optimiser": {"warmup": 1, "learning_rate": 0.003},
    "batch_size": 8,
    "length": 16,
    "steps": 4,
}
TOLERANCE = 0.06
"""Of what is held beside weights, state and batch: constants, and what the last steps measured."""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Segmented shards, the base in bfloat16 that segmented them, another one of its shape, and a configuration."""
    folder = tmp_path_factory.mktemp("flow")
    packed, tokenizer = make_packed(folder)
    raw = {**LLAMA, "vocab_size": 290, "bos_token_id": 0, "eos_token_id": 1, "num_hidden_layers": 4}
    for seed, name in enumerate(("base", "other")):
        write_checkpoint(folder / name, raw, seed=seed, dtype="BF16")
        for file in tokenizer.iterdir():
            shutil.copy(file, folder / name)
    given = {"rule": "ratio", "ratio": 0.99, "micro_steps": 3, "prompt_share": 0.5, "batch_tokens": 512}
    segment(packed, str(folder / "base"), folder / "segmented", **given)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def part_of(root, base="base", **changes):
    return Hamburger.from_files(root / "config.json", root / "segmented", root / base, **changes)


def live_bytes():
    """Bytes of every array that this process holds, on all devices."""
    gc.collect()
    # Once a buffer: whoever looks at an array's shards makes arrays of them, which are live from then on.
    shards = [shard.data for x in jax.live_arrays() for shard in x.addressable_shards]
    return sum({x.unsafe_buffer_pointer(): x.nbytes for x in shards}.values())


def device_bytes(tree):
    """Bytes of a tree on a run's devices."""
    return sum(shard.data.nbytes for x in jax.tree.leaves(tree) for shard in x.addressable_shards)


@dataclasses.dataclass(frozen=True)
class Watched(Hamburger):
    """Modules whose run notes what is in memory before each step."""

    seen: list = dataclasses.field(default_factory=list)

    def frozen(self, mesh):
        found = super().frozen(mesh)
        self.seen.append(found)
        return found

    def rows(self, held_out, share):
        before = live_bytes()

        def note(params, step):
            self.seen.append((live_bytes() - before, params))

        return dataclasses.replace(super().rows(held_out, share), refresh=note)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["data=1"])
@pytest.mark.parametrize("resume", [False, True])
def test_weights_are_in_memory_once_and_frozen_ones_in_bfloat16(root, tmp_path, mesh, resume):
    if resume:
        run(part_of(root), tmp_path / "run", mesh=mesh, until=2)
    gc.collect()  # What earlier runs held is no part of this one.
    part = part_of(root)
    watched = Watched(**{field.name: getattr(part, field.name) for field in dataclasses.fields(part)})
    run(watched, tmp_path / "run", mesh=mesh, resume=resume, until=3 if resume else 2)
    frozen, *noted = watched.seen
    assert {leaf.dtype for leaf in jax.tree.leaves(frozen.params)} == {jnp.dtype(jnp.bfloat16)}
    base = device_bytes(frozen.params)
    shapes = part.shapes()
    # Vectors are on every device, here and in the state.
    assert abs(base / (2 * sum(leaf.size for leaf in jax.tree.leaves(shapes.frozen))) - 1) < TOLERANCE
    trained = 4 * sum(leaf.size for leaf in jax.tree.leaves(shapes.trained))
    # AdamW keeps two numbers a weight.
    expected = base + 3 * trained
    for held, _ in noted:
        assert abs(held / expected - 1) < TOLERANCE
    assert base > 5 * TOLERANCE * expected  # A second copy, or one in float32, would be seen.


def test_checkpoints_hold_what_is_trained_alone(root, tmp_path):
    run(part_of(root), tmp_path / "run", mesh="data=1", until=1)
    names = {*ocp.metadata(tmp_path / "run" / CHECKPOINTS / "1").metadata}
    assert any(name.startswith("params.smasher.") for name in names)
    assert not any("base" in name for name in names)


@pytest.mark.slow
def test_a_run_cannot_stop_before_the_step_where_it_stands(root, tmp_path):
    run(part_of(root), tmp_path / "run", mesh="data=1", until=2)
    with pytest.raises(ValueError, match="holds a run at step 2, which cannot stop after step 1"):
        run(part_of(root), tmp_path / "run", mesh="data=1", until=1, resume=True)


@pytest.mark.slow
def test_a_run_beside_another_base_is_refused(root, tmp_path):
    run(part_of(root), tmp_path / "run", mesh="data=1", until=1)
    with pytest.raises(ValueError, match=r"was begun with init_sha256 [0-9a-f]{64}; got [0-9a-f]{64}"):
        run(part_of(root, "other"), tmp_path / "run", mesh="data=1", resume=True)
    # Files of the same name and hash that hold other weights: the checkpoint knows them by their fingerprint.
    part = part_of(root)
    other = dataclasses.replace(part.base, folder=root / "other")
    with pytest.raises(
        ValueError, match=r"run was begun beside a frozen base whose weights have fingerprint \w{16}; .*other"
    ):
        run(dataclasses.replace(part, base=other), tmp_path / "run", mesh="data=1", resume=True)


def test_what_a_run_says_and_leaves(root, tmp_path):
    early = run(part_of(root), tmp_path / "run", mesh="data=2", until=2)
    assert early.splitlines()[1] == "stopped after step 2 of 4; --resume goes on"
    told = run(part_of(root), tmp_path / "run", mesh="data=2", resume=True).splitlines()
    assert told[0].startswith("trained on ")
    assert told[1] == f"exported to {tmp_path / 'run/hamburger'}"
    assert (
        run(part_of(root), tmp_path / "run", mesh="data=2", resume=True).splitlines()[1].startswith("exported before")
    )


def test_the_shapes_of_a_part_are_those_of_its_weights(root):
    mesh = make_mesh("fsdp=2")
    for changes in ({"base": "frozen"}, {"base": "lora", "rank": 2}, {"base": "trained", "kl_weight": 0.5}):
        part = part_of(root)
        part = dataclasses.replace(part, settings=dataclasses.replace(part.settings, **changes))
        shapes, frozen = part.shapes(), part.frozen(mesh)
        weights = part.begin(mesh), dict(frozen.params)
        for told, made in zip(shapes, weights, strict=True):
            assert jax.tree.structure(told) == jax.tree.structure(made)
            for a, b in zip(jax.tree.leaves(told), jax.tree.leaves(made), strict=True):
                assert (a.shape, a.dtype) == (b.shape, b.dtype)
    assert np.isfinite(float(jax.tree.leaves(weights[0])[0].sum()))
