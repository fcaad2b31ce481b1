"""One macro-step of decoding: from one forward of the base, each row says a group of its own length."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.protocols import CausalLM
from jax_smash.pytree import pytree, replace
from jax_smash.sharding import constrain
from jax_smash.smash.micro_decoder import MicroCache
from jax_smash.smash.smasher import Smasher
from jax_smash.smash.stop_head import goes_on

Carry = TypeVar("Carry")
ChooseToken = Callable[
    [Carry, Float[Array, "B D"], Int[Array, ""], Bool[Array, "B"]], tuple[Carry, Int[Array, "B"], Bool[Array, "B"]]
]
"""Chooses a token: what is carried, the vectors to read it from, its place in the group, and which rows say one, to
what is carried on, the tokens, and which of those rows may say more (a token that ends a text ends its group). A row
whose token is negative says none: its group ends before it. That may not be a group's first."""


@pytree
class Group:
    """The tokens that rows said in one macro-step; what is not yet in the cache.

    Attributes:
      tokens: in order; 0 behind the first `count`.
      count: 1 to J; 0 in a row that took no part.
    """

    tokens: Int[Array, "B J"]
    count: Int[Array, "B"]

    @classmethod
    def empty(cls, batch: int, micro_steps: int) -> "Group":
        """Makes groups without tokens."""
        tokens = jnp.zeros((batch, micro_steps), jnp.int32)
        return cls(tokens=tokens, count=tokens[:, 0])


@pytree
class _Micro:
    """What one micro-step hands to the next: the group so far, the rows that go on, their last tokens' vectors."""

    carry: Any
    group: Group
    active: Bool[Array, "B"]
    vector: Float[Array, "B D"]
    cache: MicroCache
    index: Int[Array, ""]


def macro_step(
    base: CausalLM,
    smasher: Smasher,
    prefix: Float[Array, "B taps D"],
    hidden: Float[Array, "B D"],
    *,
    choose_first: ChooseToken,
    choose_next: ChooseToken | None = None,
    carry: Carry,
    running: Bool[Array, "B"],
    confidence: Float[Array, "B"],
    limit: Int[Array, "B"],
    least_rows: Int[Array, ""],
) -> tuple[Carry, Group, Int[Array, ""]]:
    """Says each running row's next group, of at most J tokens.

    A row's first token is read from the base's hidden vector, each further one from the micro-step decoder's. A row's
    group ends where the stop head is less than `confidence` sure that it goes on, where `limit` or J is reached, and
    where the choice says so; all groups end once fewer than `least_rows` rows would go on, for the others wait.

    The next macro-step reads `smasher.fuse` of the group's vectors at the position of its last token.

    Args:
      base: bound to its parameters.
      smasher: the grafted modules.
      prefix: tapped vectors of the slot that each row read last, from `Smasher.prefix`.
      hidden: its final hidden vector.
      choose_first: chooses, records and checks a token.
      choose_next: does so for the tokens behind a group's first, where a smaller head makes their logits; None for the
        same.
      carry: handed to these from token to token.
      running: rows that say a group.
      confidence: from 0 to 1; above what the stop head reaches, every group is one token.
      limit: tokens that a row's group may have, at least 1.
      least_rows: the fewest rows for which another micro-step is made, at least 1.

    Returns:
      What is carried after the last token, the groups, and how many micro-steps were made: one that gave no row a
      token is among them.
    """
    steps = smasher.config.micro_steps

    def say(state: _Micro, hidden: Float[Array, "B D"], choose: ChooseToken) -> _Micro:
        """Adds a token to the groups that go on, and finds those that go on behind it."""
        # As the heads' weights are divided: with whole vectors, these would be gathered.
        hidden = constrain(hidden, "rows", "embed")
        stop = smasher.stop_logits(hidden)
        carry, token, open_rows = choose(state.carry, hidden, state.index, state.active)
        said, token = state.active & (token >= 0), jnp.maximum(token, 0)
        group = Group(
            tokens=state.group.tokens.at[:, state.index].set(jnp.where(said, token, 0)),
            count=state.group.count + said.astype(jnp.int32),
        )
        active = said & open_rows & goes_on(stop, confidence) & (group.count < limit)
        active &= active.sum(dtype=jnp.int32) >= least_rows
        vector = base.embed(token[:, None])[:, 0]
        return _Micro(carry=carry, group=group, active=active, vector=vector, cache=state.cache, index=state.index + 1)

    @jax.named_scope("micro_step")
    def micro_step(state: _Micro) -> _Micro:
        def first(vector: Array, cache: MicroCache) -> tuple[Array, MicroCache]:
            return decoder.read(jnp.concatenate([prefix, vector], axis=1), cache)

        read, cache = jax.lax.cond(state.index == 1, first, decoder.read, state.vector[:, None], state.cache)
        return say(replace(state, cache=cache), read, choose_next or choose_first)

    decoder = smasher.micro_decoder
    batch = hidden.shape[0]
    state = _Micro(
        carry=carry,
        group=Group.empty(batch, steps),
        active=running,
        vector=jnp.zeros_like(hidden),
        cache=decoder.init_cache(batch),
        index=jnp.zeros((), jnp.int32),
    )
    state = say(state, hidden, choose_first)
    if steps > 1:
        state = jax.lax.while_loop(lambda s: s.active.any() & (s.index < steps), micro_step, state)
    return state.carry, state.group, state.index - 1
