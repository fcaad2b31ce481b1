"""Measured cost curves on disk: one small JSON file for each device, model, dtype, batch, slots and drafting method."""

import dataclasses
import hashlib
import json
import math
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jax_smash.config import ModelConfig, identity
from jax_smash.costs.curve import CostCurve
from jax_smash.quantise import activation_dtype
from jax_smash.sharding import mesh_of

FORMAT = 2
"""Of the files. A file of another format is refused."""

FEWEST_SLOTS, MOST_SLOTS = 16, 2**24
"""Powers of two that curves are looked for at."""

CPU_INFO = Path("/proc/cpuinfo")


@dataclasses.dataclass(frozen=True)
class CostKey:
    """What a step's time depends on.

    A curve is used where all of it is the same, but for three things. The nearest slots with a curve will do. Where the
    method has no curve for rows that sample, that for others is taken; where it has none, that of the forward alone.

    Attributes:
      device: the kind of the device; of a CPU, the processor's name.
      cores: that this process may use, on a CPU; 0 elsewhere.
      mesh: sizes of the axes that the model is divided over; empty on one device.
      model: hash of the configuration.
      dtype: of what is computed.
      weights: `plain` or `int8`.
      batch: rows that decode together.
      slots: of the cache a row, the next power of two.
      jax: its version.
      method: whose drafting is part of each step; "" for the forward alone.
      sampled: rows sample; False where they take the likeliest token, and for the forward alone.
    """

    device: str
    cores: int
    mesh: str
    model: str
    dtype: str
    weights: str
    batch: int
    slots: int
    jax: str
    method: str = ""
    sampled: bool = False


def cost_key(
    config: ModelConfig, params: Any, *, batch: int, slots: int, method: str = "", sampled: bool = False
) -> CostKey:
    """Returns the key of a model as it lies in memory.

    Args:
      config: its sizes.
      params: the target's parameters.
      batch: rows that decode together.
      slots: of the cache a row.
      method: whose drafting is part of each step; "" for the forward alone.
      sampled: rows sample.
    """
    leaves = jax.tree.leaves(params)
    device = min(leaves[0].devices(), key=lambda d: d.id)
    on_cpu = device.platform == "cpu"
    mesh = mesh_of(params)
    return CostKey(
        device=f"{device.device_kind} {_processor()}" if on_cpu else device.device_kind,
        cores=cores() if on_cpu else 0,
        mesh="" if mesh is None else ",".join(f"{axis}={n}" for axis, n in mesh.shape.items() if n > 1),
        model=_digest(identity(config)),
        dtype=str(jnp.dtype(activation_dtype(params))),
        weights="int8" if any(x.dtype == jnp.int8 for x in leaves) else "plain",
        batch=batch,
        slots=min(max(1 << (slots - 1).bit_length(), FEWEST_SLOTS), MOST_SLOTS),
        jax=jax.__version__,
        method=method,
        sampled=sampled,
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
        "key": dataclasses.asdict(key),
        "batch": curve.batch,
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


def load_costs(
    config: ModelConfig, params: Any, *, batch: int, slots: int, method: str = "", sampled: bool = False
) -> CostCurve | None:
    """Returns the stored curve of a model on this device; None where there is none.

    Args:
      config: the model's sizes.
      params: the target's parameters.
      batch: rows that decode together.
      slots: of the cache a row. Of curves with other numbers the nearest counts; its source tells the number.
      method: whose drafting is part of each step; "" for the forward alone.
      sampled: rows sample.

    Raises:
      ValueError: the file is damaged, or of another key than its name says.
      OSError: it cannot be read.
    """
    key = cost_key(config, params, batch=batch, slots=slots, method=method, sampled=sampled)
    numbers = [2**i for i in range(FEWEST_SLOTS.bit_length() - 1, MOST_SLOTS.bit_length())]
    for number in sorted(numbers, key=lambda n: abs(math.log2(n / key.slots))):
        near = dataclasses.replace(key, slots=number)
        if (path := costs_directory() / _name(near)).is_file():
            return _read(path, near)
    return None


def read_costs(path: Path) -> CostCurve:
    """Returns the curve that a file holds: one that `tune` stored, or the one in a decoding run's JSON lines.

    Raises:
      ValueError: the file holds none.
      OSError: it cannot be read.
    """
    return _read(path, None)


def _read(path: Path, key: CostKey | None) -> CostCurve:
    try:
        text = path.read_text(encoding="utf-8")
        stored, _ = json.JSONDecoder().raw_decode(text.lstrip())
        if key is None and isinstance(stored, dict) and isinstance(stored.get("drafted"), dict):
            stored = stored["drafted"]["curve"]
        if not isinstance(stored, dict):
            raise TypeError(f"it must hold a JSON object; got {type(stored).__name__}")
        return _curve(stored, key)
    except (KeyError, TypeError, ValueError) as error:
        said = f"{error} is missing" if isinstance(error, KeyError) else error
        if key is None:
            found = f"{path} holds no cost curve: {said}"
            advice = "it must be a curve of `jax-smash tune`, or JSON lines of `jax-smash generate`"
        else:
            found = f"{path} is damaged: {said}"
            advice = "make it again with `jax-smash tune`, or delete it to decode without it"
        raise ValueError(f"{found}; {advice}") from error


def _curve(stored: dict[str, Any], key: CostKey | None) -> CostCurve:
    if key is not None:
        if stored["format"] != FORMAT:
            raise ValueError(f"its format must be {FORMAT}; got {stored['format']!r}")
        for name, value in dataclasses.asdict(key).items():
            if stored["key"][name] != value:
                raise ValueError(f"its {name} must be {value!r}; got {stored['key'][name]!r}")
    return CostCurve(
        entries=tuple(int(m) for m in stored["entries"]),
        seconds=tuple(float(s) for s in stored["seconds"]),
        batch=int(stored["batch"]),
        slots=int(stored["slots"]),
        source=str(stored["source"]),
    )


def _name(key: CostKey) -> str:
    sizes = (f"batch{key.batch}", f"slots{key.slots}")
    parts = [key.model, key.dtype, key.weights, *sizes, key.method, _digest(dataclasses.asdict(key))]
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
