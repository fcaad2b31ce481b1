"""`jax-smash tune`."""

import json
import os

import matplotlib.image
import pytest

import jax_smash
from jax_smash.costs import load_costs

FEW = ("--nodes", "1,2,4", "--slots", "64", "--repeats", "1")


@pytest.fixture
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_SMASH_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_curve_is_measured_stored_and_printed(called, home, model):
    result = called("tune", model, *FEW)
    assert result.returncode == 0, result.stderr
    (path,) = (home / "costs").iterdir()
    assert result.stderr == f"wrote {path}\n"
    stored = json.loads(path.read_text())
    head, of, names, *rows = result.stdout.splitlines()
    assert head.startswith(f"{model}, float32, plain weights, cpu ")
    assert of == "batch 1, 64 slots"
    assert names.split() == ["nodes", "ms", "T(m)/T(1)", "ms", "a", "node"]
    assert [row.split()[0] for row in rows] == ["1", "2", "4"]
    for row, seconds in zip(rows, stored["seconds"], strict=True):
        assert float(row.split()[1]) == pytest.approx(1e3 * seconds, abs=6e-4)
        assert float(row.split()[2]) == pytest.approx(seconds / stored["seconds"][0], abs=6e-3)
    # What the program stored is what decoding finds for the same model, and for no other batch.
    loaded = jax_smash.load(model)
    curve = load_costs(loaded.config, loaded.params["target"], batch=1, slots=64)
    assert curve is not None
    assert list(curve.seconds) == stored["seconds"]
    assert load_costs(loaded.config, loaded.params["target"], batch=2, slots=64) is None


def test_each_batch_size_gets_a_curve_and_all_are_drawn(call, home, model, tmp_path):
    few = ("--nodes", "1,2", "--slots", "32", "--repeats", "1")
    status, out, err = call("tune", model, *few, "--batch-size", "1", "3", "--plot", "costs.png")
    assert status == 0
    assert [line for line in out.splitlines() if line.startswith("batch")] == ["batch 1, 32 slots", "batch 3, 32 slots"]
    assert len(os.listdir(home / "costs")) == 2
    assert err.splitlines()[-1] == "wrote costs.png"
    assert matplotlib.image.imread(tmp_path / "costs.png").shape[2] == 4
    assert sorted(os.listdir(tmp_path)) == ["costs.png", "home"]
    status, _, err = call("tune", model, *few, "--plot", "costs.png")
    assert (status, len(os.listdir(home / "costs"))) == (2, 2)
    assert "costs.png exists; --overwrite replaces" in err


def test_a_method_s_steps_are_stored_beside_the_forward_s(call, home, model):
    few = ("--nodes", "1,2", "--slots", "64", "--repeats", "1")
    status, out, err = call("tune", model, *few, "--methods", "lookup")
    assert status == 0
    heads = [line for line in out.splitlines() if line.startswith("batch")]
    assert heads == ["batch 1, 64 slots", "batch 1, 64 slots, whole steps of lookup"]
    assert len(err.splitlines()) == 2
    loaded = jax_smash.load(model)
    forward, steps = (
        load_costs(loaded.config, loaded.params["target"], batch=1, slots=64, method=name) for name in ("", "lookup")
    )
    assert forward is not None
    assert steps is not None
    assert forward.seconds != steps.seconds


@pytest.mark.slow
def test_where_rows_sample_a_method_has_a_curve_of_its_own(call, home, model):
    few = ("--nodes", "1,2", "--slots", "64", "--repeats", "1", "--methods", "lookup")
    assert call("tune", model, *few)[0] == 0
    assert call("tune", model, *few, "--sampled")[0] == 0
    stored = [json.loads(path.read_text())["key"] for path in (home / "costs").iterdir()]
    # The forward alone is measured again, and replaced.
    told = sorted((key["method"], key["sampled"]) for key in stored)
    assert told == [("", False), ("lookup", False), ("lookup", True)]


def test_the_curve_of_a_busy_machine_is_not_stored(call, home, model, monkeypatch):
    monkeypatch.setattr("jax_smash.serve.tuning.spread", lambda times: 0.31)
    status, out, err = call("tune", model, *FEW)
    assert (status, out, len(err.splitlines())) == (1, "", 1)
    assert "the machine was busy: what a size costs varied by 31%, so the curve of batch 1 is not stored" in err
    assert list((home / "costs").iterdir()) == []


def test_more_slots_than_the_context_are_not_measured(call, home, model):
    status, out, _ = call("tune", model, "--nodes", "1,2", "--repeats", "1")
    assert status == 0
    assert "batch 1, 256 slots" in out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--nodes", "2,4"), "--nodes must be numbers that rise from 1, as in 1,2,4; got 2,4"),
        (("--nodes", "1,4,2"), "rise from 1"),
        (("--nodes", "1,1"), "--nodes: values must be different; got 1 more than once"),
        (("--nodes", "1,x"), "--nodes: each value must be INT; got 'x'"),
        (("--nodes", ""), "--nodes: values must not be empty; got ''"),
        (("--nodes",), "rise from 1"),
        (("--batch-size",), "--batch-size must be one number or more"),
        (("--nodes", "1,-2"), "rise from 1"),
        (("--batch-size", "0"), "--batch-size must be at least 1"),
        (("--batch-size", "2", "2"), "--batch-size: values must be different; got 2 more than once"),
        (("--slots", "0"), "--slots must be at least 1"),
        (("--repeats", "0"), "--repeats must be at least 1"),
        (("--sampled",), "--sampled is about --methods; name one"),
        (("--methods", "draft-model"), "--methods must be of recycling, lookup, suffix, hybrid; got 'draft-model'"),
        (("--methods", "lookup", "lookup"), "--methods: values must be different; got lookup more than once"),
        (("--plot", "curve.pdf"), "--plot must be a .png file"),
        (("--plot", "absent/curve.png"), "needs a directory"),
        (("--overwrite",), "--overwrite is about --plot"),
        (("--dtype", "int4"), "int4"),
        (("--programs", "/dev/null"), "must be a folder or beside; got the file /dev/null"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_options_are_refused_before_anything_is_loaded(call, home, options, said):
    status, out, err = call("tune", "absent", *options)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert said in err
    assert not home.exists()


def test_a_missing_model_is_named(call, home):
    status, out, err = call("tune", "absent", *FEW)
    assert (status, out) == (1, "")
    assert "no model 'absent'" in err
    assert not home.exists()


def test_more_nodes_than_slots_are_refused(call, home, model):
    status, out, err = call("tune", model, "--nodes", "1,65", "--slots", "64")
    assert (status, out) == (2, "")
    assert "--nodes must be at most the cache's 64 slots; got 65" in err
    assert list((home / "costs").iterdir()) == []


def test_a_place_that_cannot_be_written_is_named_before_anything_is_measured(call, home, model):
    home.write_text("precious")
    status, out, err = call("tune", model, *FEW)
    assert (status, out, len(err.splitlines())) == (1, "", 1)
    assert f"{home}" in err
    assert home.read_text() == "precious"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission_is_named(call, home, model):
    (home / "costs").mkdir(parents=True)
    (home / "costs").chmod(0o500)
    status, out, err = call("tune", model, *FEW)
    assert (status, out) == (1, "")
    assert f"{home / 'costs'}: Permission denied" in err
