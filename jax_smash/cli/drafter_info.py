"""`jax-smash info` of a folder with a drafter: which it is, its sizes, and the target that it is for."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of drafter.

    Attributes:
      name: as a user is told it.
      method: that drafts with it.
      read: returns what a folder says of its drafter.
      abstract: structure and shapes of a configuration's modules.
    """

    name: str
    method: str
    read: Callable[[Path], Any]
    abstract: Callable[[Any], tuple[Any, Any]]


def kinds() -> dict[str, Kind]:
    """Returns the kinds of drafters by the file that describes one."""
    from jax_smash.checkpoints import chimera, dflash, eagle, eagle1, medusa
    from jax_smash.checkpoints.contents import DRAFTERS
    from jax_smash.models.chimera import abstract_chimera
    from jax_smash.models.dflash import abstract_dflash
    from jax_smash.models.eagle import abstract_eagle
    from jax_smash.models.eagle1 import abstract_eagle1
    from jax_smash.models.medusa import abstract_medusa

    made: dict[str, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
        eagle.CONFIG: ("eagle", eagle.read_eagle, abstract_eagle),
        eagle1.CONFIG: ("eagle", eagle1.read_eagle1, abstract_eagle1),
        medusa.CONFIG: ("medusa", medusa.read_medusa, abstract_medusa),
        chimera.CONFIG: ("chimera", chimera.read_chimera, abstract_chimera),
        dflash.CONFIG: ("dflash", dflash.read_dflash, abstract_dflash),
    }
    return {file: Kind(DRAFTERS[file], *parts) for file, parts in made.items()}


def describe_drafter(folder: str | Path) -> dict[str, Any] | None:
    """Returns what there is to know of a drafter; None where the folder holds none. Weights are not read.

    Raises:
      ValueError: its description is damaged.
    """
    import jax

    folder = Path(folder).expanduser()
    for file, kind in kinds().items():
        if (folder / file).is_file():
            described = kind.read(folder)
            _, params = kind.abstract(described.config)
            return {
                "drafter": kind.name,
                "method": kind.method,
                "path": str(folder.resolve()),
                "parameters": sum(x.size for x in jax.tree.leaves(params)),
                "base_fingerprint": described.base_fingerprint or None,
                "trained_length": described.trained_length,
                "configuration": described.config.to_fields(),
            }
    return None


def drafter_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns a description as names and values to read."""
    fields = facts["configuration"]
    target = f"width {fields['d_model']:,}, vocabulary {fields['vocab_size']:,}"
    mark, length = facts["base_fingerprint"], facts["trained_length"]
    rest = {name: value for name, value in fields.items() if name not in ("d_model", "vocab_size", "rope")}
    return [
        ("drafter", f"{facts['drafter']}, for --method {facts['method']}"),
        ("path", facts["path"]),
        ("target", target + (f", weights with fingerprint {mark}" if mark else ", any weights")),
        ("parameters", f"{facts['parameters']:,}"),
        *([] if length is None else [("trained on", f"rows of {length:,} tokens")]),
        *((name.replace("_", " "), _shown(value)) for name, value in rest.items()),
    ]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value}"
