"""The tokenizer and the chat template of a GGUF file."""

from typing import Any

from jax_smash.checkpoints.gguf.file import GgufFile

KEYS = {
    "tokenizer_type": "model",
    "pre_tokenizer_type": "pre",
    "tokens": "tokens",
    "scores": "scores",
    "token_type": "token_type",
    "merges": "merges",
    "precompiled_charsmap": "precompiled_charsmap",
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "unk_token_id": "unknown_token_id",
    "pad_token_id": "padding_token_id",
}
"""What transformers calls the parts of a tokenizer, and the metadata key of each behind `tokenizer.ggml.`."""

SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")

GPT2_SPLITS = (None, "default", "gpt-2", "phi-2", "olmo", "mpt")
"""Pre-tokenizers that split text as GPT-2 does. A file without a name is taken for one of them."""

LLAMA3_SPLITS = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken")
"""Those of Llama 3 and Mistral's Tekken: a word that is a token is never cut, whatever merges there are."""

BEGINNING_SPLITS = (*LLAMA3_SPLITS, "chameleon")
"""Those whose texts begin with a token of their own unless the file says otherwise."""

TURN_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>")
"""Tokens that end a turn or a message of published chat models, by their texts."""

CONTROL = 3
"""The type of a token that no text is cut into."""

DIGIT_SPLITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
"""Those that split off every digit first. transformers has no rule for them."""


def gguf_tokenizer(file: GgufFile) -> Any:
    """Returns the tokenizer of a GGUF file, its chat template included; None where the file has none.

    Raises:
      ValueError: the tokenizer is of a kind that is not known, or is damaged.
    """
    kind = file.get("tokenizer.ggml.model")
    if kind in (None, "none", "no_vocab"):
        return None
    # transformers takes a second to import.
    from transformers import PreTrainedTokenizerFast
    from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

    parts = {ours: value for ours, key in KEYS.items() if (value := file.get(f"tokenizer.ggml.{key}")) is not None}
    _check(file, parts)
    if "token_type" in parts:
        # Some files have the end of a turn as ordinary text, which would be cut.
        ends = {*turn_ends(file)}
        parts["token_type"] = [CONTROL if i in ends else kind for i, kind in enumerate(parts["token_type"])]
    try:
        backend, _ = convert_gguf_tokenizer(file.architecture, parts)
    except Exception as error:  # Whatever the library raises, the user is told which file is meant.
        raise ValueError(f"cannot read the tokenizer in {file.path}: {error}") from error
    rule = parts.get("pre_tokenizer_type")
    _split_digits(backend, rule)
    if kind == "gpt2" and rule in LLAMA3_SPLITS:
        backend.model.ignore_merges = True
    special = {name: parts["tokens"][at] for name in SPECIAL if (at := parts.get(f"{name}_id")) is not None}
    begins = file.get("tokenizer.ggml.add_bos_token")
    if begins is None:  # Then a SentencePiece vocabulary has a beginning of text too.
        begins = kind == "llama" or rule in BEGINNING_SPLITS
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,
        add_bos_token=begins and "bos_token" in special,
        add_eos_token=bool(file.get("tokenizer.ggml.add_eos_token")),
        **special,
    )
    tokenizer.chat_template = file.get("tokenizer.chat_template")
    return tokenizer


def turn_ends(file: GgufFile) -> list[int]:
    """Returns the tokens of a file's vocabulary that are known to end a turn or a message."""
    tokens = file.get("tokenizer.ggml.tokens")
    return [i for i, token in enumerate(tokens) if token in TURN_ENDS] if isinstance(tokens, list) else []


def _check(file: GgufFile, parts: dict[str, Any]) -> None:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    if not isinstance(parts.get("tokens"), list):
        raise ValueError(f"cannot read the tokenizer in {file.path}: tokenizer.ggml.tokens is missing")
    size = len(parts["tokens"])
    outside = [f"{name}_id" for name in SPECIAL if not 0 <= parts.get(f"{name}_id", 0) < size]
    if outside:
        raise ValueError(
            f"{outside[0]} of the tokenizer in {file.path} must be below its {size} tokens; got {parts[outside[0]]}"
        )
    name = parts.get("pre_tokenizer_type")
    known = (*GPT2_SPLITS, *DIGIT_SPLITS, *GGUF_PRE_TOKENIZER_SPLITS)
    if parts["tokenizer_type"] == "gpt2" and name not in known:
        raise ValueError(
            f"cannot read the tokenizer in {file.path}: it splits text by rule {name!r}, which is not known"
        )


def _split_digits(backend: Any, rule: str | None) -> None:
    if rule not in DIGIT_SPLITS:
        return
    from tokenizers import pre_tokenizers

    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
