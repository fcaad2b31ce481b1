"""What cuts rows of tokens into groups: by the base's entropy alone, or by what a trained embedder loses too."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.cache import Block
from jax_smash.protocols import CausalLM, ModelDef
from jax_smash.smash.entropy import next_token_entropy
from jax_smash.smash.fusion_loss import fusion_loss
from jax_smash.smash.segment import Rule, allowed_lengths, cheapest_groups, greedy_groups
from jax_smash.smash.smasher import SmasherDef

CHUNK = 2048
"""Entries whose logits are in memory at once."""


class RowsRead(NamedTuple):
    """Rows of windows that the base has read.

    Attributes:
      tokens: of the rows.
      valid: False at padding, which stands on the right.
      entropy: of each token, in nats, given those before it in its row.
      may_join: False at tokens that must begin a group, and at padding.
    """

    tokens: Int[Array, "B T"]
    valid: Bool[Array, "B T"]
    entropy: Float[Array, "B T"]
    may_join: Bool[Array, "B T"]


@dataclasses.dataclass(frozen=True)
class ByEntropy:
    """Groups made from left to right by a rule of the base's entropy.

    Attributes:
      target: the base; its parameters stand under `target`.
      rule: which tokens join the group before them.
      micro_steps: J.
    """

    target: ModelDef
    rule: Rule
    micro_steps: int

    def places(self, params: Any, base: CausalLM, rows: RowsRead) -> Int[Array, "B T"]:
        """Returns each token's place in its group."""
        return greedy_groups(self.rule, rows.entropy, rows.may_join, micro_steps=self.micro_steps)


@dataclasses.dataclass(frozen=True)
class ByFusionLoss(ByEntropy):
    """Post-generation-aware groups: of those that the rule allows, the cheapest by the trained embedder's own loss.

    Attributes:
      smasher: the grafted modules; their parameters stand under `smasher`.
      price: nats that a slot less is worth.
    """

    smasher: SmasherDef
    price: float = 0.1

    def places(self, params: Any, base: CausalLM, rows: RowsRead) -> Int[Array, "B T"]:
        """Returns each token's place in its group."""
        smasher = self.smasher.bind(params["smasher"])
        column = jnp.broadcast_to(jnp.arange(rows.tokens.shape[1], dtype=jnp.int32)[None], rows.tokens.shape)
        segments = rows.valid.astype(jnp.int32)
        loss = fusion_loss(base, smasher, rows.tokens, column, segments, micro_steps=self.micro_steps, chunk=CHUNK)
        allowed = allowed_lengths(self.rule, rows.entropy, rows.may_join, micro_steps=self.micro_steps)
        return cheapest_groups(loss, allowed, jnp.float32(self.price))


@functools.partial(jax.jit, static_argnums=0)
def segment_rows(
    segmenter: ByEntropy,
    params: Any,
    tokens: Int[Array, "B T"],
    length: Int[Array, "B"],
    may_join: Bool[Array, "B T"],
) -> tuple[Int[Array, "B T"], Float[Array, "B T"]]:
    """Returns each token's place in its group and its entropy, in nats, given the tokens before it in its row.

    The entropy of a row's first token, which nothing stands before, is 0.

    Args:
      segmenter: how groups are made.
      params: parameters by role: `target`, and `smasher` where the segmenter has one.
      tokens: rows of windows.
      length: tokens of each; what is behind is padding.
      may_join: False at tokens that must begin a group.
    """
    base = segmenter.target.bind(params["target"])
    position = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32)[None], tokens.shape)
    valid = position < length[:, None]
    hidden = base.forward(base.embed(tokens), position, None, Block.causal(valid)).hidden
    following = next_token_entropy(base.unembed, hidden, chunk=CHUNK)
    entropy = jnp.pad(following[:, :-1], ((0, 0), (1, 0)))
    return segmenter.places(params, base, RowsRead(tokens, valid, entropy, may_join & valid)), entropy
