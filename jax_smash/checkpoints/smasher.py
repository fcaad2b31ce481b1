"""The modules grafted on a base, as two files in a folder that may hold other things, a base's checkpoint too."""

import dataclasses
import hashlib
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from jax_smash.checkpoints.described import (
    both_or_neither,
    check_finite,
    check_savable,
    dtype_of,
    opened,
    read_fields,
    sha256,
)
from jax_smash.checkpoints.fit import check_fit, dotted
from jax_smash.checkpoints.gguf import is_gguf
from jax_smash.checkpoints.tokenizer import load_tokenizer
from jax_smash.config import ModelConfig
from jax_smash.pytree import size
from jax_smash.quantise import check_plain
from jax_smash.sharding import on_host
from jax_smash.smash.config import SmashConfig
from jax_smash.smash.options import SmashOptions
from jax_smash.smash.smasher import SmasherDef, abstract_smasher

CONFIG, WEIGHTS = "smasher.json", "smasher.safetensors"
SMASHER_FILES = (CONFIG, WEIGHTS)

MODULES = "hamburger"
"""Folder, beside a base, of the modules that go with it."""

FORMAT = 2
"""Of the files. Those of 1 carry no settings and do not tell the base's weights; a reader refuses others."""

COUNTS = "token_counts"
"""Name of the tensor with how often each token was seen in training."""


@dataclasses.dataclass(frozen=True)
class SmashModules:
    """Modules for a base, ready to be bound.

    Attributes:
      config: their sizes, and what they were made for.
      definition: their structure.
      params: their parameters.
      token_counts: int64, how often each token of the vocabulary was seen in training; None where nobody counted.
      options: settings that they were calibrated with: the defaults of decoding with them.
      base_fingerprint: of the base's weights that they were trained with; empty where nobody told.
    """

    config: SmashConfig
    definition: SmasherDef
    params: nnx.State
    token_counts: np.ndarray | None = None
    options: SmashOptions = SmashOptions()  # noqa: RUF009 - frozen
    base_fingerprint: str = ""

    def __repr__(self) -> str:
        """Says how large they are, and prints no weights."""
        return f"SmashModules({size(self.params)}, {self.config.micro_steps} micro-steps)"


@dataclasses.dataclass(frozen=True)
class Description:
    """What `smasher.json` says.

    Attributes:
      config, options, base_fingerprint: as of `SmashModules`.
      weights_sha256: of the file beside it.
    """

    config: SmashConfig
    options: SmashOptions
    base_fingerprint: str
    weights_sha256: str

    def to_fields(self) -> dict[str, Any]:
        """Returns the fields as JSON holds them."""
        told = {"weights_sha256": self.weights_sha256, "base_fingerprint": self.base_fingerprint}
        return {"format": FORMAT, **told, "options": self.options.to_fields(), **self.config.to_fields()}


def save_smasher(
    folder: Path,
    config: SmashConfig,
    params: nnx.State,
    *,
    token_counts: np.ndarray | None = None,
    options: SmashOptions = SmashOptions(),  # noqa: B008 - frozen
    base_fingerprint: str = "",
) -> None:
    """Saves modules as `smasher.json` and `smasher.safetensors`, whole or not at all; older ones are replaced.

    Other files of the folder stay as they are.

    Args:
      folder: made where it is missing.
      config: of the modules.
      params: their parameters, in the dtype that they are saved in.
      token_counts: how often each token of the vocabulary was seen in training, at least 0.
      options: settings that they were calibrated with; of what is None a reader has defaults of its own.
      base_fingerprint: `checkpoints.fingerprint` of the base's weights; without, they load beside any of its shape.

    Raises:
      ValueError: weights are int8, not finite or of a dtype that no checkpoint has; the counts are no counts; an option
        is out of range.
      OSError: the disk is full, or the folder cannot be made.
    """
    check_plain(params)
    options.check(config)
    tensors = {dotted(path): on_host(variable.get_value()) for path, variable in nnx.to_flat_state(params)}
    check_savable(tensors)
    if token_counts is not None:
        tensors[COUNTS] = _counts(token_counts)
    folder = Path(folder).expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True)
    nbytes = sum(array.nbytes for array in tensors.values())
    with both_or_neither(folder, CONFIG, WEIGHTS, nbytes) as (fields_file, weights_file):
        # Contiguous: the writer takes an array's bytes as they lie in memory.
        save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, weights_file)
        described = Description(config, options, base_fingerprint, sha256(weights_file))
        fields_file.write_text(_json(described))


