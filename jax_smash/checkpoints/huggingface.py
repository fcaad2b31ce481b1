"""Hugging Face checkpoints: a directory, GGUF file or hub id to parameters, and back."""

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Sharding

from jax_smash.checkpoints.adapter import CHANGES, SETTINGS, Adapter
from jax_smash.checkpoints.contents import contents
from jax_smash.checkpoints.directory import new_directory
from jax_smash.checkpoints.fit import DTYPES, check_fit, dotted, one_dtype
from jax_smash.checkpoints.gguf import GgufTensors, config_json, find_gguf, is_gguf, open_gguf
from jax_smash.checkpoints.held import held_box, region_of
from jax_smash.checkpoints.shards import BITS, Shards, contiguous, pieces, write_shards
from jax_smash.config import ModelConfig
from jax_smash.models.families import ParamPath, Part, family_of, fill_copies, from_hf, tensor_map, tensor_shapes, to_hf
from jax_smash.models.transformer import abstract_params
from jax_smash.quantise import check_plain
from jax_smash.sharding import on_host, to_devices

CONFIG = "config.json"
MODEL_CONFIG = "model_config.json"
"""Beside parameters that Orbax saved."""

GENERATION = "generation_config.json"

COMPANIONS = (
    GENERATION,
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
"""Files that go with the weights: the tokenizer and the generation settings. All are data."""

KINDS = ("model_index.json", "modules.json", "config_sentence_transformers.json")
"""Files that tell what a folder is that holds no such model."""

FETCHED = (CONFIG, "model*.safetensors", "model.safetensors.index.json", SETTINGS, CHANGES, *COMPANIONS, *KINDS)
"""Files of a hub repository that are fetched, as patterns."""

SHARD_BYTES = 5 * 10**9

THREADS = min(8, os.cpu_count() or 1)
"""Threads that read pieces of a tensor: turning its axes takes longer than reading it."""

Place = Callable[[ParamPath, Any], Any]
"""Puts a parameter on its device or devices, as it is or quantised."""

Progress = Callable[[int, int], None]
"""Told how many parameters are done, and how many there are."""

_HUB_ID = re.compile(r"[\w][\w.-]*/[\w.-]+")


def resolve(name: str | Path, *, also: Sequence[str] = (), known: Sequence[str] = ()) -> Path:
    """Returns the directory or GGUF file of a checkpoint, fetched from the hub where the name is a hub id.

    Of a hub repository, only configuration, safetensors and tokenizer files are fetched.

    Args:
      name: a directory, a GGUF file or a hub id. A directory with a GGUF file and no `config.json` stands for the file.
      also: patterns of other files that are fetched from the hub.
      known: models that the caller finds by name, told where there is no such model.

    Raises:
      FileNotFoundError: there is no such directory or file, and no such model on the hub or no way to reach it.
      ValueError: the directory holds several GGUF models and nothing else.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path if any((path / file).is_file() for file in (CONFIG, MODEL_CONFIG)) else find_gguf(path) or path
    if path.exists() and is_gguf(path):
        return path
    if path.exists():
        raise FileNotFoundError(f"{path} is a file; a checkpoint is a directory or a .gguf file")
    if is_gguf(path) or not _HUB_ID.fullmatch(str(name)):
        names = "".join(f"{name}, " for name in known)
        raise FileNotFoundError(
            f"no model {str(name)!r}: it is neither {names}a directory, a .gguf file nor a hub id (owner/model)"
        )
    import huggingface_hub  # Takes half a second to import.
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(huggingface_hub.snapshot_download(str(name), allow_patterns=[*FETCHED, *also]))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise FileNotFoundError(f"no directory {name}, and the hub gave no model of that name: {reason}") from error


def read_config(path: str | Path) -> tuple[ModelConfig, dict[str, Any]]:
    """Returns the configuration of a checkpoint, and the content of its `config.json`.

    Of a GGUF file, it is what `config.json` would hold.

    Raises:
      FileNotFoundError: there is no checkpoint, or no `config.json` in it.
      ValueError: the file is damaged, or asks for something that is not supported.
    """
    source = resolve(path)
    if is_gguf(source):
        raw = config_json(open_gguf(source))
        try:
            return from_hf(raw), raw
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from error
    file = source / CONFIG
    if not file.is_file():
        found = contents(file.parent)
        raise FileNotFoundError(f"{file} is missing{f'; the folder holds {found}' if found else ''}")
    return read_config_file(file)


def read_config_file(file: Path) -> tuple[ModelConfig, dict[str, Any]]:
    """Returns the configuration in a file such as `config.json`, and its content.

    Raises:
      ValueError: the file is damaged, or asks for something that is not supported.
      OSError: it cannot be read.
    """
    try:
        raw = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} is damaged: it must be JSON ({error})") from error
    if not isinstance(raw, dict):
        raise ValueError(f"{file} must hold a JSON object; got {type(raw).__name__}")
    try:
        return from_hf(raw), raw
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def load_params(
    path: str | Path,
    config: ModelConfig | None = None,
    *,
    dtype: Any = None,
    place: Place | None = None,
    shardings: Mapping[ParamPath, Sharding] | None = None,
    progress: Progress | None = None,
    adapter: Adapter | None = None,
) -> tuple[nnx.GraphDef, nnx.State]:
    """Loads a checkpoint, tensor by tensor, so that memory never holds a second copy of the weights.

    Args:
      path: a directory, GGUF file or hub id.
      config: of the model; None reads it from the checkpoint.
      dtype: of the weights in memory; None keeps the checkpoint's, which of quantised ones is float32.
      place: puts a parameter where it belongs; None puts all on the default device.
      shardings: where each parameter lies among the devices of several hosts. Each then reads only what its own hold,
        and `place` is given arrays that lie there.
      progress: told of every parameter.
      adapter: merged into the weights as they are read: in float32, before they are cast.

    Raises:
      FileNotFoundError: there is no checkpoint, or a file of it is missing.
      ValueError: a file is damaged; a tensor is missing, unexpected, of another shape, NaN or infinite; the adapter
        does not fit.
    """
    directory = resolve(path)
    config = config or read_config(directory)[0]
    parts, (shards, names) = tensor_map(config), _tensors(directory, config, adapter)
    weights = one_dtype(directory, {n: shards.dtypes[theirs] for n, theirs in names.items()}, dtype)
    graphdef, abstract = abstract_params(config, weights)
    shapes = {where: variable.shape for where, variable in nnx.to_flat_state(abstract)}
    leaves: dict[ParamPath, Any] = {}
    with ThreadPoolExecutor(THREADS) as pool:
        # The longest first, while there is most room for the copy that moves to a device.
        for where in sorted(shapes, key=lambda p: -math.prod(shapes[p])):
            bits = _aligned(shapes[where], BITS[weights.itemsize])
            lies = None if shardings is None else shardings[where]
            # The copies of KV heads are made of heads that other devices may hold.
            box = None if lies is None or config.kv_copies > 1 else held_box(lies, shapes[where])
            for part in parts[where]:
                region = None if box is None else region_of(part, shapes[where], box)
                shards.read_into(
                    names[part.name],
                    part.view(bits),
                    weights,
                    pool,
                    start=part.start,
                    rows=part.shape[0],
                    region=region,
                )
            fill_copies(where, bits, config)
            array: Any = bits.view(weights)
            if lies is not None:
                array = to_devices(array, lies)
            # Not jnp.asarray, which copies: on a CPU the array itself becomes the parameter.
            leaves[where] = place(where, array) if place else jax.device_put(array)
            if progress:
                progress(len(leaves), len(shapes))
    return graphdef, nnx.from_flat_state([(p, v.replace(leaves[p])) for p, v in nnx.to_flat_state(abstract)])


def save_params(
    path: str | Path,
    config: ModelConfig,
    params: nnx.State,
    *,
    original_config: Mapping[str, Any] | None = None,
    max_shard_bytes: int = SHARD_BYTES,
    progress: Progress | None = None,
) -> None:
    """Saves parameters as a directory that transformers loads. It appears whole or not at all.

    Args:
      path: a directory that is absent or empty.
      config: of the model.
      params: of the model, in the dtype they are saved in.
      original_config: the `config.json` that the model came with, kept where it still describes the model.
      max_shard_bytes: longest file, unless one tensor alone is longer.
      progress: told of every tensor.

    Raises:
      FileExistsError: the directory has something in it.
      OSError: the disk is full.
      ValueError: the family has no field for something in the configuration; weights are int8.
    """
    check_plain(params)
    with new_directory(path, params_bytes(params)) as work:
        write(
            work,
            config,
            params,
            original_config=original_config,
            max_shard_bytes=max_shard_bytes,
            progress=progress,
        )


def write(
    directory: Path,
    config: ModelConfig,
    params: nnx.State,
    *,
    original_config: Mapping[str, Any] | None = None,
    max_shard_bytes: int = SHARD_BYTES,
    progress: Progress | None = None,
) -> None:
    """Writes `config.json` and the weights into an existing directory; see `save_params`."""
    arrays = {where: variable.get_value() for where, variable in nnx.to_flat_state(params)}
    _check_params(config, arrays)
    raw = _with_dtype(to_hf(config, original_config), {np.dtype(a.dtype) for a in arrays.values()})
    parts = tensor_map(config)
    owner = {part.name: where for where, of_one in parts.items() for part in of_one}
    shapes = tensor_shapes(parts)
    tensors = {name: (shapes[name], np.dtype(arrays[where].dtype)) for name, where in owner.items()}
    host: dict[ParamPath, np.ndarray] = {}
    done = 0

    def contents(name: str) -> Iterator[np.ndarray]:
        nonlocal done
        where = owner[name]
        if where not in host:
            host.clear()  # Several tensors of one parameter come one after another; others are not kept.
            host[where] = _to_host(arrays[where])
        bits = host[where].view(BITS[host[where].dtype.itemsize])
        for view in (part.view(bits) for part in parts[where] if part.name == name):
            for piece in pieces(view):
                yield contiguous(view[piece])
        done += 1
        if progress:
            progress(done, len(owner))

    (directory / CONFIG).write_text(json.dumps(raw, indent=2) + "\n")
    write_shards(directory, tensors, contents, max_shard_bytes)


def params_bytes(params: Any) -> int:
    """Returns the size of parameters in bytes."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(params))


def _tensors(path: Path, config: ModelConfig, adapter: Adapter | None) -> tuple[Shards | GgufTensors, dict[str, str]]:
    """Returns a checkpoint's tensors, and the checkpoint's name of each by its plain name.

    Raises:
      FileNotFoundError, ValueError: as `load_params` says.
    """
    if is_gguf(path):
        tensors = GgufTensors(open_gguf(path), config)
        return tensors, {name: name for name in tensors.shapes}
    shards = Shards(path) if adapter is None else adapter.over(path, config)
    names = _language_names(config, shards)
    _check(path, config, shards, names)
    return shards, names


def _language_names(config: ModelConfig, shards: Shards) -> dict[str, str]:
    """Returns the checkpoint's name of each tensor of the language model, by its plain name."""
    rename = family_of(config.family).rename
    # Older writers also saved the rotary frequencies, which follow from the configuration.
    found = {rename(name): name for name in shards.shapes if not name.endswith(".rotary_emb.inv_freq")}
    return {plain: name for plain, name in found.items() if plain is not None}


def _check(directory: Path, config: ModelConfig, shards: Shards, names: dict[str, str]) -> None:
    """Checks all tensors against the configuration before any is read."""
    expected = tensor_shapes(tensor_map(config))
    head, embedding = "lm_head.weight", "model.embed_tokens.weight"
    tied_head = names.pop(head) if config.tied_head and head in names and embedding in names else None
    check_fit(directory, expected, {plain: shards.shapes[name] for plain, name in names.items()})
    if tied_head is None:
        return
    alike = (shards.shapes[tied_head], shards.dtypes[tied_head]) == (
        shards.shapes[names[embedding]],
        shards.dtypes[names[embedding]],
    )
    if not alike or not shards.equal(tied_head, names[embedding]):
        raise ValueError(
            f"{head} in {directory} must equal {embedding}, for tie_word_embeddings is true; "
            f"it differs: set tie_word_embeddings to false"
        )


def _check_params(config: ModelConfig, arrays: Mapping[ParamPath, jax.Array]) -> None:
    """Checks that parameters are those of a model, and plain weights."""
    _, abstract = abstract_params(config)
    expected = {dotted(where): tuple(variable.shape) for where, variable in nnx.to_flat_state(abstract)}
    check_fit("params", expected, {dotted(where): tuple(array.shape) for where, array in arrays.items()})
    for where, array in arrays.items():
        if array.dtype not in DTYPES.values():
            raise ValueError(
                f"{dotted(where)} must be one of {', '.join(map(str, DTYPES.values()))}; got {array.dtype}"
            )


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Makes an array that a CPU device can take as it is: XLA asks for 64-byte alignment."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def _to_host(array: jax.Array) -> np.ndarray:
    if not array.is_fully_addressable:
        return on_host(array)
    if next(iter(array.devices())).platform == "cpu" and len(array.devices()) == 1:
        return np.asarray(array)
    # An array keeps the host copy that is made of it; a copy of the array takes it along when it goes.
    return np.asarray(array.copy())


def _with_dtype(raw: dict[str, Any], dtypes: set[np.dtype]) -> dict[str, Any]:
    """Returns the configuration with the dtype of the weights, where they have one."""
    if len(dtypes) > 1:
        return raw
    name = next(iter(dtypes)).name
    key = "torch_dtype" if "torch_dtype" in raw and "dtype" not in raw else "dtype"
    return raw if raw.get(key) == name else raw | {key: name}


__all__ = [
    "COMPANIONS",
    "CONFIG",
    "FETCHED",
    "SHARD_BYTES",
    "Part",
    "Place",
    "Progress",
    "load_params",
    "params_bytes",
    "read_config",
    "resolve",
    "save_params",
    "write",
]
