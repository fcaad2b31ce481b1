"""Processors that depend on the text so far. They come first, in the order of this file."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from jax_smash.automaton import DEAD, FREE, TokenAutomaton
from jax_smash.pytree import pytree
from jax_smash.sampling.stateless import Stateless

FORBIDDEN = -1e30
"""Logit of a stop token that comes too early: finite, so that it still wins where a grammar allows nothing else."""


@pytree
class LogitBias(Stateless):
    """Adds to the logits of some tokens.

    Attributes:
      tokens: ids, each at most once a row; −1 is padding.
      bias: added to the logit of each.
    """

    tokens: Int[Array, "B n"]
    bias: Float[Array, "B n"]

    @property
    def active(self) -> Bool[Array, "B"]:
        """Rows with a bias."""
        return (self.tokens >= 0).any(1)

    def apply(
        self, state: tuple[()], logits: Float[Array, "B M V"], path: Int[Array, "B M P"]
    ) -> Float[Array, "B M V"]:
        """Returns the biased logits."""
        rows = jnp.arange(logits.shape[0], dtype=jnp.int32)[:, None]
        bias = self.bias[:, :, None].astype(logits.dtype)
        # Advanced indices that stand apart put their axes first: [B, n, M].
        return logits.at[rows, :, _dropped(self.tokens, logits)].add(bias, mode="drop")


@pytree
class RepetitionPenalty:
    """Divides the positive and multiplies the negative logits of tokens that prompt or output hold.

    The state marks those tokens.
    Source: Keskar et al. 2019, "CTRL", section 4.1.

    Attributes:
      penalty: over 0; 1 changes nothing.
    """

    penalty: Float[Array, "B"]

    @property
    def active(self) -> Bool[Array, "B"]:
        """Rows with a penalty."""
        return self.penalty != 1

    def init(self, batch: int, vocab_size: int) -> Bool[Array, "B V"]:
        """Makes the state of rows that hold no token."""
        return jnp.zeros((batch, vocab_size), bool)

    def observe_prompt(
        self, state: Bool[Array, "B V"], tokens: Int[Array, "B T"], valid: Bool[Array, "B T"]
    ) -> Bool[Array, "B V"]:
        """Marks the prompt's tokens."""
        rows = jnp.arange(state.shape[0], dtype=jnp.int32)[:, None]
        return state.at[rows, jnp.where(valid, tokens, state.shape[1])].set(True, mode="drop")

    def advance(
        self, state: Bool[Array, "B V"], token: Int[Array, "B"], running: Bool[Array, "B"]
    ) -> Bool[Array, "B V"]:
        """Marks an emitted token."""
        return self.observe_prompt(state, token[:, None], running[:, None])

    def apply(
        self, state: Bool[Array, "B V"], logits: Float[Array, "B M V"], path: Int[Array, "B M P"]
    ) -> Float[Array, "B M V"]:
        """Returns the penalised logits."""
        penalty = self.penalty.astype(logits.dtype)[:, None, None]

        def penalised(x: Float[Array, "B M _"]) -> Float[Array, "B M _"]:
            return jnp.where(x < 0, x * penalty, x / penalty)

        changed = jnp.where(state[:, None], penalised(logits), logits)
        # Set, not scaled: a token may stand in the path twice, or in the state as well.
        return _set(changed, path, penalised(_at(logits, path)))


@pytree
class OutputPenalty:
    """Lowers the logits of tokens that the output holds, by `presence` once and by `frequency` for each time.

    Prompt tokens do not count, as in OpenAI's interface. The state counts the output's tokens.

    Attributes:
      presence, frequency: taken from the logits; negative values favour repetition.
    """

    presence: Float[Array, "B"]
    frequency: Float[Array, "B"]

    @property
    def active(self) -> Bool[Array, "B"]:
        """Rows with a penalty."""
        return (self.presence != 0) | (self.frequency != 0)

    def init(self, batch: int, vocab_size: int) -> Int[Array, "B V"]:
        """Makes the state of rows without output."""
        return jnp.zeros((batch, vocab_size), jnp.int32)

    def observe_prompt(
        self, state: Int[Array, "B V"], tokens: Int[Array, "B T"], valid: Bool[Array, "B T"]
    ) -> Int[Array, "B V"]:
        """Starts counting anew where a row has prompt tokens."""
        return jnp.where(valid.any(1)[:, None], 0, state)

    def advance(self, state: Int[Array, "B V"], token: Int[Array, "B"], running: Bool[Array, "B"]) -> Int[Array, "B V"]:
        """Counts an emitted token."""
        return state.at[jnp.arange(state.shape[0], dtype=jnp.int32), token].add(running.astype(jnp.int32))

    def apply(
        self, state: Int[Array, "B V"], logits: Float[Array, "B M V"], path: Int[Array, "B M P"]
    ) -> Float[Array, "B M V"]:
        """Returns the penalised logits."""
        presence = self.presence.astype(logits.dtype)[:, None, None]
        frequency = self.frequency.astype(logits.dtype)[:, None, None]

        def penalised(x: Float[Array, "B M _"], count: Int[Array, "B #M _"]) -> Float[Array, "B M _"]:
            return x - frequency * count.astype(x.dtype) - presence * (count > 0).astype(x.dtype)

        in_path = (path[:, :, :, None] == path[:, :, None, :]).sum(-1, dtype=jnp.int32)
        before = _at(state, path.reshape(path.shape[0], -1)).reshape(path.shape)
        changed = penalised(logits, state[:, None])
        return _set(changed, path, penalised(_at(logits, path), before + in_path))


