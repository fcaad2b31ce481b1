"""Folders of trained drafters: their kind, and whether they are a base's own; and random ones in their place."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.drafting.random_drafters import KINDS, random_kind
from jax_smash.checkpoints.chimera import load_chimera
from jax_smash.checkpoints.contents import DRAFTERS
from jax_smash.checkpoints.dflash import load_dflash
from jax_smash.checkpoints.eagle_drafters import load_eagle_drafter
from jax_smash.checkpoints.medusa import load_medusa
from jax_smash.checkpoints.smasher import is_smasher, read_smasher
from jax_smash.config import ModelConfig
from jax_smash.loading import Model, check_modules, grafted, load, stored_base
from jax_smash.methods.draft_options import OPTIONS, READERS, DraftOptions
from jax_smash.smash.options import SmashOptions

LOADERS: dict[str, Callable[..., Any]] = {
    "eagle": load_eagle_drafter,
    "medusa": load_medusa,
    "chimera": load_chimera,
    "dflash": load_dflash,
}
"""What loads a folder's drafter, by method."""

FOLDER = "drafter"
"""Of a training run's export; then the run's own name tells more."""

BESIDE = "hybrid+"
"""Before a drafter's name where method hybrid drafts with it too."""

MICRO, HAMBURGER = "micro", "hamburger"
"""The kind of HAMburger's modules, and the method that drafts with them in mode exact."""

SHOWN = 16
"""Digits of a fingerprint in a message."""


@dataclasses.dataclass(frozen=True)
class Trained:
    """A drafter in a folder, of which no weights have been read.

    Attributes:
      name: that tells it from others.
      folder: that holds it.
      kind: eagle, eagle1, medusa, chimera, dflash, or micro of HAMburger's modules.
      config: of its modules.
      weights_sha256: of its weights' file.
      base_fingerprint: of the weights that it was trained for; empty where nobody told.
      target: configuration of the base that random weights are made for; None where the folder holds weights.
    """

    name: str
    folder: Path
    kind: str
    config: Any
    weights_sha256: str = ""
    base_fingerprint: str = ""
    target: ModelConfig | None = None

    @property
    def method(self) -> str:
        """The method that drafts with it."""
        return HAMBURGER if self.kind == MICRO else self.kind.removesuffix("1")

    @property
    def depths(self) -> int | None:
        """Depths that it has a head or an entry for; None where a chain may be of any length."""
        sizes = {"medusa": "num_heads", "chimera": "decoding_heads"}
        if self.kind == "dflash":
            return self.config.block_size - 1
        if self.kind == MICRO:
            return self.config.micro_steps - 1
        return getattr(self.config, sizes[self.kind]) if self.kind in sizes else None

    @property
    def label(self) -> str:
        """Its name with the beginning of its weights' hash; its name alone where they are random."""
        return self.name if self.target is not None else f"{self.name}@{self.weights_sha256[:8]}"

    def load(self, dtype: Any) -> Any:
        """Returns the drafter on the default device in a dtype; HAMburger's modules where they are random alone."""
        if self.target is not None:
            return KINDS[self.kind].make(self.target, dtype=dtype)
        return LOADERS[self.method](self.folder, dtype=dtype)

    def facts(self) -> Mapping[str, Any]:
        """Returns what a report says of it beside its figures."""
        return {
            "drafter": self.name,
            "kind": self.kind,
            "config": dataclasses.asdict(self.config),
            "weights_sha256": self.weights_sha256,
            "base_fingerprint": self.base_fingerprint,
        }


