"""What methods with a trained drafter share: which drafter the options name, and whether it fits the target."""

import dataclasses
import itertools
import logging
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Int

from jax_smash.draft.trees.confident import confident
from jax_smash.draft.trees.templates import LEVELS, RANKS, named_tree, sized
from jax_smash.draft.trees.tree import Topology
from jax_smash.ladder import Ladder, Reach, make_ladder
from jax_smash.loading import Model, weights_fingerprint
from jax_smash.methods.draft_options import RANDOM
from jax_smash.methods.drafted import drafted, tell_of_positions
from jax_smash.methods.method import Method, Setup
from jax_smash.models.short_head import ROLE, said_of
from jax_smash.platform import target_platform
from jax_smash.protocols import LateLearner
from jax_smash.quantise import activation_dtype, has_int8, quantise_params
from jax_smash.sharding import mesh_of, place

LOG = logging.getLogger("jax_smash")

NUMBERS = itertools.count()
"""Numbers of loaded drafters."""

LOADED: dict[int, str] = {}
"""What tells loaded drafters apart that are still there, by their ids."""


def fitting(
    model: Model,
    given: Any,
    *,
    method: str,
    slots: int,
    kind: type | tuple[type, ...],
    read: Callable[[str | Path], Any],
    load: Callable[..., Any],
    random: Callable[..., Any],
    check: Callable[[Any, Model, str], None],
) -> Any:
    """Returns the drafter that the options name, after checking that it fits; nothing is loaded before.

    Its parameters are held as the target's are. What was loaded for a model serves later calls while its files stay the
    same.

    Args:
      model: the target at hand.
      given: a folder, a loaded drafter, or `RANDOM`.
      method: its name.
      slots: cache slots a row. Where the drafter has fewer positions, or was trained on shorter rows, a warning tells.
      kind: the class of loaded drafters, or several.
      read: returns what a folder says: its configuration, the fingerprint of the target's weights, and the length of
        the rows that it was trained on.
      load: returns the drafter in a folder.
      random: returns one with random weights for a configuration of a target.
      check: refuses a target that a configuration is not for.

    Raises:
      ValueError: the drafter is of another kind or for another target.
    """
    target = model.params["target"]
    dtype = activation_dtype(target)

    def checked(described: Any, where: str) -> Any:
        check(described.config, model, where)
        check_trained_for(described.base_fingerprint, model, where)
        return described

    def loaded() -> Any:
        checked(read(given), f"the drafter in {given}")
        return _held(model, load(given, dtype=dtype))

    if isinstance(given, str | Path) and str(given) == RANDOM:
        if model.config is None:
            raise ValueError(f"a random drafter needs a model of this package; {model.name} is none")
        return _held(model, random(model.config, dtype=dtype))
    if isinstance(given, str | Path):
        found = model.kept.get(method, _files(given), target, loaded)
    elif isinstance(given, kind):
        found = _held(model, checked(given, "the drafter"))
    else:
        kinds = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
        raise ValueError(f"method {method} needs {kinds} as its drafter; got {type(given).__name__}")
    tell_of_positions(getattr(found.config, "max_positions", 0), slots)
    if (length := found.trained_length) is not None and length < slots:
        LOG.warning(
            "jax-smash: rows have room for %d tokens, and the drafter was trained on rows of %d: of later ones the "
            "target may keep fewer",
            slots,
            length,
        )
    return found


def _held(model: Model, modules: Any) -> Any:
    return dataclasses.replace(modules, params=held_as(model, modules.params))


def _files(folder: str | Path) -> tuple[Any, ...]:
    """Returns what changes when a file of a folder does."""
    folder = Path(folder).expanduser().resolve()
    found = sorted(filter(Path.is_file, folder.iterdir())) if folder.is_dir() else []
    told = ((file.name, file.stat()) for file in found)
    return str(folder), *((name, stat.st_ino, stat.st_mtime_ns, stat.st_size) for name, stat in told)


