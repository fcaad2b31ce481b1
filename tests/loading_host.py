"""A program for tests of several hosts: loads a model onto a mesh, and writes what memory that took.

python -m tests.loading_host FOLDER OUT MESH --coordinator … --num-processes … --process-id …
"""

import argparse
import gc
import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp

from jax_smash.hosts import HostOptions, join_hosts
from jax_smash.loading import load
from jax_smash.sharding import add_virtual_devices

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def memory(name: str) -> int:
    """Returns bytes that this process holds (VmRSS) or held at most (VmHWM)."""
    return int(re.search(rf"{name}:\s+(\d+) kB", STATUS.read_text())[1]) * 1024


def main() -> None:
    """Joins the other hosts, loads, and writes `OUT/PROCESS.json`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("mesh")
    parser.add_argument("--coordinator")
    parser.add_argument("--num-processes", type=int)
    parser.add_argument("--process-id", type=int)
    words = parser.parse_args()
    hosts = join_hosts(HostOptions(words.coordinator, words.num_processes, words.process_id))
    add_virtual_devices(words.mesh, processes=hosts)
    # Devices and imports are no part of what loading takes.
    load("tiny")
    jnp.zeros(8).block_until_ready()
    gc.collect()
    CLEAR.write_text("5")  # Sets VmHWM back to what is held now.
    before = memory("VmRSS")
    model = load(words.model, mesh=words.mesh)
    jax.block_until_ready(model.params)
    held = sum(s.data.nbytes for x in jax.tree.leaves(model.params) for s in x.addressable_shards)
    found = {"most": memory("VmHWM") - before, "after": memory("VmRSS") - before, "held": held}
    (words.output / f"{words.process_id}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
