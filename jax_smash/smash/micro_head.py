"""Smaller heads for the tokens behind a group's first: half of a micro-step's time goes into the base's own head."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from qwix import QArray

from jax_smash.models.projection import row_products
from jax_smash.models.transformer import Transformer
from jax_smash.protocols import CausalLM
from jax_smash.pytree import pytree, static
from jax_smash.quantise import quantise, scores

ROLE = "micro_head"
"""Name of its place among the parameters."""


@pytree
class MicroHead:
    """A head made from the base's own: its rows as int8, or some of them.

    Attributes:
      table: a row for each token that it can say.
      tokens: id of each row; None where row i is token i.
      softcap: cap · tanh(x / cap) of the logits; 0 for none.
      divisor: divides the logits first.
      vocab_size: V.
    """

    table: Float[Array, "N D"] | Float[QArray, "N D"]
    tokens: Int[Array, "N"] | None
    softcap: float = static()
    vocab_size: int = static()
    divisor: float = static(default=1.0)

    def logits(self, hidden: Float[Array, "B D"]) -> Float[Array, "B V"]:
        """Returns float32 logits; minus infinity for what the head cannot say."""
        if isinstance(self.table, QArray):
            logits = scores(hidden, self.table)
        else:
            logits = row_products(hidden, self.table)
        if self.divisor != 1.0:
            logits = logits / self.divisor
        if self.softcap:
            logits = self.softcap * jnp.tanh(logits / self.softcap)
        if self.tokens is None:
            return logits
        nothing = jnp.full((hidden.shape[0], self.vocab_size), -jnp.inf, jnp.float32)
        return nothing.at[:, self.tokens].set(logits)


def micro_logits(base: CausalLM, params: Mapping[str, Any], hidden: Float[Array, "B D"]) -> Float[Array, "B V"]:
    """Returns the logits of a token behind a group's first: by the smaller head, where there is one.

    Args:
      base: bound to its parameters.
      params: of every module that decodes, by role.
      hidden: of the micro-step decoder.
    """
    head = params.get(ROLE)
    return base.unembed(hidden) if head is None else head.logits(hidden)


def sure(logits: Float[Array, "B V"], least: Float[Array, ""]) -> Bool[Array, "B"]:
    """Marks the rows whose most probable token has at least a probability, whichever token is then chosen.

    Args:
      logits: float32, before any processor.
      least: from 0 (all rows) to 1.
    """
    # The likeliest token's probability is 1 over this sum.
    return jnp.exp(logits - logits.max(-1, keepdims=True)).sum(-1) * least <= 1


def int8_head(base: Transformer) -> MicroHead:
    """Makes a head of 8-bit integers, a scale for each token."""
    table = _table(base)
    return _head(base, table if isinstance(table, QArray) else quantise(table, (1,)), None)


def reduced_head(base: Transformer, token_counts: np.ndarray, size: int, *, always: Sequence[int] = ()) -> MicroHead:
    """Makes a head of the tokens that were seen most often. Where it cannot say
    the token that it should, it says another: the base corrects that in the exact and checked modes alone.

    Args:
      base: whose rows it takes.
      token_counts: how often each token of the vocabulary was seen.
      size: tokens that it can say.
      always: tokens that it can say however seldom they were seen: those that end a text.

    Raises:
      ValueError: the size is not from the tokens of `always` to the vocabulary's, or the counts are another one's.
    """
    if token_counts.shape != (base.vocab_size,):
        raise ValueError(f"token_counts must be {[base.vocab_size]}; got {list(token_counts.shape)}")
    least = max(1, len({*always}))
    if not least <= size <= base.vocab_size:
        raise ValueError(f"a reduced micro head must have from {least} to {base.vocab_size} tokens; got {size}")
    first = token_counts.astype(np.float64)
    first[list(always)] = np.inf
    tokens = jnp.asarray(np.sort(np.argsort(-first, kind="stable")[:size]), jnp.int32)
    table = _table(base)
    if isinstance(table, QArray):
        some: Any = QArray(qvalue=table.qvalue[tokens], scale=table.scale[tokens])
    else:
        some = table[tokens]
    return _head(base, some, tokens)


def _table(base: Transformer) -> Any:
    return (base.embedding if base.head is None else base.head)[...]


def _head(base: Transformer, table: Any, tokens: Int[Array, "N"] | None) -> MicroHead:
    return MicroHead(
        table=table,
        tokens=tokens,
        softcap=base.config.final_softcap,
        divisor=base.config.logits_divisor,
        vocab_size=base.vocab_size,
    )
