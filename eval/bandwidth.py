"""The read bandwidth of this machine: what no decoder that reads its weights once a step can beat.

    python -m eval.bandwidth

Several ways to read a large array once are timed and the fastest counts, because a roofline measured by a slow reader
flatters everything that is held against it.
"""

import dataclasses
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from eval.reports.report import describe_device, print_table

CPU_BYTES = 2**30
DEVICE_BYTES = 2**32
COLUMNS = 4096


@dataclasses.dataclass(frozen=True)
class Bandwidth:
    """Measured reading speed.

    Attributes:
      bytes_per_second: of the fastest reader, by the median of its repeats.
      reader: its name.
      array_bytes: how much one pass reads.
      readers: bytes a second of every reader tried.
    """

    bytes_per_second: float
    reader: str
    array_bytes: int
    readers: dict[str, float]


def read_bandwidth(array_bytes: int | None = None, *, repeats: int = 7) -> Bandwidth:
    """Measures how fast the first device reads its memory.

    On a CPU, NumPy on a thread a core competes with XLA: the memory is the same.

    Args:
      array_bytes: size of the float32 array, about; None takes 1 GiB on a CPU and 4 GiB (at most an eighth of the free
        memory) elsewhere. It must exceed every cache by far for the figure to mean main memory.
      repeats: timed passes of each reader.

    Raises:
      ValueError: the array or the number of repeats is too small to measure anything.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1; got {repeats}")
    size = _default_bytes() if array_bytes is None else array_bytes
    rows = size // (4 * COLUMNS)
    if rows < 64:
        raise ValueError(f"array_bytes must be at least {64 * 4 * COLUMNS}; got {size}")
    timed = {name: _seconds(read, repeats) for name, read in readers(rows).items()}
    speeds = {name: rows * COLUMNS * 4 / seconds for name, seconds in timed.items()}
    best = max(speeds, key=speeds.__getitem__)
    return Bandwidth(bytes_per_second=speeds[best], reader=best, array_bytes=rows * COLUMNS * 4, readers=speeds)


def _default_bytes() -> int:
    device = jax.devices()[0]
    if device.platform == "cpu":
        return CPU_BYTES
    stats = device.memory_stats() or {}
    free = stats.get("bytes_limit", 8 * DEVICE_BYTES) - stats.get("bytes_in_use", 0)
    return min(DEVICE_BYTES, free // 8)


def readers(rows: int) -> dict[str, Callable[[], object]]:
    """Returns ways to read `rows` × `COLUMNS` float32 once, each blocking until it is done."""
    matrix = jax.jit(lambda: jnp.ones((rows, COLUMNS), jnp.float32))()
    vector = jnp.ones((COLUMNS,), jnp.float32)
    functions: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
        "xla sum of all": lambda x, v: x.sum(),
        "xla sum of rows": lambda x, v: x.sum(axis=1),
        "xla maximum of rows": lambda x, v: x.max(axis=1),
        "xla matrix times vector": lambda x, v: x @ v,
        "xla vector times matrix": lambda x, v: v @ x.reshape(COLUMNS, rows),
    }

    def reader(function: Callable[[jax.Array, jax.Array], jax.Array]) -> Callable[[], object]:
        compiled = jax.jit(function).lower(matrix, vector).compile()
        return lambda: compiled(matrix, vector).block_until_ready()

    found = {name: reader(function) for name, function in functions.items()}
    if jax.devices()[0].platform == "cpu":
        found |= _numpy_readers(np.asarray(matrix))
    return found


def _numpy_readers(matrix: np.ndarray) -> dict[str, Callable[[], object]]:
    cores = os.cpu_count() or 1
    pool = ThreadPoolExecutor(cores)
    # Several pieces a core: a core that another process holds up does not hold up the pass.
    pieces = [piece.reshape(-1) for piece in np.array_split(matrix, 4 * cores)]
    return {
        "numpy sum, threads": lambda: list(pool.map(np.sum, pieces)),
        "numpy maximum, threads": lambda: list(pool.map(np.max, pieces)),
        "numpy dot, threads": lambda: list(pool.map(lambda p: np.dot(p, p), pieces)),
    }


def _seconds(read: Callable[[], object], repeats: int) -> float:
    read()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        read()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main(mebibytes: int | None = None, repeats: int = 7) -> None:
    """Measures the read bandwidth of the first device and prints every reader's.

    Args:
      mebibytes: size of the array that is read.
      repeats: timed passes of each reader; the median counts.
    """
    found = read_bandwidth(None if mebibytes is None else mebibytes * 2**20, repeats=repeats)
    rows = [{"reader": name, "gigabytes_per_second": speed / 1e9} for name, speed in found.readers.items()]
    device = describe_device()
    title = f"{device['kind']} ({device['host_processor']}, {device['host_cores']} cores)"
    print_table(f"{title}: {found.array_bytes / 2**20:.0f} MiB", rows, ("reader", "gigabytes_per_second"))


if __name__ == "__main__":
    tyro.cli(main)
