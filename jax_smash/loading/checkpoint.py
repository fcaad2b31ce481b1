"""From the name of a checkpoint to a model that is ready to decode."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh

from jax_smash.checkpoints.adapter import with_base
from jax_smash.checkpoints.configuration import checkpoint_config
from jax_smash.checkpoints.fingerprint import Fingerprint
from jax_smash.checkpoints.smasher import (
    check_base_weights,
    check_smasher,
    load_smasher,
    read_smasher,
    tokenizer_sha256,
)
from jax_smash.checkpoints.tokenizer import load_tokenizer, stop_tokens
from jax_smash.loading.divided import divisible, placing_of, shardings_of
from jax_smash.loading.model import Model
from jax_smash.loading.modules import base_source, find_modules, with_modules
from jax_smash.loading.names import ASSETS, find
from jax_smash.loading.stored import read_params, stored_fingerprint
from jax_smash.models.definition import NnxModel
from jax_smash.platform import prepare_devices
from jax_smash.quantise import activation_dtype, check_weights, quantise_params
from jax_smash.sharding import make_mesh, place, spans_hosts


def sources(name: str | Path) -> tuple[Path, ...]:
    """Returns the directory or file that a model is read from, and of an adapter the base's too.

    Raises:
      FileNotFoundError: the model does not exist, or an adapter's base does not.
      ValueError: an adapter is damaged or not supported.
    """
    own = find(name)
    return tuple(dict.fromkeys((own, with_base(own, find)[0])))


def load(
    name: str | Path,
    *,
    dtype: Any = None,
    weights: str = "plain",
    mesh: str | Mesh | None = None,
    modules: str | Path | None = None,
) -> Model:
    """Loads a model: one by name, a Hugging Face directory or hub id, a GGUF file, or one that `convert` wrote.

    A directory or hub id may also hold a LoRA adapter as PEFT saves it: its base is loaded with the adapter merged.

    Args:
      name: `tiny`, `smollm2`, a directory, a GGUF file, or `owner/model`.
      dtype: of the weights in memory, and of what is computed; None keeps the checkpoint's, but float32 for a shipped
        model and for quantised weights.
      weights: `plain`, or `int8`: every matrix as 8-bit integers with a float32 scale for each output channel.
      mesh: devices to divide the model over, as in `fsdp=4,tp=2`, by a name of `sharding.PRESETS` or from
        `sharding.make_mesh`; each tensor goes to its devices as it is read. None puts all on the default device.
      modules: a folder with HAMburger modules for the model, or `auto` for those beside it. Where the folder holds
        weights of the base too, which were trained with the modules, the model gets those.

    Raises:
      FileNotFoundError: the model or the modules do not exist.
      ValueError: the checkpoint is damaged or of an unknown architecture; `weights` has an unknown value; the mesh does
        not fit the devices or the model; the modules do not fit the model.
      OSError: `JAX_PLATFORMS` names a platform that JAX cannot use.
    """
    check_weights(weights)
    prepare_devices()
    if isinstance(mesh, str):
        make_mesh(mesh, kv_heads=1)  # Raises before anything is fetched.
    own = find(name)
    path, adapter = with_base(own, find)
    if path.parent == ASSETS:
        dtype = dtype or jnp.float32
    config = checkpoint_config(path)
    mesh = make_mesh(mesh, kv_heads=config.num_kv_heads) if isinstance(mesh, str) else mesh
    folder = None if modules is None else find_modules(name, modules)
    if folder is not None:
        check_smasher(folder, config, tokenizer_sha256(path))
    source = base_source(path, config, folder)
    if adapter is not None and source != path:
        raise ValueError(f"{own} is an adapter, and {folder} holds weights of the base too; give one of them")
    config = divisible(config, source, mesh)
    placing = placing_of(config, weights, mesh)
    seen = Fingerprint(config)
    with ThreadPoolExecutor(1) as pool:
        # Beside the weights: a tokenizer, and the library that reads it, take a second or two.
        reading = pool.submit(lambda: (adapter and load_tokenizer(own)) or load_tokenizer(path))
        lie = shardings_of(config, mesh) if mesh is not None and spans_hosts(mesh) else None
        graphdef, params = read_params(source, config, dtype, seen.place(placing), adapter, lie)
        tokenizer = reading.result()
    if mesh is not None:
        params = place(params, mesh)  # The scales of quantised weights are still on the device that made them.
    model = Model(
        name=str(name),
        definition=NnxModel(graphdef),
        params={"target": params},
        config=config,
        tokenizer=tokenizer,
        stop_tokens=stop_tokens(path, config, tokenizer),
        path=own,
        # What float16 has rounded may not give the fingerprint of what is stored.
        fingerprint=None if dtype is not None and activation_dtype(params) == jnp.float16 else seen.hexdigest(),
        source=source,
    )
    if folder is None:
        return model
    expected = read_smasher(folder).base_fingerprint
    if expected and model.fingerprint is None:
        model = dataclasses.replace(model, fingerprint=stored_fingerprint(source, config, adapter))
    check_base_weights(expected, model.fingerprint or "", modules=folder, base=source)
    made = load_smasher(folder, config, tokenizer_sha256(path), dtype=activation_dtype(params))
    if weights == "int8":
        made = dataclasses.replace(made, params=quantise_params(made.params))
    return with_modules(model, made)
