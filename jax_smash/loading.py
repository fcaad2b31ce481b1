"""From a checkpoint's name to a model ready to decode."""

import dataclasses
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from jax_smash.automaton import token_bytes
from jax_smash.checkpoints import huggingface, orbax
from jax_smash.checkpoints.smasher import SmashModules, check_smasher, is_smasher, load_smasher, tokenizer_sha256
from jax_smash.config import ModelConfig
from jax_smash.models.definition import NnxModel
from jax_smash.models.families.family import in_use
from jax_smash.models.families.presets import preset
from jax_smash.models.transformer import abstract_params, random_params
from jax_smash.protocols import ModelDef
from jax_smash.quantise import activation_dtype, check_weights, quantise_params, quantising_place
from jax_smash.sharding import make_mesh, mesh_of, on_mesh, param_shardings, place

ASSETS = Path(__file__).parent / "assets"
SHIPPED = ("tiny",)
"""Models that come with the package, by name."""

MODULES = "hamburger"
"""Folder, beside a base, of the HAMburger modules that go with it."""

GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Tokenizer classes that are all in their `tokenizer.json`, under the names of transformers 4 and 5."""


@dataclasses.dataclass(frozen=True)
class Model:
    """Everything that decoding needs, by role.

    Attributes:
      name: where it came from.
      definition: the target without its parameters. Any `ModelDef` will do, not only ours.
      params: parameters by role; the model itself is `target`.
      config: sizes; None for a model that is not ours.
      tokenizer: a Hugging Face tokenizer; None where the directory has none.
      stop_tokens: ids that end a text.
      path: the directory it was loaded from; None for a model without one.
      modules: HAMburger modules grafted on it, whose parameters stand under `smasher` too; None where there are none.
    """

    name: str
    definition: ModelDef
    params: dict[str, Any]
    config: ModelConfig | None = None
    tokenizer: Any = None
    stop_tokens: tuple[int, ...] = ()
    path: Path | None = None
    modules: SmashModules | None = None

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a plain prompt, with the tokenizer's own beginning.

        Raises:
          ValueError: the model has no tokenizer.
        """
        return list(self._tokenizer()(text)["input_ids"])

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Returns the tokens of a conversation up to where the assistant answers.

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
        """V."""
        return self.definition.bind(self.params["target"]).vocab_size

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
                f"{self.name} has no tokenizer (tokenizer.json or tokenizer.model is missing); prompts must be tokens"
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
    """Loads a model: a shipped one, a Hugging Face directory or hub id, or one that `convert` wrote.

    Args:
      name: `tiny`, a directory, or `owner/model`.
      dtype: of the weights in memory, and of what is computed; None keeps the checkpoint's, but float32 for a shipped
        model.
      weights: `plain`, or `int8`: every matrix as 8-bit integers with a float32 scale for each output channel.
      mesh: devices to divide the model over, as in `fsdp=4,tp=2` or from `sharding.make_mesh`; each tensor goes to its
        devices as it is read. None puts all on the default device.
      modules: a folder with HAMburger modules for the model, or `auto` for those beside it. Where the folder holds
        weights of the base too, which were trained with the modules, the model gets those.

    Raises:
      FileNotFoundError: there is no such model, or it has no such modules.
      ValueError: the checkpoint is damaged, or of an unknown architecture; there are no such weights; the mesh does not
        fit the devices or the model; the modules do not fit the model.
    """
    check_weights(weights)
    mesh = make_mesh(mesh) if isinstance(mesh, str) else mesh
    path = find(name)
    if path.parent == ASSETS:
        dtype = dtype or jnp.float32
    config = _config(path)
    folder = None if modules is None else find_modules(name, modules)
    if folder is not None:
        check_smasher(folder, config, tokenizer_sha256(path))
    source = _source(path, config, folder)
    _, abstract = abstract_params(config)
    placing = None if mesh is None else _place_on(mesh, abstract)
    if weights == "int8":
        placing = quantising_place(abstract, placing)
    if orbax.is_checkpoint(source):
        config, graphdef, params = orbax.load(source, dtype=dtype, place=placing)
    else:
        graphdef, params = huggingface.load_params(source, config, dtype=dtype, place=placing)
    if mesh is not None:
        params = place(params, mesh)  # Scales of quantised weights lie where they were made.
    tokenizer = load_tokenizer(path)
    model = Model(
        name=str(name),
        definition=NnxModel(graphdef),
        params={"target": params},
        config=config,
        tokenizer=tokenizer,
        stop_tokens=stop_tokens(path, config, tokenizer),
        path=path,
    )
    if folder is None:
        return model
    made = load_smasher(folder, config, tokenizer_sha256(path), dtype=activation_dtype(params))
    if weights == "int8":
        made = dataclasses.replace(made, params=quantise_params(made.params))
    return grafted(model, made)


def grafted(model: Model, modules: SmashModules) -> Model:
    """Returns a model with HAMburger modules on it, on the model's own devices.

    Raises:
      ValueError: the model is not one of this package's, or the modules were made for another configuration.
    """
    if model.config is None:
        raise ValueError(f"HAMburger modules need a model of this package; {model.name} is none")
    modules.config.check_base(model.config, modules.config.tokenizer_sha256)
    mesh = mesh_of(model.params)
    if mesh is not None:
        modules = dataclasses.replace(modules, params=place(modules.params, mesh))
    return dataclasses.replace(model, modules=modules, params={**model.params, "smasher": modules.params})


