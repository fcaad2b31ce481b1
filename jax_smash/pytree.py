"""Frozen dataclasses that are JAX pytrees."""

import dataclasses
from typing import Any, TypeVar, dataclass_transform

import jax

T = TypeVar("T")


def static(**kwargs: Any) -> Any:
    """Declares a field that is part of the tree's structure: hashable, compared, never traced."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(static, dataclasses.field))
def pytree(cls: type[T]) -> type[T]:
    """Makes a class a frozen, keyword-only dataclass whose fields are the children of a pytree.

    Fields declared with `static()` go into the tree's structure. Rebuilding an instance from leaves does not run
    `__init__`, so transformations may put placeholders where arrays belong.
    """
    data_class = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
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


def replace(x: T, **changes: Any) -> T:
    """Returns a copy of a pytree dataclass with some fields changed."""
    return dataclasses.replace(x, **changes)  # type: ignore[type-var]
