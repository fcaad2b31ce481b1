"""Training speed of a part at a shape, on rows of random tokens.

python -m train.speed --config train/configs/tiny.json --batch-size 24 --length 256 --devices 4
python -m train.speed --shape llama-100m --dtype bfloat16 --batch-size 32 --length 1024
python -m train.speed --part hamburger --config train/configs/tiny-hamburger.json --shape llama-100m
python -m train.speed --part eagle --config train/configs/smollm2-eagle.json --shape llama-100m
python -m train.speed --part butler --config train/configs/smollm2-butler.json --shape llama-100m
"""

from __future__ import annotations

import dataclasses
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from rich.console import Console
from rich.table import Table

from jax_smash.models.families.presets import preset
from jax_smash.sharding import MeshShape, make_mesh, param_shardings
from train.parts.butler.part import Butler
from train.parts.butler.settings import ButlerSettings
from train.parts.drafter.chimera import ChimeraPart
from train.parts.drafter.dflash import DFlashPart
from train.parts.drafter.eagle import EaglePart
from train.parts.drafter.eagle1 import Eagle1Part
from train.parts.drafter.medusa import MedusaPart
from train.parts.drafter.medusa_settings import MedusaSettings
from train.parts.drafter.micro import MicroPart
from train.parts.drafter.settings import (
    ChimeraSettings,
    DFlashSettings,
    Eagle1Settings,
    EagleSettings,
    MicroSettings,
)
from train.parts.hamburger.part import Hamburger
from train.parts.hamburger.settings import SmashSettings
from train.parts.language_model.part import LanguageModel
from train.parts.part import Part
from train.run.optimiser import Optimiser
from train.run.program import check_new_file, make_devices, run_program
from train.run.settings import Settings, load_kind, load_settings
from train.run.step import first_state, make_step, place_rows
from train.run.utilisation import peak_flops


def measure(part: Part, *, mesh: str | None = None, repeats: int = 5) -> dict[str, Any]:
    """Returns what a part's training step takes: tokens a second, share of peak, memory, compile time.

    Args:
      part: what is trained; weights are random, and frozen ones bfloat16.
      mesh: devices; None gives each a share of the rows.
      repeats: timed steps; the median counts.
    """
    settings = part.settings
    devices = make_mesh(mesh or MeshShape(data=jax.device_count()), kv_heads=settings.model.num_kv_heads)
    shapes, optimiser, rows = part.shapes(), part.optimiser(), part.random_batch()
    params, frozen = (random_weights(tree, devices) for tree in shapes)
    shardings = param_shardings(jax.eval_shape(lambda p: first_state(p, optimiser), shapes.trained), devices)
    state = jax.jit(lambda p: first_state(p, optimiser), out_shardings=shardings, donate_argnums=0)(params)
    step = make_step(part.objective(), optimiser, devices, shardings, accumulate=settings.accumulate)
    arguments = place_rows(rows, devices), frozen or None
    began = time.perf_counter()
    compiled = step.lower(state, *arguments).compile()
    compile_seconds = time.perf_counter() - began
    seconds = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        state, measured = compiled(state, *arguments)
        jax.block_until_ready(measured)
        seconds.append(time.perf_counter() - began)
    tokens = part.tokens_of(rows)
    found = {
        "device": f"{jax.local_devices()[0].device_kind} x {devices.size}",
        "jax": jax.__version__,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "frozen_parameters": sum(leaf.size for leaf in jax.tree.leaves(frozen)),
        "batch_size": settings.batch_size,
        "length": settings.length,
        "dtype": settings.dtype,
        "optimiser": settings.optimiser.name,
        "tokens_per_second": round(tokens / statistics.median(seconds[1:]), 1),
        "best_tokens_per_second": round(tokens / min(seconds[1:]), 1),
    }
    if part.token_flops:
        peak = peak_flops(settings.dtype)
        share = found["tokens_per_second"] * part.token_flops / peak
        found |= {"share_of_peak": round(share, 4), "peak_flops": peak}
    stats = jax.local_devices()[0].memory_stats() or {}
    return found | {
        "step_memory_mb": round(compiled.memory_analysis().temp_size_in_bytes / 2**20, 1),
        "peak_memory_mb": round(stats.get("peak_bytes_in_use", _resident_bytes()) / 2**20, 1),
        "compile_seconds": round(compile_seconds, 2),
    }


