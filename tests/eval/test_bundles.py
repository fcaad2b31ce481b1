import importlib.util
import json
import subprocess
import sys

import pytest

from eval.bundles import Settings, longest_piece, measure
from tests.interpreter import ROOT

needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="compiling for a TPU needs libtpu")

BUNDLES = """= control target key start
LB: loop body
= control target key end

     0   :  { %s1 = smov.u32 0 }
   0x1 LB: > { %v2 = vld [vmem:[#allocation6]] }
   0x2   : > { %v3 = vadd.f32 %v2, %v2 }
   0x3   : > { %4 = sbr.rel (%p1) target = $region4 }
   0x4 PF: > { %v5 = vmul.f32 %v3, %v3 }
"""
UTILISATION = """== CAPACTIY:
MATMUL, VALU, EUP
    2     4     1
== UTILIZATION:
0 9 9
1 3 0
1 2 1
0 1 0
9 9 9
"""


def test_the_longest_straight_piece_is_summed():
    piece = longest_piece(BUNDLES, UTILISATION)
    assert piece.bundles == 3
    assert piece.operations == {"MATMUL": 2, "VALU": 6, "EUP": 1}
    assert (piece.cycles("VALU"), piece.cycles("MATMUL")) == (1.5, 1.0)


def test_texts_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match="each of 5 bundles must have a row of operations; got 4"):
        longest_piece(BUNDLES, UTILISATION.removesuffix("9 9 9\n"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"chips": ("cpu",)}, "chips must be TPUs"),
        ({"chips": ("v9",)}, "chip must be cpu, or NAME:SIZExSIZE"),
        ({"cases": ("llama",)}, "cases must be of .*; got 'llama'"),
    ],
)
def test_what_cannot_be_compiled_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Settings(**changes).check()


@needs_libtpu
@pytest.mark.xdist_group("tpu")
@pytest.mark.parametrize("chip", ["v5e:1x1", "v6e:1x1"])
def test_a_block_of_the_cache_takes_little_more_than_its_floor(chip):
    (row,) = measure(Settings(chips=(chip,), cases=("llama-8b-80",)))["rows"]
    assert row["slots"] == 2048
    assert row["floor"] == max(row["floors"].values())
    # A piece that does not read the block would be far below.
    assert 1 <= row["over_floor"] < 1.4


@pytest.mark.slow
@needs_libtpu
@pytest.mark.xdist_group("tpu")
@pytest.mark.parametrize("chip", ["v5e:1x1", "v6e:1x1"])
def test_a_block_of_pages_takes_little_more_than_its_floor(chip):
    (row,) = measure(Settings(chips=(chip,), cases=("llama-8b-64-2k-of-32k",)))["rows"]
    assert row["slots"] == 16 * 128
    assert 1 <= row["over_floor"] < 1.45


@needs_libtpu
@pytest.mark.xdist_group("tpu")
def test_making_int8_wider_takes_less_than_reading_it():
    (row,) = measure(Settings(chips=("v5e:1x1",), cases=("llama-8b-1-2k-of-32k-int8",)))["rows"]
    assert row["bound_by"] == "memory"
    assert row["bundles"] < row["floor"]


@pytest.mark.slow
@needs_libtpu
@pytest.mark.xdist_group("tpu")
def test_the_program_writes_its_report(tmp_path):
    out = tmp_path / "bundles.json"
    command = [sys.executable, "-m", "eval.bundles", "--chips", "v5e:1x1", "--cases", "llama-8b-1", "--json", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (row,) = json.loads(out.read_text())["rows"]
    assert row["bound_by"] == "memory"
    assert row["bundles"] < row["floor"]
