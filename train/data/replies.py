"""Which tokens of a document may share a slot with others: those that a model answers with, never a prompt's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int, Int64, UInt


@dataclasses.dataclass(frozen=True)
class Replies:
    """How replies are told from prompts.

    Attributes:
      begins: tokens that stand before each reply of a chat; empty where no document is one.
      ends: tokens that a reply ends with; they are part of it.
      prompt_share: of a document without these and without a marked answer, up to this share stands for its prompt.
        How much is drawn anew for each document, so that groups begin behind prompts of any length.
      answers_alone: what stands between marked answers is a prompt too. By default it is part of the reply.
    """

    begins: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    prompt_share: float = 0.25
    answers_alone: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.prompt_share <= 1:
            raise ValueError(f"prompt_share must be from 0 to 1; got {self.prompt_share}")

    def marks(
        self, tokens: UInt[np.ndarray, "n"], answers: Bool[np.ndarray, "n"], seed: Sequence[int]
    ) -> Bool[np.ndarray, "n"]:
        """Marks a document's tokens that belong to a reply. Its first token never does.

        What stands before a chat's replies is a prompt; else what stands before the first answer that is marked, or
        before each of them; else a share of the text. What stands behind the last one is always part of the reply.

        Args:
          tokens: of the document.
          answers: marks the tokens of answers that the text before them tells.
          seed: numbers that decide how much of a text without replies is its prompt.
        """
        count = len(tokens)
        inside = np.zeros(count, bool)
        starts = _ends_of(tokens, self.begins)
        if not len(starts):
            prompt = int(np.random.default_rng(seed).random() * self.prompt_share * count)
            if answers.any():
                prompt = int(np.flatnonzero(answers)[-1 if self.answers_alone else 0])
                inside |= answers
            inside[prompt:] = True
            inside[0] = False
            return inside
        stops = np.append(_ends_of(tokens, self.ends), count)
        for start in starts:
            inside[start : stops[np.searchsorted(stops, start, side="right")] if start < count else count] = True
        return inside

    def count(self, tokens: UInt[np.ndarray, "n"]) -> int:
        """Returns how many replies a document has that are told from their prompts by what stands before them."""
        return len(_ends_of(tokens, self.begins))

    def prompt(self, tokens: UInt[np.ndarray, "n"]) -> UInt[np.ndarray, "found"]:
        """Returns what stands before a chat's first reply; all of a document that has none, or begins with one."""
        starts = _ends_of(tokens, self.begins)
        return tokens[: int(starts[0]) - len(self.begins) or None] if len(starts) else tokens

    def ended(self, tokens: UInt[np.ndarray, "n"]) -> bool:
        """Returns whether what replies end with stands in a document."""
        return len(_ends_of(tokens, self.ends)) > 0


def document_seed(number: int, shard: str, document: int) -> tuple[int, ...]:
    """Returns the seed of a document's prompt: its shard's number and name, and its place in it."""
    return (number, *map(ord, shard), document)


def may_join(replies: Bool[np.ndarray, "n"]) -> Bool[np.ndarray, "n"]:
    """Marks the tokens that may share a slot with the token before them: both belong to one reply."""
    return replies & np.concatenate([[False], replies[:-1]])


def _ends_of(tokens: UInt[np.ndarray, "n"], sequence: tuple[int, ...]) -> Int64[np.ndarray, "found"]:
    """Returns the places behind each occurrence of a sequence."""
    if not sequence or len(tokens) < len(sequence):
        return np.zeros(0, np.int64)
    pattern: Int[np.ndarray, "m"] = np.array(sequence, np.int64)
    found = (np.lib.stride_tricks.sliding_window_view(tokens, len(sequence)) == pattern).all(axis=1)
    return np.flatnonzero(found) + len(sequence)
