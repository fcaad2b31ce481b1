"""Curves on disk."""

import dataclasses
import json
import os
from pathlib import Path

import jax.numpy as jnp
import pytest

from jax_smash.costs import store
from jax_smash.costs.curve import CostCurve
from jax_smash.costs.store import cost_key, costs_directory, load_costs, read_costs, save_costs
from jax_smash.loading import quantised
from jax_smash.models.transformer import random_params
from tests.tiny import tiny_config, tiny_model

CURVE = CostCurve(entries=(1, 2, 4), seconds=(0.001, 0.0012, 0.0019), batch=1, slots=64, source="measured")


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("JAX_SMASH_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def target(model):
    return model.config, model.params["target"]


def saved() -> Path:
    return save_costs(CURVE, cost_key(*target(tiny_model()), batch=1, slots=64))


def test_a_stored_curve_is_read_back(home):
    assert load_costs(*target(tiny_model()), batch=1, slots=64) is None
    assert not home.exists()
    path = saved()
    assert path.parent == home / "costs"
    assert load_costs(*target(tiny_model()), batch=1, slots=64) == CURVE


def test_a_newer_curve_takes_the_place_of_an_older_one():
    path = saved()
    newer = dataclasses.replace(CURVE, seconds=(0.1, 0.2, 0.3))
    assert save_costs(newer, cost_key(*target(tiny_model()), batch=1, slots=64)) == path
    assert load_costs(*target(tiny_model()), batch=1, slots=64) == newer
    assert os.listdir(path.parent) == [path.name]


def test_the_curve_of_another_model_batch_dtype_or_weights_is_not_used():
    saved()
    assert load_costs(*target(tiny_model()), batch=2, slots=64) is None
    assert load_costs(*target(tiny_model(mlp_width=64)), batch=1, slots=64) is None
    assert load_costs(*target(quantised(tiny_model())), batch=1, slots=64) is None
    _, params = random_params(tiny_config(), seed=1, dtype=jnp.bfloat16)
    assert load_costs(tiny_config(), params, batch=1, slots=64) is None
    # Other weights of the same shape take as long.
    _, params = random_params(tiny_config(), seed=2)
    assert load_costs(tiny_config(), params, batch=1, slots=64) == CURVE


def test_a_method_s_steps_stand_beside_those_of_the_forward_alone():
    path = saved()
    drafted = dataclasses.replace(CURVE, seconds=(0.002, 0.003, 0.004))
    other = save_costs(drafted, cost_key(*target(tiny_model()), batch=1, slots=64, method="lookup"))
    assert other != path
    assert "-lookup-" in other.name
    assert load_costs(*target(tiny_model()), batch=1, slots=64) == CURVE
    assert load_costs(*target(tiny_model()), batch=1, slots=64, method="lookup") == drafted
    assert load_costs(*target(tiny_model()), batch=1, slots=64, method="suffix") is None
    sampling = save_costs(drafted, cost_key(*target(tiny_model()), batch=1, slots=64, method="lookup", sampled=True))
    assert sampling != other
    assert load_costs(*target(tiny_model()), batch=1, slots=64, method="suffix", sampled=True) is None


def test_the_curve_of_the_nearest_number_of_slots_is_used():
    for slots in (64, 1024):
        save_costs(dataclasses.replace(CURVE, slots=slots), cost_key(*target(tiny_model()), batch=1, slots=slots))
    found = {slots: load_costs(*target(tiny_model()), batch=1, slots=slots).slots for slots in (5, 100, 300, 10**9)}
    assert found == {5: 64, 100: 64, 300: 1024, 10**9: 1024}


def test_a_curve_is_read_from_its_file_and_from_what_a_run_wrote(tmp_path):
    assert read_costs(saved()) == CURVE
    lines = tmp_path / "run.jsonl"
    curve = dataclasses.asdict(CURVE)
    lines.write_text("\n".join(json.dumps({"text": "x", "drafted": {"curve": curve}}) for _ in range(2)))
    assert read_costs(lines) == CURVE
    for content in ("", "{}", '{"drafted": {"curve": null}}', '{"drafted": {}}', "[1]"):
        lines.write_text(content)
        with pytest.raises(ValueError, match="must be a curve of `jax-smash tune`, or JSON lines") as error:
            read_costs(lines)
        assert str(lines) in str(error.value)


@pytest.mark.parametrize(
    "other",
    [{"cores": 0}, {"device": "Abacus 9"}, {"mesh": "fsdp=2"}, {"jax": "0.1"}],
    ids=lambda other: next(iter(other)),
)
def test_the_curve_of_another_machine_is_not_used(other):
    key = cost_key(*target(tiny_model()), batch=1, slots=64)
    assert getattr(key, next(iter(other))) != next(iter(other.values()))
    save_costs(CURVE, dataclasses.replace(key, **other))
    assert load_costs(*target(tiny_model()), batch=1, slots=64) is None


def changed(**fields):
    """Returns a way to damage a file: some fields other than they were."""
    return lambda content: json.dumps(json.loads(content) | fields).encode()


DAMAGES = {
    "cut": (lambda content: content[:40], "damaged"),
    "empty": (lambda content: b"", "damaged"),
    "no text": (lambda content: b"\xff\xfe\x00", "damaged"),
    "a list": (lambda content: b"[1, 2]", "must hold a JSON object; got list"),
    "a field gone": (lambda content: content.replace(b'"seconds"', b'"minutes"'), "'seconds' is missing"),
    "times gone": (changed(seconds=[0.1]), "one for each of 3 points; got 1"),
    "no times": (changed(seconds=["a", "b", "c"]), "could not convert"),
    "negative times": (changed(seconds=[1.0, -1.0, 2.0]), "over 0"),
    "no order": (changed(entries=[1, 4, 2]), "rise from 1"),
    "another format": (changed(format=99), "format must be 2; got 99"),
    "no key": (changed(key=[]), "damaged"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named_and_how_to_be_rid_of_it(damage):
    path = saved()
    change, said = DAMAGES[damage]
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=said) as error:
        load_costs(*target(tiny_model()), batch=1, slots=64)
    assert str(path) in str(error.value)
    assert "jax-smash tune" in str(error.value)


def test_a_file_renamed_from_another_key_is_refused():
    path = saved()
    other = cost_key(*target(tiny_model(mlp_width=64)), batch=1, slots=64)
    path.rename(save_costs(CURVE, other))
    with pytest.raises(ValueError, match="its model must be"):
        load_costs(*target(tiny_model(mlp_width=64)), batch=1, slots=64)


def test_a_write_that_fails_leaves_the_older_curve(monkeypatch):
    path = saved()

    def full(*_):
        raise OSError(28, "No space left on device", "x")

    monkeypatch.setattr(store.os, "replace", full)
    newer = dataclasses.replace(CURVE, seconds=(0.1, 0.2, 0.3))
    with pytest.raises(OSError, match="No space"):
        save_costs(newer, cost_key(*target(tiny_model()), batch=1, slots=64))
    assert load_costs(*target(tiny_model()), batch=1, slots=64) == CURVE
    assert os.listdir(path.parent) == [path.name]


def test_a_place_that_is_no_directory_is_named(home):
    home.write_text("precious")
    with pytest.raises(OSError, match=str(home)):
        saved()
    assert home.read_text() == "precious"


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"JAX_SMASH_HOME": "/a", "XDG_CACHE_HOME": "/b"}, "/a/costs"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/jax-smash/costs"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/c"}, "/c/.cache/jax-smash/costs"),
        ({"HOME": "/c"}, "/c/.cache/jax-smash/costs"),
        ({"JAX_SMASH_HOME": "", "XDG_CACHE_HOME": "", "HOME": "/c"}, "/c/.cache/jax-smash/costs"),
    ],
)
def test_curves_lie_where_the_environment_says(monkeypatch, variables, place):
    for name in ("JAX_SMASH_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert costs_directory() == Path(place)
