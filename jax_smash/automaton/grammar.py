"""Text held to a regular expression or a JSON schema, by a token automaton."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jax_smash.automaton.json_schema import schema_regex
from jax_smash.automaton.regex import byte_machine, shortened
from jax_smash.automaton.tables import DEAD, TokenAutomaton, build, transitions
from jax_smash.automaton.vocabulary import TokenBytes


def regex_automaton(regex: str, tokens: TokenBytes, *, stop_tokens: Sequence[int]) -> TokenAutomaton:
    """Makes the automaton of texts that a regular expression matches as a whole.

    Stop tokens are allowed where the text is whole, and behind them nothing but stop tokens. A token that leads where
    this vocabulary cannot complete the text is not allowed. Tokens without bytes are not allowed.

    Args:
      regex: in the syntax of Rust's regex crate, without anchors, look-around and back references. Classes such as
        `\\d` and `.` are Unicode's.
      tokens: the bytes of each token.
      stop_tokens: ids of the tokens that end a text; at least one.

    Raises:
      ValueError: the expression is invalid, matches nothing that these tokens can spell, or needs too many states.
    """
    if not stop_tokens or not all(0 <= t < len(tokens) for t in stop_tokens):
        raise ValueError(f"stop_tokens must be at least one id from 0 to {len(tokens) - 1}; got {list(stop_tokens)}")
    machine = byte_machine(regex)
    table, token_class = transitions(machine, tokens)
    token_class[list(stop_tokens)] = 0
    table[:, 0] = DEAD  # The class of tokens without bytes.
    table, accepting = _completable(table, machine.accepting, np.unique(token_class))
    if not len(table):
        raise ValueError(f"regex {shortened(regex)} matches no text that this vocabulary can spell")
    end, stop_class = table.shape
    table = np.pad(table, ((0, 1), (0, 1)), constant_values=DEAD)
    # An ended row may repeat the stop token: with nothing allowed its probabilities would be NaN.
    table[:, stop_class] = np.where(np.append(accepting, True), end, DEAD)
    token_class[list(stop_tokens)] = stop_class
    return build(table, token_class, np.append(accepting, True))


def json_schema_automaton(
    schema: str | Mapping[str, Any] | bool, tokens: TokenBytes, *, stop_tokens: Sequence[int]
) -> TokenAutomaton:
    """Makes the automaton of JSON documents that fit a schema; see `json_schema.schema_regex` for what it may hold.

    Args:
      schema: as JSON text or as an object.
      tokens: the bytes of each token.
      stop_tokens: ids of the tokens that end a text; at least one.

    Raises:
      ValueError: the text is no JSON, the schema is invalid or unsupported, or no document of it can be spelled.
    """
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except json.JSONDecodeError as error:
            raise ValueError(f"JSON schema is not valid JSON: {error}") from None
    return regex_automaton(schema_regex(schema), tokens, stop_tokens=stop_tokens)


def _completable(table: np.ndarray, accepting: np.ndarray, used: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Drops the states that no text reaches or completes.

    Args:
      table: int32 [states, classes].
      accepting: bool [states].
      used: the classes that tokens have.

    Returns:
      The table and flags of the states left, the start first; empty where the start is not left.
    """
    states = len(table)
    live = table[:, used]
    edges = np.unique((np.arange(states)[:, None] * states + live)[live >= 0])
    forward: list[list[int]] = [[] for _ in range(states)]
    backward: list[list[int]] = [[] for _ in range(states)]
    for source, target in zip((edges // states).tolist(), (edges % states).tolist(), strict=True):
        forward[source].append(target)
        backward[target].append(source)
    kept = _reached([0], forward) & _reached(np.flatnonzero(accepting).tolist(), backward)
    if not kept[0]:
        return table[:0], accepting[:0]
    # A last entry makes DEAD, index −1, stay as it is.
    renumbered = np.append(np.where(kept, np.cumsum(kept) - 1, DEAD), DEAD).astype(np.int32)
    return renumbered[table[kept]], accepting[kept]


def _reached(sources: list[int], followers: list[list[int]]) -> np.ndarray:
    """Marks the states that lie on a way from the sources, those included."""
    reached = np.zeros(len(followers), bool)
    reached[sources] = True
    waiting = list(sources)
    while waiting:
        for state in followers[waiting.pop()]:
            if not reached[state]:
                reached[state] = True
                waiting.append(state)
    return reached