def check_sizes(sizes: Mapping[str, tuple[int, int]], model: Model, where: str) -> None:
    """Refuses a target of another size than the drafter was made for.

    Args:
      sizes: what the drafter wants and what the target has, by name.
      model: the target at hand.
      where: the drafter is, named in errors.

    Raises:
      ValueError: a size differs.
    """
    for name, (wanted, found) in sizes.items():
        if wanted != found:
            raise ValueError(f"{where} is for a target with a {name} of {wanted}; {model.name} has one of {found}")


def check_shape(config: Any, model: Model, where: str) -> None:
    """Refuses another target than a drafter was made for that reads its hidden states alone.

    Args:
      config: of the drafter: `d_model` and `vocab_size`.
      model: the target at hand.
      where: the drafter is, named in errors.

    Raises:
      ValueError: the target has another width or vocabulary.
    """
    sizes = {"width": (config.d_model, model.width), "vocabulary": (config.vocab_size, model.vocab_size)}
    check_sizes(sizes, model, where)


def check_tapped(config: Any, model: Model, where: str) -> None:
    """Refuses another target than a drafter that reads taps was made for.

    Args:
      config: of the drafter: `taps`, `d_model`, `vocab_size` and `target_layers`.
      model: the target at hand.
      where: the drafter is, named in errors.

    Raises:
      ValueError: the target gives no taps, or has another width, vocabulary or number of layers.
    """
    if not model.taps:
        raise ValueError(f"{where} reads taps {list(config.taps)} of its target; {model.name} gives none")
    sizes = {
        "width": (config.d_model, model.width),
        "vocabulary": (config.vocab_size, model.vocab_size),
        "number of layers": (config.target_layers, model.taps - 1),
    }
    check_sizes(sizes, model, where)


def check_trained_for(expected: str, model: Model, where: str) -> None:
    """Refuses another target than the one that the drafter was trained for, of the same shape though it is.

    Args:
      expected: fingerprint of the weights that it was trained for; empty where nobody told.
      model: the target at hand.
      where: the drafter is, named in errors.

    Raises:
      ValueError: the target's weights are others, or do not tell which they are.
    """
    if not expected:
        return
    if (found := weights_fingerprint(model)) is None:
        reason = (
            "is no model of this package, and has no fingerprint to compare"
            if model.config is None
            else "does not tell what its rounded ones were made from: load them in another dtype"
        )
        raise ValueError(f"{where} goes with the weights alone that it was trained for, and {model.name} {reason}")
    if found != expected:
        raise ValueError(
            f"{where} was trained for a target whose weights have fingerprint {expected[:16]}…; "
            f"those of {model.name} have {found[:16]}…"
        )


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained drafter for a model.

    Attributes:
      drafter: drafts, and learns later from steps without drafts.
      ladder: its trees.
      params: its parameters.
      said: the rows of the target's head that it says tokens by, and these; None where it has a head of its own or says
        all of them.
    """

    drafter: LateLearner
    ladder: Ladder
    params: Any
    said: nnx.State | None = None

    def added(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a method's parameters with the drafter's."""
        return {**params, "drafter": self.params} | ({} if self.said is None else {ROLE: self.said})


def method_of(name: str, make: Callable[[Setup], Trained]) -> Callable[[Setup], Method]:
    """Returns what makes the method of a trained drafter.

    Args:
      name: of the method.
      make: makes the drafter.
    """

    def method(setup: Setup) -> Method:
        made = make(setup)
        found = drafted(name, setup, made.drafter, None, ladder=made.ladder)
        return dataclasses.replace(found, params=made.added(found.params))

    return method


