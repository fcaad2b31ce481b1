"""Medusa's heads in the published layouts: that of the paper's authors, and that which vLLM loads.

| | The authors' | vLLM's |
|---|---|---|
| File | `medusa_lm_head.safetensors` | `model.safetensors` |
| Block m of head n | `N.M.linear.{weight,bias}` | `blocks.N.layers.M.{weight,bias}` |
| Rows of head n | `N.{blocks}.weight` | `lm_heads.N.weight`, or `lm_head.weight` for all |
| Heads without rows | the target's rows, not in the file | `original_lm_head`: the target's rows, in the file |

vLLM skips a name that it does not know without a word: of the authors' layout it would load nothing, and of blocks with
biases only the matrices unless `medusa_fc_bias` is set. Here every tensor is used or refused.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flax import nnx
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from jax_smash.checkpoints.described import check_finite, check_savable, dtype_of, read_fields
from jax_smash.checkpoints.directory import new_directory
from jax_smash.checkpoints.fit import check_fit, dotted
from jax_smash.checkpoints.medusa import MedusaModules, medusa_of, shapes_of
from jax_smash.checkpoints.module_files import check_says_all
from jax_smash.checkpoints.published import marks_of, read_marks, same_vectors, target_vectors
from jax_smash.checkpoints.shards import PICKLES
from jax_smash.config import ModelConfig
from jax_smash.models.medusa import MedusaConfig
from jax_smash.quantise import check_plain

CONFIG = "config.json"

FILES = {"authors": "medusa_lm_head.safetensors", "vllm": "model.safetensors"}
"""Where each layout has its weights."""

PICKLED = "medusa_lm_head.pt"

Layout = Literal["authors", "vllm"]

SHARED = "lm_head.weight"
"""Of vLLM's layout: the target's rows, which all heads share."""


def import_medusa(
    folder: str | Path, target: ModelConfig, *, rows: Callable[[], Any] | None = None, dtype: Any = None
) -> MedusaModules:
    """Reads published heads, of whichever layout. Shapes are compared before a tensor is read.

    Args:
      folder: with `config.json` and one safetensors file.
      target: configuration of the model that the heads draft for.
      rows: returns the target's rows of its head, `[V, D]`: asked where the heads bring shared rows, which must be
        these.
      dtype: of the weights in memory; None keeps the files'.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: one is damaged or pickled; the heads are for another target; a tensor is missing, unexpected, of
        another shape, NaN or infinite.
    """
    folder = Path(folder).expanduser().resolve()
    raw, (layout, file) = read_fields(folder / CONFIG), _weights_file(folder)
    try:
        with safe_open(file, framework="numpy") as stored:
            shapes = {name: tuple(stored.get_slice(name).get_shape()) for name in list(stored.keys())}
            names = {name.removeprefix("medusa_heads."): name for name in shapes}
            if len(names) < len(shapes):
                raise ValueError(f"{file} holds a tensor under two names")
            config = _config(raw, target, layout, {*names}, folder / CONFIG)
            expected = published_shapes(config, layout, {*names})
            check_fit(file, expected, {name: shapes[full] for name, full in names.items()})
            tensors = {name: stored.get_tensor(full) for name, full in names.items()}
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    _check_rows(tensors.pop(SHARED, None), rows, file)
    made_of = dtype_of(file, tensors, dtype)
    check_finite(file, tensors, made_of)
    ours = {
        name: tensors[theirs].T if turned else tensors[theirs]
        for name, (theirs, turned) in _pairs(config, layout)
        if theirs in tensors
    }
    held = {
        # Heads without biases are heads whose biases are 0.
        name: np.ascontiguousarray(ours[name]).astype(made_of, copy=False) if name in ours else np.zeros(shape, made_of)
        for name, shape in shapes_of(config).items()
    }
    return medusa_of(config, held, made_of, **read_marks(raw, folder / CONFIG))


def export_medusa(
    folder: str | Path, heads: MedusaModules, layout: Layout, *, rows: Callable[[], Any] | None = None, base: str = ""
) -> None:
    """Writes heads in a published layout; the folder appears whole or not at all.

    Args:
      folder: absent or empty.
      heads: with plain weights.
      layout: one of `FILES`.
      rows: returns the target's rows of its head, `[V, D]`: for vLLM, of heads without rows of their own.
      base: the target's name or path, which the authors' programs load it by.

    Raises:
      FileExistsError: the folder has something in it.
      ValueError: weights are int8 or not finite; what the layout needs of the target is not given.
      OSError: the disk is full.
    """
    config = heads.config
    check_says_all(config)
    check_plain(heads.params)
    params = {dotted(path): np.asarray(v.get_value()) for path, v in nnx.to_flat_state(heads.params)}
    tensors = {theirs: params[ours].T if turned else params[ours] for ours, (theirs, turned) in _pairs(config, layout)}
    if layout == "vllm" and not config.own_rows:
        if rows is None:
            raise ValueError("heads without rows of their own need the target's for vLLM; got no base")
        tensors[SHARED] = target_vectors(rows(), config).astype(next(iter(params.values())).dtype)
    if layout == "authors" and not base:
        raise ValueError("the authors' layout names the target that it is loaded with; got no base")
    check_savable(tensors)
    fields = _authors_fields(config, base) if layout == "authors" else _vllm_fields(config)
    fields |= {"torch_dtype": str(next(iter(tensors.values())).dtype)} | marks_of(heads)
    with new_directory(folder, sum(x.nbytes for x in tensors.values())) as work:
        written = {name: np.ascontiguousarray(x) for name, x in tensors.items()}
        save_file(written, work / FILES[layout], {"format": "pt"})
        (work / CONFIG).write_text(json.dumps(fields, indent=2) + "\n")


def published_shapes(config: MedusaConfig, layout: Layout, present: set[str]) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every tensor of a layout.

    Args:
      config: of the heads.
      layout: of the file.
      present: names that are there; biases are asked for only where there are some, and shared rows of the authors'
        layout likewise.
    """
    ours = shapes_of(config)
    shapes = {theirs: ours[name][::-1] if turned else ours[name] for name, (theirs, turned) in _pairs(config, layout)}
    if layout == "vllm" and not any(name.endswith(".bias") for name in present):
        shapes = {name: shape for name, shape in shapes.items() if not name.endswith(".bias")}
    shared = not config.own_rows if layout == "vllm" else SHARED in present
    return shapes | ({SHARED: (config.vocab_size, config.d_model)} if shared else {})


