"""Memory of a host while it loads its share of a model, with four hosts that are processes of this machine.

python -m pytest -m slow -s tests/jax_smash/checkpoints/test_host_memory.py
"""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from jax_smash.loading import random_model
from jax_smash.saving import save
from tests.hosts import Hosts

HOSTS, MOST = 4, 1.2


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A model of 2.5 GB, beside which what any process needs is small; and how many bytes its safetensors have."""
    model = random_model("llama-3.2-1b")
    model = dataclasses.replace(model, stop_tokens=model.config.eos_tokens)
    folder = save(model, tmp_path_factory.mktemp("memory") / "model")
    del model
    yield folder, sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    shutil.rmtree(folder)


def measured(checkpoint, mesh, output):
    """Returns, for each host, the most memory that loading took over its share of the checkpoint."""
    folder, size = checkpoint
    for process in Hosts(["-m", "tests.loading_host", folder, output, mesh], HOSTS).ended(timeout=900):
        assert process.status == 0, process.errors
    found = [json.loads((output / f"{i}.json").read_text()) for i in range(HOSTS)]
    over = [host["most"] / (size / HOSTS) for host in found]
    print(f"{mesh}: {size:,} bytes of safetensors; most memory over a host's share {over}; by host {found}")
    return over


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells a process's memory there")
def test_loading_takes_a_host_little_more_than_its_share(checkpoint, tmp_path):
    assert max(measured(checkpoint, f"fsdp={HOSTS}", tmp_path)) <= MOST


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells a process's memory there")
def test_a_host_that_holds_two_shares_would_be_seen(checkpoint, tmp_path):
    """The control: a mesh of two copies of the model."""
    assert min(measured(checkpoint, "data=2,fsdp=2", tmp_path)) > 2
