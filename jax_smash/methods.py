"""Decoding methods by name, and what each needs to run for a model. A new method is one entry here."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from jax_smash.decode.autoregressive import Autoregressive
from jax_smash.decode.speculative import DraftMemory, Speculative
from jax_smash.draft.recycling import Recycling
from jax_smash.draft.templates import named_tree
from jax_smash.draft.tree import Topology
from jax_smash.protocols import Params, Strategy

if TYPE_CHECKING:
    from jax_smash.loading import Model


@dataclasses.dataclass(frozen=True)
class DraftOptions:
    """What a user may ask of drafted decoding.

    Attributes:
      tree: `auto`, or a name of `draft.templates.named_tree`.
      warm_start: a file that `Recycling` saved.
    """

    tree: str = "auto"
    warm_start: Path | None = None


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to decode one model.

    Attributes:
      name: of `METHODS`.
      strategy: what one step of the loop does.
      params: parameters of every module that decodes, by role.
      memory: what the rows share before the first of them has read anything; None in plain decoding.
    """

    name: str
    strategy: Strategy
    params: Params
    memory: Any = None


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a method is made from.

    Attributes:
      model: that decodes.
      sampled: some row may sample.
      log_probs: likeliest tokens to record beside each emitted one.
      draft: options of drafted decoding.
    """

    model: "Model"
    sampled: bool
    log_probs: int | None
    draft: DraftOptions


def make_method(
    model: "Model",
    name: str,
    *,
    sampled: bool = False,
    log_probs: int | None = None,
    draft: DraftOptions = DraftOptions(),
) -> Method:
    """Makes a method for a model.

    Args:
      model: the model that decodes.
      name: of `METHODS`.
      sampled: some row may sample.
      log_probs: record this many likeliest tokens beside each emitted one.
      draft: options of drafted decoding.

    Raises:
      ValueError: no method has this name, or an option does not fit it.
      OSError: a file that an option names cannot be read.
    """
    check_method(name)
    if name == "ar" and draft != DraftOptions():
        raise ValueError("ar drafts nothing: options of drafting need another method")
    return METHODS[name](Setup(model=model, sampled=sampled, log_probs=log_probs, draft=draft))


def check_method(name: str) -> None:
    """Checks a method's name.

    Raises:
      ValueError: no method has it.
    """
    if name not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {name!r}")


def _plain(setup: Setup) -> Method:
    strategy = Autoregressive(target=setup.model.definition, sampled=setup.sampled, log_probs=setup.log_probs)
    return Method("ar", strategy, setup.model.params)


def _recycling(setup: Setup) -> Method:
    drafter = Recycling(target=setup.model.definition)
    return _drafted("recycling", setup, drafter, drafter.empty(setup.model.params))


def _drafted(name: str, setup: Setup, drafter: Any, memory: Any) -> Method:
    ladder = _ladder(setup)
    strategy = Speculative(
        target=setup.model.definition,
        drafter=drafter,
        levels=max(tree.levels for tree in ladder),
        sampled=setup.sampled,
        log_probs=setup.log_probs,
    )
    choice = jnp.asarray(len(ladder) - 1, jnp.int32)
    return Method(name, strategy, setup.model.params, DraftMemory(ladder=ladder, choice=choice, drafter=memory))


def _ladder(setup: Setup) -> tuple[Topology, ...]:
    name = "recycling-80" if setup.draft.tree == "auto" else setup.draft.tree
    return (named_tree(name),)


METHODS: dict[str, Callable[[Setup], Method]] = {
    "ar": _plain,
    "recycling": _recycling,
}
