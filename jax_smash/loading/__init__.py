"""Loading: from the name of a checkpoint to a model that is ready to decode."""

from jax_smash.loading.checkpoint import load, sources
from jax_smash.loading.divided import divisible
from jax_smash.loading.made import quantised, random_model
from jax_smash.loading.model import Model
from jax_smash.loading.modules import check_modules, find_modules, grafted, modules_options, weights_fingerprint
from jax_smash.loading.names import ASSETS, PACKAGED, SHIPPED, find
from jax_smash.loading.stored import stored_base, stored_vectors

__all__ = [
    "ASSETS",
    "PACKAGED",
    "SHIPPED",
    "Model",
    "check_modules",
    "divisible",
    "find",
    "find_modules",
    "grafted",
    "load",
    "modules_options",
    "quantised",
    "random_model",
    "sources",
    "stored_base",
    "stored_vectors",
    "weights_fingerprint",
]
