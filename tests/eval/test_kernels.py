import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from eval.kernels import CASES, Settings, main, measure
from eval.reports.report import run_program
from pallas_kernels.sparse_attention import cases as sparse
from pallas_kernels.tree_attention.cases import make

ROOT = Path(__file__).parent.parent.parent


def run(*arguments):
    """Runs the program as a user does."""
    command = [sys.executable, "-m", "eval.kernels", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "kernels.json"
    cases = "llama-8b-1,gemma-2b-64-window"
    done = run("--cases", cases, "--slots", 32, "--repeats", 3, "--calls", 1, "--json", path)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(path.read_text())


def test_a_cpu_times_the_xla_path_alone_and_says_so(written):
    printed, report = written
    assert report["device"]["platform"] == "cpu"
    assert [(row["shape"], row["method"]) for row in report["rows"]] == [
        ("llama-8b-1", "xla"),
        ("gemma-2b-64-window", "xla"),
    ]
    assert "a CPU only interprets the kernels" in report["notes"][0]
    assert report["notes"][0] in printed
    assert "gemma-2b-64-window" in printed


def test_the_figures_of_a_row_agree(written):
    _, report = written
    for row in report["rows"]:
        assert row["ms"] == sorted(row["ms_by_repeat"])[1] > 0
        assert (row["speedup"], row["largest_difference"]) == (1, 0)
        case = row["case"]
        entries = case["slots"] + case["nodes"]
        read = 2 * entries * case["kv_heads"] * case["head_width"] * 2
        assert row["gigabytes_per_second"] == pytest.approx(read / row["ms"] / 1e6)


def test_the_report_says_how_it_was_made(written):
    _, report = written
    assert report["command"].startswith("python -m eval.kernels --cases llama-8b-1")
    assert report["settings"]["slots"] == 32
    assert report["versions"]["jax"]


def test_a_bad_option_is_one_line_and_a_status(tmp_path, monkeypatch):
    out = tmp_path / "out.json"
    monkeypatch.setattr("sys.argv", ["kernels", "--cases", "no-such-shape", "--json", str(out)])
    with pytest.raises(SystemExit) as end:
        run_program(Settings, main)
    assert end.value.code.startswith("error: cases must be of llama-8b-1")  # A text as the code: status 1.
    assert "\n" not in end.value.code
    assert not out.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cases": ()}, "cases must be of .*; got ''"),
        ({"slots": 0}, "slots must be at least 1; got 0"),
        ({"repeats": 0}, "repeats must be at least 1; got 0"),
        ({"calls": -1}, "calls must be at least 1; got -1"),
    ],
)
def test_what_cannot_be_measured_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        measure(Settings(**changes))


def test_a_file_that_exists_stays_as_it_is(tmp_path):
    out = tmp_path / "out.json"
    out.write_text("mine")
    with pytest.raises(FileExistsError, match="output file exists"):
        measure(Settings(json=out))
    assert out.read_text() == "mine"


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not isinstance(case, sparse.Case)])
def test_a_shape_with_few_slots_is_whole(name):
    (case,) = Settings(cases=(name,), slots=16).shapes()
    inputs = make(case)
    assert inputs.keys.shape[2] == 16
    assert (np.asarray(inputs.slot_position) < np.asarray(inputs.position).min(1, keepdims=True)).all()


@pytest.mark.parametrize("case", sparse.BENCHMARKS, ids=lambda case: case.name)
def test_a_shape_with_pages_and_few_slots_keeps_a_whole_page(case):
    (cut,) = Settings(cases=(case.name,), slots=16).shapes()
    assert (cut.slots, cut.most) == (case.page_size, 1)
    (cut,) = Settings(cases=(case.name,), slots=300).shapes()
    assert cut.slots == 300 // case.page_size * case.page_size
    inputs, pages = sparse.make(cut)
    assert inputs.keys.shape[2] == cut.slots
    assert pages.table.shape[2] == cut.most


@pytest.mark.parametrize(
    ("name", "slot_bytes"), [("llama-8b-1-2k-of-32k-shared", 4 * 128), ("llama-8b-1-2k-of-32k-int8", 2 * 128 + 8)]
)
def test_the_bytes_of_sparse_attention_are_those_of_its_pages(name, slot_bytes):
    (row,) = measure(Settings(cases=(name,), slots=256, repeats=1, calls=1))["rows"]
    assert row["program"] == "sparse_attention"
    read = (256 * slot_bytes + 4 * 128) * 8
    assert row["gigabytes_per_second"] == pytest.approx(read / row["ms"] / 1e6)
