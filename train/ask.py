"""Prompts about ordinary texts, for a model to answer where there are few prompts that may be used.

    python -m train.ask --texts FOLDER --count 4000 --output prompts.jsonl
    python -m train.regenerate --model MODEL --prompts prompts.jsonl --chat --output ANSWERS

Texts have headings, lines that begin with `#`. A prompt asks for a summary, an explanation or facts of a passage, for a
translation of a sentence, or about what a heading names: `train/data/askings.py` has the forms. The same texts, count
and seed give the same prompts.
"""

from __future__ import annotations

import json
from pathlib import Path

from train.data.askings import Section, askings, sections
from train.data.documents import read_documents
from train.run.program import check_new_file, file_in, run_program


def main(texts: Path, count: int, output: Path, letters: int = 1000, seed: int = 0) -> None:
    """Writes prompts about texts, one {"prompt"} a line.

    Args:
      texts: a .txt, .json or .jsonl file of texts, or a folder of them.
      count: of prompts.
      output: file to write; a name without an ending is a folder, which gets `prompts.jsonl`.
      letters: characters of a passage in a prompt, at most.
      seed: of what is asked, and about what.
    """
    for name, value, least in (("count", count, 1), ("letters", letters, 40), ("seed", seed, 0)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}; got {value}")
    file = file_in(output, "prompts.jsonl")
    check_new_file(output)
    made = askings(read_sections(texts), count, letters=letters, seed=seed)
    if file != output:
        output.mkdir()
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in made), encoding="utf-8")
    print(f"{len(made):,} prompts written to {file}")


def read_sections(texts: Path) -> list[Section]:
    """Returns the sections of a file of texts, or of all in a folder.

    Raises:
      FileNotFoundError: there is no file.
      ValueError: one cannot be read.
    """
    files = sorted(f for f in texts.iterdir() if f.suffix in (".txt", ".json", ".jsonl")) if texts.is_dir() else [texts]
    if not files or not files[0].is_file():
        raise FileNotFoundError(f"{texts} must be a .txt, .json or .jsonl file, or a folder of them; there is none")
    whole = 2**30  # Characters: a text is not cut.
    texts_of = (document.text for file in files for document in read_documents(file, passage=whole))
    return [section for text in texts_of for section in sections(text)]


if __name__ == "__main__":
    run_program(main)
