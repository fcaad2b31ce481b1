"""Regular expressions as automata over the bytes of UTF-8."""

import functools

import numpy as np
import outlines_core

from jax_smash.automaton.tables import DEAD, MAX_STATES, ByteMachine

_OPENING = 256
_END_OF_TEXT = 257

_NOTHING = (
    "it matches nothing, or a part of it does; the whole text is matched, so anchors are neither needed nor supported, "
    "nor is look-around"
)


def byte_machine(regex: str) -> ByteMachine:
    """Compiles a regular expression that is matched as a whole.

    Args:
      regex: in the syntax of Rust's regex crate, without anchors, look-around and back references. Classes such as
        `\\d` and `.` are Unicode's; none matches the character NUL.

    Raises:
      ValueError: the expression is invalid, or it or a part of it matches nothing, or it needs more than `MAX_STATES`
        states.
    """
    # On its own an unmatched parenthesis is found, which those put around it below would match. The empty alternative
    # in front makes this a check of the syntax alone.
    _index(f"|{regex}", regex)
    # The library searches: it stops at the first alternative that matches, and loses a byte behind a match unless it
    # completes another one. With a last byte that nothing else contains, there is no match before the end. It also
    # prepares for matches that begin anywhere, at a cost that can be exponential, unless there is an empty match to
    # begin with; of the two opening bytes, the first is lost for it.
    index = _index(rf"\x00\x00(?:{regex})\x00|", regex)
    moves = index.get_transitions()
    start = moves[index.get_initial_state()].get(_OPENING)
    if start is None:
        raise ValueError(f"regex {shortened(regex)} is invalid: {_NOTHING}")
    number = {start: 0}
    states = [start]
    for state in states:
        for byte, follower in moves[state].items():
            if 0 < byte < 256 and follower not in number:
                number[follower] = len(states)
                states.append(follower)
    if len(states) > MAX_STATES:
        raise ValueError(f"regex {shortened(regex)} must need at most {MAX_STATES} states; got {len(states)}")
    ended = index.get_final_states()
    table = np.full((len(states), 256), DEAD, np.int32)
    for row, state in enumerate(states):
        for byte, follower in moves[state].items():
            if 0 < byte < 256:
                table[row, byte] = number[follower]
    return ByteMachine(table, np.array([moves[state].get(0) in ended for state in states]))


def _index(expression: str, regex: str) -> outlines_core.Index:
    """Compiles an expression over bytes; `regex` is what messages show.

    The vocabulary is one of bytes: with the real one, the library would hand over a Python dictionary of every pair of
    state and token, ten million for a schema of a thousand states.
    """
    try:
        return outlines_core.Index(expression, _byte_vocabulary())
    except ValueError as error:
        reason = str(error)
        if "start state" in reason or "unsupported regex feature" in reason:
            reason = "anchors and look-around are not supported; the whole text is matched without them"
        if "incompatible" in reason:
            reason = _NOTHING
        raise ValueError(f"regex {shortened(regex)} is invalid: {reason}") from None


def shortened(regex: str) -> str:
    """Returns a regular expression as a message shows it."""
    return repr(regex if len(regex) <= 80 else regex[:77] + "...")


@functools.cache
def _byte_vocabulary() -> outlines_core.Vocabulary:
    tokens = {bytes([byte]): [byte] for byte in range(256)} | {b"\0\0": [_OPENING]}
    return outlines_core.Vocabulary(_END_OF_TEXT, tokens)