def find_modules(name: str | Path, modules: str | Path) -> Path:
    """Returns the folder of HAMburger modules.

    Args:
      name: of the model that they are for, as `load` takes it.
      modules: a folder, or `auto` for the one beside the model.

    Raises:
      FileNotFoundError: there is no such model, or no modules are there.
    """
    if str(modules) != "auto":
        folder = Path(modules).expanduser()
        if not is_smasher(folder):
            raise FileNotFoundError(f"{folder} has no HAMburger modules: smasher.json is missing")
        return folder
    folder = find(name) / MODULES
    if not is_smasher(folder):
        raise FileNotFoundError(f"{name} has no HAMburger modules in {folder}; give --modules FOLDER")
    return folder


def _config(path: Path) -> ModelConfig:
    return orbax.read_config(path) if orbax.is_checkpoint(path) else huggingface.read_config(path)[0]


def _source(path: Path, config: ModelConfig, folder: Path | None) -> Path:
    """Returns where the base's weights are: with the modules, where those were trained with them.

    Raises:
      ValueError: the base in the modules' folder has another configuration or tokenizer.
    """
    if folder is None or not (orbax.is_checkpoint(folder) or (folder / huggingface.CONFIG).is_file()):
        return path
    if in_use(_config(folder)) != in_use(config):
        raise ValueError(f"the base in {folder} must have the configuration of the one in {path}; it has another")
    if tokenizer_sha256(folder) not in ("", tokenizer_sha256(path)):
        raise ValueError(f"the base in {folder} must have the tokenizer of the one in {path}; it has another")
    return folder


def find(name: str | Path) -> Path:
    """Returns the directory of a model: a shipped one by its name, any other by its path or hub id.

    A directory of that name goes before a shipped model.

    Raises:
      FileNotFoundError: there is no such model.
    """
    if str(name) in SHIPPED and not Path(name).exists():
        return ASSETS / str(name)
    return huggingface.resolve(name)


def quantised(model: Model) -> Model:
    """Returns a model with its target's matrices as int8. The model it was made from stays as it is."""
    params, mesh = quantise_params(model.params["target"]), mesh_of(model.params)
    params = params if mesh is None else place(params, mesh)
    return dataclasses.replace(model, params={**model.params, "target": params})


def random_model(shape: str, *, dtype: Any = jnp.bfloat16, seed: int = 0, mesh: str | Mesh | None = None) -> Model:
    """Makes a model of a real shape with random weights, to measure speed without a checkpoint.

    Args:
      shape: a preset's name, or a directory with a `config.json`.
      dtype: of the weights.
      seed: of the weights.
      mesh: devices to divide them over, as `load` does; the weights are the same on any.

    Raises:
      ValueError: there is no such shape; the mesh does not fit the devices or the shape.
    """
    mesh = make_mesh(mesh) if isinstance(mesh, str) else mesh
    config = huggingface.read_config(shape)[0] if Path(shape).exists() else preset(shape)
    if mesh is not None:
        param_shardings(abstract_params(config)[1], mesh)  # Refuses what does not fit, before anything is made.
    with on_mesh(mesh):
        graphdef, params = random_params(config, seed=seed, dtype=dtype)
    params = params if mesh is None else place(params, mesh)
    return Model(name=shape, definition=NnxModel(graphdef), params={"target": params}, config=config)


def _place_on(mesh: Mesh, abstract: nnx.State) -> huggingface.Place:
    """Returns a function that puts a parameter on its devices.

    Raises:
      ValueError: a parameter does not fit the mesh.
    """
    shardings = {where: v.get_value() for where, v in nnx.to_flat_state(param_shardings(abstract, mesh))}
    return lambda where, array: jax.device_put(array, shardings[where])


def load_tokenizer(path: Path) -> Any:
    """Returns the directory's tokenizer, or None where it has none. Never runs code from the directory."""
    if not any((path / f).exists() for f in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        return None
    import transformers  # Takes a second to import, so only where a tokenizer is wanted.

    try:
        named = _json(path / "tokenizer_config.json").get("tokenizer_class")
        if named in GENERIC and (path / "tokenizer.json").exists():
            # AutoTokenizer would choose the same, but first import torch where it is installed: seconds more.
            return transformers.PreTrainedTokenizerFast.from_pretrained(str(path), local_files_only=True)
        return transformers.AutoTokenizer.from_pretrained(str(path), trust_remote_code=False, local_files_only=True)
    except Exception as error:  # Whatever the library raises, the user is told which file is meant.
        raise ValueError(f"cannot read the tokenizer in {path}: {error}") from error


def stop_tokens(path: Path, config: ModelConfig, tokenizer: Any) -> tuple[int, ...]:
    """Returns the ids that end a text, as configuration, generation settings and tokenizer name them, in order."""
    stops = set(config.eos_tokens)
    eos = _json(path / "generation_config.json").get("eos_token_id")
    stops |= set(eos if isinstance(eos, list) else [] if eos is None else [eos])
    if tokenizer is not None and tokenizer.eos_token_id is not None:
        stops.add(tokenizer.eos_token_id)
    return tuple(sorted(stops))


def _json(file: Path) -> dict[str, Any]:
    """Returns a file's JSON object; an empty one where there is no file."""
    if not file.exists():
        return {}
    try:
        content = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} is damaged: it must be JSON ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold a JSON object; got {type(content).__name__}")
    return content
