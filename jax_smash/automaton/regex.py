"""Regular expressions as automata over the bytes of UTF-8."""

import functools

import numpy as np
import outlines_core

from jax_smash.automaton.tables import DEAD, MAX_STATES, ByteMachine


def byte_machine(regex: str) -> ByteMachine:
    """Compiles a regular expression that is matched as a whole.

    Args:
      regex: in the syntax of Rust's regex crate, without anchors, look-around and back references. Classes such as
        `\\d` and `.` are Unicode's.

    Raises:
      ValueError: the expression is invalid, matches nothing, or needs more than `MAX_STATES` states.
    """
    try:
        index = outlines_core.Index(regex, _byte_vocabulary())
    except ValueError as error:
        reason = str(error)
        if "incompatible" in reason:
            raise ValueError(f"regex {shortened(regex)} matches nothing") from None
        if "start state" in reason or "unsupported regex feature" in reason:
            reason = "anchors and look-around are not supported; the whole text is matched without them"
        raise ValueError(f"regex {shortened(regex)} is invalid: {reason}") from None
    moves = index.get_transitions()
    if len(moves) > MAX_STATES:
        raise ValueError(f"regex {shortened(regex)} must need at most {MAX_STATES} states; got {len(moves)}")
    start = index.get_initial_state()
    number = {state: i for i, state in enumerate([start, *(s for s in moves if s != start)])}
    table = np.full((len(number), 256), DEAD, np.int32)
    for state, followers in moves.items():
        for byte, follower in followers.items():
            if byte < 256:
                table[number[state], byte] = number[follower]
    accepting = np.zeros(len(number), bool)
    accepting[[number[state] for state in index.get_final_states()]] = True
    return ByteMachine(table, accepting)


def shortened(regex: str) -> str:
    """Returns a regular expression as an error message shows it."""
    return repr(regex if len(regex) <= 80 else regex[:77] + "...")


@functools.cache
def _byte_vocabulary() -> outlines_core.Vocabulary:
    """Makes a vocabulary whose tokens are the bytes; 256 stands for the end of text.

    Handing over the real vocabulary would give a Python dictionary of every (state, token) pair: ten million entries
    for a schema of a thousand states, where the bytes give some ten thousand.
    """
    return outlines_core.Vocabulary(256, {bytes([b]): [b] for b in range(256)})
