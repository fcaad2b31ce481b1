"""The decoding programs' arguments as shapes on devices: enough to compile for them, and no memory."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, SingleDeviceSharding

from jax_smash.config import ModelConfig
from jax_smash.decode.autoregressive import Autoregressive
from jax_smash.decode.loop import Chunk, decode, init_rows, prefill, start
from jax_smash.decode.state import DecodeState, Shared, lay_out
from jax_smash.models.definition import NnxModel
from jax_smash.models.transformer import abstract_params
from jax_smash.quantise import quantise_params
from jax_smash.sampling import SamplingOptions, processors_for
from jax_smash.shapes import bucket
from jax_smash.sharding import axes_sharding, param_shardings


@dataclasses.dataclass(frozen=True)
class Abstract:
    """Arguments of the decoding programs, as shapes on one device or many, without memory.

    Attributes:
      strategy: plain decoding of the shape.
      params, state: its parameters and rows.
      chunk: a piece of the prompts.
      steps: how many steps a call runs.
    """

    strategy: Autoregressive
    params: Any
    state: DecodeState
    chunk: Chunk
    steps: jax.ShapeDtypeStruct

    @property
    def programs(self) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
        """The decoding functions by name, each with its arguments."""
        head = (self.strategy, self.params, self.state)
        return {
            "prefill": (prefill, (*head, self.chunk)),
            "start": (start, head),
            "decode": (decode, (*head, self.steps)),
        }

    @property
    def cache_shapes(self) -> set[tuple[int, ...]]:
        """Shapes of the arrays of keys and values, as each device holds them."""
        return {_share(array) for array in (*self.state.rows.cache.keys, *self.state.rows.cache.values)}

    @property
    def weight_shapes(self) -> set[tuple[int, ...]]:
        """Shapes of the weights that are matrices, as each device holds them."""
        return {_share(array) for array in jax.tree.leaves(self.params) if array.ndim > 1}


def abstract(
    config: ModelConfig,
    where: jax.Device | Mesh,
    *,
    batch: int,
    slots: int,
    chunk: int,
    max_new_tokens: int = 256,
    sampled: bool = False,
    dtype: Any = jnp.bfloat16,
    weights: str = "plain",
) -> Abstract:
    """Makes the arguments of the decoding programs without memory.

    Args:
      config: the model's sizes.
      where: device or mesh to compile for; it need not be there.
      batch: rows.
      slots: capacity of the cache a row.
      chunk: entries a row that one prefill reads.
      max_new_tokens: of each row.
      sampled: rows sample, with top-k and top-p.
      dtype: of the weights.
      weights: `plain` or `int8`.
    """
    graphdef, target = abstract_params(config, dtype)
    if weights == "int8":
        target = jax.eval_shape(quantise_params, target)
    strategy = Autoregressive(target=NnxModel(graphdef), sampled=sampled)
    options = [SamplingOptions(temperature=0.8, top_k=50, top_p=0.9) if sampled else SamplingOptions()] * batch

    def state(params: Any) -> DecodeState:
        shared = Shared(
            processors=processors_for(options, stop_tokens=(), vocab_size=config.vocab_size),
            stop_tokens=jnp.zeros((1,), jnp.int32),
        )
        rows = init_rows(
            strategy,
            params,
            shared,
            jax.random.split(jax.random.key(0), batch),
            slots=slots,
            output=bucket(max_new_tokens),
            block=max(chunk, strategy.block),
        )
        return DecodeState(rows=rows, shared=shared)

    def pieces() -> Chunk:
        return Chunk(tokens=jnp.zeros((batch, chunk), jnp.int32), valid=jnp.ones((batch, chunk), bool))

    def put(x: Any, *axes: str | None) -> Any:
        sharding = axes_sharding(x.shape, axes, where) if isinstance(where, Mesh) else SingleDeviceSharding(where)
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    params = {"target": target}
    return Abstract(
        strategy=strategy,
        params={"target": _placed(target, where)},
        state=lay_out(jax.eval_shape(state, params), put),
        chunk=jax.tree.map(lambda x: put(x, "batch"), jax.eval_shape(pieces)),
        steps=put(jax.ShapeDtypeStruct((), jnp.int32)),
    )


def share_bytes(tree: Any) -> int:
    """Returns the bytes that one device holds of a tree of shapes on devices."""
    return sum(math.prod(_share(x)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _placed(params: Any, where: jax.Device | Mesh) -> Any:
    """Returns parameters' shapes on their devices."""
    if isinstance(where, Mesh):
        shardings = param_shardings(params, where)
    else:
        shardings = jax.tree.map(lambda _: SingleDeviceSharding(where), params)
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), params, shardings)


def _share(array: Any) -> tuple[int, ...]:
    """Returns the shape of what one device holds."""
    return array.sharding.shard_shape(array.shape)
