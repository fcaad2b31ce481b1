"""The fields of a drafter's configuration, as JSON holds them."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from jax_smash.config import RopeConfig

Config = TypeVar("Config")


def config_of(kind: type[Config], fields: Mapping[str, Any], *, whole: bool = False) -> Config:
    """Returns a configuration of a frozen dataclass from the fields that `dataclasses.asdict` gives.

    Args:
      kind: its class. Its fields are numbers, flags, texts, tuples of whole numbers, and `rope`.
      fields: by name; those with a default may be absent.
      whole: no field may be absent.

    Raises:
      ValueError: a field is missing, unknown, of the wrong type or out of range.
    """
    declared = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name, field in declared.items():
        if (whole or field.default is dataclasses.MISSING) and name not in fields:
            raise ValueError(f"{name} is missing")
    if unknown := sorted({*fields} - {*declared}):
        raise ValueError(f"unknown field {unknown[0]!r}")
    given = {name: _checked(name, declared[name].type, value) for name, value in fields.items()}
    try:
        return kind(**given)
    except TypeError as error:
        raise ValueError(str(error)) from error


def check_head_size(head_size: int, vocab_size: int) -> None:
    """Checks how many tokens a drafter says by the target's head, 0 for all.

    Raises:
      ValueError: it is out of range.
    """
    if not 0 <= head_size <= vocab_size:
        raise ValueError(f"head_size must be from 0 to the vocabulary's {vocab_size}; got {head_size}")


def _checked(name: str, kind: Any, value: Any) -> Any:
    """Returns a field's value in its type."""
    if kind is RopeConfig:
        if not isinstance(value, Mapping):
            raise ValueError(f"{name} must be an object; got {value!r}")
        given: dict[str, Any] = {key: tuple(x) if isinstance(x, list) else x for key, x in value.items()}
        try:
            return RopeConfig(**given)
        except TypeError as error:
            raise ValueError(f"{name}: {error}") from error
    if kind in (int, float, bool, str):
        if type(value) is not kind:
            raise ValueError(f"{name} must be of type {kind.__name__}; got {value!r}")
        return value
    if not isinstance(value, list | tuple) or not all(type(x) is int for x in value):
        raise ValueError(f"{name} must be a list of whole numbers; got {value!r}")
    return tuple(value)
