"""Finite automata over tokens: the one machine behind stop strings, regular expressions and JSON schemas.

A machine over bytes is made first; `transitions` lifts it to whole tokens. Tokens that move every state alike share a
column, so that the table of a vocabulary of 128,000 tokens has a few hundred to a few thousand columns.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt32

from jax_smash.pytree import pytree
from jax_smash.shapes import bucket

FREE = 0
"""The state of a row without an automaton: every token is allowed and leads back to it."""
START = 1
"""The state before the first token."""
DEAD = -1
"""The state behind a token that was not allowed."""

MAX_STATES = 16_384
MAX_BYTES = 1 << 29


@pytree
class TokenAutomaton:
    """A deterministic automaton over token ids. States are int32; `FREE`, `START` and `DEAD` mean the same in all.

    Attributes:
      next_state: the state after a token of each class; `DEAD` where the token is not allowed.
      token_class: the column of each token.
      allowed_words: the allowed tokens of each state, packed: token v is bit v // W of word v % W.
      accepting: a stop string occurred, or the text so far is whole.
    """

    next_state: Int[Array, "Q F"]
    token_class: Int[Array, "V"]
    allowed_words: UInt32[Array, "Q W"]
    accepting: Bool[Array, "Q"]

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.token_class.shape[0]

    def start(self, batch: int) -> Int[Array, "B"]:
        """Makes the state of rows before their first token."""
        return jnp.full((batch,), START, jnp.int32)

    def step(self, state: Int[Array, "*batch"], token: Int[Array, "*batch"]) -> Int[Array, "*batch"]:
        """Returns the state after one token; −1 is no token and leaves the state."""
        column = self.token_class[jnp.maximum(token, 0)]
        after = self.next_state[jnp.maximum(state, 0), column]
        return jnp.where((token < 0) | (state < 0), state, after)

    def walk(self, state: Int[Array, "B"], path: Int[Array, "B M P"]) -> Int[Array, "B M"]:
        """Returns the state at each node: after the row's state and the node's path, padded with −1."""
        reached = jnp.broadcast_to(state[:, None], path.shape[:2])

        def step(state: Int[Array, "B M"], token: Int[Array, "B M"]) -> tuple[Array, None]:
            return self.step(state, token), None

        return jax.lax.scan(step, reached, jnp.moveaxis(path, 2, 0))[0]

    def trace(self, state: Int[Array, "B"], tokens: Int[Array, "B P"]) -> Int[Array, "B P"]:
        """Returns the state after each of a row's tokens, padded with −1."""

        def step(state: Int[Array, "B"], token: Int[Array, "B"]) -> tuple[Array, Array]:
            after = self.step(state, token)
            return after, after

        return jax.lax.scan(step, state, tokens.swapaxes(0, 1))[1].swapaxes(0, 1)

    def matched(self, state: Int[Array, "*batch"]) -> Bool[Array, "*batch"]:
        """Marks the states in which a stop string occurred, or the text is whole."""
        return self.accepting[jnp.maximum(state, 0)] & (state >= 0)

    def allowed(self, state: Int[Array, "*batch"]) -> Bool[Array, "*batch V"]:
        """Marks the tokens that each state allows; none in `DEAD`."""
        words = self.allowed_words[jnp.maximum(state, 0)][..., None, :]
        place = jnp.arange(32, dtype=jnp.uint32).reshape((1,) * state.ndim + (32, 1))
        bits = (words >> place) & jnp.uint32(1)
        marks = bits.astype(bool).reshape(*state.shape, -1)[..., : self.vocab_size]
        return marks & (state >= 0)[..., None]


@dataclasses.dataclass(frozen=True)
class ByteMachine:
    """A deterministic automaton over bytes, on the host. State 0 comes before the first byte.

    Attributes:
      next_state: int32 [states, 256]; −1 where a byte is not allowed.
      accepting: bool [states].
    """

    next_state: np.ndarray
    accepting: np.ndarray

    def __post_init__(self) -> None:
        if len(self.next_state) > MAX_STATES:
            raise ValueError(f"an automaton must have at most {MAX_STATES} states; got {len(self.next_state)}")