def describe_smasher(
    folder: Path, *, options: SmashOptions | None = None, base_fingerprint: str | None = None
) -> Description:
    """Writes the `smasher.json` of a folder anew, with other settings; weights stay as they are.

    Args:
      folder: that holds modules.
      options: settings that they were calibrated with; None keeps those that are there.
      base_fingerprint: of the base's weights; None likewise.

    Returns:
      What it says then.

    Raises:
      FileNotFoundError: it is missing.
      ValueError: it is damaged, or an option is out of range.
    """
    file = Path(folder).expanduser().resolve() / CONFIG
    described = read_smasher(file.parent)
    if options is not None:
        options.check(described.config)
        described = dataclasses.replace(described, options=options)
    if base_fingerprint is not None:
        described = dataclasses.replace(described, base_fingerprint=base_fingerprint)
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        part.write_text(_json(described))
        shutil.copymode(file, part)
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)
    return described


def load_smasher(folder: Path, base: ModelConfig, tokenizer_sha256: str, *, dtype: Any = None) -> SmashModules:
    """Loads what `save_smasher` wrote, onto the default device.

    Args:
      folder: that holds the two files.
      base: configuration of the base at hand.
      tokenizer_sha256: of its `tokenizer.json`; empty where it has none.
      dtype: of the weights in memory; None keeps the files'.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: one is damaged, or not of the same save as the other; the modules were made for another base or
        tokenizer; a tensor is missing, unexpected, of another shape, NaN or infinite.
    """
    folder = Path(folder).expanduser().resolve()
    config = check_smasher(folder, base, tokenizer_sha256)
    described = read_smasher(folder)
    with opened(folder / WEIGHTS, described.weights_sha256, CONFIG) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    counts = tensors.pop(COUNTS, None)
    if counts is not None and counts.shape != (base.vocab_size,):
        raise ValueError(f"{COUNTS} in {folder / WEIGHTS} must be {[base.vocab_size]}, got {list(counts.shape)}")
    _, abstract = abstract_smasher(base, config)
    expected = {dotted(path): tuple(variable.shape) for path, variable in nnx.to_flat_state(abstract)}
    tensors = {name: _as_held(array, expected.get(name, ())) for name, array in tensors.items()}
    check_fit(folder / WEIGHTS, expected, {name: array.shape for name, array in tensors.items()})
    made_of = dtype_of(folder / WEIGHTS, tensors, dtype)
    check_finite(folder / WEIGHTS, tensors, made_of)
    graphdef, abstract = abstract_smasher(base, config, made_of)
    leaves = [(path, v.replace(_cast(tensors[dotted(path)], made_of))) for path, v in nnx.to_flat_state(abstract)]
    return SmashModules(
        config=config,
        definition=SmasherDef(graphdef),
        params=nnx.from_flat_state(leaves),
        token_counts=None if counts is None else _counts(counts),
        options=described.options,
        base_fingerprint=described.base_fingerprint,
    )


