"""A user's texts, read from files for `draft.corpus`."""

import json
from pathlib import Path

MAX_BYTES = 64 * 2**20
"""Bytes of all files together: the index holds 8 bytes a token on the device and takes some 200 while it is made."""

SUFFIXES = (".txt", ".md", ".jsonl")
"""Endings of the files that are read of a directory."""


def read_texts(path: Path) -> list[str]:
    """Reads a corpus.

    Args:
      path: a text file; a `.jsonl` file with an object a line whose `text` counts, or a string a line; or a directory,
        whose `.txt`, `.md` and `.jsonl` files are read, those of its directories too.

    Raises:
      FileNotFoundError: there is nothing at this path.
      OSError: a file cannot be read.
      ValueError: there is no text, a file or line is not what it should be, or there are over `MAX_BYTES`.
    """
    files = corpus_files(path)
    texts = [text for file in files for text in _read(file)]
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise ValueError(f"{path} has no text to look anything up in")
    return texts


def corpus_files(path: Path) -> list[Path]:
    """Returns the files of a corpus, in a fixed order, none of them read yet.

    Raises:
      FileNotFoundError: there is nothing at this path.
      ValueError: a directory has no such files, or they have over `MAX_BYTES`.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: there is no corpus to look anything up in")
    files = [path]
    if path.is_dir():
        files = sorted(f for f in path.rglob("*") if f.suffix in SUFFIXES and f.is_file())
        if not files:
            raise ValueError(f"{path} has no {', '.join(SUFFIXES)} file")
    size = sum(file.stat().st_size for file in files)
    if size > MAX_BYTES:
        raise ValueError(f"{path} must have at most {MAX_BYTES:,} bytes to be a corpus; got {size:,}")
    return files


def _read(file: Path) -> list[str]:
    try:
        content = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} must be UTF-8 text: byte {error.start} is not") from error
    if file.suffix != ".jsonl":
        return [content]
    # Not splitlines: it would also split at separators that JSON allows within a string.
    lines = content.split("\n")
    return [_text(line, f"{file}:{number}") for number, line in enumerate(lines, 1) if line.strip()]


def _text(line: str, where: str) -> str:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON: {error}") from error
    text = entry.get("text") if isinstance(entry, dict) else entry
    if not isinstance(text, str):
        raise ValueError(f'{where} must be a string, or an object with a string "text"; got {line[:60]}')
    return text
