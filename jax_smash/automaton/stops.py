"""Stop strings: found in tokens on the device, cut from text on the host."""

import codecs
from collections.abc import Iterable, Sequence

import numpy as np

from jax_smash.automaton.tables import MAX_STATES, ByteMachine, TokenAutomaton, build, transitions
from jax_smash.automaton.vocabulary import TokenBytes


def stop_automaton(stops: Sequence[str], tokens: TokenBytes) -> TokenAutomaton:
    """Makes the automaton whose accepting state is reached with the token that completes a stop string.

    The stop may begin and end inside tokens, and special tokens may stand in it. Every token stays allowed, and the
    accepting state is never left.

    Raises:
      ValueError: there is no stop string, or one is empty, or they are too long for `MAX_STATES`.
    """
    machine = _aho_corasick([s.encode() for s in _checked(stops)])
    table, token_class = transitions(machine, tokens)
    return build(table, token_class, machine.accepting)


def cut(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """Returns the text before the first stop string, and that stop string, or None where there is none.

    First is what ends first, as a reader of one character at a time would find it; of those, the longest.
    """
    found = [(at + len(stop), at, stop) for stop in stops if (at := text.find(stop)) >= 0]
    if not found:
        return text, None
    _, start, stop = min(found)
    return text[:start], stop


def held_back(text: str, stops: Sequence[str]) -> int:
    """Returns how many of the last characters could be the beginning of a stop string."""
    longest = max((len(s) for s in stops), default=0) - 1
    for count in range(min(longest, len(text)), 0, -1):
        if any(len(s) > count and s.startswith(text[-count:]) for s in stops):
            return count
    return 0


class StreamDecoder:
    """Turns one row's tokens into text as they come, never showing what a later token could take back.

    The pieces that `feed` and `finish` return, put together, are the text of all tokens, cut at the first stop.

    Attributes:
      matched: the stop string that ended the text; None while there is none.
    """

    def __init__(self, tokens: TokenBytes, stops: Sequence[str] = ()):
        """Starts a text.

        Args:
          tokens: the bytes of each token.
          stops: strings that end the text.

        Raises:
          ValueError: a stop string is empty.
        """
        self.matched: str | None = None
        self._tokens = tokens
        self._stops = _checked(stops) if stops else []
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""

    def feed(self, ids: Iterable[int]) -> str:
        """Reads the next tokens and returns the text that is now certain."""
        return self._release(b"".join(self._tokens[i] for i in ids), final=False)

    def finish(self) -> str:
        """Returns the rest of the text: a character cut short becomes U+FFFD."""
        return self._release(b"", final=True)

    def _release(self, data: bytes, *, final: bool) -> str:
        if self.matched is not None:
            return ""
        text, self.matched = cut(self._held + self._utf8.decode(data, final), self._stops)
        keep = 0 if final or self.matched is not None else held_back(text, self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _checked(stops: Sequence[str]) -> list[str]:
    if isinstance(stops, str):
        raise TypeError(f"stop strings must be a sequence of strings; got the string {stops!r}")
    if not stops or not all(stops):
        raise ValueError(f"stop strings must be at least one, and none empty; got {list(stops)!r}")
    return list(stops)


def _aho_corasick(patterns: Sequence[bytes]) -> ByteMachine:
    """Makes the machine that has read a whole pattern exactly when it is in an accepting state."""
    children: list[dict[int, int]] = [{}]
    accepting = [False]
    for pattern in patterns:
        node = 0
        for byte in pattern:
            if byte not in children[node]:
                children[node][byte] = len(children)
                children.append({})
                accepting.append(False)
            node = children[node][byte]
        accepting[node] = True

    if len(children) > MAX_STATES:
        raise ValueError(f"stop strings must have fewer than {MAX_STATES} bytes together; got {len(children) - 1}")
    table = np.zeros((len(children), 256), np.int32)
    suffix = [0] * len(children)
    queue = [0]
    for node in queue:  # Breadth first: a node's longest proper suffix in the trie is shallower, so its row is done.
        if node:
            table[node] = table[suffix[node]]
            accepting[node] |= accepting[suffix[node]]
        for byte, child in children[node].items():
            suffix[child] = int(table[node, byte])
            table[node, byte] = child
            queue.append(child)
    done = np.flatnonzero(accepting)
    table[done] = done[:, None]
    return ByteMachine(table, np.array(accepting))
