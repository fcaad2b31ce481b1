"""Texts that drafters are judged on: held-out documents of a packed folder, or a file of answers."""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Integer

from eval.tasks.records import read_lines
from eval.tasks.variety import goes_in_circles
from jax_smash.checkpoints.smasher import tokenizer_sha256
from jax_smash.loading import Model

INDEX, SPLIT = "index.json", "held_out"
ANSWER = 1
"""Mark of a packed token that is part of an answer."""


@dataclasses.dataclass(frozen=True)
class Text:
    """A text.

    Attributes:
      tokens: of it.
      said: marks the tokens that the model is to say: those of replies. Its first token never is.
    """

    tokens: list[int]
    said: list[bool]

    def cut(self, length: int) -> "Text":
        """Returns its first tokens, at most so many."""
        return Text(self.tokens[:length], self.said[:length])

    @property
    def degenerate(self) -> bool:
        """Whether what is to be said goes in circles, which any drafter guesses."""
        return goes_in_circles(list(itertools.compress(self.tokens, self.said)))


@dataclasses.dataclass(frozen=True)
class Replies:
    """How replies are told from prompts in packed chats.

    Attributes:
      begins: tokens before each reply; empty where no document is a chat.
      ends: tokens that a reply ends with, which are part of it.
    """

    begins: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()

    def said(self, tokens: Integer[np.ndarray, "n"], marks: Integer[np.ndarray, "n"]) -> Bool[np.ndarray, "n"]:
        """Marks what is to be said of a document, as training does.

        Of a document without replies it is all that stands behind the first token that is marked as an answer; without
        any, all but its first token.

        Args:
          tokens: of the document.
          marks: of the packed folder.
        """
        inside, starts = np.zeros(len(tokens), bool), _behind(tokens, self.begins)
        if not len(starts):
            answers = np.flatnonzero(marks == ANSWER)
            inside[answers[0] if len(answers) else 0 :] = True
            inside[:1] = False
            return inside
        stops = np.append(_behind(tokens, self.ends), len(tokens))
        for start in starts:
            inside[start : stops[np.searchsorted(stops, start, side="right")] if start < len(tokens) else None] = True
        return inside


def packed_texts(folder: Path, replies: Replies, *, choice_share: float) -> Iterator[Text]:
    """Yields the held-out documents of a packed folder that choose no step of a training run, of each source in turn.

    Args:
      folder: that `train.pack` wrote.
      replies: how replies are told from prompts.
      choice_share: of the drafters' training runs: so many held-out documents chose their step and tell too much.

    Raises:
      ValueError: the folder is damaged, or none of these documents has what replies begin or end with.
    """
    for what, where, sequence in (("begins", "before", replies.begins), ("ends", "behind", replies.ends)):
        judged = (tokens for tokens, _ in _judged(folder, choice_share))
        # As a rule the first document has it.
        if sequence and not any(len(_behind(tokens, sequence)) for tokens in judged):
            raise ValueError(
                f"{folder} must hold the text of reply_{what} {where} a reply; no held-out document has it"
            )
    for tokens, marks in _judged(folder, choice_share):
        yield Text(tokens.tolist(), replies.said(tokens, marks).tolist())


def _judged(folder: Path, choice_share: float) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields tokens and marks of the documents that are judged."""
    sources = [_documents(folder, source[SPLIT]["shards"]) for source in read_index(folder)["sources"]]
    for tokens, marks in (found for turn in itertools.zip_longest(*sources) for found in turn if found is not None):
        if not chooses(tokens, choice_share):
            yield tokens, marks


def _documents(folder: Path, shards: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the tokens of each document, and their marks."""
    for shard in shards:
        try:
            tokens, marks, ends = (np.load(folder / f"{shard}.{n}.npy") for n in ("tokens", "marks", "documents"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{folder} must hold the shard {shard} whole: {error}") from error
        for begin, end in itertools.pairwise([0, *ends]):
            yield tokens[begin:end], marks[begin:end]


def read_index(folder: Path) -> dict:
    """Returns the index of a packed folder.

    Raises:
      ValueError: it is missing or damaged.
    """
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        _ = [source[SPLIT]["shards"] for source in index["sources"]], index["tokenizer_sha256"]
        return index
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder} must be a folder that train.pack wrote: {error}") from error


def check_tokenizer(folder: Path, base: Path) -> None:
    """Refuses a packed folder whose tokens are another tokenizer's.

    Args:
      folder: that `train.pack` wrote.
      base: directory or GGUF file of the model that is to read it.

    Raises:
      ValueError: it was packed with another tokenizer, or its index is damaged.
    """
    expected, actual = read_index(folder)["tokenizer_sha256"], tokenizer_sha256(base)
    if actual != expected:
        raise ValueError(f"{folder} was packed with the tokenizer of hash {expected}; {base} has {actual or 'none'}")


def chooses(tokens: Integer[np.ndarray, "n"], share: float) -> bool:
    """Returns whether a held-out document is one of those that choose the step which training exports."""
    digest = hashlib.sha256(tokens.astype("<u4").tobytes()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64 < share


def answered_texts(path: Path, model: Model) -> Iterator[Text]:
    """Yields the texts of a file of answers, as `train.regenerate` writes one: the last reply of each is to be said.

    Args:
      path: of the file. A line has `messages`, the last of them a reply, or a `text`, of which all is to be said. The
        reply's `token_ids` are taken where they stand there.
      model: whose tokenizer and chat template are used.

    Raises:
      ValueError: a line is none of these.
      OSError: the file cannot be read.
    """
    for number, line in read_lines(path):
        try:
            record = json.loads(line)
            if "messages" in record:
                *asked, reply = record["messages"]
                prompt = model.encode_chat(asked)
                reply = record.get("token_ids") or model.tokenizer.encode(reply["content"], add_special_tokens=False)
                yield Text([*prompt, *reply], [False] * len(prompt) + [True] * len(reply))
            else:
                tokens = model.encode(record["text"])
                yield Text(tokens, [False] + [True] * (len(tokens) - 1))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}, line {number} must be an answer with messages, or a text: {error}") from error


def chosen(texts: Iterator[Text], *, most_tokens: int, length: int, circles: bool = True) -> tuple[list[Text], int]:
    """Returns the first texts, cut, until their replies have so many tokens, and how many were left out on the way.

    Args:
      texts: in order; those in which nothing is to be guessed are passed over.
      most_tokens: of replies. The last text is whole.
      length: tokens of a text at most.
      circles: keep those that go in circles, as they are cut; else they are left out.

    Raises:
      ValueError: there is no text.
    """
    found: list[Text] = []
    tokens = left_out = 0
    for text in texts:
        text = text.cut(length)
        # The first guess is behind the second token: the target has read one.
        if not any(text.said[2:]):
            continue
        if text.degenerate and not circles:
            left_out += 1
            continue
        found.append(text)
        tokens += sum(text.said[2:])
        if tokens >= most_tokens:
            break
    if not found:
        raise ValueError(
            "there must be a held-out text with a reply of more than two tokens; got none"
            + (f" but {left_out} that go in circles" if left_out else "")
        )
    return found, left_out


def _behind(tokens: Integer[np.ndarray, "n"], sequence: Sequence[int]) -> Integer[np.ndarray, "found"]:
    """Returns the places behind each occurrence of a sequence."""
    if not sequence or len(tokens) < len(sequence):
        return np.zeros(0, np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, len(sequence))
    return np.flatnonzero((windows == np.array(sequence)).all(axis=1)) + len(sequence)
