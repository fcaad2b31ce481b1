"""EAGLE-3 drafters in the layout that vLLM and SGLang load: `config.json` and `model.safetensors`.

Tensors: `fc`, `midlayer.*` (also `layers.0.*` or `model.layers.0.*`), `norm`, `lm_head`, `d2t` (target id minus row, a
number for each row of the head), `t2d` (which target ids the head has) and, of EAGLE-3.1, `fc_norm.N`. Vectors of
tokens are the target's own.

`eagle_aux_hidden_state_layer_ids` has two readings. To vLLM, id i is what enters layer i. SGLang adds 1 to ids that are
given, later versions only where the first is 1: there, id i is what leaves layer i. A drafter that is read the wrong
way drafts badly and says nothing. So a reading must be told, unless the ids are those of the usual layers in one of
the two.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from flax import nnx
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from jax_smash.checkpoints.described import check_finite, check_savable, dtype_of, read_fields
from jax_smash.checkpoints.directory import new_directory
from jax_smash.checkpoints.eagle import EagleModules
from jax_smash.checkpoints.eagle_tensors import shapes_of, to_ours, to_published
from jax_smash.checkpoints.fit import check_fit, dotted
from jax_smash.checkpoints.published import (
    check_activation,
    check_full_attention,
    layer_fields,
    marks_of,
    read_marks,
    same_vectors,
    target_vectors,
)
from jax_smash.checkpoints.shards import PICKLES, weight_files
from jax_smash.config import ModelConfig
from jax_smash.models.definition import NnxModel
from jax_smash.models.eagle import abstract_eagle
from jax_smash.models.eagle_config import EagleConfig
from jax_smash.models.families import from_hf
from jax_smash.models.short_head import check_tokens
from jax_smash.quantise import check_plain

CONFIG, WEIGHTS, ARCHITECTURE = "config.json", "model.safetensors", "LlamaForCausalLMEagle3"

IDS, TAPS = "eagle_aux_hidden_state_layer_ids", "num_aux_hidden_states"

Reading = Literal["inputs", "outputs"]
"""What an id of a layer means: what enters the layer, or what leaves it."""

JOINED_NORM = "norm_before_fc"
"""One norm over all joined taps, which is not supported: always false, and told in the same places."""

FLAGS = {"norm_before_residual": "residual_normed", "norm_output": "feeds_normed", "fc_norm": "tap_norms"}
"""Fields of `config.json`, or of `eagle_config` in it, and ours."""

PICKLED = (
    "python -c \"import torch, safetensors.torch as s; w = torch.load('{0}', weights_only=True); "
    "s.save_file({{k: v.contiguous() for k, v in w.items()}}, 'model.safetensors')\""
)


def import_eagle(
    folder: str | Path,
    target: ModelConfig,
    *,
    layer_ids: Reading | None = None,
    embedding: Callable[[], Any] | None = None,
    dtype: Any = None,
) -> EagleModules:
    """Reads a published EAGLE-3 drafter. Every tensor is used or refused, and shapes are compared before one is read.

    Args:
      folder: with `config.json` and safetensors.
      target: configuration of the model that it drafts for.
      layer_ids: what ids of layers mean; None where the usual layers tell it.
      embedding: returns the target's vectors of tokens, `[V, D]`: asked where the drafter brings vectors, which must be
        these.
      dtype: of the weights in memory; None keeps the files'.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: one is damaged or pickled; the drafter is for another target; ids of layers are ambiguous or none of
        the target's; a tensor is missing, unexpected, of another shape, NaN or infinite; `d2t` is no list of tokens.
    """
    folder = Path(folder).expanduser().resolve()
    raw = read_fields(folder / CONFIG)
    file = weights_file(folder)
    try:
        with safe_open(file, framework="numpy") as stored:
            names = {_plain_name(name): name for name in stored.keys()}  # noqa: SIM118 - no mapping
            if len(names) < len(list(stored.keys())):
                raise ValueError(f"{file} holds a tensor under two names")
            shapes = {ours: tuple(stored.get_slice(name).get_shape()) for ours, name in names.items()}
            config = _config(raw, target, {*names}, layer_ids, folder / CONFIG)
            check_fit(file, shapes_of(config, {*names}), shapes)
            tensors = {ours: stored.get_tensor(name) for ours, name in names.items()}
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    tokens = _tokens(tensors, config, file)
    check_embedding(tensors.pop("embed_tokens.weight", None), embedding, file)
    made_of = dtype_of(file, tensors, dtype)
    check_finite(file, tensors, made_of)
    held = {name: x.astype(made_of, copy=False) for name, x in to_ours(tensors, config).items()} | tokens
    graphdef, abstract = abstract_eagle(config, made_of)
    leaves = [(path, v.replace(jax.device_put(held[dotted(path)]))) for path, v in nnx.to_flat_state(abstract)]
    return EagleModules(
        config=config,
        definition=NnxModel(graphdef),
        params=nnx.from_flat_state(leaves),
        **read_marks(raw, folder / CONFIG),
    )


def export_eagle(
    folder: str | Path,
    drafter: EagleModules,
    *,
    layer_ids: Reading = "inputs",
    rows: Callable[[], Any] | None = None,
) -> None:
    """Writes a drafter as vLLM (`inputs`) or SGLang (`outputs`) loads it; the folder appears whole or not at all.

    Ids of layers and flags of norms are always written, for loaders differ in what they take where they are absent.

    Args:
      folder: absent or empty.
      drafter: with plain weights.
      layer_ids: what the ids that are written mean.
      rows: returns the target's rows of its head, `[V, D]`, for a drafter without rows of its own.

    Raises:
      FileExistsError: the folder has something in it.
      ValueError: weights are int8 or not finite; the layout cannot tell the taps or the rotary embedding; rows are
        missing, or those of another target.
      OSError: the disk is full.
    """
    config = drafter.config
    check_plain(drafter.params)
    fields = _fields(config, _written_ids(config, layer_ids)) | marks_of(drafter)
    params = {dotted(path): np.asarray(v.get_value()) for path, v in nnx.to_flat_state(drafter.params)}
    tokens = params.pop("tokens", np.arange(config.head_size, dtype=np.int32)).astype(np.int64)
    if not config.own_rows:
        if rows is None:
            raise ValueError(
                "a drafter that uses the model's own embedding and head needs the model as its base; got none"
            )
        params["head"] = target_vectors(rows(), config)[tokens].astype(params["w_join"].dtype)
    tensors = to_published(params, config)
    check_savable(tensors)
    known = np.zeros(config.vocab_size, bool)
    known[tokens] = True
    tensors |= {"d2t": tokens - np.arange(len(tokens)), "t2d": known}
    fields["torch_dtype"] = str(tensors["norm.weight"].dtype)
    with new_directory(folder, sum(x.nbytes for x in tensors.values())) as work:
        save_file({name: np.ascontiguousarray(x) for name, x in tensors.items()}, work / WEIGHTS, {"format": "pt"})
        (work / CONFIG).write_text(json.dumps(fields, indent=2) + "\n")


def weights_file(folder: Path) -> Path:
    """Returns the one safetensors file of a folder.

    Raises:
      FileNotFoundError: there is none.
      ValueError: weights are pickled, or in several files.
    """
    for pickle in PICKLES:
        if (folder / pickle).exists() and not (folder / WEIGHTS).exists():
            raise ValueError(
                f"{folder / pickle} is pickled: reading it can run code, so it is never opened. Where you trust it, "
                f"this makes a safetensors file of it: {PICKLED.format(pickle)}"
            )
    files = weight_files(folder)
    if len(files) > 1:
        raise ValueError(f"a drafter must be one safetensors file; {folder} has {len(files)}")
    return files[0]


def _plain_name(name: str) -> str:
    """Returns a tensor's name in the layout that is written here."""
    name = name.removeprefix("model.")
    return f"midlayer.{name.removeprefix('layers.0.')}" if name.startswith("layers.0.") else name


