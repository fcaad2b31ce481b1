"""LoRA adapters as PEFT saves them, merged into a base's weights as these are read."""

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float

from jax_smash.checkpoints.contents import contents
from jax_smash.checkpoints.fit import check_fit
from jax_smash.checkpoints.shards import ALL, PIECE, WEIGHTS, Shards, finite
from jax_smash.config import ModelConfig
from jax_smash.models.families import family_of, tensor_map, tensor_shapes

SETTINGS = "adapter_config.json"
CHANGES = "adapter_model.safetensors"
PICKLED = "adapter_model.bin"

PREFIX = "base_model.model."
COPY = re.compile(r"(.*(?:embed_tokens|lm_head))(?:\.base_layer)?\.weight")
"""Names of what PEFT saves along where the embedding or the head is changed."""

SIDES = {".lora_A.weight": "a", ".lora_B.weight": "b"}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

PLAIN_STARTS = (None, True, False, "gaussian", "orthogonal", "eva")
"""Ways to begin an adapter that leave the base's weights as they are (`init_lora_weights`)."""

HARMLESS = {
    "auto_mapping",
    "base_model_name_or_path",
    "bias",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_alpha",
    "lora_dropout",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "alpha_pattern",
    "revision",
    "target_modules",
    "task_type",
    "use_rslora",
}
"""Settings that are read here, or change nothing of a trained adapter. Any other one that is set asks for more than a
low-rank change."""


@dataclasses.dataclass(frozen=True)
class Change:
    """A low-rank change of one matrix: `scale` · b · a, in float32.

    Attributes:
      a, b: the factors.
      scale: of their product.
    """

    a: Float[np.ndarray, "rank inputs"]
    b: Float[np.ndarray, "outputs rank"]
    scale: float

    def rows(self, start: int, stop: int) -> Float[np.ndarray, "rows inputs"]:
        """Returns some rows of the change."""
        return (self.b[start:stop] @ self.a) * np.float32(self.scale)


@dataclasses.dataclass(frozen=True)
class Adapter:
    """A LoRA adapter, its factors in memory.

    Attributes:
      directory: where it is.
      base: the name that it gives its base: a directory, a shipped model or a hub id.
      changes: the change of each matrix, by the name of the base's module.
      copies: tensors of the base that were saved along, unchanged, by the name of the base's module.
    """

    directory: Path
    base: str
    changes: Mapping[str, Change]
    copies: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that occur, in order."""
        return tuple(sorted({change.a.shape[0] for change in self.changes.values()}))

    def over(self, base: Path, config: ModelConfig) -> Shards:
        """Returns the base's tensors with the changes in them. Nothing is read yet.

        Args:
          base: directory of the base.
          config: of the base.

        Raises:
          FileNotFoundError, ValueError: as `Shards` says.
          ValueError: the adapter changes something that the base does not have, or not as a matrix.
        """
        rename = family_of(config.family).rename
        renamed = {module: rename(f"{module}.weight") for module in self.changes}
        if other := [module for module, name in renamed.items() if name is None]:
            raise ValueError(f"{self.directory} changes {other[0]}, which is no part of the language model")
        by_name = {str(name): self.changes[module] for module, name in renamed.items()}
        self._check(config, by_name)
        merged = MergedShards(base)
        self._check_copies(merged, rename, tied=config.tied_head)  # While it is the base's own.
        merged.changes = {
            name: by_name[plain] for plain, name in _plain_names(merged, rename).items() if plain in by_name
        }
        return merged

    def _check(self, config: ModelConfig, changes: Mapping[str, Change]) -> None:
        if EMBEDDING in changes or (config.tied_head and HEAD in changes):
            shared = " that it shares with the head" if config.tied_head else ""
            raise ValueError(f"{self.directory} changes the base's embedding{shared}; that is not supported")
        shapes = {name: shape for name, shape in tensor_shapes(tensor_map(config)).items() if len(shape) == 2}
        expected = {name: shapes[name] for name in changes if name in shapes}
        found = {name: (change.b.shape[0], change.a.shape[1]) for name, change in changes.items()}
        check_fit(self.directory, expected, found)

    def _check_copies(self, base: Shards, rename: Callable[[str], str | None], *, tied: bool) -> None:
        """Refuses weights of the base that were saved along and are not the base's own."""
        if not self.copies:
            return
        own = Shards(self.directory, [self.directory / CHANGES])
        names = _plain_names(base, rename)
        for module, copy in self.copies.items():
            plain = str(rename(f"{module}.weight"))
            # A head that is the embedding has no tensor of its own.
            name = names.get(EMBEDDING if tied and plain == HEAD and HEAD not in names else plain)
            if name is None or own.shapes[copy] != base.shapes[name] or not _same(own, copy, base, name):
                raise ValueError(
                    f"{copy} in {self.directory / CHANGES} must be the base's own weights; it differs: "
                    f"trained or resized embeddings are not supported"
                )


