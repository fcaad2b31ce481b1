import hashlib
import json
import subprocess
import sys

from eval.reports.code_hashes import ROOT, changed_files, code_hashes

PROGRAM = """
import json, sys
from pathlib import Path
from eval.reports.report import heading, write_json
report = heading("eval.probe", [], {})
import pallas_kernels.tree_attention.cases
write_json(Path(sys.argv[1]), report)
"""


def test_hashes_are_those_of_the_files_that_were_imported():
    found = code_hashes()
    assert list(found) == sorted(found)
    name = "eval/reports/code_hashes.py"
    assert found[name] == hashlib.sha256((ROOT / name).read_bytes()).hexdigest()
    assert "eval/__init__.py" in found
    assert all((ROOT / path).is_file() for path in found)


def test_a_report_names_what_was_imported_before_and_after_its_heading_and_nothing_else(tmp_path):
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path / "a.json")], check=True, cwd=ROOT)
    code = json.loads((tmp_path / "a.json").read_text())["code"]
    assert {"eval/reports/report.py", "jax_smash/__init__.py", "pallas_kernels/tree_attention/cases.py"} <= code.keys()
    assert not {"eval/kernels.py", "eval/speed.py"} & code.keys()
    assert not changed_files(code)


def test_a_program_that_is_run_is_named_as_a_module_is(tmp_path):
    words = ["-m", "eval.group_caps", "--shapes", "llama-100m", "--json", str(tmp_path / "a.json")]
    subprocess.run([sys.executable, *words], check=True, cwd=ROOT, capture_output=True)
    report = json.loads((tmp_path / "a.json").read_text())
    assert report["command"] == "python -m eval.group_caps --shapes llama-100m --json a.json"
    assert "eval/group_caps.py" in report["code"]


def test_a_file_that_changed_or_is_gone_is_told(tmp_path):
    (tmp_path / "same.py").write_text("a = 1\n")
    (tmp_path / "other.py").write_text("a = 1\n")
    digest = hashlib.sha256(b"a = 1\n").hexdigest()
    hashes = {"gone.py": digest, "other.py": digest, "same.py": digest}
    (tmp_path / "other.py").write_text("a = 2\n")
    assert changed_files(hashes, tmp_path) == ["gone.py", "other.py"]
