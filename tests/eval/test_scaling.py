import importlib.util

import pytest

from eval.chips.plan_cases import Case
from eval.chips.scaled import held_against, meshes, plot_scaled, scaled
from eval.scaling import Settings, measure

SMALL = Case("llama-100m", "", None, 1, 64, 2, dtype="float32")


def test_meshes_have_all_devices_and_no_more_heads_than_there_are():
    assert [*meshes(8, 4)] == ["data=8,tp=1", "fsdp=8,tp=1", "data=4,tp=2", "fsdp=4,tp=2", "data=2,tp=4", "fsdp=2,tp=4"]
    assert [*meshes(1, 4)] == ["tp=1"]


@pytest.fixture(scope="module")
def rows():
    return scaled(SMALL, ("v5e:1x1", "v5e:2x2"), 2)


def test_each_slice_has_one_best_mesh_and_rows_by_its_chips(rows):
    for chip, devices in (("v5e:1x1", 1), ("v5e:2x2", 4)):
        mine = [row for row in rows if row["chip"] == chip]
        (best,) = (row for row in mine if row["best"])
        assert best["tokens_a_second"] == max(row["tokens_a_second"] for row in mine if row["fits"])
        assert {row["batch"] for row in mine} == {2 * devices}
    # Copies of a model exchange nothing and are as fast each; what is divided over fsdp exchanges something.
    by_mesh = {row["mesh"]: row for row in rows}
    assert by_mesh["data=4,tp=1"]["efficiency"] == pytest.approx(1)
    assert by_mesh["data=4,tp=1"]["links_ms"] == 0 < by_mesh["fsdp=4,tp=1"]["links_ms"]


def test_a_chip_of_two_devices_has_its_rows_once():
    found = scaled(SMALL, ("tpu7x:1x1x1",), 2)
    assert {(row["chips"], row["devices"], row["batch"]) for row in found} == {(1, 2, 2)}
    assert all(row["tokens_a_second_chip"] == row["tokens_a_second"] for row in found)


def test_scaling_is_drawn(rows):
    assert plot_scaled(rows, title="small").startswith(b"\x89PNG")


def test_what_devices_send_is_held_against_a_compiled_step():
    row = {"best": True, "chip": "cpux2", "mesh": "data=2", "batch": 2}
    (found,) = held_against(SMALL, [row, row | {"best": False}])
    assert (found["sent_mb"], found["planned_sent_mb"]) == (pytest.approx(0, abs=1e-4), 0)
    assert found["layers"] == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 0}, "rows must be at least 1"),
        ({"chips": ("v5e:4x4", "v5e:2x2")}, "chips must be slices that grow"),
        ({"chips": ()}, "chips must be slices that grow; got none"),
        ({"chips": ("v5e:3x3",)}, "must be one of 1x1, 2x2"),
        ({"shape": "llama-100m"}, "context must be at most the 2048 positions of llama-100m; got 4096"),
        (
            {"shape": "llama-100m", "chips": ("v5e:1x1",), "rows": 4096, "context": 2048},
            "must fit v5e:1x1, and by no mesh it does",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        measure(Settings(**options))


def test_to_compile_for_tpus_needs_their_compiler(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install libtpu"):
        Settings(chips=("v5e:1x1",), compile=True).check()
    Settings(chips=("v5e:1x1",)).check()
    Settings(chips=("h100x2",), compile=True).check()
