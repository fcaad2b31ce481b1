"""What the processes of one program tell each other, through JAX's store of keys and values.

The store works before devices are in use, and whatever the processes' versions. On one host every function does the
plain thing.
"""

import collections
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import jax

DECISION_S = 1800
"""Seconds that others wait for a decision of the first, or for each other: reading weights may lie between."""

ROOT = "jax_smash"
"""What all keys begin with."""


def is_first() -> bool:
    """Returns whether this process is the one that decides and writes."""
    state = service()
    return state.client is None or state.process_id == 0


def joined() -> bool:
    """Returns whether this process is one of several."""
    return service().client is not None and processes() > 1


def processes() -> int:
    """Returns how many processes were joined; 1 where none were."""
    return int(service().num_processes)


def agree(what: Mapping[str, Any], timeout: float = DECISION_S) -> None:
    """Checks that every host has the same values; all must ask in the same order. Digests are told, values on a fault.

    Args:
      what: values by the name that a user knows them by.
      timeout: seconds to wait for the others.

    Raises:
      ValueError: some host has others than the first; the error names each, and what differs.
      OSError: a host did not come.
    """
    if not joined():
        return
    told = json.dumps({name: str(value) for name, value in what.items()}, sort_keys=True)
    texts, digests = _next_key("agree"), _next_key("digest")
    tell(f"{texts}/{service().process_id}", told)
    found = _told_by_all(digests, hashlib.sha256(told.encode()).hexdigest(), timeout)
    if len({*found.values()}) == 1:
        return
    values = {process: json.loads(text) for process, text in read_all(texts).items()}
    differing = [
        f"process {process} of {processes()} has {name} {_shown(own.get(name))} where process 0 has "
        f"{_shown(values[0].get(name))}"
        for process, own in sorted(values.items())
        for name in sorted({*own, *values[0]})
        if own.get(name) != values[0].get(name)
    ]
    raise ValueError(f"all hosts must run the same: {'; '.join(differing)}")


def decided(make: Callable[[], Any], *, shared: bool = True) -> Any:
    """Returns what a function gives on the first host, on every host; all must ask in the same order.

    Args:
      make: is called on the first host alone, and returns what JSON can hold.
      shared: False for what this host does by itself, which is not told and not waited for.

    Raises:
      OSError: the first host did not decide.
    """
    if not shared or not joined():
        return make()
    key = _next_key("decided")
    if is_first():
        value = json.dumps(make())
        tell(key, value)
        return json.loads(value)
    try:
        return json.loads(service().client.blocking_key_value_get(key, int(1000 * DECISION_S)))
    except jax.errors.JaxRuntimeError as error:
        raise OSError(f"process 0 told nothing: {first_line(error)}") from error


def wait_for_all(name: str, timeout: float = DECISION_S) -> None:
    """Returns when every host has come here.

    Raises:
      OSError: one did not.
    """
    if joined():
        _meet(_next_key(name), timeout)


def told_by_all(name: str, value: str, timeout: float = DECISION_S) -> dict[int, str]:
    """Returns what every host gives, by its number; all must ask in the same order.

    Raises:
      OSError: a host did not come.
    """
    return _told_by_all(_next_key(name), value, timeout) if joined() else {0: value}


def service() -> Any:
    """Returns JAX's record of the joined processes."""
    # JAX names its store of keys and values nowhere else.
    from jax._src.distributed import global_state

    return global_state


_COUNTS: collections.Counter[str] = collections.Counter()


def _next_key(name: str) -> str:
    """Returns a key that no host has used before, the same on all that ask in the same order."""
    _COUNTS[name] += 1
    return f"{ROOT}/{name}/{_COUNTS[name]}"


def tell(key: str, value: str, *, again: bool = False) -> None:
    """Puts a value under a new key, for all processes; or under one that may have another."""
    service().client.key_value_set(key, value, allow_overwrite=again)


def _told_by_all(key: str, value: str, timeout: float) -> dict[int, str]:
    tell(f"{key}/{service().process_id}", value)
    _meet(f"{key}/all", timeout)
    return read_all(key)


def read_all(key: str) -> dict[int, str]:
    """Returns what processes told under a key, by their numbers."""
    return {int(name.rpartition("/")[2]): text for name, text in service().client.key_value_dir_get(key)}


def _meet(key: str, timeout: float) -> None:
    try:
        service().client.wait_at_barrier(key, int(1000 * timeout))
    except jax.errors.JaxRuntimeError as error:
        raise OSError(f"not all of the {processes()} processes came in {timeout:.0f} s: {first_line(error)}") from error


def _shown(value: str | None) -> str:
    return "nothing" if value is None else value if len(value) < 200 else f"{value[:200]}…"


def first_line(error: BaseException) -> str:
    """Returns the beginning of what an error says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