def transitions(machine: ByteMachine, tokens: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Lifts a machine from bytes to tokens.

    Returns:
      The state after a token of each class, int32 [states, classes], and each token's class, int32 [V]. Class 0 is
      kept for tokens without bytes, and leaves every state as it is.
    """
    states = len(machine.next_state)
    distinct, byte_class = np.unique(machine.next_state, axis=1, return_inverse=True)
    # A last entry of DEAD makes index −1, the dead state, lead to itself.
    moves = [np.append(column, DEAD).astype(np.int32) for column in distinct.T]
    class_of_byte = byte_class.ravel().tolist()

    columns = [np.arange(states, dtype=np.int32)]
    known: dict[bytes, int] = {}
    after: list[list[int]] = [[-1] * len(moves)]
    column_of_token = np.zeros(len(tokens), np.int32)
    for token, text in enumerate(tokens):
        column = 0
        for byte in text:
            move = class_of_byte[byte]
            follower = after[column][move]
            if follower < 0:
                reached = moves[move][columns[column]]
                follower = known.setdefault(reached.tobytes(), len(columns))
                if follower == len(columns):
                    columns.append(reached)
                    after.append([-1] * len(moves))
                    _check_bytes(states, len(columns), len(tokens))
                after[column][move] = follower
            column = follower
        column_of_token[token] = column
    used, token_class = np.unique(np.append(0, column_of_token), return_inverse=True)
    return np.stack([columns[i] for i in used], axis=1), token_class.ravel()[1:].astype(np.int32)


def build(next_state: np.ndarray, token_class: np.ndarray, accepting: np.ndarray) -> TokenAutomaton:
    """Makes an automaton from tables whose state 0 comes before the first token.

    The free state is put in front. Numbers of states and classes are rounded up, so that another automaton of about
    the same size fits a compiled program.

    Args:
      next_state: int32 [states, classes]; −1 where a class is not allowed.
      token_class: int32 [V].
      accepting: bool [states].
    """
    states, classes = next_state.shape[0] + 1, next_state.shape[1]
    _check_bytes(bucket(states), bucket(classes), len(token_class))
    table = np.full((bucket(states), bucket(classes)), DEAD, np.int32)
    table[FREE] = FREE
    table[START:states, :classes] = np.where(next_state >= 0, next_state + START, DEAD)
    flags = np.zeros(len(table), bool)
    flags[START:states] = accepting
    return TokenAutomaton(
        next_state=jnp.asarray(table),
        token_class=jnp.asarray(token_class, jnp.int32),
        allowed_words=jnp.asarray(_packed(table >= 0, token_class)),
        accepting=jnp.asarray(flags),
    )


def join(automata: Sequence[TokenAutomaton | None]) -> tuple[TokenAutomaton, Int[Array, "B"]]:
    """Puts the automata of a batch into one, of which each row uses its own states.

    Args:
      automata: one a row; None for a row that is free. At least one is not None.

    Returns:
      The automaton, and the start state of each row.

    Raises:
      ValueError: the automata are over vocabularies of different sizes, or none is given.
    """
    distinct = list({id(a): a for a in automata if a is not None}.values())
    if not distinct:
        raise ValueError("at least one row must have an automaton; got none")
    sizes = {a.vocab_size for a in distinct}
    if len(sizes) > 1:
        raise ValueError(f"all automata must be over one vocabulary; got sizes {sorted(sizes)}")
    if len(distinct) == 1:
        starts = [FREE if a is None else START for a in automata]
        return distinct[0], jnp.asarray(starts, jnp.int32)
    token_class = np.zeros(distinct[0].vocab_size, np.int64)
    for automaton in distinct:
        pair = token_class * automaton.next_state.shape[1] + np.asarray(automaton.token_class)
        token_class = np.unique(pair, return_inverse=True)[1].ravel()
    member = np.unique(token_class, return_index=True)[1]
    tables, flags, offsets, states = [], [], {}, 0
    for automaton in distinct:
        column = np.asarray(automaton.token_class)[member]
        table = np.asarray(automaton.next_state)[START:, column]
        offsets[id(automaton)] = states
        # Free states stay apart, so every target is behind START, and `build` adds the free state again.
        tables.append(np.where(table >= 0, table - START + states, DEAD))
        flags.append(np.asarray(automaton.accepting)[START:])
        states += len(table)
    joined = build(np.concatenate(tables), token_class.astype(np.int32), np.concatenate(flags))
    starts = [FREE if a is None else START + offsets[id(a)] for a in automata]
    return joined, jnp.asarray(starts, jnp.int32)


def _packed(allowed: np.ndarray, token_class: np.ndarray) -> np.ndarray:
    """Packs the allowed tokens of each state, 32 to a word, in the order of `TokenAutomaton.allowed_words`.

    Bits a whole row of words apart unpack into rows of words, without a transposition of the minor axis.
    """
    width = -(-len(token_class) // 32)
    words = np.empty((len(allowed), width), np.uint32)
    for state, row in enumerate(allowed):
        marks = np.zeros(32 * width, bool)
        marks[: len(token_class)] = row[token_class]
        octets = np.packbits(marks.reshape(4, 8, width), axis=1, bitorder="little")[:, 0].astype(np.uint32)
        words[state] = octets[0] | octets[1] << 8 | octets[2] << 16 | octets[3] << 24
    return words


def _check_bytes(states: int, classes: int, vocab_size: int) -> None:
    size = 4 * states * (classes + vocab_size // 32)
    if states > bucket(MAX_STATES) or size > MAX_BYTES:
        raise ValueError(
            f"an automaton's tables must hold at most {bucket(MAX_STATES)} states and {MAX_BYTES} bytes; "
            f"got {states} states, {classes} classes of tokens and {size} bytes or more"
        )