def read_trained(folders: Sequence[Path], *, modules: bool = False, target: ModelConfig | None = None) -> list[Trained]:
    """Returns what folders say of their drafters.

    Args:
      folders: of the drafters.
      modules: HAMburger's modules, of one folder, are a drafter too.
      target: configuration of the base that `random:KIND` in place of a folder makes a drafter for; None refuses these.

    Raises:
      FileNotFoundError: one holds none.
      ValueError: a description is damaged, two drafters would have one name, there are modules of two folders, or there
        is no such kind of random ones.
    """
    found: list[Trained] = []
    for folder in folders:
        kind = None if target is None else random_kind(folder)
        if kind is not None and (modules or kind != MICRO):
            found.append(Trained(str(folder), folder, kind, KINDS[kind].config(target), target=target))
            continue
        kinds = [file.removesuffix(".json") for file in DRAFTERS if (folder.expanduser() / file).is_file()]
        whole = folder.expanduser().resolve()
        if modules and is_smasher(whole):
            kinds, described = [MICRO], read_smasher(whole)
        elif kinds:
            described = READERS[kinds[0].removesuffix("1")](folder)
        else:
            raise FileNotFoundError(f"{folder} must hold a drafter, one of {', '.join(DRAFTERS)}; there is none")
        # As it was asked for: a link has its own name.
        asked = Path(os.path.abspath(folder.expanduser()))
        name = asked.parent.name if asked.name == FOLDER else asked.name
        marks = described.weights_sha256, described.base_fingerprint
        found.append(Trained(name, folder, kinds[0], described.config, *marks))
    if twice := [drafter.name for drafter in found if sum(drafter.name == other.name for other in found) > 1]:
        raise ValueError(f"drafters must have different names; got {twice[0]} twice")
    if len(micro := [drafter.name for drafter in found if drafter.kind == MICRO]) > 1:
        raise ValueError(f"drafters must hold HAMburger's modules once, for the model is loaded with them; got {micro}")
    return found


def modules_of(drafters: Sequence[Trained]) -> Path | None:
    """Returns the folder of HAMburger's modules, which a model is loaded with; None where there are none."""
    return next((drafter.folder for drafter in drafters if drafter.kind == MICRO and drafter.target is None), None)


def loaded_beside(base: str, drafters: Sequence[Trained], *, dtype: Any) -> Model:
    """Returns a base, loaded with the modules of HAMburger that are among its drafters.

    Args:
      base: name, directory or hub id.
      drafters: its own.
      dtype: of the weights.
    """
    model = load(base, dtype=dtype, modules=modules_of(drafters))
    random = [drafter for drafter in drafters if drafter.kind == MICRO and drafter.target is not None]
    return grafted(model, random[0].load(dtype)) if random else model


@dataclasses.dataclass(frozen=True)
class Named:
    """A method under the name that a report's rows have.

    Attributes:
      name: of its rows.
      method: as `jax-smash generate --method` takes it.
      drafter: that it drafts with; None for none.
    """

    name: str
    method: str
    drafter: Trained | None = None

    def options(self, draft: DraftOptions) -> DraftOptions:
        """Returns what the method takes of some options, with its drafter."""
        given = {field.name: getattr(draft, field.name) for field in dataclasses.fields(draft)}
        given |= {"drafter": None if self.drafter is None else self.drafter.folder}
        return DraftOptions(**{name: value for name, value in given.items() if name in OPTIONS.get(self.method, ())})

    @property
    def smash(self) -> SmashOptions:
        """The options of decoding with HAMburger: drafts as long as its stop head lets its modules make are checked."""
        if self.drafter is None or self.drafter.kind != MICRO:
            return SmashOptions()
        return SmashOptions(mode="exact", micro_steps=self.drafter.config.micro_steps)

    @property
    def filled(self) -> SmashOptions:
        """The same with drafts that are as long as they may be, as chains of other drafters are."""
        if self.drafter is None or self.drafter.kind != MICRO:
            return SmashOptions()
        return SmashOptions(mode="exact", group_length=self.drafter.config.micro_steps)

    @property
    def chain(self) -> str | None:
        """The one tree that HAMburger's modules draft; None of methods that draft any."""
        return f"chain-{self.drafter.depths}" if self.drafter is not None and self.drafter.kind == MICRO else None

    def trees(self, given: Sequence[str]) -> Sequence[str]:
        """Returns the trees that it drafts of some."""
        return given if self.chain is None else [self.chain]

    def facts(self) -> Mapping[str, Any]:
        """Returns what a row says of it: the drafter's label, where it has one, and the nodes of its one tree."""
        if self.drafter is None:
            return {}
        return {"drafter": self.drafter.label} | ({"nodes": self.drafter.depths} if self.chain else {})


