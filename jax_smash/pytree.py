"""Frozen dataclasses that are JAX pytrees."""

import dataclasses
from typing import Any, TypeVar, dataclass_transform

import jax

T = TypeVar("T")

SHOWN = 16
"""Entries of a list, tuple or dict that a `repr` shows; of more it says how many."""

LONGEST = 200
"""Characters of one field of a `repr`."""


def static(**kwargs: Any) -> Any:
    """Declares a field that is part of the tree's structure: hashable, compared, never traced."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(static, dataclasses.field))
def pytree(cls: type[T]) -> type[T]:
    """Makes a class a frozen, keyword-only dataclass whose fields are the children of a pytree.

    Fields declared with `static()` go into the tree's structure. Rebuilding an instance from leaves does not run
    `__init__`, so transformations may put placeholders where arrays belong.
    """
    data_class = dataclasses.dataclass(frozen=True, kw_only=True, repr=False)(cls)
    data_class.__repr__ = shown  # type: ignore[assignment, method-assign]
    fields = dataclasses.fields(data_class)  # type: ignore[arg-type]
    children = tuple(f.name for f in fields if not f.metadata.get("static"))
    statics = tuple(f.name for f in fields if f.metadata.get("static"))

    def flatten_with_keys(x: Any) -> Any:
        return (
            tuple((jax.tree_util.GetAttrKey(n), getattr(x, n)) for n in children),
            tuple(getattr(x, n) for n in statics),
        )

    def flatten(x: Any) -> Any:
        return tuple(getattr(x, n) for n in children), tuple(getattr(x, n) for n in statics)

    def unflatten(aux: Any, leaves: Any) -> Any:
        x = object.__new__(data_class)
        for name, value in (*zip(children, leaves, strict=True), *zip(statics, aux, strict=True)):
            object.__setattr__(x, name, value)
        return x

    jax.tree_util.register_pytree_with_keys(data_class, flatten_with_keys, unflatten, flatten)
    return data_class


def shown(value: Any) -> str:
    """Returns a `repr` that names arrays by dtype and shape, as in `int32[8,64]`, and never prints what they hold."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (f.name for f in dataclasses.fields(value) if f.repr)
        return f"{type(value).__name__}({', '.join(f'{name}={shown(getattr(value, name))}' for name in fields)})"
    if type(value) in (list, tuple, dict) and len(value) > SHOWN:
        return f"{type(value).__name__} of {len(value)}"
    if type(value) is dict:
        return f"{{{', '.join(f'{key!r}: {shown(item)}' for key, item in value.items())}}}"
    if type(value) in (list, tuple):
        inside = ", ".join(map(shown, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' if len(value) == 1 else ''})"
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST].splitlines()[0]}…"


def size(tree: Any) -> str:
    """Returns how much a tree's arrays hold, as in `4.0M float32, 16.1 MB`; numbers are counted, scales included."""
    arrays = [x for x in jax.tree.leaves(tree) if hasattr(x, "dtype") and hasattr(x, "size")]
    count, nbytes = sum(x.size for x in arrays), sum(x.size * x.dtype.itemsize for x in arrays)
    dtypes = " and ".join(dict.fromkeys(str(x.dtype) for x in sorted(arrays, key=lambda x: -x.size)))
    return f"{_few_digits(count)} {dtypes}, {_few_digits(nbytes, ' ')}B" if arrays else "no arrays"


def _few_digits(number: float | int, space: str = "") -> str:
    units = ["", "k", "M", "G", "T"]
    while number >= 999.5 and len(units) > 1:
        number, units = number / 1000, units[1:]
    return f"{number}{space}" if isinstance(number, int) else f"{number:.1f}{space}{units[0]}"


def replace(x: T, **changes: Any) -> T:
    """Returns a copy of a pytree dataclass with some fields changed."""
    return dataclasses.replace(x, **changes)  # type: ignore[type-var]
