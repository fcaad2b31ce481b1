import dataclasses

import pytest

from eval.chips.calibrated import calibrated, off_by, planned_seconds
from eval.plan_times import Settings, measure
from jax_smash.planning.topology import host_chip
from tests.jax_smash.planning.plans import small
from tests.model_directory import write_model

CONFIG = small(mlp_width=256)
SIZES = [{"batch_size": batch, "nodes": nodes, "slots": 64} for batch in (1, 8) for nodes in (1, 8, 16)]


def test_a_processor_is_found_again_by_the_times_that_it_takes():
    chip = dataclasses.replace(host_chip(), bandwidth=20e9, bf16_peak=50e9)
    rows = [row | {"measured_ms": 1e3 * planned_seconds(chip, CONFIG, row)} for row in SIZES]
    found = calibrated(host_chip(), CONFIG, rows)
    assert (found.bandwidth, found.bf16_peak) == (pytest.approx(20e9, rel=0.03), pytest.approx(50e9, rel=0.03))
    # Times of another processor are planned wrongly.
    slower = dataclasses.replace(chip, bandwidth=10e9)
    ratios = [row["measured_ms"] / 1e3 / planned_seconds(slower, CONFIG, row) for row in rows]
    assert off_by(ratios) > 0.5 > 0.05 > off_by([1.0, 0.99])


def test_steps_are_timed_and_planned(tmp_path):
    model = str(write_model(tmp_path))
    found = measure(Settings(model, model, nodes=(1,), batch_sizes=(1,), slots=32, repeats=1))
    assert [(row["role"], row["nodes"]) for row in found["rows"]] == [("calibrated", 1), ("tested", 1)]
    for row in found["rows"]:
        assert row["ratio"] == pytest.approx(row["measured_ms"] / row["planned_ms"])
    assert {*found["off_by"]} == {"calibrated", "tested"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": (8, 1)}, "entries must rise from 1"),
        ({"batch_sizes": ()}, "batch_sizes must be numbers of at least 1"),
        ({"repeats": 0}, "repeats must be at least 1"),
        ({"slots": 8}, "slots must be at least the most nodes, 16; got 8"),
    ],
)
def test_what_cannot_be_measured_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        measure(Settings(**options))


@pytest.mark.parametrize("option", ["calibrate", "test"])
def test_slots_beyond_a_models_positions_are_refused_before_anything_is_loaded(tmp_path, option):
    long, short = (
        write_model(tmp_path / name, max_position_embeddings=n) for name, n in (("long", 512), ("short", 64))
    )
    models = {"calibrate": str(long), "test": str(long), option: str(short)}
    Settings(**models, slots=64).check()
    with pytest.raises(ValueError, match=r"slots must be at most 64, the positions of .*short; got 65"):
        Settings(**models, slots=65).check()
