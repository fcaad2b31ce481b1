import os
import subprocess
import sys

import pytest

SHOW = """
import os, sys
sys.path.insert(0, {root!r})
from train.run.memory import use_large_pages
print("began")
use_large_pages()
print(os.environ["GLIBC_TUNABLES"], *sys.argv[1:])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the C library of Linux")
@pytest.mark.parametrize("before", ["", "glibc.malloc.hugetlb=0"])
def test_a_program_starts_anew_once_with_its_arguments_and_the_users_settings(tmp_path, request, before):
    script = tmp_path / "show.py"
    script.write_text(SHOW.format(root=str(request.config.rootpath)))
    environment = os.environ | {"GLIBC_TUNABLES": before}
    command = [sys.executable, str(script), "one", "two words"]
    lines = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[:-1] == ["began", "began"]
    tunables, arguments = lines[-1].split(" ", 1)
    assert arguments == "one two words"
    assert before or "glibc.malloc.hugetlb=1" in tunables
    assert tunables.startswith(before)
    assert "glibc.malloc.mmap_threshold=8589934592" in tunables