def _pairs(config: MedusaConfig, layout: Layout) -> list[tuple[str, tuple[str, bool]]]:
    """Returns our name of each parameter, the layout's, and whether its axes are turned."""
    found = []
    for n in range(config.num_heads):
        for m in range(config.blocks):
            block = f"{n}.{m}.linear" if layout == "authors" else f"blocks.{n}.layers.{m}"
            found.append((f"heads.{n}.blocks.{m}.w", (f"{block}.weight", True)))
            found.append((f"heads.{n}.blocks.{m}.b", (f"{block}.bias", False)))
        if config.own_rows:
            rows = f"{n}.{config.blocks}.weight" if layout == "authors" else f"lm_heads.{n}.weight"
            found.append((f"heads.{n}.head", (rows, False)))
    return found


def _weights_file(folder: Path) -> tuple[Layout, Path]:
    """Returns the layout of a folder, and its weights.

    Raises:
      FileNotFoundError: there are none.
      ValueError: they are pickled, or of two layouts.
    """
    found: list[tuple[Any, Path]] = [(name, folder / file) for name, file in FILES.items() if (folder / file).is_file()]
    if len(found) > 1:
        raise ValueError(f"{folder} must have one of {' and '.join(FILES.values())}; it has both")
    if found:
        return found[0]
    pickled = next((name for name in (PICKLED, *PICKLES) if (folder / name).exists()), None)
    if pickled is not None:
        raise ValueError(
            f"{folder / pickled} is pickled: reading it can run code, so it is never opened. Where you trust it, this "
            f'makes a safetensors file of it: python -c "import torch, safetensors.torch as s; '
            f"w = torch.load('{pickled}', weights_only=True); "
            f"s.save_file({{k: v.contiguous() for k, v in w.items()}}, '{FILES['authors']}')\""
        )
    raise FileNotFoundError(f"{folder} has neither {' nor '.join(FILES.values())}")


