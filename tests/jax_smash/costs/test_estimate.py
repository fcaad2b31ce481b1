"""Costs by arithmetic."""

import os

import jax
import pytest

from jax_smash.costs.curve import CostCurve
from jax_smash.costs.estimate import estimate_costs, known_roofline
from jax_smash.models.families.presets import preset
from jax_smash.models.transformer import abstract_params
from jax_smash.plan import step_bytes
from jax_smash.quantise import quantise_params

CONFIG = preset("llama-3.1-8b")
PARAMS = abstract_params(CONFIG, "bfloat16")[1]


def estimated(kind: str, params=PARAMS, *, batch: int = 1, slots: int = 256, most: int = 64) -> CostCurve:
    """Returns an estimate of an 8B model on a kind of device."""
    curve = estimate_costs(CONFIG, params, batch=batch, slots=slots, most=most, kind=kind)
    assert curve is not None
    return curve


def test_a_large_accelerator_reads_many_entries_for_little_more_than_one():
    curve = estimated("NVIDIA H100 80GB HBM3", slots=1024, most=100)
    assert curve.entries == (1, 2, 4, 8, 16, 32, 64, 100)
    read = step_bytes(CONFIG, PARAMS, batch=1, slots=1024).total / 3.35e12
    assert read < curve.seconds[0] < 1.01 * read
    # 64 of about 295 entries that a step has time for: a fifth more.
    assert curve.at(64) / curve.seconds[0] == pytest.approx(1 + 64 / 295, rel=0.03)
    assert not curve.measured
    assert "estimated" in curve.source
    assert "H100" in curve.source


def test_rows_share_the_weights_that_are_read_and_not_the_products():
    alone, many = (estimated("TPU v5 lite", batch=batch) for batch in (1, 32))
    assert many.seconds[0] < 3 * alone.seconds[0]
    assert many.relative()[-1] > 3 * alone.relative()[-1]


def test_int8_weights_are_read_faster_and_multiplied_as_fast():
    plain = estimated("TPU v5 lite")
    int8 = estimated("TPU v5 lite", jax.eval_shape(quantise_params, PARAMS))
    assert int8.seconds[0] < 0.6 * plain.seconds[0]
    assert int8.seconds[-1] - int8.seconds[0] == pytest.approx(plain.seconds[-1] - plain.seconds[0], rel=0.02)


def test_kinds_of_one_generation_are_told_apart():
    assert estimated("TPU v5").seconds[0] < 0.5 * estimated("TPU v5 lite").seconds[0]


def test_an_accelerator_multiplies_wide_numbers_at_half_its_speed():
    wide = abstract_params(CONFIG, "float32")[1]
    assert estimated("TPU v5", wide).seconds[-1] == pytest.approx(2 * estimated("TPU v5").seconds[-1], rel=1e-6)


def test_a_cpu_pays_for_every_entry():
    assert estimated("cpu").relative()[-1] > 2


def test_nothing_is_made_up_for_an_unknown_device():
    assert estimate_costs(CONFIG, PARAMS, batch=1, slots=256, most=64, kind="Abacus 9") is None


def test_without_a_kind_the_first_device_is_meant():
    curve = estimate_costs(CONFIG, PARAMS, batch=1, slots=256, most=64)
    assert curve == estimated(jax.devices()[0].device_kind)


def test_a_cpu_has_the_cores_that_the_process_may_run_on(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    found = []
    for cores in (1, 3):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        found.append(known_roofline("cpu").operations_per_second)
    assert found[1] == 3 * found[0]
