"""Where the predictors of policies come from: a folder, or what is shipped with the package."""

from pathlib import Path

from jax_smash.checkpoints.butler import ButlerDescription, ButlerModules, is_butler, load_butler, read_butler
from jax_smash.config import ModelConfig
from jax_smash.loading import ASSETS, Model, weights_fingerprint
from jax_smash.quantise import activation_dtype
from jax_smash.sparse.learned import Learned

SHIPPED_PREDICTORS = ASSETS / "predictors"
"""Predictors that come with the package: a folder for each base by its name, and in it one for each form."""


def find_predictor(policy: Learned, base: str) -> Path:
    """Returns the folder of a policy's predictor.

    Args:
      policy: names a folder, or leaves it to what is shipped.
      base: name of the model, as `load` takes it.

    Raises:
      FileNotFoundError: there is no predictor.
    """
    if policy.path:
        folder = Path(policy.path).expanduser()
        if not is_butler(folder):
            raise FileNotFoundError(f"{folder} has no predictor of attention: butler.json is missing")
        return folder
    folder = SHIPPED_PREDICTORS / Path(base).name / policy.form
    if not is_butler(folder):
        names = {"per_head": "butler", "low_rank": "low-rank"}
        found = sorted(
            f"{names.get(file.parent.name, file.parent.name)} for {file.parent.parent.name}" for file in _shipped()
        )
        name = names.get(policy.form, policy.form)
        raise FileNotFoundError(
            f"policy {name} has no predictor for {base} (shipped: {', '.join(found) or 'none'}); name the folder of "
            f"one, as in {name}:FOLDER"
        )
    return folder


def load_predictor(model: Model, policy: Learned) -> ButlerModules:
    """Loads a policy's predictor for a model, in the dtype that the model computes in.

    Raises:
      FileNotFoundError: there is no predictor.
      ValueError: it was trained with another base or is of another form, or a file is damaged.
    """
    folder, config = find_predictor(policy, model.name), _config(model)
    policy.sized(read_butler(folder).config)  # Refuses another form before a weight is read.
    return load_butler(folder, config, weights_fingerprint(model), dtype=activation_dtype(model.params["target"]))


def check_predictor(model: Model, predictor: ButlerModules) -> None:
    """Checks that a predictor in memory is one for a model.

    Raises:
      ValueError: it was made for other sizes, or trained with other weights.
    """
    predictor.config.check_base(_config(model))
    expected = predictor.base_fingerprint
    if expected and (found := weights_fingerprint(model)) != expected:
        raise ValueError(
            f"the predictor was trained with a base whose weights have fingerprint {expected[:16]}; "
            f"those of {model.name} have {'none' if found is None else found[:16]}"
        )


def described(policy: Learned, base: str, config: ModelConfig) -> Learned:
    """Returns a policy with the sizes of its predictor, of which no weights are read.

    Args:
      policy: names a folder, or leaves it to what is shipped.
      base: name of the model.
      config: of the model.

    Raises:
      FileNotFoundError: there is no predictor.
      ValueError: it is of another form or for other sizes, or its description is damaged.
    """
    found: ButlerDescription = read_butler(find_predictor(policy, base))
    found.config.check_base(config)
    return policy.sized(found.config, found.trained_length)


def _shipped() -> list[Path]:
    return sorted(SHIPPED_PREDICTORS.glob("*/*/butler.json"))


def _config(model: Model) -> ModelConfig:
    assert model.config is not None  # `policy.check` has refused others.
    return model.config
