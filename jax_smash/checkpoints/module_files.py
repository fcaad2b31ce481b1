"""Modules trained for a target, as two files in a folder: a description in JSON, and their tensors.

The description holds `format`, `weights_sha256`, `base_fingerprint`, `trained_length` where somebody told it, and the
fields of the modules' configuration. The tensors have the dotted names of the parameters. Modules that say some of the
target's tokens alone have `tokens [head_size]` too, int32, the ids of these in rising order.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from flax import nnx
from jaxtyping import Int
from safetensors.numpy import save_file

from jax_smash.checkpoints.described import (
    both_or_neither,
    check_finite,
    check_savable,
    dtype_of,
    opened,
    read_fields,
    sha256,
    take_trained_length,
)
from jax_smash.checkpoints.fit import check_fit, dotted
from jax_smash.models.definition import NnxModel
from jax_smash.models.short_head import check_tokens
from jax_smash.quantise import check_plain
from jax_smash.sharding import on_host

Modules = TypeVar("Modules")


class Described(NamedTuple):
    """What a description says.

    Attributes:
      config: of the modules.
      weights_sha256: of the file beside it.
      base_fingerprint: of the target's weights that they were trained for; empty where nobody told.
      trained_length: tokens of the rows that they were trained on; None where nobody told.
    """

    config: Any
    weights_sha256: str
    base_fingerprint: str
    trained_length: int | None = None


class Loaded(NamedTuple):
    """What both files hold.

    Attributes:
      config, base_fingerprint, trained_length: as of `Described`.
      structure, params: of the modules; parameters are on the default device.
      tokens: that they say; None for all.
    """

    config: Any
    base_fingerprint: str
    structure: nnx.GraphDef
    params: nnx.State
    tokens: Int[np.ndarray, "X"] | None
    trained_length: int | None

    def made(self, kind: Callable[..., Modules]) -> Modules:
        """Returns it as modules of a kind, whose fields these are, the structure as a model's definition."""
        return kind(
            config=self.config,
            definition=NnxModel(self.structure),
            params=self.params,
            base_fingerprint=self.base_fingerprint,
            tokens=self.tokens,
            trained_length=self.trained_length,
        )


TOKENS = "tokens"
"""Name of the tensor of the ids that modules say."""


@dataclasses.dataclass(frozen=True)
class ModuleFiles:
    """How modules of one kind are kept.

    Attributes:
      description, weights: names of the two files.
      format: of the files; others are refused.
      config: makes a configuration of its fields, or raises ValueError.
      abstract: structure and shapes of a configuration's modules in a dtype.
    """

    description: str
    weights: str
    format: int
    config: Callable[[Mapping[str, Any]], Any]
    abstract: Callable[..., tuple[nnx.GraphDef, nnx.State]]

    def save(
        self,
        folder: str | Path,
        config: Any,
        params: nnx.State,
        base_fingerprint: str,
        tokens: Int[np.ndarray, "X"] | None = None,
        trained_length: int | None = None,
    ) -> None:
        """Writes both files, whole or not at all; older ones are replaced.

        Raises:
          ValueError: weights are int8, not finite or of a dtype that no checkpoint has, or not the configuration's; or
            the tokens are not.
          OSError: the disk is full, or the folder cannot be made.
        """
        check_plain(params)
        tensors = {dotted(path): on_host(variable.get_value()) for path, variable in nnx.to_flat_state(params)}
        check_savable(tensors)
        if tokens is not None:
            tensors[TOKENS] = np.asarray(tokens)
        check_fit("memory", self._shapes(config), {name: array.shape for name, array in tensors.items()})
        if tokens is not None:
            check_tokens(tensors[TOKENS], config.head_size, config.vocab_size)
            tensors[TOKENS] = tensors[TOKENS].astype(np.int32)
        folder = _whole(folder)
        folder.mkdir(parents=True, exist_ok=True)
        nbytes = sum(array.nbytes for array in tensors.values())
        with both_or_neither(folder, self.description, self.weights, nbytes) as (fields_file, weights_file):
            # Contiguous: the writer takes an array's bytes as they lie in memory.
            save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, weights_file)
            told = {"format": self.format, "weights_sha256": sha256(weights_file), "base_fingerprint": base_fingerprint}
            told |= {} if trained_length is None else {"trained_length": trained_length}
            fields_file.write_text(json.dumps({**told, **config.to_fields()}, indent=2) + "\n")

    def read(self, folder: str | Path) -> Described:
        """Returns what the description says; weights are not read.

        Raises:
          FileNotFoundError: it is missing.
          ValueError: it is damaged.
        """
        file = _whole(folder) / self.description
        fields = read_fields(file)
        if (version := fields.pop("format", None)) != self.format:
            raise ValueError(f"{file} must have format {self.format}; got {version!r}")
        told = {name: fields.pop(name, None) for name in ("weights_sha256", "base_fingerprint")}
        for name, mark in told.items():
            if not isinstance(mark, str):
                raise ValueError(f"{file}: {name} must be a text; got {mark!r}")
        length = take_trained_length(file, fields)
        try:
            return Described(self.config(fields), **told, trained_length=length)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error

    def load(self, folder: str | Path, dtype: Any = None) -> Loaded:
        """Returns the modules, their parameters on the default device.

        Args:
          folder: that holds the two files.
          dtype: of the weights in memory; None keeps the files'.

        Raises:
          FileNotFoundError: a file is missing.
          ValueError: one is damaged, or not of the same save as the other; a tensor is missing, unexpected, of another
            shape, NaN or infinite. Shapes are compared before a tensor is read.
        """
        described, file = self.read(folder), _whole(folder) / self.weights
        with opened(file, described.weights_sha256, self.description) as stored:
            names = list(stored.keys())
            found = {name: tuple(stored.get_slice(name).get_shape()) for name in names}
            check_fit(file, self._shapes(described.config), found)
            tensors = {name: stored.get_tensor(name) for name in names}
        said = tensors.pop(TOKENS, None)
        try:
            if said is not None:
                check_tokens(said, described.config.head_size, described.config.vocab_size)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error
        made_of = dtype_of(file, tensors, dtype)
        check_finite(file, tensors, made_of)
        structure, abstract = self.abstract(described.config, made_of)
        held = {name: jax.device_put(array.astype(made_of, copy=False)) for name, array in tensors.items()}
        leaves = [(path, v.replace(held[dotted(path)])) for path, v in nnx.to_flat_state(abstract)]
        params = nnx.from_flat_state(leaves)
        return Loaded(described.config, described.base_fingerprint, structure, params, said, described.trained_length)

    def _shapes(self, config: Any) -> dict[str, tuple[int, ...]]:
        said = {TOKENS: (config.head_size,)} if config.head_size else {}
        return said | {dotted(path): tuple(v.shape) for path, v in nnx.to_flat_state(self.abstract(config)[1])}


def check_says_all(config: Any) -> None:
    """Refuses modules that say some tokens alone, for an export that writes no list of these.

    Raises:
      ValueError: they do.
    """
    if config.head_size:
        raise ValueError(
            f"an export writes heads of all tokens, and the drafter says {config.head_size} of "
            f"{config.vocab_size}: train it with head_size 0"
        )


def _whole(folder: str | Path) -> Path:
    return Path(folder).expanduser().resolve()