def named_method(name: str, drafters: Sequence[Trained]) -> Named:
    """Returns a method that drafts, by its name, by its drafter's name, or by `hybrid+` before a drafter's name.

    Args:
      name: a drafter's name stands for the method that drafts with it, also where a method is called so.
      drafters: that there are.

    Raises:
      ValueError: there is neither a method nor a drafter of this name, or the method needs a drafter.
    """
    by_name = {drafter.name: drafter for drafter in drafters}
    if found := by_name.get(name):
        return Named(name, found.method, found)
    if (found := by_name.get(name.removeprefix(BESIDE))) and found.kind != MICRO:
        return Named(name, "hybrid", found)
    known = ", ".join((*OPTIONS, *by_name, *(BESIDE + given for given in by_name)))
    if name not in OPTIONS:
        raise ValueError(f"methods must be ones that draft, {known}; got {name!r}")
    if name in READERS:
        raise ValueError(f"method {name} needs a drafter: give --drafters FOLDER, and its name as the method")
    return Named(name, name)


def check_all_named(methods: Sequence[Named], drafters: Sequence[Trained]) -> None:
    """Refuses drafters that no method drafts with.

    Raises:
      ValueError: there is such a drafter.
    """
    for drafter in drafters:
        if drafter not in [named.drafter for named in methods]:
            names = drafter.name if drafter.kind == MICRO else f"{drafter.name} or {BESIDE}{drafter.name}"
            raise ValueError(f"no method drafts with {drafter.name}: name it in methods, as {names}")


def check_rows(rows: Sequence[Mapping[str, Any]], drafters: Sequence[Trained]) -> None:
    """Refuses to go on with rows that an earlier run made with other weights under a drafter's name.

    Raises:
      ValueError: there is such a row.
    """
    labels = {drafter.name: drafter.label for drafter in drafters}
    for row in rows:
        was = row.get("drafter", "")
        name = was.rpartition("@")[0]
        if labels.get(name, was) != was:
            raise ValueError(f"the report's rows of {name} were made with {was}; got {labels[name]}")


def trained_for(base: str, folders: Sequence[Path], *, modules: bool = False, random: bool = False) -> list[Trained]:
    """Returns what folders say of their drafters, each a base's own; nothing without folders.

    Args:
      base: name, directory or hub id.
      folders, modules: as of `read_trained`.
      random: `random:KIND` in place of a folder stands for one with random weights.

    Raises:
      FileNotFoundError: there is no such base, or a folder holds no drafter.
      ValueError: a description is damaged, two drafters would have one name, or one is for another base.
    """
    if not folders:
        return []
    found = read_trained(folders, modules=modules, target=stored_base(base)[0] if random else None)
    check_base([drafter for drafter in found if drafter.target is None], base)
    return found


def check_base(drafters: Sequence[Trained], base: str) -> None:
    """Refuses drafters of another base, before its weights are on a device.

    Args:
      drafters: that are to be measured.
      base: name, directory or hub id.

    Raises:
      ValueError: a drafter is of another vocabulary or width, or was trained for other weights.
    """
    config, fingerprint = stored_base(base)
    for drafter in drafters:
        if drafter.kind == MICRO:
            check_modules(base, drafter.folder)
            continue
        for what, wanted, has in (
            ("vocabulary", drafter.config.vocab_size, config.vocab_size),
            ("width", drafter.config.d_model, config.d_model),
        ):
            if wanted != has:
                raise ValueError(f"{drafter.name} is for a base with a {what} of {wanted}; {base} has one of {has}")
    bound = [drafter for drafter in drafters if drafter.base_fingerprint]
    if not bound:
        return
    mark = fingerprint()
    for drafter in bound:
        if drafter.base_fingerprint != mark:
            raise ValueError(
                f"{drafter.name} was trained for a base whose weights have fingerprint "
                f"{drafter.base_fingerprint[:SHOWN]}…; those of {base} have {mark[:SHOWN]}…"
            )
