"""Arrays over a mesh of devices, by the names of their axes.

A weight declares logical axes ("embed", "kv_heads", "mlp", "vocab") where it is made; rules map them to the axes of a
mesh: `data` (copies of the model, each with its rows), `fsdp` (rows, and a share of every weight) and `tp` (heads, MLP
width and vocabulary). Everything is placed by name and whole-array shape, never by lists of devices, so a mesh may span
several hosts.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from types import EllipsisType, MappingProxyType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, Sharding
from jaxtyping import Array, Shaped

Tree = TypeVar("Tree")
Rules = Mapping[str, tuple[str, ...]]
"""Mesh axes that a logical axis is divided over, a mesh axis at most once an array: the first logical axis takes it."""

AXES = ("data", "fsdp", "tp")
"""Axes of every mesh."""

RULES: Rules = MappingProxyType(
    {
        "batch": ("data", "fsdp"),
        # Rows of an activation whose width is divided over fsdp, as the weights are: see `models.layers.rows_axis`.
        "rows": ("data",),
        "embed": ("fsdp",),
        "kv_heads": ("tp",),
        "mlp": ("tp",),
        "vocab": ("tp",),
    }
)

REPLICATED_UNLESS_DIVISIBLE = ("kv_heads", "vocab")
"""Axes of which a device holds all where they do not divide: how many there are is the model's affair, not the user's.
Grouped-query models have 1 to 8 key-value heads, and vocabularies may have any size."""


PRESETS = ("dp", "fsdp", "tp", "fsdp+tp")
"""Meshes by name, over all devices at hand: copies of the model; rows and a share of every weight; heads, MLP width and
vocabulary; or these for as many devices as the model's KV heads allow, and `fsdp` for the rest."""

VIRTUAL_DEVICES = 64
"""Devices that a CPU is made to have at most."""


@dataclasses.dataclass(frozen=True)
class MeshShape:
    """Devices along each axis of a mesh."""

    data: int = 1
    fsdp: int = 1
    tp: int = 1

    def __post_init__(self) -> None:
        for name, size in zip(AXES, self.sizes, strict=True):
            if size < 1:
                raise ValueError(f"mesh axis {name} must be at least 1; got {size}")

    @property
    def sizes(self) -> tuple[int, int, int]:
        """In the order of `AXES`."""
        return self.data, self.fsdp, self.tp

    @property
    def size(self) -> int:
        """Devices in all."""
        return math.prod(self.sizes)

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in zip(AXES, self.sizes, strict=True) if size > 1) or "data=1"


def parse_mesh(text: str, *, devices: int | None = None, kv_heads: int | None = None) -> MeshShape:
    """Returns the shape that a text names: sizes, as in `fsdp=4,tp=2`, or one of `PRESETS`. Axes left out have size 1.

    Args:
      text: sizes or a preset.
      devices: that a preset divides; None for as many as there are, on every host. It starts JAX.
      kv_heads: of the model, for the preset `fsdp+tp`.

    Raises:
      ValueError: the text has another form, or names an unknown axis or one axis twice; `fsdp+tp` is given without
        `kv_heads`.
    """
    if text.strip() in PRESETS:
        return _preset(text.strip(), jax.device_count() if devices is None else devices, kv_heads)
    sizes: dict[str, int] = {}
    for piece in text.split(","):
        name, equals, size = (part.strip() for part in piece.partition("="))
        if not (equals and size.isascii() and size.isdecimal()):
            raise ValueError(
                f"mesh must be AXIS=SIZE pairs, as in fsdp=4,tp=2, or one of {', '.join(PRESETS)}; got {text!r}"
            )
        if name not in AXES:
            raise ValueError(f"a mesh axis must be one of {', '.join(AXES)}; got {name!r} in {text!r}")
        if name in sizes:
            raise ValueError(f"a mesh axis must be named once; got {name} twice in {text!r}")
        sizes[name] = int(size)
    return MeshShape(**sizes)


