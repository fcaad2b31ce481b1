"""Measured cost curves on disk: one small JSON file for each device, model, dtype, batch and drafting method."""

import dataclasses
import hashlib
import json
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jax_smash.config import ModelConfig
from jax_smash.costs.curve import CostCurve
from jax_smash.quantise import activation_dtype
from jax_smash.sharding import mesh_of

FORMAT = 1
"""Of the files. A file of another format is refused."""

CPU_INFO = Path("/proc/cpuinfo")


@dataclasses.dataclass(frozen=True)
class CostKey:
    """What a step's time depends on. A curve is used only where all of it is the same.

    Attributes:
      device: the kind of the device; of a CPU, the processor's name.
      cores: that this process may use, on a CPU; 0 elsewhere.
      mesh: sizes of the axes that the model is divided over; empty on one device.
      model: hash of the configuration.
      dtype: of what is computed.
      weights: `plain` or `int8`.
      batch: rows that decode together.
      jax: its version.
      method: whose drafting is part of each step; "" for the forward alone.
    """

    device: str
    cores: int
    mesh: str
    model: str
    dtype: str
    weights: str
    batch: int
    jax: str
    method: str = ""

    def fields(self) -> dict[str, Any]:
        """Returns what a file says of it; a method only where there is one."""
        fields = dataclasses.asdict(self)
        return fields if self.method else {name: value for name, value in fields.items() if name != "method"}


def cost_key(config: ModelConfig, params: Any, *, batch: int, method: str = "") -> CostKey:
    """Returns the key of a model as it lies in memory.

    Args:
      config: its sizes.
      params: the target's parameters.
      batch: rows that decode together.
      method: whose drafting is part of each step; "" for the forward alone.
    """
    leaves = jax.tree.leaves(params)
    device = min(leaves[0].devices(), key=lambda d: d.id)
    on_cpu = device.platform == "cpu"
    mesh = mesh_of(params)
    return CostKey(
        device=f"{device.device_kind} {_processor()}" if on_cpu else device.device_kind,
        cores=cores() if on_cpu else 0,
        mesh="" if mesh is None else ",".join(f"{axis}={n}" for axis, n in mesh.shape.items() if n > 1),
        model=_digest(dataclasses.asdict(config)),
        dtype=str(jnp.dtype(activation_dtype(params))),
        weights="int8" if any(x.dtype == jnp.int8 for x in leaves) else "plain",
        batch=batch,
        jax=jax.__version__,
        method=method,
    )


def costs_directory() -> Path:
    """Returns where curves are kept."""
    return user_directory("costs")


def user_directory(name: str) -> Path:
    """Returns a folder for what is kept from run to run: in JAX_SMASH_HOME, or in jax-smash in the user's cache folder.

    That is XDG_CACHE_HOME where it is an absolute path, else `~/.cache`.
    """
    if home := os.environ.get("JAX_SMASH_HOME"):
        return Path(home).expanduser() / name
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "jax-smash" / name


def check_writable(directory: Path) -> None:
    """Makes a directory and checks that files can be written there.

    Raises:
      OSError: it cannot be made, or nothing can be written there.
    """
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        # The temporary file's random name says nothing to a user.
        raise type(error)(error.errno, error.strerror, str(directory)) from error


def save_costs(curve: CostCurve, key: CostKey) -> Path:
    """Writes a curve in place of an older one of the same key, whole or not at all.

    Returns:
      The file.

    Raises:
      OSError: it cannot be written; an older file is still there.
    """
    path = costs_directory() / _name(key)
    check_writable(path.parent)
    content = {
        "format": FORMAT,
        "key": key.fields(),
        "slots": curve.slots,
        "entries": curve.entries,
        "seconds": curve.seconds,
        "source": curve.source,
    }
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def load_costs(config: ModelConfig, params: Any, *, batch: int, method: str = "") -> CostCurve | None:
    """Returns the stored curve of a model on this device; None where there is none.

    Args:
      config: the model's sizes.
      params: the target's parameters.
      batch: rows that decode together.
      method: whose drafting is part of each step; "" for the forward alone.

    Raises:
      ValueError: the file is damaged, or of another key than its name says.
      OSError: it cannot be read.
    """
    key = cost_key(config, params, batch=batch, method=method)
    path = costs_directory() / _name(key)
    if not path.is_file():
        return None
    try:
        return _read(path.read_bytes(), key)
    except (KeyError, TypeError, ValueError) as error:
        said = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(
            f"{path} is damaged: {said}; make it again with `jax-smash tune`, or delete it to decode without it"
        ) from error


def _read(content: bytes, key: CostKey) -> CostCurve:
    stored = json.loads(content)
    if not isinstance(stored, dict):
        raise TypeError(f"it must hold a JSON object; got {type(stored).__name__}")
    if stored["format"] != FORMAT:
        raise ValueError(f"its format must be {FORMAT}; got {stored['format']!r}")
    for name, value in key.fields().items():
        if stored["key"][name] != value:
            raise ValueError(f"its {name} must be {value!r}; got {stored['key'][name]!r}")
    return CostCurve(
        entries=tuple(int(m) for m in stored["entries"]),
        seconds=tuple(float(s) for s in stored["seconds"]),
        batch=key.batch,
        slots=int(stored["slots"]),
        source=str(stored["source"]),
    )


def _name(key: CostKey) -> str:
    parts = [key.model, key.dtype, key.weights, f"batch{key.batch}", key.method, _digest(key.fields())]
    return "-".join(part for part in parts if part) + ".json"


def _digest(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:12]


def cores() -> int:
    """Returns the cores that XLA finds: those that the process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    if CPU_INFO.exists():
        for line in CPU_INFO.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
