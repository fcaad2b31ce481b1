"""The bytes that each token stands for."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

TokenBytes = Sequence[bytes]
"""The bytes of each token id; empty for special tokens and for ids that the tokenizer lacks."""

_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_bytes(tokenizer: Any, vocab_size: int | None = None) -> list[bytes]:
    """Returns the bytes of every token of a byte-level or SentencePiece-style tokenizer.

    Special tokens have no bytes, as decoding skips them. A leading space that a tokenizer's own decoder strips from
    the start of a text is kept, so a continuation can be put behind its prompt.

    Args:
      tokenizer: a `tokenizers.Tokenizer`, or a transformers tokenizer that holds one.
      vocab_size: length of the result, which may be more than the tokenizer has (padded embeddings); None takes the
        tokenizer's.

    Raises:
      TypeError: the tokenizer has no fast backend.
      ValueError: its decoder is of another kind.
    """
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not hasattr(backend, "to_str"):
        raise TypeError(f"tokenizer must be one of the tokenizers package; got {type(tokenizer).__name__}")
    to_bytes = _decoder(json.loads(backend.to_str())["decoder"])
    vocabulary = backend.get_vocab(with_added_tokens=True)
    special = {id_ for id_, added in backend.get_added_tokens_decoder().items() if added.special}
    special.update(getattr(tokenizer, "all_special_ids", ()))
    size = max(vocabulary.values(), default=-1) + 1 if vocab_size is None else vocab_size
    out = [b""] * size
    for token, id_ in vocabulary.items():
        if id_ < size and id_ not in special:
            out[id_] = to_bytes(token)
    return out


def byte_alphabet() -> dict[str, int]:
    """Returns the byte that each character of a byte-level vocabulary stands for.

    Printable Latin-1 characters stand for themselves; the other bytes follow, in order, from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


def _decoder(decoder: dict[str, Any] | None) -> Callable[[str], bytes]:
    """Makes the function from a token's name to its bytes."""
    kind = "none" if decoder is None else decoder["type"]
    steps = decoder["decoders"] if decoder is not None and kind == "Sequence" else [decoder or {"type": "none"}]
    if any(step["type"] == "ByteLevel" for step in steps):
        # Each character of the alphabet to its byte, and each other one that is a byte to what Latin-1 lacks.
        table = dict.fromkeys(range(256), 0x100) | {ord(c): byte for c, byte in byte_alphabet().items()}

        def byte_level(token: str) -> bytes:
            try:
                return token.translate(table).encode("latin-1")
            except UnicodeEncodeError:  # A token with another character was added to the vocabulary as plain text.
                return token.encode()

        return byte_level

    replaced: list[tuple[str, str]] = []
    fallback = False
    for step in steps:
        if step["type"] == "Metaspace":
            replaced.append((step["replacement"], " "))
        elif step["type"] == "Replace" and "String" in step["pattern"]:
            replaced.append((step["pattern"]["String"], step["content"]))
        elif step["type"] == "ByteFallback":
            fallback = True
        elif step["type"] not in ("Fuse", "Strip"):
            raise ValueError(
                "the tokenizer's decoder must be ByteLevel, or made of Metaspace, Replace, ByteFallback, Fuse and "
                f"Strip; got {step['type']} in {kind}"
            )

    def sentence_piece(token: str) -> bytes:
        byte = _FALLBACK.fullmatch(token) if fallback else None
        if byte:
            return bytes([int(byte[1], 16)])
        for old, new in replaced:
            token = token.replace(old, new)
        return token.encode()

    return sentence_piece
