"""An EAGLE-3 drafter as two files in a folder: `eagle.json` and `eagle.safetensors`.

The first holds `format`, the SHA-256 of the second, the fingerprint of the target's weights where the drafter was
trained for some, the length of the rows that it was trained on where somebody told it, and the fields of `EagleConfig`.
The second holds a tensor for each parameter by its dotted name: `w_join [n·D, D]` over the n taps one behind the other,
`attention.w_qkv`, `attention.w_o`, `mlp.w_gate_up`, `mlp.w_down`, `head [V', D]`, which is missing where the head has
the target's rows, the norms' scales, and `tokens [V']`, int32, the target's id of each row of the head, which is
missing where the head has the whole vocabulary.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

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
from jax_smash.config import ModelConfig
from jax_smash.models.definition import NnxModel
from jax_smash.models.eagle import abstract_eagle, random_eagle
from jax_smash.models.eagle_config import EagleConfig
from jax_smash.models.short_head import check_tokens
from jax_smash.pytree import size
from jax_smash.quantise import check_plain
from jax_smash.sharding import on_host

CONFIG, WEIGHTS = "eagle.json", "eagle.safetensors"

FORMAT = 1
"""Of the files; a reader refuses others."""

TOKENS = "tokens"
"""Name of the tensor with the ids of the head's rows."""


@dataclasses.dataclass(frozen=True)
class EagleModules:
    """A drafter, ready to be bound.

    Attributes:
      config: its sizes, and those of the target that it fits.
      definition: its structure.
      params: its parameters.
      base_fingerprint: of the target's weights that it was trained for; empty where nobody told.
      trained_length: tokens of the rows that it was trained on; None where nobody told.
    """

    config: EagleConfig
    definition: NnxModel
    params: nnx.State
    base_fingerprint: str = ""
    trained_length: int | None = None

    @property
    def tokens(self) -> Int[np.ndarray, "X"] | None:
        """Tokens that it says by the target's head; None where it has a head of its own, or says all of them."""
        if self.config.own_rows or self.config.head_size == self.config.vocab_size:
            return None
        tokens: Any = self.params[TOKENS]
        return np.asarray(tokens[...])

    def __repr__(self) -> str:
        """Says how large it is, and prints no weights."""
        return f"EagleModules({size(self.params)}, {self.config.head_size} tokens)"


class Description(NamedTuple):
    """What `eagle.json` says.

    Attributes:
      config: of the drafter.
      weights_sha256: of the file beside it.
      base_fingerprint, trained_length: as of `EagleModules`.
    """

    config: EagleConfig
    weights_sha256: str
    base_fingerprint: str
    trained_length: int | None = None


def random_modules(target: ModelConfig, *, seed: int = 0, dtype: Any = np.float32) -> EagleModules:
    """Makes a drafter of the usual sizes for a target, with random weights."""
    config = EagleConfig.for_target(target)
    graphdef, params = random_eagle(config, seed, dtype)
    return EagleModules(config=config, definition=NnxModel(graphdef), params=params)


def save_eagle(
    folder: str | Path,
    config: EagleConfig,
    params: nnx.State,
    *,
    base_fingerprint: str = "",
    trained_length: int | None = None,
) -> None:
    """Saves a drafter as `eagle.json` and `eagle.safetensors`, whole or not at all; older ones are replaced.

    Args:
      folder: made where it is missing.
      config: of the drafter.
      params: its parameters, in the dtype that they are saved in.
      base_fingerprint: `checkpoints.fingerprint` of the target's weights; without, it drafts for any of that shape.
      trained_length: as of `EagleModules`.

    Raises:
      ValueError: weights are int8, not finite or of a dtype that no checkpoint has; they are not the configuration's,
        or the head's tokens are none.
      OSError: the disk is full, or the folder cannot be made.
    """
    check_plain(params)
    tensors = {dotted(path): on_host(variable.get_value()) for path, variable in nnx.to_flat_state(params)}
    check_fit("memory", _shapes(config), {name: array.shape for name, array in tensors.items()})
    _check_values(tensors, config)
    check_savable(_weights(tensors))
    folder = Path(folder).expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True)
    nbytes = sum(array.nbytes for array in tensors.values())
    with both_or_neither(folder, CONFIG, WEIGHTS, nbytes) as (fields_file, weights_file):
        # Contiguous: the writer takes an array's bytes as they lie in memory.
        save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, weights_file)
        told = {"format": FORMAT, "weights_sha256": sha256(weights_file), "base_fingerprint": base_fingerprint}
        told |= {} if trained_length is None else {"trained_length": trained_length}
        fields_file.write_text(json.dumps(told | config.to_fields(), indent=2) + "\n")


def load_eagle(folder: str | Path, *, dtype: Any = None) -> EagleModules:
    """Loads what `save_eagle` wrote, onto the default device.

    Args:
      folder: that holds the two files.
      dtype: of the weights in memory; None keeps the files'.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: one is damaged, or not of the same save as the other; a tensor is missing, unexpected, of another
        shape, NaN or infinite. Shapes are compared before a tensor is read.
    """
    described, file = read_eagle(folder), _folder(folder) / WEIGHTS
    config = described.config
    with opened(file, described.weights_sha256, CONFIG) as stored:
        names = list(stored.keys())
        check_fit(file, _shapes(config), {name: tuple(stored.get_slice(name).get_shape()) for name in names})
        tensors = {name: stored.get_tensor(name) for name in names}
    try:
        _check_values(tensors, config)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    weights = _weights(tensors)
    made_of = dtype_of(file, weights, dtype)
    check_finite(file, weights, made_of)
    graphdef, abstract = abstract_eagle(config, made_of)
    held = tensors | {name: array.astype(made_of, copy=False) for name, array in weights.items()}
    leaves = [(path, v.replace(jax.device_put(held[dotted(path)]))) for path, v in nnx.to_flat_state(abstract)]
    params = nnx.from_flat_state(leaves)
    return EagleModules(config, NnxModel(graphdef), params, described.base_fingerprint, described.trained_length)


def read_eagle(folder: str | Path) -> Description:
    """Returns what a folder says of its drafter; weights are not read.

    Raises:
      FileNotFoundError: `eagle.json` is missing.
      ValueError: it is damaged.
    """
    file = _folder(folder) / CONFIG
    fields = read_fields(file)
    if (version := fields.pop("format", None)) != FORMAT:
        raise ValueError(f"{file} must have format {FORMAT}; got {version!r}")
    told = {
        "weights_sha256": fields.pop("weights_sha256", None),
        "base_fingerprint": fields.pop("base_fingerprint", ""),
    }
    for name, mark in told.items():
        if not isinstance(mark, str):
            raise ValueError(f"{file}: {name} must be a text; got {mark!r}")
    length = take_trained_length(file, fields)
    try:
        return Description(EagleConfig.from_fields(fields), **told, trained_length=length)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def _folder(folder: str | Path) -> Path:
    return Path(folder).expanduser().resolve()


def _shapes(config: EagleConfig) -> dict[str, tuple[int, ...]]:
    _, abstract = abstract_eagle(config)
    return {dotted(path): tuple(variable.shape) for path, variable in nnx.to_flat_state(abstract)}


def _weights(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array for name, array in tensors.items() if name != TOKENS}


def _check_values(tensors: dict[str, np.ndarray], config: EagleConfig) -> None:
    if TOKENS in tensors:
        check_tokens(tensors[TOKENS], config.head_size, config.vocab_size)
