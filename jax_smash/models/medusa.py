"""Medusa's heads: each guesses a later token from the target's last hidden state alone."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int
from qwix import QArray

from jax_smash.models.config_fields import check_head_size
from jax_smash.models.head import likeliest_rows
from jax_smash.models.layers import Keys, OneKey, weight
from jax_smash.models.projection import project, row_products
from jax_smash.quantise import scores
from jax_smash.sampling.vocabulary import likeliest_tokens


@dataclasses.dataclass(frozen=True)
class MedusaConfig:
    """Sizes of Medusa's heads, and the target that they fit.

    Attributes:
      vocab_size, d_model: V and D of the target.
      num_heads: later tokens that are guessed, each by a head of its own.
      blocks: residual blocks of a head; 0 for plain heads, as in blockwise parallel decoding.
      own_rows: each head has a row of its own for each token; else it shares the target's.
      head_size: tokens that heads can say by the target's head; 0 for all.
    """

    vocab_size: int
    d_model: int
    num_heads: int = 4
    blocks: int = 1
    own_rows: bool = True
    head_size: int = 0

    def __post_init__(self) -> None:
        for name, least in (("vocab_size", 1), ("d_model", 1), ("num_heads", 1), ("blocks", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}; got {getattr(self, name)}")
        if not self.blocks and not self.own_rows:
            raise ValueError("heads without blocks need rows of their own: with the target's all would say the same")
        check_head_size(self.head_size, self.vocab_size)
        if self.head_size and self.own_rows:
            raise ValueError(f"head_size is of heads that share the target's rows; got {self.head_size} with own_rows")

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "MedusaConfig":
        """Returns the configuration that `to_fields` wrote. What is newer than some files has its default.

        Raises:
          ValueError: a field is missing, unknown, of the wrong type or out of range.
        """
        fields = {"head_size": 0, **fields}
        declared = {field.name: bool if field.name == "own_rows" else int for field in dataclasses.fields(cls)}
        for name, kind in declared.items():
            if type(fields.get(name)) is not kind:
                raise ValueError(f"{name} must be of type {kind.__name__}; got {fields.get(name)!r}")
        if unknown := sorted({*fields} - {*declared}):
            raise ValueError(f"unknown field {unknown[0]!r}")
        return cls(**fields)

    def to_fields(self) -> dict[str, Any]:
        """Returns the fields as JSON holds them."""
        return dataclasses.asdict(self)


class ResidualBlock(nnx.Module):
    """x + SiLU(W x + b), which begins as the identity: W and b are 0 at first."""

    def __init__(self, d: int, *, rngs: Keys, dtype: Any):
        zeros = jax.nn.initializers.zeros
        self.w = weight(rngs, (d, d), ("embed", None), dtype, zeros, contracted=(0,))
        self.b = weight(rngs, (d,), (None,), dtype, zeros)

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        return x + jax.nn.silu(project(x, self.w[...]) + self.b[...][None, None])


class MedusaHead(nnx.Module):
    """One head: residual blocks, and rows of its own or the target's."""

    def __init__(self, config: MedusaConfig, *, rngs: Keys, dtype: Any):
        self.blocks = nnx.List([ResidualBlock(config.d_model, rngs=rngs, dtype=dtype) for _ in range(config.blocks)])
        table, axes = (config.vocab_size, config.d_model), ("vocab", "embed")
        self.head = weight(rngs, table, axes, dtype, contracted=(1,)) if config.own_rows else None

    def vectors(self, hidden: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Returns what the rows of tokens are multiplied with."""
        for block in self.blocks:
            hidden = block(hidden)
        return hidden


class Medusa(nnx.Module):
    """Heads over the target's hidden state behind its final norm. Holds weights only.

    Head h guesses token n + 2 + h from the state of token n: the target's own head says token n + 1.

    Source: Cai et al. 2024, "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads",
    section 2.1; with plain heads Stern et al. 2018, "Blockwise Parallel Decoding for Deep Autoregressive Models".
    Differs: without blocks a head is one matrix, where blockwise parallel decoding has a layer before the shared head.
    """

    def __init__(self, config: MedusaConfig, *, rngs: Keys, dtype: Any = jnp.float32):
        self.config = config
        self.heads = nnx.List([MedusaHead(config, rngs=rngs, dtype=dtype) for _ in range(config.num_heads)])

    def vectors(self, hidden: Float[Array, "B T D"]) -> Float[Array, "H B T D"]:
        """Returns what the rows of tokens are multiplied with, of each head."""
        return jnp.stack([head.vectors(hidden) for head in self.heads])

    def unembed(self, vectors: Float[Array, "H B T D"], target: Any) -> Float[Array, "H B T V"]:
        """Returns float32 logits of each head.

        Args:
          vectors: as `vectors` returns them.
          target: bound, whose rows heads share that have none of their own.
        """
        if not self.config.own_rows:
            return target.unembed(vectors)
        return jnp.stack([_logits(x, rows) for rows, x in zip(self._rows(), vectors, strict=True)])

    def likeliest(
        self, vectors: Float[Array, "H B T D"], n: int, target: Any
    ) -> tuple[Float[Array, "H B T n"], Int[Array, "H B T n"]]:
        """Returns the logits and ids of the n likeliest tokens of each head; arguments as of `unembed`."""
        if not self.config.own_rows:
            # The rows are read once for all heads.
            shared = likeliest_tokens(target, vectors, n)
            return shared.values, shared.tokens
        found = [likeliest_rows(x, rows, _logits, n) for rows, x in zip(self._rows(), vectors, strict=True)]
        return jnp.stack([f.values for f in found]), jnp.stack([f.tokens for f in found])

    def _rows(self) -> list[Any]:
        """Returns each head's own rows."""
        return [head.head[...] for head in self.heads if head.head is not None]


def _logits(hidden: Float[Array, "*batch D"], head: Any) -> Float[Array, "*batch X"]:
    """Returns the logits of some rows of a head, or of all."""
    return scores(hidden, head) if isinstance(head, QArray) else row_products(hidden, head)


def abstract_medusa(config: MedusaConfig, dtype: Any = jnp.float32) -> tuple[nnx.GraphDef, nnx.State]:
    """Returns the heads' structure, and their parameters as shapes, dtypes and logical axes without any memory."""
    return nnx.split(nnx.eval_shape(lambda: Medusa(config, rngs=OneKey(), dtype=dtype)))


def random_medusa(config: MedusaConfig, seed: int = 0, dtype: Any = jnp.float32) -> tuple[nnx.GraphDef, nnx.State]:
    """Returns the heads' structure and parameters as training begins with them: blocks are 0, rows random."""
    return nnx.split(Medusa(config, rngs=nnx.Rngs(seed), dtype=dtype))