def _config(
    raw: Mapping[str, Any], target: ModelConfig, names: set[str], layer_ids: Reading | None, file: Path
) -> EagleConfig:
    try:
        if raw.get("num_hidden_layers", 1) != 1:
            raise ValueError(f"num_hidden_layers must be 1; got {raw['num_hidden_layers']}")
        check_full_attention(raw)
        layer = from_hf({**raw, "model_type": "llama", "architectures": None, "num_hidden_layers": 1})
        check_activation(layer.activation)
        if layer.qkv_bias or layer.mlp_bias:
            raise ValueError("a drafter with biases is not supported")
        for ours, theirs, wanted in (
            ("vocabulary", layer.vocab_size, target.vocab_size),
            ("width", layer.d_model, target.d_model),
            ("width of the target", raw.get("target_hidden_size") or target.d_model, target.d_model),
        ):
            if theirs != wanted:
                raise ValueError(f"the drafter has a {ours} of {theirs}; the target's is {wanted}")
        inner = raw.get("eagle_config") or {}
        if not isinstance(inner, Mapping):
            raise ValueError(f"eagle_config must be an object; got {inner!r}")
        if inner.get("use_aux_hidden_state", True) is not True:
            raise ValueError("use_aux_hidden_state must be true: EAGLE-3 reads several layers")
        nested, ids = inner.get(IDS), raw.get(IDS)
        if None not in (nested, ids) and nested != ids:
            raise ValueError(f"{IDS} is {ids!r}, and within eagle_config {nested!r}")
        taps = _taps(ids if nested is None else nested, target.num_layers, layer_ids)
        if raw.get(TAPS) not in (None, len(taps)):
            raise ValueError(f"{TAPS} must be {len(taps)}, as many as there are ids of layers; got {raw[TAPS]!r}")
        return EagleConfig(
            vocab_size=target.vocab_size,
            d_model=target.d_model,
            target_layers=target.num_layers,
            taps=taps,
            num_heads=layer.num_heads,
            num_kv_heads=layer.num_kv_heads,
            head_width=layer.head_width,
            mlp_width=layer.mlp_width,
            head_size=raw.get("draft_vocab_size") or target.vocab_size,
            max_positions=layer.max_positions,
            norm_epsilon=layer.norm_epsilon,
            rope=layer.rope,
            **_flags(raw, inner, names),
        )
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file}: {error}") from error


