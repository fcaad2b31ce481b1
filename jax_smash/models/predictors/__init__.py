"""Small modules that predict which entries of a cache a base will attend to, one form a file."""

from jax_smash.models.predictors.beside import with_predictor, without_predictor
from jax_smash.models.predictors.config import PredictorConfig
from jax_smash.models.predictors.forms import (
    FORMS,
    Predictor,
    abstract_predictor,
    predictor_config,
    predictor_for,
    random_predictor,
)
from jax_smash.models.predictors.gate import Gate, GateConfig, Pool, pool_pages
from jax_smash.models.predictors.grouped import Grouped, GroupedConfig
from jax_smash.models.predictors.importance import Importance, RoundedKeys, importance, int4_keys, int8_keys
from jax_smash.models.predictors.low_rank import LowRank, LowRankConfig
from jax_smash.models.predictors.per_head import PerHead, PerHeadConfig, PerHeadRead

__all__ = [
    "FORMS",
    "Gate",
    "GateConfig",
    "Grouped",
    "GroupedConfig",
    "Importance",
    "LowRank",
    "LowRankConfig",
    "PerHead",
    "PerHeadConfig",
    "PerHeadRead",
    "Pool",
    "Predictor",
    "PredictorConfig",
    "RoundedKeys",
    "abstract_predictor",
    "importance",
    "int4_keys",
    "int8_keys",
    "pool_pages",
    "predictor_config",
    "predictor_for",
    "random_predictor",
    "with_predictor",
    "without_predictor",
]
