"""The forms of predictors by name, and how they are made."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jax_smash.cache import Block
from jax_smash.config import ModelConfig
from jax_smash.models.attended import Attended
from jax_smash.models.layers import OneKey
from jax_smash.models.predictors.config import PredictorConfig
from jax_smash.models.predictors.gate import Gate, GateConfig
from jax_smash.models.predictors.grouped import Grouped, GroupedConfig
from jax_smash.models.predictors.importance import Importance
from jax_smash.models.predictors.low_rank import LowRank, LowRankConfig
from jax_smash.models.predictors.per_head import PerHead, PerHeadConfig


class Predictor(Protocol):
    """What predictors of every form offer to training; what they offer to decoding depends on the form.

    Attributes:
      config: of the predictor.
    """

    config: Any

    def read(
        self, taps: Sequence[Float[Array, "B T D"]], heads: Attended, position: Int[Array, "B T"], block: Block
    ) -> Importance:
        """Returns queries and keys of whole rows, from what the base made of them."""


FORMS: dict[str, tuple[type[PredictorConfig], Callable[..., Any]]] = {
    "per_head": (PerHeadConfig, PerHead),
    "grouped": (GroupedConfig, Grouped),
    "low_rank": (LowRankConfig, LowRank),
    "gate": (GateConfig, Gate),
}
"""Configuration and module of each form."""


def predictor_config(kind: Any, fields: Mapping[str, Any]) -> PredictorConfig:
    """Returns the configuration of a form from its fields.

    Raises:
      ValueError: there is no such form, or a field is missing, unknown, of the wrong type or out of range.
    """
    return _form(kind)[0].from_fields(fields)


def predictor_for(kind: Any, base: ModelConfig, **changes: Any) -> PredictorConfig:
    """Returns a predictor of the usual sizes for a base, with some fields changed.

    Raises:
      ValueError: as `predictor_config`.
    """
    return _form(kind)[0].for_base(base, **changes)


def abstract_predictor(config: PredictorConfig, dtype: Any = jnp.float32) -> tuple[nnx.GraphDef, nnx.State]:
    """Returns a predictor's structure, and its parameters as shapes, dtypes and logical axes without any memory."""
    return nnx.split(nnx.eval_shape(lambda: FORMS[config.kind][1](config, rngs=OneKey(), dtype=dtype)))


def random_predictor(
    config: PredictorConfig, seed: int = 0, dtype: Any = jnp.float32
) -> tuple[nnx.GraphDef, nnx.State]:
    """Returns a predictor's structure and randomly initialised parameters."""
    return nnx.split(FORMS[config.kind][1](config, rngs=nnx.Rngs(seed), dtype=dtype))


def _form(kind: Any) -> tuple[type[PredictorConfig], Callable[..., Any]]:
    if kind not in FORMS:
        raise ValueError(f"a predictor must be of one of the forms {', '.join(FORMS)}; got {kind!r}")
    return FORMS[kind]
