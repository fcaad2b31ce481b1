"""Training speed at a shape, on rows of random tokens.

python -m train.speed --config train/configs/tiny.json --batch-size 24 --length 256 --devices 4
python -m train.speed --shape llama-100m --dtype bfloat16 --batch-size 32 --length 1024
"""

from __future__ import annotations

import dataclasses
import json
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from jax_smash.models.families.presets import preset
from jax_smash.sharding import MeshShape, make_mesh, param_shardings
from train.data import Batch
from train.objective import language_model_objective
from train.optimiser import Optimiser
from train.program import check_new_file, make_devices, run_program
from train.settings import Settings, load_settings
from train.start import first_params
from train.step import TrainState, make_step, place_rows
from train.utilisation import peak_flops, token_flops

SEED = 0


def random_rows(batch_size: int, length: int, vocab_size: int) -> Batch:
    """Returns rows of one document each."""
    tokens = np.random.default_rng(SEED).integers(0, vocab_size, (batch_size, length + 1)).astype(np.int32)
    ones = np.ones((batch_size, length), np.int32)
    positions = np.cumsum(ones, axis=1, dtype=np.int32) - 1
    return Batch(tokens[:, :-1], tokens[:, 1:], positions, ones, ones.astype(np.float32))


def measure(settings: Settings, *, mesh: str | None = None, repeats: int = 5) -> dict[str, Any]:
    """Returns what a training step of these settings takes: tokens a second, share of peak, memory, compile time.

    Args:
      settings: shape, optimiser, batch size, length, dtype; nothing is trained for long.
      mesh: devices; None gives each a share of the rows.
      repeats: timed steps; the median counts.
    """
    devices = make_mesh(mesh) if mesh else make_mesh(MeshShape(data=jax.device_count()))
    graphdef, params = first_params(settings.model, SEED)
    optimiser = settings.optimiser.build(settings.steps)
    state = TrainState(params=params, optimiser=optimiser.init(params), step=jnp.zeros((), jnp.int32))
    shardings = param_shardings(state, devices)
    state = jax.device_put(state, shardings)
    objective = language_model_objective(graphdef, dtype=settings.dtype, remat=settings.remat, scan=settings.scan)
    batch = place_rows(random_rows(settings.batch_size, settings.length, settings.model.vocab_size), devices)
    began = time.perf_counter()
    step = make_step(objective, optimiser, devices, shardings, accumulate=settings.accumulate)
    compiled = step.lower(state, batch).compile()
    compile_seconds = time.perf_counter() - began
    seconds = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        state, measured = compiled(state, batch)
        jax.block_until_ready(measured)
        seconds.append(time.perf_counter() - began)
    tokens_per_second = settings.batch_size * settings.length / statistics.median(seconds[1:])
    flops, peak = token_flops(settings.model, settings.length), peak_flops(settings.dtype)
    stats = jax.devices()[0].memory_stats() or {}
    return {
        "device": f"{jax.devices()[0].device_kind} x {devices.size}",
        "jax": jax.__version__,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "batch_size": settings.batch_size,
        "length": settings.length,
        "dtype": settings.dtype,
        "optimiser": settings.optimiser.name,
        "tokens_per_second": round(tokens_per_second, 1),
        "best_tokens_per_second": round(settings.batch_size * settings.length / min(seconds[1:]), 1),
        "share_of_peak": round(tokens_per_second * flops / peak, 4),
        "peak_flops": peak,
        "step_memory_mb": round(compiled.memory_analysis().temp_size_in_bytes / 2**20, 1),
        "peak_memory_mb": round(stats.get("peak_bytes_in_use", _resident_bytes()) / 2**20, 1),
        "compile_seconds": round(compile_seconds, 2),
    }


def _resident_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main(
    config: Path | None = None,
    shape: str | None = None,
    batch_size: int = 24,
    length: int = 256,
    dtype: str | None = None,
    optimiser: str | None = None,
    remat: bool = False,
    scan: bool = False,
    accumulate: int = 1,
    mesh: str | None = None,
    devices: int | None = None,
    repeats: int = 5,
    output: Path | None = None,
) -> None:
    """Measures training speed on random tokens.

    Args:
      config: a training file; what is given here replaces what it says.
      shape: a named shape in place of a file's model.
      batch_size: rows a step.
      length: targets a row.
      dtype: of the products, float32 or bfloat16.
      optimiser: adamw or muon.
      remat, scan, accumulate: as in a training file.
      mesh: devices, as in `fsdp=4,tp=2`.
      devices: on a CPU, how many virtual devices it makes.
      repeats: timed steps; the median counts.
      output: JSON file to write.
    """
    make_devices(devices, mesh)
    if (config is None) == (shape is None):
        raise ValueError(f"expected either --config or --shape; got {config} and {shape}")
    check_new_file(output)
    given = {"batch_size": batch_size, "length": length, "dtype": dtype, "accumulate": accumulate}
    if config is not None:
        settings = load_settings(config, **given)
    else:
        known = {name: value for name, value in given.items() if value is not None}
        settings = Settings(model=preset(shape), optimiser=Optimiser(), steps=1000, **known)
    rule = dataclasses.replace(settings.optimiser, name=optimiser or settings.optimiser.name)
    settings = dataclasses.replace(settings, optimiser=rule, remat=remat, scan=scan)
    found = measure(settings, mesh=mesh, repeats=repeats)
    table = Table("", "", show_header=False)
    for name, value in found.items():
        table.add_row(name.replace("_", " "), f"{value:,}" if isinstance(value, int | float) else value)
    Console().print(table)
    if output is not None:
        output.write_text(json.dumps(found | {"command": sys.argv}, indent=2) + "\n")


if __name__ == "__main__":
    run_program(main, compilation_cache=False)