def _taps(ids: Any, layers: int, reading: Reading | None) -> tuple[int, ...]:
    """Returns the taps that ids of layers mean: tap i is what enters layer i."""
    usual = (2, layers // 2, layers - 3)
    if ids is None:
        return usual
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
        raise ValueError(f"{IDS} must be a list of whole numbers; got {ids!r}")
    if not all(0 <= i < layers for i in ids):
        raise ValueError(f"{IDS} must be from 0 to {layers - 1}, the target's layers; got {ids}")
    behind = tuple(i + 1 for i in ids)
    if reading is None:
        found = {"inputs": tuple(ids) == usual, "outputs": behind == usual}
        reading = next((name for name, told in found.items() if told), None)
    if reading is None:
        raise ValueError(
            f"{IDS} {ids} may mean what enters these layers (vLLM) or what leaves them (SGLang): say which by "
            f"layer_ids, inputs or outputs"
        )
    return tuple(ids) if reading == "inputs" else behind


def _flags(raw: Mapping[str, Any], inner: Mapping[str, Any], names: set[str]) -> dict[str, bool]:
    """Returns our switches from flags beside or inside `eagle_config`, and from the norms that are there."""
    if "input_norm.weight" in names or any(fields.get(JOINED_NORM) not in (None, False) for fields in (raw, inner)):
        raise ValueError(f"{JOINED_NORM}, one norm over all joined taps, is not supported")
    found: dict[str, bool] = {}
    for theirs, ours in FLAGS.items():
        told = [fields[theirs] for fields in (raw, inner) if fields.get(theirs) is not None]
        if not all(type(flag) is bool for flag in told) or len({*told}) > 1:
            raise ValueError(f"{theirs} must be true or false; got {' and '.join(map(str, told))}")
        if told:
            found[ours] = told[0]
    normed = any(name.startswith("fc_norm.") for name in names)
    if found.setdefault("tap_norms", normed) != normed:
        raise ValueError(f"fc_norm is {found['tap_norms']}, but tensors fc_norm are {'' if normed else 'not '}there")
    if normed and "feeds_normed" not in found:
        raise ValueError("norm_output must be told beside fc_norm: true in EAGLE-3.1")
    if "speculators_model_type" in raw and "residual_normed" not in found:
        raise ValueError("norm_before_residual must be told: loaders differ in what they take where it is absent")
    return found


def _tokens(tensors: dict[str, np.ndarray], config: EagleConfig, file: Path) -> dict[str, np.ndarray]:
    """Takes `d2t` and `t2d` out of the tensors, and returns the ids of the head's rows where it has not all tokens."""
    offsets, known = tensors.pop("d2t", None), tensors.pop("t2d", None)
    if offsets is not None and offsets.dtype.kind not in "iu":
        raise ValueError(f"d2t in {file} must hold whole numbers; got {offsets.dtype}")
    if known is not None and (known.dtype.kind not in "biu" or not np.isin(known, (0, 1)).all()):
        raise ValueError(f"t2d in {file} must hold true or false, or 0 or 1; got {known.dtype}")
    row = np.arange(config.head_size, dtype=np.int64)
    ids = row if offsets is None else row + offsets.astype(np.int64)
    try:
        check_tokens(ids, config.head_size, config.vocab_size)
    except ValueError as error:
        raise ValueError(f"d2t in {file}: {error}") from error
    if known is not None and not np.array_equal(np.flatnonzero(known), ids):
        raise ValueError(
            f"t2d in {file} must mark the tokens that d2t names; it marks {np.count_nonzero(known)} others or more"
        )
    return {} if config.head_size == config.vocab_size else {"tokens": ids.astype(np.int32)}


def check_embedding(found: np.ndarray | None, own: Callable[[], Any] | None, file: Path) -> None:
    """Checks that a drafter's vectors of tokens, where it has some, are the target's."""
    if found is None:
        return
    if own is None:
        raise ValueError(f"{file} holds embed_tokens.weight: give the target's vectors, which they must be")
    if not same_vectors(found, own()):
        raise ValueError(
            f"embed_tokens.weight in {file} must be the target's vectors; a drafter's own are not supported"
        )


def _written_ids(config: EagleConfig, reading: Reading) -> list[int]:
    if reading == "inputs":
        if config.taps[-1] == config.target_layers:
            raise ValueError(
                f"taps {list(config.taps)} cannot be told by what enters layers: the last leaves all of them"
            )
        return list(config.taps)
    if len(config.taps) == 1:
        raise ValueError("SGLang does not join a single tap, and would draft badly; export the drafter for vLLM")
    # Later versions of SGLang take ids for outputs only where the first is 1.
    if config.taps[0] != 2:
        raise ValueError(f"SGLang reads ids as outputs only where the first tap is 2; got taps {list(config.taps)}")
    return [tap - 1 for tap in config.taps]


def _fields(config: EagleConfig, ids: list[int]) -> dict[str, Any]:
    """Returns the content of `config.json`."""
    flags = {theirs: getattr(config, ours) for theirs, ours in FLAGS.items()} | {JOINED_NORM: False}
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        **layer_fields(config),
        "draft_vocab_size": config.head_size,
        "target_hidden_size": config.d_model,
        # Loaders that read it make `fc` for three taps where it is absent.
        TAPS: len(config.taps),
        # Some loaders read ids and flags here, others within.
        IDS: ids,
        **flags,
        "eagle_config": {IDS: ids, "use_aux_hidden_state": True, **flags},
    }