@pytree
class MinNewTokens:
    """Forbids stop tokens until enough tokens have been emitted. The state counts them.

    Attributes:
      count: tokens that come before the first stop token.
      stop_tokens: ids; −1 is padding.
    """

    count: Int[Array, "B"]
    stop_tokens: Int[Array, "B n"]

    @property
    def active(self) -> Bool[Array, "B"]:
        """Rows with a minimum."""
        return self.count > 0

    def init(self, batch: int, vocab_size: int) -> Int[Array, "B"]:
        """Makes the state of rows without output."""
        return jnp.zeros((batch,), jnp.int32)

    def observe_prompt(
        self, state: Int[Array, "B"], tokens: Int[Array, "B T"], valid: Bool[Array, "B T"]
    ) -> Int[Array, "B"]:
        """Starts counting anew where a row has prompt tokens."""
        return jnp.where(valid.any(1), 0, state)

    def advance(self, state: Int[Array, "B"], token: Int[Array, "B"], running: Bool[Array, "B"]) -> Int[Array, "B"]:
        """Counts an emitted token."""
        return state + running.astype(jnp.int32)

    def apply(
        self, state: Int[Array, "B"], logits: Float[Array, "B M V"], path: Int[Array, "B M P"]
    ) -> Float[Array, "B M V"]:
        """Returns logits with stop tokens forbidden at the nodes that come too early."""
        emitted = state[:, None] + (path >= 0).sum(-1, dtype=jnp.int32)
        early = emitted < self.count[:, None]
        forbidden = jnp.where(early[..., None], self.stop_tokens[:, None], -1)
        return _set(logits, forbidden, jnp.full(forbidden.shape, FORBIDDEN, logits.dtype))


@pytree
class Constrained:
    """Allows only what an automaton allows. The state is the automaton's.

    A node behind a token that was not allowed is never accepted; its logits stay as they are, free of NaN.

    Attributes:
      automaton: tables that all rows share.
      start: the state before the first token; `FREE` leaves a row alone.
    """

    automaton: TokenAutomaton
    start: Int[Array, "B"]

    @property
    def active(self) -> Bool[Array, "B"]:
        """Rows with a grammar."""
        return self.start != FREE

    def init(self, batch: int, vocab_size: int) -> Int[Array, "B"]:
        """Makes the state before the first token."""
        if (batch, vocab_size) != (len(self.start), self.automaton.vocab_size):
            raise ValueError(
                f"the automaton must be over {vocab_size} tokens, with a start for each of {batch} rows; "
                f"got {self.automaton.vocab_size} tokens and {len(self.start)} rows"
            )
        return jnp.copy(self.start)  # A buffer of its own: state and settings may be donated together.

    def observe_prompt(
        self, state: Int[Array, "B"], tokens: Int[Array, "B T"], valid: Bool[Array, "B T"]
    ) -> Int[Array, "B"]:
        """Starts anew where a row has prompt tokens: only output is constrained."""
        return jnp.where(valid.any(1), self.start, state)

    def advance(self, state: Int[Array, "B"], token: Int[Array, "B"], running: Bool[Array, "B"]) -> Int[Array, "B"]:
        """Reads an emitted token."""
        return jnp.where(running, self.automaton.step(state, token), state)

    def apply(
        self, state: Int[Array, "B"], logits: Float[Array, "B M V"], path: Int[Array, "B M P"]
    ) -> Float[Array, "B M V"]:
        """Returns logits with −inf at what is not allowed."""
        reached = self.automaton.walk(state, path)
        allowed = self.automaton.allowed(reached) | (reached == DEAD)[..., None]
        return jnp.where(allowed, logits, -jnp.inf)


def _dropped(tokens: Int[Array, "*shape"], logits: Float[Array, "B M V"]) -> Int[Array, "*shape"]:
    """Moves padding past the end, where a write is dropped; a negative index would count from the end."""
    return jnp.where(tokens < 0, logits.shape[-1], tokens)


def _at(values: Shaped[Array, "*shape V"], tokens: Int[Array, "*shape n"]) -> Shaped[Array, "*shape n"]:
    """Returns the value of each token; anything at padding."""
    return jnp.take_along_axis(values, jnp.maximum(tokens, 0), axis=-1)


def _set(
    logits: Float[Array, "B M V"], tokens: Int[Array, "B M n"], values: Float[Array, "B M n"]
) -> Float[Array, "B M V"]:
    """Sets the logits of tokens at each node, padding left out."""
    if not tokens.shape[-1]:
        return logits
    rows = jnp.arange(logits.shape[0], dtype=jnp.int32)[:, None, None]
    nodes = jnp.arange(logits.shape[1], dtype=jnp.int32)[None, :, None]
    return logits.at[rows, nodes, _dropped(tokens, logits)].set(values, mode="drop")