def _config(raw: Mapping[str, Any], target: ModelConfig, layout: Layout, names: set[str], file: Path) -> MedusaConfig:
    """Returns the configuration that a file tells, which must be one for the target."""
    keys = {"authors": ("medusa_num_heads", "medusa_num_layers"), "vllm": ("num_heads", "num_hidden_layers")}[layout]
    for key in keys:
        if type(raw.get(key)) is not int:
            raise ValueError(f"{file}: {key} must be a whole number; got {raw.get(key)!r}")
    for ours, theirs, wanted in (
        ("width", raw.get("hidden_size", target.d_model), target.d_model),
        ("vocabulary", raw.get("vocab_size", target.vocab_size), target.vocab_size),
        ("truncated vocabulary", raw.get("truncated_vocab_size") or target.vocab_size, target.vocab_size),
    ):
        if theirs != wanted:
            raise ValueError(f"{file}: the heads have a {ours} of {theirs}; the target's is {wanted}")
    if "token_map" in names:
        raise ValueError(f"{file}: heads with a token_map, for a part of the vocabulary, are not supported")
    biased = any(name.endswith(".bias") for name in names)
    if layout == "vllm" and bool(raw.get("medusa_fc_bias")) != biased:
        raise ValueError(
            f"{file}: medusa_fc_bias is {raw.get('medusa_fc_bias')}, but biases are {'' if biased else 'not '}there"
        )
    # Some of the authors' files tell of fewer heads than they hold; their own loader counts on more.
    held = [int(found[1]) + 1 for name in names if (found := re.match(r"(\d+)\.\d+\.", name))]
    heads = max([raw[keys[0]], *held]) if layout == "authors" else raw[keys[0]]
    own = any(re.fullmatch(r"\d+\.\d+\.weight", name) for name in names)
    if layout == "vllm":
        # The field alone tells vLLM which of the names it reads.
        shared = raw.get("original_lm_head", False)
        if type(shared) is not bool:
            raise ValueError(f"{file}: original_lm_head must be true or false; got {shared!r}")
        own = not shared
    try:
        return MedusaConfig(
            target.vocab_size,
            target.d_model,
            num_heads=heads,
            blocks=raw[keys[1]],
            own_rows=own,
        )
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def _check_rows(found: np.ndarray | None, own: Callable[[], Any] | None, file: Path) -> None:
    """Checks that rows which all heads share are the target's."""
    if found is None:
        return
    if own is None:
        raise ValueError(f"{file} holds {SHARED}: give the target's rows, which they must be")
    if not same_vectors(found, own()):
        raise ValueError(f"{SHARED} in {file} must be the target's rows; other shared rows are not supported")


def _authors_fields(config: MedusaConfig, base: str) -> dict[str, Any]:
    return {
        "medusa_num_heads": config.num_heads,
        "medusa_num_layers": config.blocks,
        "base_model_name_or_path": base,
        "hidden_size": config.d_model,
        "vocab_size": config.vocab_size,
    }


def _vllm_fields(config: MedusaConfig) -> dict[str, Any]:
    return {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": config.d_model,
        "vocab_size": config.vocab_size,
        "truncated_vocab_size": config.vocab_size,
        "num_heads": config.num_heads,
        "num_hidden_layers": config.blocks,
        "medusa_fc_bias": config.blocks > 0,
        "original_lm_head": not config.own_rows,
    }