def random_weights(shapes: Any, mesh: Mesh) -> Any:
    """Returns small random weights of these shapes, made where a mesh holds them."""

    def make(shape: Any, sharding: Any) -> jax.Array:
        draw = jax.jit(lambda: jax.random.normal(jax.random.key(0), shape.shape, shape.dtype), out_shardings=sharding)
        return draw() * jnp.asarray(0.02, shape.dtype)

    return jax.tree.map(make, shapes, param_shardings(shapes, mesh))


def _resident_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


WITHOUT_FILE = {"batch_size": 24, "length": 256}
"""What a named shape is measured with where nothing else is said."""


def _language_model(config: Path | None, shape: str | None, given: dict[str, Any]) -> LanguageModel:
    if (config is None) == (shape is None):
        raise ValueError(f"expected either --config or --shape; got {config} and {shape}")
    if config is not None:
        return LanguageModel(load_settings(config, **given))
    known = {name: value for name, value in given.items() if value is not None}
    return LanguageModel(Settings(model=preset(shape), optimiser=Optimiser(), steps=1000, **(WITHOUT_FILE | known)))


def _beside(
    part: Callable[[Any], Any], kind: type[Settings]
) -> Callable[[Path | None, str | None, dict[str, Any]], Any]:
    """Returns what makes a part that is trained beside a base of a named shape."""

    def make(config: Path | None, shape: str | None, given: dict[str, Any]) -> Any:
        if config is None or shape is None:
            raise ValueError(f"expected --config of the modules and --shape of the base; got {config} and {shape}")
        return part(load_kind(kind, config, model=preset(shape), **given))

    return make


PARTS: dict[str, Callable[[Path | None, str | None, dict[str, Any]], Any]] = {
    "language-model": _language_model,
    "hamburger": _beside(Hamburger, SmashSettings),
    "eagle": _beside(EaglePart, EagleSettings),
    "eagle1": _beside(Eagle1Part, Eagle1Settings),
    "medusa": _beside(MedusaPart, MedusaSettings),
    "chimera": _beside(ChimeraPart, ChimeraSettings),
    "dflash": _beside(DFlashPart, DFlashSettings),
    "micro": _beside(MicroPart, MicroSettings),
    "butler": _beside(Butler, ButlerSettings),
}
"""What can be measured: of a training file, a named shape and changes of the file's fields."""


def main(
    config: Path | None = None,
    shape: str | None = None,
    part: str = "language-model",
    batch_size: int | None = None,
    length: int | None = None,
    dtype: str | None = None,
    optimiser: str | None = None,
    remat: bool | None = None,
    scan: bool | None = None,
    accumulate: int | None = None,
    mesh: str | None = None,
    devices: int | None = None,
    repeats: int = 5,
    output: Path | None = None,
) -> None:
    """Measures training speed on random tokens.

    Args:
      config: a training file; what is given here replaces what it says.
      shape: a named shape: of the model in place of a file, or of the base that a part is trained beside.
      part: what is trained: `language-model`, or beside a base `hamburger`, `eagle`, `eagle1`, `medusa`, `chimera`,
        `dflash`, `micro` or `butler`.
      batch_size: rows a step; without a file 24.
      length: targets a row; without a file 256.
      dtype: of the products, float32 or bfloat16.
      optimiser: adamw or muon.
      remat: as in a training file, True or False.
      scan: as in a training file, True or False.
      accumulate: as in a training file.
      mesh: devices, as in `fsdp=4,tp=2` or by a preset.
      devices: on a CPU, how many virtual devices it makes.
      repeats: timed steps; the median counts.
      output: JSON file to write.
    """
    make_devices(devices, mesh)
    if part not in PARTS:
        raise ValueError(f"part must be one of {', '.join(PARTS)}; got {part!r}")
    check_new_file(output)
    given = {"batch_size": batch_size, "length": length, "dtype": dtype, "accumulate": accumulate}
    made = PARTS[part](config, shape, given | {"remat": remat, "scan": scan})
    rule = dataclasses.replace(made.settings.optimiser, name=optimiser or made.settings.optimiser.name)
    settings = dataclasses.replace(made.settings, optimiser=rule)
    found = measure(dataclasses.replace(made, settings=settings), mesh=mesh, repeats=repeats)
    table = Table("", "", show_header=False)
    for name, value in found.items():
        table.add_row(name.replace("_", " "), f"{value:,}" if isinstance(value, int | float) else value)
    Console().print(table)
    if output is not None:
        output.write_text(json.dumps(found | {"command": sys.argv}, indent=2) + "\n")


if __name__ == "__main__":
    run_program(main, compilation_cache=False)
