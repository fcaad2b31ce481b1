"""A byte-level BPE tokenizer with chat roles, trained on a corpus and written as a Hugging Face tokenizer folder.

    python -m train.tokenizer --data PATH... --vocab-size 4096 --output DIR
    python -m train.tokenizer --corpus train/configs/tiny.json --data-root DATA --output DIR

Transformers' `AutoTokenizer.from_pretrained(DIR)` loads it.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from jax_smash.checkpoints.directory import check_new, new_directory
from jax_smash.cli.lists import PathNames
from train.data.corpus import TRAIN_SPLIT, Corpus, Source, load_corpus, split_documents
from train.run.program import run_program

BOS, EOS, END, PAD = "<|bos|>", "<|eos|>", "<|end|>", "<|pad|>"
SPECIAL_TOKENS = (BOS, EOS, "<|user|>", "<|assistant|>", "<|system|>", END, PAD)
"""In the order of their ids, from 0. `END` closes a turn, `EOS` a document."""

MAX_LENGTH = 2048
CHARACTERS = 30_000_000
"""Of text, at most, that merges are counted in."""

CHAT_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message['role'] not in ['system', 'user', 'assistant'] -%}
{{- raise_exception('role must be system, user or assistant; got ' + message['role']) -}}
{%- endif -%}
{{- '<|' + message['role'] + '|>' + message['content'] | trim + '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|assistant|>' -}}
{%- endif -%}
"""


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    """Returns a tokenizer of at most `vocab_size` ids: the special tokens, the 256 bytes, then merges.

    Any text is encoded without loss; each digit is a token of its own; encoding begins with `BOS`.

    Raises:
      ValueError: `vocab_size` does not hold the special tokens and the bytes.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    smallest = len(SPECIAL_TOKENS) + len(alphabet)
    if vocab_size < smallest:
        raise ValueError(f"vocab_size must be at least {smallest}; got {vocab_size}")
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer


def save_tokenizer(tokenizer: tokenizers.Tokenizer, output: Path) -> None:
    """Writes the folder that `AutoTokenizer.from_pretrained` loads, chat template included."""
    output.mkdir(parents=True, exist_ok=True)
    (output / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "model_max_length": MAX_LENGTH,
        "clean_up_tokenization_spaces": False,
    }
    (output / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (output / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def corpus_texts(corpus: Corpus, root: Path) -> Iterator[str]:
    """Yields training texts and turns in proportion to the sources' shares, so that merges follow what is trained on.

    As many characters as the corpus has, or `CHARACTERS`: of some sources a part, others again and again. Lessons,
    echoes and circles are left out: merges of their words would be of use to no text.
    """
    texts_of = [source for source in corpus.sources if not (source.lessons or source.echo or source.circles)]
    read = {source: _texts(source, corpus, root) for source in texts_of}
    total = min(CHARACTERS, sum(len(text) for texts in read.values() for text in texts))
    shares = math.fsum(source.share for source in read)
    for source, texts in read.items():
        left = total * source.share / shares
        for text in itertools.cycle(texts):
            if left <= 0:
                break
            left -= len(text)
            yield text


def _texts(source: Source, corpus: Corpus, root: Path) -> list[str]:
    documents = [document for split, document in split_documents(source, corpus, root) if split == TRAIN_SPLIT]
    return [text for d in documents for text in ([m["content"] for m in d.messages] or [d.text])]


def main(
    output: Path,
    data: PathNames = (),
    vocab_size: int | None = None,
    corpus: Path | None = None,
    data_root: Path = Path(),
) -> None:
    """Trains a tokenizer.

    Args:
      output: folder to write; absent or empty.
      data: `.jsonl` and `.txt` files or folders of them, each read once; in place of `corpus`.
      vocab_size: number of ids; by default the corpus file's, or 4096.
      corpus: JSON file that names the sources and their weights.
      data_root: folder that all paths in `corpus` and `data` start from.

    Raises:
      ValueError: neither or both of `data` and `corpus` are given, or they cannot be read.
      FileExistsError: `output` has something in it.
    """
    check_new(output)
    if bool(data) == (corpus is not None):
        raise ValueError(f"expected either --data or --corpus; got data {data} and corpus {corpus}")
    described = load_corpus(corpus) if corpus else Corpus(sources=(Source("data", paths=data),))
    tokenizer = train_tokenizer(corpus_texts(described, data_root), vocab_size or described.vocab_size)
    with new_directory(output, 0) as work:
        save_tokenizer(tokenizer, work)
    print(f"{tokenizer.get_vocab_size()} ids written to {output}")


if __name__ == "__main__":
    run_program(main)