def _as_held(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Returns a tensor in the shape that it is held in. Earlier files have `w_qkv` by head, and gate beside up."""
    if array.shape == shape:
        return array
    if array.ndim == 4 and array.size == math.prod(shape) and array.shape[:1] == shape[:1]:
        return array.reshape(shape) if len(shape) == 2 else array
    return array.swapaxes(0, 1) if array.ndim == 3 and array.swapaxes(0, 1).shape == shape else array


def check_smasher(folder: Path, base: ModelConfig, tokenizer_sha256: str) -> SmashConfig:
    """Returns the configuration of modules that were made for a base, before their weights are read.

    Args:
      folder, base, tokenizer_sha256: as in `load_smasher`.

    Raises:
      FileNotFoundError: `smasher.json` is missing.
      ValueError: it is damaged, or the modules were made for another base or tokenizer.
    """
    config = read_smasher(folder).config
    try:
        config.check_base(base, tokenizer_sha256)
    except ValueError as error:
        raise ValueError(f"{Path(folder) / CONFIG}: {error}") from error
    return config


def check_base_weights(expected: str, found: str, *, modules: str | Path, base: str | Path) -> None:
    """Refuses modules beside other weights than those that they were trained with.

    Args:
      expected: fingerprint of the base's weights that the modules were trained with; empty where nobody told.
      found: of the weights at hand.
      modules, base: where they are, named in the error.

    Raises:
      ValueError: the two differ.
    """
    if expected and found != expected:
        raise ValueError(
            f"the modules in {modules} were trained with a base whose weights have fingerprint {expected[:16]}…; "
            f"those of {base} have {found[:16]}…: give the base that they were trained with, or modules of this one"
        )


def is_smasher(folder: Path) -> bool:
    """Returns whether a folder holds modules."""
    return (Path(folder).expanduser() / CONFIG).is_file()


def tokenizer_sha256(folder: Path | None) -> str:
    """Returns the SHA-256 of a base's `tokenizer.json`; empty where it has none.

    Of a GGUF file, it is that of the `tokenizer.json` that `convert` would write.
    """
    if folder is not None and is_gguf(folder):
        tokenizer = load_tokenizer(folder)
        return (
            "" if tokenizer is None else hashlib.sha256(tokenizer.backend_tokenizer.to_str(True).encode()).hexdigest()
        )
    file = None if folder is None else Path(folder) / "tokenizer.json"
    return sha256(file) if file is not None and file.is_file() else ""


def read_smasher(folder: Path) -> Description:
    """Returns what a folder's `smasher.json` says of its modules.

    Raises:
      FileNotFoundError: `smasher.json` is missing.
      ValueError: it is damaged.
    """
    file = Path(folder).expanduser().resolve() / CONFIG
    fields = read_fields(file)
    if (version := fields.pop("format", None)) not in range(1, FORMAT + 1):
        raise ValueError(f"{file} must have format 1 to {FORMAT}; got {version!r}")
    if version == 1:
        fields |= {"base_fingerprint": "", "options": {}}
    told = {name: fields.pop(name, None) for name in ("weights_sha256", "base_fingerprint")}
    for name, digest in told.items():
        if not isinstance(digest, str):
            raise ValueError(f"{file}: {name} must be a text; got {digest!r}")
    options = fields.pop("options", None)
    try:
        config = SmashConfig.from_fields(fields)
        return Description(config=config, options=SmashOptions.from_fields(options, config), **told)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def _cast(array: np.ndarray, dtype: np.dtype) -> jax.Array:
    return jax.device_put(array.astype(dtype, copy=False))


def _counts(counts: np.ndarray) -> np.ndarray:
    """Returns counts as int64.

    Raises:
      ValueError: they are not whole numbers from 0, one a token.
    """
    if counts.ndim != 1 or not np.issubdtype(counts.dtype, np.integer) or (counts.size and counts.min() < 0):
        raise ValueError(
            f"{COUNTS} must be whole numbers from 0, one for each token; got {counts.dtype} {list(counts.shape)}"
        )
    return counts.astype(np.int64)


def _json(described: Description) -> str:
    return json.dumps(described.to_fields(), indent=2) + "\n"
