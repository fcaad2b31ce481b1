import importlib.util

import pytest

from eval.chips.plan_cases import CASES, HERE, WHOLE, Case, figures
from eval.plans import Settings, measure

pytestmark = pytest.mark.usefixtures("optimised")

NEAR = 0.05
"""Share of a device's bytes by which a plan may be off."""

needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="compiling for a TPU needs libtpu")


def check(row, near=NEAR):
    assert row["ratio"] == pytest.approx(1, abs=near), row
    assert row["planned_argument_mb"] == pytest.approx(row["argument_mb"], rel=1e-3), row
    if row["collectives"]:
        # A weight or a table of the vocabulary that is gathered is more than all that entries need.
        assert row["planned_sent_mb"] == pytest.approx(row["sent_mb"], rel=NEAR), row
        assert all(one["megabytes"] < 1e-4 for one in row["collectives_outside_loop"]), row


def test_what_is_planned_for_this_machine_is_what_its_compiler_assigns():
    report = measure(Settings(cases=("100m-cpu",)))
    (row,) = report["rows"]
    check(row)
    assert report["farthest"] == row["ratio"]
    assert row["sent_mb"] == row["planned_sent_mb"] == 0
    assert row["prefill_mb"] > row["decode_mb"] > 0


def test_twelve_cases_cover_chips_meshes_and_heads():
    assert len(CASES) == 12
    assert {case.device.split(":")[0] for case in CASES.values()} == {"v5e", "v5p", "v6e", "tpu7x"}
    assert {axis for case in CASES.values() for axis in ("data", "fsdp", "tp") if axis in (case.mesh or "")} == {
        "data",
        "fsdp",
        "tp",
    }
    assert all(case.layers is None for case in WHOLE.values())


@needs_libtpu
@pytest.mark.slow
@pytest.mark.xdist_group("tpu")
@pytest.mark.parametrize("name", CASES)
def test_planned_bytes_are_those_of_the_compiler(name):
    check(figures(CASES[name]))


@pytest.mark.slow
@needs_libtpu
@pytest.mark.xdist_group("tpu")
@pytest.mark.parametrize("layers", [2, 4])
@pytest.mark.parametrize(("device", "mesh"), [("v5e:2x4", "tp=8"), ("v6e:2x2", "tp=4")])
def test_truncated_shapes_sum_twice_a_layer_and_join_logits(device, mesh, layers):
    case = Case("llama-3.1-8b", device, mesh, batch=8, context=1024, layers=layers)
    row = figures(case)
    # Of two layers, half of the bytes are temporaries of the prefill, which a plan puts up to twice too high.
    check(row, near=0.2)
    if row["collectives"] is None:
        pytest.skip("this jaxlib cannot read the program")
    sums = [one for one in row["collectives"] if one["kind"] == "all-reduce" and one["shape"] == "bf16[8,1,4096]"]
    assert [one["count"] for one in sums] == [2 * layers + 1]
    (logits,) = (one for one in row["collectives"] if one["kind"] == "all-gather")
    assert 1e6 * logits["megabytes"] == pytest.approx(4 * 8 * 128256)


@needs_libtpu
@pytest.mark.slow
@pytest.mark.xdist_group("tpu")
@pytest.mark.parametrize("name", WHOLE)
def test_whole_shapes_fit_their_slices_and_move_entries_alone(name):
    row = figures(WHOLE[name])
    check(row)
    held = WHOLE[name].plan().chip.memory
    assert 1e6 * row["total_mb"] < held
    if row["collectives"] is None:
        pytest.skip("this jaxlib cannot read the program")
    assert row["collectives"]


@pytest.mark.parametrize(("cases", "message"), [(("9b",), "cases must be of .*; got '9b'"), ((), "got ''")])
def test_unknown_cases_are_refused(cases, message):
    with pytest.raises(ValueError, match=message):
        measure(Settings(cases=cases))


def test_cases_for_tpus_need_their_compiler(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install libtpu"):
        Settings(cases=("100m-cpu", "1b-v5e")).check()
    Settings(cases=("100m-cpu",)).check()


def test_a_report_is_not_overwritten(tmp_path):
    path = tmp_path / "plans.json"
    path.touch()
    with pytest.raises(FileExistsError):
        measure(Settings(cases=tuple(HERE), json=path))
