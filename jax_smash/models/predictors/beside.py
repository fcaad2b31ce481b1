"""A predictor's parameters among those of its base, so that whoever binds the base has both."""

from typing import Any

from flax import nnx

ROLE = "predictor"
"""Under this key; no model of this package has a weight of that name."""


def with_predictor(base: nnx.State, predictor: nnx.State) -> nnx.State:
    """Returns a base's parameters and a predictor's in one tree."""
    return nnx.State({**base, ROLE: predictor})


def without_predictor(params: Any) -> tuple[Any, Any]:
    """Returns what `with_predictor` has put together; None for the predictor's where there is none."""
    if not isinstance(params, nnx.State) or ROLE not in params:
        return params, None
    return nnx.State({name: value for name, value in params.items() if name != ROLE}), params[ROLE]
