"""A head with the rows of some tokens alone, by which drafting takes less time."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from jax_smash.models.head import likeliest_rows
from jax_smash.protocols import ModelDef, Params
from jax_smash.pytree import replace
from jax_smash.sampling.vocabulary import Likeliest
from jax_smash.sharding import constrain

ROLE = "said"
"""Of the parameters: the rows of the target's head that a drafter says tokens by, and their tokens."""


class TokenIds(nnx.Variable):
    """Token ids that belong to weights and are not trained."""


class ShortHead:
    """A target that says some tokens alone, for drafters that have no head of their own.

    Source: Zhao et al. 2025, "FR-Spec: Accelerating Large-Vocabulary Language Models via Frequency-Ranked Speculative
    Sampling", of the head that drafts with the commonest tokens.

    Args:
      target: bound.
      rows: of its head, one a token, as `Transformer.rows_of` returns them.
      tokens: their ids, in rising order.
      vocab_size: V of the target.
    """

    def __init__(self, target: Any, rows: Any, tokens: Int[Array, "X"], vocab_size: int):
        self.target, self.rows, self.tokens, self.vocab_size = target, rows, tokens, vocab_size

    def embed(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Returns the target's vectors of tokens."""
        return self.target.embed(tokens)

    def unembed(self, hidden: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
        """Returns float32 logits of the target's tokens; minus infinity for what is not said."""
        logits = constrain(self.target.logits_of(hidden, self.rows), ..., "vocab")
        return among_all(logits, self.tokens, self.vocab_size)

    def likeliest(
        self, hidden: Float[Array, "*batch D"], n: int, *, total: bool = False, keep: bool = False
    ) -> Likeliest:
        """Returns the n likeliest tokens behind each vector; arguments as of the target's own."""
        found = likeliest_rows(hidden, self.rows, self.target.logits_of, n, total=total, keep=keep)
        logits = None if found.logits is None else among_all(found.logits, self.tokens, self.vocab_size)
        return replace(found, tokens=self.tokens[found.tokens], logits=logits)


def among_all(logits: Float[Array, "*batch X"], tokens: Int[Array, "X"], vocab_size: int) -> Float[Array, "*batch V"]:
    """Returns logits of all tokens, of those of some: minus infinity for the others."""
    nothing = jnp.full((*logits.shape[:-1], vocab_size), -jnp.inf, jnp.float32)
    return nothing.at[..., tokens].set(logits)


def saying(target: ModelDef, params: Params) -> Any:
    """Returns the target by which a drafter says tokens: all of them, or those that stand under `ROLE`.

    Args:
      target: the model that is drafted for.
      params: by role.
    """
    bound: Any = target.bind(params["target"])
    said: Any = params.get(ROLE)
    if said is None:
        return bound
    return ShortHead(bound, said["rows"][...], said["tokens"][...], bound.config.vocab_size)


def said_of(target: Any, tokens: Int[np.ndarray, "X"]) -> nnx.State:
    """Returns what stands under `ROLE`.

    Args:
      target: bound.
      tokens: in rising order.
    """
    ids = jnp.asarray(tokens, jnp.int32)
    rows = target.rows_of(ids)
    held = nnx.Param(rows, out_sharding=("vocab", "embed"), eager_sharding=False, contracted=(1,), units=None)
    return nnx.State({"rows": held, "tokens": TokenIds(ids)})


def check_tokens(tokens: np.ndarray, count: int, vocab_size: int) -> None:
    """Checks the tokens that a drafter can say.

    Raises:
      ValueError: they are not so many different tokens of the vocabulary, in rising order.
    """
    if tokens.shape != (count,) or not np.issubdtype(tokens.dtype, np.integer):
        raise ValueError(f"tokens must be {count} ids; got {tokens.dtype} {list(tokens.shape)}")
    if (np.diff(tokens) <= 0).any() or tokens[0] < 0 or tokens[-1] >= vocab_size:
        raise ValueError(f"tokens must be ids from 0 to {vocab_size - 1} in rising order, each once")