class MergedShards(Shards):
    """The tensors of a base, some of them changed as they are read.

    Attributes:
      changes: by the name of the base's tensor.
    """

    changes: Mapping[str, Change] = MappingProxyType({})

    def read(self, name: str, start: int, stop: int, columns: slice = ALL) -> np.ndarray:
        """Returns part of a tensor, along its first axis; float32 where it is changed."""
        weights = super().read(name, start, stop, columns)
        change = self.changes.get(name)
        return weights if change is None else weights.astype(np.float32) + change.rows(start, stop)[:, columns]


def is_adapter(directory: Path) -> bool:
    """Returns whether a directory holds a PEFT adapter."""
    return (directory / SETTINGS).is_file()


def with_base(directory: Path, find: Callable[[str], Path]) -> tuple[Path, Adapter | None]:
    """Returns the directory of a model's weights and configuration, and the adapter that changes them.

    Args:
      directory: of a model, or of an adapter.
      find: finds a model by the name that an adapter gives its base, where that is no directory.

    Raises:
      FileNotFoundError: there is no such base, or a file of the adapter is missing.
      ValueError: the adapter is damaged, or not supported.
    """
    if not is_adapter(directory):
        return directory, None
    if (directory / WEIGHTS).is_file() or (directory / f"{WEIGHTS}.index.json").is_file():
        raise ValueError(f"{directory} holds a model ({WEIGHTS}) and an adapter ({SETTINGS}); keep them apart")
    adapter = read_adapter(directory)
    for path in (directory / adapter.base, Path(adapter.base).expanduser()):
        if path.is_dir():
            base = path
            break
    else:
        try:
            base = find(adapter.base)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"the base of the adapter in {directory} is missing: {error}") from error
    if is_adapter(base) or (base / "model_config.json").is_file() or not (base / "config.json").is_file():
        held = contents(base) if base.is_dir() else "a file"
        raise ValueError(
            f"the base of the adapter in {directory} must be a Hugging Face checkpoint; {base} holds {held or 'none'}"
        )
    return base, adapter


def read_adapter(directory: Path) -> Adapter:
    """Returns the adapter in a directory.

    Raises:
      FileNotFoundError: a file of it is missing.
      ValueError: it is damaged, or asks for more than low-rank changes of matrices.
    """
    settings = _settings(directory / SETTINGS)
    base = settings.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ValueError(f"{directory / SETTINGS} must name its base in base_model_name_or_path; got {base!r}")
    if not (directory / CHANGES).is_file():
        if (directory / PICKLED).is_file():
            raise FileNotFoundError(
                f"{directory} has no {CHANGES}, only {PICKLED}: pickled weights can run code when they are read and "
                f"are not loaded; save the adapter as safetensors"
            )
        raise FileNotFoundError(f"{directory / CHANGES} is missing")
    if settings.get("revision") not in (None, "", "main") and not Path(base).expanduser().is_dir():
        raise ValueError(f"{directory / SETTINGS}: revision={settings['revision']!r} of the base is not supported")
    shards = Shards(directory, [directory / CHANGES])
    copies = {match[1]: name for name in shards.shapes if (match := COPY.fullmatch(name.removeprefix(PREFIX)))}
    changes = _changes(directory, shards, settings, [*copies.values()])
    return Adapter(directory=directory, base=base, changes=changes, copies=copies)


