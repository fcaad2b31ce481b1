"""Compiled programs to look into, and programs that are wrong on purpose."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from jax_smash.cache import Block
from jax_smash.decode.autoregressive import Autoregressive
from jax_smash.decode.state import DecodeState, running_rows
from jax_smash.protocols import Params
from jax_smash.pytree import replace


@contextlib.contextmanager
def optimised() -> Iterator[None]:
    """Compiles as in use; for other tests, conftest.py leaves most optimisations out."""
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", True)


@dataclasses.dataclass(frozen=True)
class Hasty(Autoregressive):
    """Commits without waiting for the token: the cache may be written before attention has read it."""

    def step(self, params: Params, state: DecodeState) -> DecodeState:
        rows = state.rows
        model = self.target.bind(params["target"])
        running = running_rows(state).astype(jnp.int32)
        position = rows.token_length[:, None] - 1
        block = Block.causal(jnp.ones_like(position, bool))
        out = model.forward(model.embed(rows.pending[:, None]), position, rows.cache, block)
        emitted = self._emit(state, model.unembed(out.hidden[:, 0]))
        cache = rows.cache.commit(out.block_kv, position, running)
        return replace(emitted, rows=replace(emitted.rows, cache=cache, forwards=rows.forwards + running))


@dataclasses.dataclass(frozen=True)
class Talkative(Autoregressive):
    """Tells the host about every step."""

    def step(self, params: Params, state: DecodeState) -> DecodeState:
        jax.debug.callback(_ignore, state.rows.pending)
        return super().step(params, state)


def _ignore(tokens: Any) -> None:
    pass
