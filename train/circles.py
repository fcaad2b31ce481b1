"""Writes a model's own texts that go in circles, for it to unlearn them.

    python -m train.circles --model MODEL --data-root DATA --paths tinystories/train-00.jsonl --output CIRCLES.jsonl

Each line holds `circle`, the end of the text that says again what stands before it, and `text` or `messages`. A source
of a corpus may name the file: of these documents the circle alone is trained on, by how unlikely it is.

Source: Welleck et al. 2020, Neural Text Generation with Unlikelihood Training, section 5.2 (sequences). Differs: texts
are written once, not anew at every step, and end soon after they have begun to go in circles.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp

import jax_smash
from train.corpus import Source, source_files
from train.documents import Document, read_documents
from train.program import run_program

RUN = 4
"""Tokens that are said again where a circle begins."""

LONGEST = 48
"""Tokens kept of a circle: what teaches most is how it begins."""

FEWEST, MOST = 4, 40
"""Words of a text that the model goes on from."""

REPEATED = 0.5
"""Least share of a circle's runs that were said before."""


def circle_of(tokens: Sequence[int]) -> tuple[int, int] | None:
    """Returns where a circle begins and ends among a text's tokens; None where it has none.

    It begins with the token that completes the first run of four tokens said before.
    """
    seen: set[tuple[int, ...]] = set()
    repeats = []
    for end in range(RUN, len(tokens) + 1):
        run = tuple(tokens[end - RUN : end])
        repeats.append(run in seen)
        seen.add(run)
    if True not in repeats:
        return None
    first = repeats.index(True)
    begin = first + RUN - 1
    kept = repeats[first : first + LONGEST]
    return (begin, begin + len(kept)) if sum(kept) >= max(RUN, REPEATED * len(kept)) else None


def openings(documents: list[Document], count: int, seed: int) -> list[Document]:
    """Returns the beginnings of random texts, and the first turns of random chats."""
    rng, found = random.Random(seed), []
    for document in rng.sample(documents, min(count, len(documents))):
        if document.messages:
            found.append(Document(messages=document.messages[:1]))
        else:
            found.append(Document(" ".join(document.text.split()[: rng.randint(FEWEST, MOST)])))
    return found


def own_circles(model: Any, begun: list[Document], *, max_new_tokens: int, batch: int) -> list[dict[str, Any]]:
    """Returns the rows of those greedy continuations that go in circles.

    Args:
      model: a loaded model.
      begun: texts and chats to go on from.
      max_new_tokens: of a continuation.
      batch: continuations written at once.
    """
    rows: list[dict[str, Any]] = []
    for start in range(0, len(begun), batch):
        group = begun[start : start + batch]
        prompts = [model.encode_chat(list(d.messages)) if d.messages else model.encode(d.text) for d in group]
        for document, completion in zip(
            group, jax_smash.generate(model, prompts, max_new_tokens=max_new_tokens), strict=True
        ):
            tokens = [token for token in completion.token_ids if token not in model.stop_tokens]
            if (found := circle_of(tokens)) is None:
                continue
            before, until = (model.tokenizer.decode(tokens[:edge]) for edge in found)
            circle = until[len(before) :]
            if "\ufffd" in until or not circle.strip() or not until.startswith(before):
                continue
            if document.messages:
                turns = [*document.messages, {"role": "assistant", "content": until}]
                rows.append({"messages": turns, "circle": circle})
            else:
                rows.append({"text": document.text + until, "circle": circle})
    return rows


def main(
    model: Path,
    data_root: Path,
    paths: tuple[str, ...],
    output: Path,
    count: int = 1024,
    max_new_tokens: int = 128,
    batch: int = 64,
    seed: int = 0,
) -> None:
    """Writes a model's texts that go in circles.

    Args:
      model: folder of the model.
      data_root: folder that the paths start from.
      paths: text and chats that it goes on from, as a source of a corpus names them.
      output: file to write; absent.
      count: texts to go on from.
      max_new_tokens: of a continuation.
      batch: continuations written at once.
      seed: of the choice of texts.
    """
    if output.exists():
        raise FileExistsError(f"{output} exists; choose another file")
    files = source_files(Source("openings", paths=paths), data_root)
    documents = [document for file in files for document in read_documents(file, passage=8000)]
    loaded = jax_smash.load(model, dtype=jnp.float32)
    rows = own_circles(loaded, openings(documents, count, seed), max_new_tokens=max_new_tokens, batch=batch)
    output.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"{len(rows)} of {min(count, len(documents))} texts went in circles; written to {output}")


if __name__ == "__main__":
    run_program(main)