def _settings(file: Path) -> dict[str, Any]:
    try:
        settings = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} is damaged: it must be JSON ({error})") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{file} must hold a JSON object; got {type(settings).__name__}")
    kind = settings.get("peft_type")
    if kind != "LORA":
        raise ValueError(f"{file}: adapters of type {kind} are not supported; peft_type must be LORA")
    if settings.get("task_type") not in (None, "CAUSAL_LM"):
        raise ValueError(f"{file}: task_type must be CAUSAL_LM; got {settings['task_type']!r}")
    if settings.get("bias", "none") not in (None, "none"):
        raise ValueError(f"{file}: bias={settings['bias']!r} is not supported; it must be none")
    if settings.get("init_lora_weights") not in PLAIN_STARTS:
        raise ValueError(
            f"{file}: init_lora_weights={settings['init_lora_weights']!r} is not supported: it changes the base's own "
            f"weights"
        )
    for name, value in settings.items():
        if name not in HARMLESS and value not in (None, False, [], {}, ""):
            raise ValueError(f"{file}: {name}={value!r} is not supported")
    for name in ("rank_pattern", "alpha_pattern"):
        if not isinstance(settings.get(name) or {}, Mapping):
            raise ValueError(f"{file}: {name} must be an object; got {settings[name]!r}")
    return settings


def _changes(directory: Path, shards: Shards, settings: Mapping[str, Any], copies: Sequence[str]) -> dict[str, Change]:
    """Returns the change of each matrix, by the name of the base's module."""
    factors: dict[str, dict[str, np.ndarray]] = {}
    for name, shape in shards.shapes.items():
        if name in copies:
            continue
        side = next((ending for ending in SIDES if name.endswith(ending)), None)
        if side is None or not name.startswith(PREFIX) or len(shape) != 2:
            raise ValueError(
                f"{name} {list(shape)} in {directory / CHANGES} is not supported: it is no LoRA of a matrix"
            )
        tensor = shards.read(name, 0, shape[0])
        if not finite(tensor):
            raise ValueError(f"{name} in {directory / CHANGES} holds NaN or infinity")
        module = name.removeprefix(PREFIX).removesuffix(side)
        factors.setdefault(module, {})[SIDES[side]] = tensor.astype(np.float32)
    if not factors:
        raise ValueError(f"{directory / CHANGES} has no tensors")
    return {module: _change(directory, module, sides, settings) for module, sides in sorted(factors.items())}


def _change(directory: Path, module: str, sides: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> Change:
    if missing := [ending for ending, side in SIDES.items() if side not in sides]:
        raise ValueError(f"{PREFIX}{module}{missing[0]} in {directory / CHANGES} is missing")
    a, b = sides["a"], sides["b"]
    rank = _of_module("r", "rank_pattern", module, directory, settings)
    alpha = _of_module("lora_alpha", "alpha_pattern", module, directory, settings)
    if a.shape[0] != rank or b.shape[1] != rank:
        raise ValueError(
            f"{module} in {directory / CHANGES} must have rank {rank:g}, as {SETTINGS} says; "
            f"got {list(a.shape)} and {list(b.shape)}"
        )
    return Change(a=a, b=b, scale=alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank))


def _of_module(name: str, pattern: str, module: str, directory: Path, settings: Mapping[str, Any]) -> float:
    """Returns a setting that may differ from module to module: the first pattern that the module's name ends with."""
    patterns = settings.get(pattern) or {}
    value = settings.get(name)
    for key, of_key in patterns.items():
        if re.match(rf"(.*\.)?({key})$", module):
            value = of_key
            break
    least = 1 if name == "r" else 0
    if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
        raise ValueError(f"{directory / SETTINGS}: {name} of {module} must be at least {least}; got {value!r}")
    return float(value)


def _same(one: Shards, name: str, other: Shards, of_other: str) -> bool:
    """Returns whether two tensors of one shape hold the same numbers, whatever their dtypes."""
    rows = one.shapes[name][0]
    step = max(1, PIECE // (4 * math.prod(one.shapes[name][1:])))

    def equal(start: int) -> bool:
        stop = min(start + step, rows)
        first, second = one.read(name, start, stop), other.read(of_other, start, stop)
        return np.array_equal(first.astype(np.float32), second.astype(np.float32))

    return all(equal(start) for start in range(0, rows, step))


def _plain_names(base: Shards, rename: Callable[[str], str | None]) -> dict[str, str]:
    """Returns the name of each of a base's tensors, by its name in a checkpoint of the language model alone."""
    found = {rename(name): name for name in base.shapes}
    return {plain: name for plain, name in found.items() if plain is not None}