def ladder_of(setup: Setup, method: str, reach: Reach, *, drafting: float = 0.0, once: float = 0.0) -> Ladder:
    """Returns the tree that is named, or those that pay on this device, no draft at all among them.

    Args:
      setup: of the method.
      method: that drafts.
      reach: of trees that are not named. No tree of so many nodes has more levels.
      drafting, once: plain steps that drafting takes: for each level, and whatever the tree's size.
    """
    tree = setup.draft.tree
    if tree != "auto":
        return Ladder(trees=(topology_of(tree, reach),), source=f"the tree {tree}")
    return make_ladder(
        setup.model,
        "auto",
        method=method,
        reach=reach,
        batch=setup.batch,
        slots=setup.slots,
        sampled=setup.sampled,
        costs=setup.draft.costs,
        drafting=drafting,
        once=once,
        steps=f"{setup.within} {setup.draft.gram_slots} {setup.log_probs} {_named(setup.draft.drafter)}",
    )


def topology_of(tree: str, reach: Reach) -> Topology:
    """Returns the tree of a name; one that gives a size alone has nodes where something can be drafted."""
    sizes, nodes = confident(tree), sized(tree)
    if sizes is not None:
        return sizes.topology
    if nodes is None:
        return named_tree(tree)
    # On a CPU too, where automatic trees are chains: a tree is asked for.
    return Reach(ranks=RANKS, levels=min(LEVELS, reach.levels)).tree(nodes)


def _named(drafter: Any) -> str:
    """Returns what tells drafters apart: what is kept of one's drafts says nothing of another's."""
    if isinstance(drafter, str | Path):
        return str(drafter)
    # Another object may come to stand where one has gone, and it has its id.
    place = id(drafter)
    if place not in LOADED:
        LOADED[place] = f"loaded {next(NUMBERS)}"
        weakref.finalize(drafter, LOADED.pop, place)
    return LOADED[place]


def branching(ranks: int, *, levels: int) -> Reach:
    """Returns the reach of a drafter that reads each level of a tree before it drafts the next.

    On a CPU, where each node of a level takes time, a chain.

    Args:
      ranks: children of a node elsewhere.
      levels: depth at most.
    """
    return Reach(ranks=1 if target_platform() == "cpu" else ranks, levels=levels)


def width_of(ladder: Ladder, reach: Reach) -> int:
    """Returns how many children a node has at most; a tree that is sized may come to have any shape within reach."""
    return reach.ranks if ladder.sizing is not None else max(int(tree.rank.max()) + 1 for tree in ladder.trees)


def room_of(ladder: Ladder, reach: Reach) -> int:
    """Returns how many nodes of one depth have children at most, likewise."""
    if ladder.sizing is not None:
        return 1 if reach.ranks == 1 else max(tree.nodes for tree in ladder.trees) - 1
    return max((n for tree in ladder.trees for n in np.bincount(tree.depth)[:-1].tolist()), default=1)


def said_rows(model: Model, tokens: Int[np.ndarray, "X"] | None) -> nnx.State | None:
    """Returns what stands under `ROLE` for a drafter that says some tokens by the target's head; None for all.

    Raises:
      ValueError: the target is no model of this package, and its head has another form.
    """
    if tokens is None:
        return None
    bound = model.definition.bind(model.params["target"])
    if not hasattr(bound, "rows_of"):
        raise ValueError(f"a drafter that says some tokens alone needs a model of this package; {model.name} is none")
    said, mesh = said_of(bound, tokens), mesh_of(model.params)
    return said if mesh is None else place(said, mesh)


def share_of_step(model: Model, params: Any, *, head: int = 0) -> float:
    """Returns how many plain steps a forward of a drafter takes, by the bytes of the weights that each reads.

    Args:
      model: the target.
      params: of the drafter, as `held_as` returns them.
      head: rows of the target's head that it reads too.
    """
    target = model.params["target"]
    itemsize = 1 if has_int8(target) else jnp.dtype(activation_dtype(target)).itemsize
    rows = head * model.width * itemsize
    return (_bytes(params) + rows) / _bytes(target)


def _bytes(params: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(params))


def held_as(model: Model, params: Any) -> Any:
    """Returns the drafter's parameters as the target's are held: int8 or not, and on its devices."""
    if has_int8(model.params["target"]) and not has_int8(params):
        params = quantise_params(params)
    mesh = mesh_of(model.params)
    return params if mesh is None else place(params, mesh)
