"""A run that was saved on one mesh goes on on another: the same losses, and the documents that come next."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from tests.train.corpus_files import make_packed
from tests.train.outputs import losses
from tests.train.run.test_settings import FIELDS
from train.parts.language_model.part import LanguageModel
from train.run.flow import run

STEPS, SAVED = 6, 3
"""That are made, and after which the first run stops; one more is planned, for a run that ends is exported."""

BEFORE = "data=8"
MESHES = ["fsdp=4,tp=2", "data=2", "fsdp=8", "data=2,fsdp=2,tp=2", "tp=4", "data=1"]


class Kept:
    """Batches that are kept as they are read."""

    def __init__(self, batches, read):
        self.batches, self.read = batches, read

    def __next__(self):
        self.read.append(next(self.batches))
        return self.read[-1]

    def get_state(self):
        return self.batches.get_state()

    def set_state(self, state):
        self.batches.set_state(state)


def trained(place, output, mesh, until=STEPS, **options):
    """Makes a run, or what is left of it; returns the rows of its steps, in which each document has a number."""
    read = []

    class Watched(LanguageModel):
        token_flops = 0.0  # What the devices could do is not measured.

        def rows(self, held_out, share):
            rows = super().rows(held_out, share)
            return dataclasses.replace(rows, batches=Kept(rows.batches, read))

    part = Watched.from_files(place / "config.json", place / "packed", place / "tokenizer")
    run(part, output, mesh=mesh, log_every=1, evaluate_every=3, save_every=3, until=until, **options)
    return read


def same(one, other):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Packed shards, a tokenizer and a configuration."""
    root = tmp_path_factory.mktemp("elastic")
    make_packed(root)
    (root / "config.json").write_text(json.dumps(FIELDS | {"steps": STEPS + 1}))
    return root


@pytest.fixture(scope="module")
def whole(place):
    """The rows of a run that nothing interrupts, beside what it measured."""
    return trained(place, place / "whole", BEFORE), losses(place / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("after", MESHES)
def test_a_run_that_was_saved_on_one_mesh_goes_on_on_another(place, whole, after, tmp_path):
    rows, measured = whole
    before = trained(place, tmp_path, BEFORE, until=SAVED)
    later = trained(place, tmp_path, after, resume=True)
    assert len(before) == SAVED
    assert same(before + later, rows)
    assert not same(later, rows[:SAVED])  # A run that read from the beginning again would be seen.
    assert losses(tmp_path) == pytest.approx(measured, abs=1e-5)
    assert losses(tmp_path).keys() == measured.keys()


@pytest.mark.slow
@pytest.mark.parametrize("before", ["fsdp=4,tp=2", "tp=4", "data=2"])
def test_a_run_that_was_saved_on_any_mesh_goes_on_on_eight_devices(place, whole, before, tmp_path):
    rows, measured = whole
    assert same(trained(place, tmp_path, before, until=SAVED) + trained(place, tmp_path, BEFORE, resume=True), rows)
    assert losses(tmp_path) == pytest.approx(measured, abs=1e-5)


def test_another_order_of_rows_would_be_seen(place, whole):
    """The control of rows and losses: what a run measures depends on them."""
    rows, measured = whole
    assert len({tuple(np.asarray(jax.tree.leaves(batch)[0]).ravel()) for batch in rows}) == STEPS
    assert len({round(measured[step, "loss"], 5) for step in range(1, STEPS + 1)}) == STEPS
