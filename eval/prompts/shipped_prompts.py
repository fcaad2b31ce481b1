"""Real prompts, cut from the texts that come with the project."""

import itertools
from pathlib import Path

from eval.tasks.records import read_records
from jax_smash.loading import Model

DATA = Path(__file__).parents[1] / "tasks" / "data"
SOURCES = (("gsm8k/test.jsonl", "question"), ("hellaswag.jsonl", "ctx_a"), ("perplexity.jsonl", "text"))
"""Files, and the field of an entry that holds its text."""


def shipped_prompts(model: Model, count: int, *, longest: int) -> list[list[int]]:
    """Returns prompts of word problems, captions and books, as tokens, no two alike.

    Their lengths run from a little over two thirds of `longest` up to it, so that rows of a batch differ and all
    batches fall in one length bucket. A long text gives several prompts.

    Args:
      model: whose tokenizer cuts the texts.
      count: prompts.
      longest: tokens of the longest, at least 3.

    Raises:
      ValueError: the texts give fewer prompts, or the model has no tokenizer.
    """
    shortest = 2 * longest // 3 + 1
    lengths = itertools.cycle(range(shortest, longest + 1))
    # One of each source in turn, so that few prompts are of all kinds too.
    pieces = itertools.zip_longest(*(_pieces(model, *source, longest=longest) for source in SOURCES))
    whole = (piece for turn in pieces for piece in turn if piece is not None and len(piece) >= longest)
    found = list(dict.fromkeys(tuple(piece[:n]) for piece, n in zip(whole, lengths, strict=False)))
    if len(found) < count:
        raise ValueError(f"num_prompts must be at most {len(found)} of {longest} tokens; got {count}: give --prompts")
    return [list(prompt) for prompt in found[:count]]


def of_books(model: Model, count: int, *, length: int) -> list[list[int]]:
    """Returns prompts of the same length, as tokens: pieces of books one behind another, from other places on.

    Where the books end, they begin again.

    Args:
      model: whose tokenizer reads the texts.
      count: prompts.
      length: tokens of each.
    """
    file, field = SOURCES[-1]
    beginning = model.encode("")
    told = [
        token for record in read_records(DATA / file) for token in model.encode(record.text(field))[len(beginning) :]
    ]
    starts = (i * len(told) // count for i in range(count))
    return [beginning + list(itertools.islice(itertools.cycle(told), s, s + length - len(beginning))) for s in starts]


def _pieces(model: Model, file: str, field: str, *, longest: int) -> list[list[int]]:
    beginning = model.encode("")
    pieces = []
    for record in read_records(DATA / file):
        tokens = model.encode(record.text(field))[len(beginning) :]
        size = longest - len(beginning)
        pieces += [beginning + tokens[i : i + size] for i in range(0, len(tokens), size)]
    return pieces
