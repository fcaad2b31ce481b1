"""Tokenizers small enough to be made in code."""

import functools
import json

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from jax_smash.automaton.vocabulary import byte_alphabet

TEXT = """The little cat sat on the mat. "Where is my red ball?" asked the cat. The ball was under the bed.
Tom said: "I saw it there this morning!" They looked under the bed, and there it was. The end.
{"name": "Tom", "age": 7, "tags": ["cat", "ball"], "happy": true, "sad": false, "more": null}
Ein Mädchen ging über die Brücke; naïve café, 12 €, 日本語 and 😀. STOP here, stop there.
"""
BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"


@functools.cache
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer of 259 tokens: id b is byte b, then come BOS, EOS and padding."""
    return _byte_level(Tokenizer(models.BPE(vocab=byte_alphabet(), merges=[])))


@functools.cache
def small_bpe(vocab_size: int = 420) -> PreTrainedTokenizerFast:
    """Returns a byte-level BPE tokenizer with tokens of several letters, and of parts of a character."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False, special_tokens=[BOS, EOS, PAD]
    )
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    return _byte_level(tokenizer)


@functools.cache
def small_sentencepiece() -> PreTrainedTokenizerFast:
    """Returns a tokenizer in the manner of SentencePiece: "▁" for a space, and bytes for characters it lacks."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator([TEXT.splitlines()[0]] * 2, trainers.BpeTrainer(vocab_size=80, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    pieces = ["<unk>", BOS, EOS, PAD, *(f"<0x{b:02X}>" for b in range(256)), *model["vocab"]]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(pieces)},
            merges=[tuple(m) for m in model["merges"]],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _fast(tokenizer, unk_token="<unk>")


def _byte_level(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _fast(tokenizer)


def _fast(tokenizer: Tokenizer, **tokens: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS, pad_token=PAD, **tokens)


def decode(ids, tokens) -> str:
    """Returns the text of token ids, by the bytes of each token; what is no UTF-8 becomes U+FFFD."""
    return b"".join(tokens[i] for i in ids).decode("utf-8", errors="replace")