def _preset(name: str, devices: int, kv_heads: int | None) -> MeshShape:
    """Returns what a preset makes of so many devices."""
    if name == "dp":
        return MeshShape(data=devices)
    if name != "fsdp+tp":
        return MeshShape(**{name: devices})
    if kv_heads is None:
        raise ValueError("mesh fsdp+tp needs the model's number of KV heads; give sizes instead, as in fsdp=4,tp=2")
    tp = math.gcd(devices, kv_heads)
    return MeshShape(fsdp=devices // tp, tp=tp)


def check_mesh(text: str) -> None:
    """Checks a text for `parse_mesh`, without asking for devices.

    Raises:
      ValueError: it has another form, or names an unknown axis or one axis twice.
    """
    parse_mesh(text, devices=1, kv_heads=1)


def make_mesh(
    shape: str | MeshShape, *, devices: Sequence[jax.Device] | None = None, kv_heads: int | None = None
) -> Mesh:
    """Makes a mesh with all of `AXES`, over as many devices as its shape has.

    Args:
      shape: a shape, or a text for `parse_mesh`.
      devices: to choose from, in order; None means all that there are, on every host.
      kv_heads: of the model that is divided, for the preset `fsdp+tp`.

    Raises:
      ValueError: the text is malformed, or the shape does not fit the devices.
    """
    available = list(jax.devices() if devices is None else devices)
    shape = parse_mesh(shape, devices=len(available), kv_heads=kv_heads) if isinstance(shape, str) else shape
    if shape.size > len(available):
        raise ValueError(f"mesh {shape} needs {shape.size} devices; got {len(available)}")
    if shape.size < len(available) and jax.process_count() > 1:
        raise ValueError(f"mesh {shape} has {shape.size} devices; on several hosts it must have all {len(available)}")
    available, types = available[: shape.size], (AxisType.Auto,) * len(AXES)
    try:
        return jax.make_mesh(shape.sizes, AXES, axis_types=types, devices=available)
    except NotImplementedError:
        # No axes of the topology multiply to one of the mesh, as of 4x4x4 to 8: two axes of the mesh share one of it.
        shared = mesh_utils.create_device_mesh(shape.sizes, available, allow_split_physical_axes=True)
        return Mesh(shared, AXES, axis_types=types)


def add_virtual_devices(shape: str | MeshShape | None, *, processes: int = 1) -> None:
    """Has a CPU make as many devices as a mesh needs, at most `VIRTUAL_DEVICES`, where JAX has not begun to use it.

    Other devices are as many as there are. For programs: a library leaves the choice to who imports it.

    Args:
      shape: of the mesh; None needs one device, and a preset takes those that there are.
      processes: that share the mesh, each with as many of its devices.

    Raises:
      ValueError: the text is malformed.
    """
    # Of a preset this is one device, so that none is added.
    shape = parse_mesh(shape, devices=1, kv_heads=1) if isinstance(shape, str) else shape or MeshShape()
    now = jax.config.jax_num_cpu_devices  # type: ignore[attr-defined]
    each = -(-shape.size // processes)
    if 1 < each <= VIRTUAL_DEVICES and now < each:
        with contextlib.suppress(RuntimeError):  # The devices are in use, and their number is fixed.
            jax.config.update("jax_num_cpu_devices", each)


def mesh_of_hosts() -> Mesh | None:
    """Returns a mesh that gives every device of several hosts a share of the rows; None where there is one host."""
    return None if jax.process_count() == 1 else make_mesh(MeshShape(data=jax.device_count()))


def on_mesh(mesh: Mesh | None) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which `constrain` means this mesh and new arrays lie on it; None changes nothing."""
    return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)


def spans_hosts(mesh: Mesh | None) -> bool:
    """Returns whether a mesh has devices of several hosts."""
    return mesh is not None and mesh.is_multi_process


def put(x: Any, mesh: Mesh | None, *axes: str | None) -> Any:
    """Returns an array where a mesh holds it, by the logical names of its leading axes; None leaves it where it is."""
    return x if mesh is None else to_devices(x, axes_sharding(x.shape, axes, mesh))


def to_devices(x: Any, sharding: Sharding) -> Any:
    """Returns an array on its devices. Over several hosts, each gives the shares of its own and must have it whole.

    Nothing is compared between the hosts, as `jax.device_put` would: that they have the same is the caller's affair.
    """
    if sharding.is_fully_addressable:
        return jax.device_put(x, sharding)
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        # The key's numbers are one more axis, which every device has whole. JAX moves no keys between hosts.
        numbers = to_devices(jax.random.key_data(x), sharding)
        return jax.random.wrap_key_data(numbers, impl=jax.random.key_impl(x))
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        return jax.device_put(x, sharding)
    host = np.asarray(x)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def on_host(tree: Any) -> Any:
    """Returns a tree of arrays as NumPy's. Of arrays that span hosts each host gets all, so all must ask alike."""

    def fetched(x: Any) -> Any:
        if isinstance(x, jax.Array) and not (x.is_fully_addressable or x.is_fully_replicated):
            return multihost_utils.process_allgather(x, tiled=True)
        return jax.device_get(x)

    return jax.tree.map(fetched, tree)


def share_of(x: Any, mesh: Mesh | AbstractMesh | None, *axes: str | None) -> jax.ShapeDtypeStruct:
    """Returns the shape that a device has of an array laid out as by `put`."""
    shape = x.shape if mesh is None else axes_sharding(x.shape, axes, mesh).shard_shape(x.shape)
    return jax.ShapeDtypeStruct(shape, x.dtype)


def mesh_of(tree: Any) -> Mesh | None:
    """Returns the mesh that a tree's arrays, or their shapes with shardings, lie on; None where they lie on none."""
    for leaf in jax.tree.leaves(tree):
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh):
            return sharding.mesh
    return None


def axes_sharding(
    shape: Sequence[int], axes: Sequence[str | None], mesh: Mesh | AbstractMesh, *, rules: Rules = RULES
) -> Any:
    """Returns how an array lies on a mesh, by the names of its leading axes; an axis that does not divide is whole."""
    return NamedSharding(mesh, _spec(shape, axes, mesh, rules))


def param_shardings(params: Tree, mesh: Mesh | AbstractMesh, *, rules: Rules = RULES) -> Tree:
    """Returns the same tree with the sharding of each array in its place.

    Axes are read from the `nnx` variables in the tree, so anything that mirrors parameters will do: parameters, their
    abstract shapes, gradients, an optimiser's state. A variable may hold several arrays (a quantised weight's values
    and scales) of the declared rank; an axis of size 1 is never divided, and a last axis of `units` only between them.
    Arrays that are no variable's are replicated.

    Raises:
      ValueError: an axis of a weight is not divisible by its mesh axes, or has no rule. Axes in
        `REPLICATED_UNLESS_DIVISIBLE` are left whole instead.
    """

    def of_node(path: Any, node: Any) -> Any:
        if not isinstance(node, nnx.Variable):
            return NamedSharding(mesh, PartitionSpec())
        axes = node.get_metadata().get("out_sharding") or ()
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        units = node.get_metadata().get("units")

        def of_array(x: Any) -> NamedSharding:
            shape = x.shape if units is None or x.shape[-1] == 1 else (*x.shape[:-1], units)
            return NamedSharding(mesh, _weight_spec(name, shape, axes, mesh, rules))

        return jax.tree.map(of_array, node)

    return jax.tree_util.tree_map_with_path(of_node, params, is_leaf=lambda x: isinstance(x, nnx.Variable))


def place(params: Tree, mesh: Mesh, *, rules: Rules = RULES) -> Tree:
    """Returns a tree that mirrors parameters with every array on its devices. On several hosts, all hold the same.

    Raises:
      ValueError: as `param_shardings`.
    """
    return jax.tree.map(to_devices, params, param_shardings(params, mesh, rules=rules))


def constrain(x: Shaped[Array, "..."], *axes: str | EllipsisType | None) -> Shaped[Array, "..."]:
    """Fixes, in a traced function, how an activation lies on the ambient mesh; without one it changes nothing.

    Args:
      x: the activation.
      axes: logical names of its leading axes, or after `...`, which leaves all before it to the compiler, of its last
        ones. An axis that does not divide is left whole.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if not _free(mesh):
        return x
    names = [axis for axis in axes if not isinstance(axis, EllipsisType)]
    free = x.ndim - len(names) if len(names) < len(axes) else 0
    spec = PartitionSpec(*[PartitionSpec.UNCONSTRAINED] * free, *_spec(x.shape[free:], names, mesh, RULES))
    return jax.lax.with_sharding_constraint(x, spec)


def is_divided() -> bool:
    """Whether a traced function's arrays may be divided over an ambient mesh."""
    return bool(_free(jax.sharding.get_abstract_mesh()))


def dividing_axis(axis: str, size: int) -> str | None:
    """Returns the mesh axis that a logical axis of this size is divided over; None where there is none, or several."""
    entries = tuple(_spec((size,), (axis,), jax.sharding.get_abstract_mesh(), RULES))
    return entries[0] if entries and isinstance(entries[0], str) else None


def on_each_device(
    function: Callable[..., Any],
    first: tuple[Any, tuple[str | None, ...]],
    *others: tuple[Any, tuple[str | None, ...]],
) -> Any:
    """Returns what a function makes of its first argument, each device working on its own share.

    For functions that need nothing from another device, and that XLA cannot see this of.

    Args:
      function: returns arrays that are divided as its first argument is.
      first, others: its arguments, trees of arrays, each with the logical names of their arrays' leading axes.
    """
    arguments, axes = zip(first, *others, strict=True)
    mesh = jax.sharding.get_abstract_mesh()
    if not _free(mesh):
        return function(*arguments)
    specs = tuple(
        jax.tree.map(lambda x, names=names: _spec(x.shape, names, mesh, RULES), argument)
        for argument, names in zip(arguments, axes, strict=True)
    )
    return jax.shard_map(function, in_specs=specs, out_specs=specs[0], check_vma=False)(*arguments)


def _weight_spec(
    name: str, shape: Sequence[int], axes: Sequence[str | None], mesh: Mesh | AbstractMesh, rules: Rules
) -> Any:
    free = _free(mesh)
    if axes and len(axes) != len(shape):
        raise ValueError(f"{name} must have an axis for each of {tuple(axes)}; got shape {tuple(shape)}")
    for size, axis in zip(shape, axes, strict=False):
        if axis is None or size == 1 or axis in REPLICATED_UNLESS_DIVISIBLE:
            continue
        if axis not in rules:
            raise ValueError(f"{name} must have axes with a rule ({', '.join(rules)}); got {axis!r}")
        over = {n: free[n] for n in rules[axis] if n in free}
        if size % math.prod(over.values()):
            sizes = ",".join(f"{n}={s}" for n, s in over.items())
            raise ValueError(f"{name}: its axis {axis!r} must be divisible by the mesh's {sizes}; got size {size}")
    return _spec(shape, axes, mesh, rules)


def _spec(shape: Sequence[int], axes: Sequence[str | None], mesh: Mesh | AbstractMesh, rules: Rules) -> PartitionSpec:
    """Returns the mesh axes of each array axis, in one canonical form, so that equal placements compare equal."""
    free = _free(mesh)
    entries: list[Any] = []
    for size, axis in zip(shape, axes, strict=False):
        taken: list[str] = []
        share = 1
        for name in rules.get(axis, ()) if axis else ():
            if name in free and size % (share * free[name]) == 0:
                share *= free.pop(name)
                taken.append(name)
        entries.append(None if not taken else taken[0] if len(taken) == 1 else tuple(taken))
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def _free(mesh: Mesh | AbstractMesh) -> dict[str, int]:
    """Returns the sizes of the axes that arrays may be divided over: in a `shard_map`, its own are not among them."""
    axes = zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types, strict=True)
    return {name: size for name, size, kind in axes if size > 1 and kind == AxisType.Auto}
