"""Records of a data set: from a JSON-lines or JSON file, or from the hub; every complaint names file and line."""

import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from jax_smash.serve.prompts import checked_text

T = TypeVar("T")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+){0,2}")
HUB_SPLITS = ("validation", "test", "train")
"""Which split of a hub data set is asked, the first that it has, where none is named."""


@dataclasses.dataclass(frozen=True)
class Record:
    """One entry of a data set.

    Attributes:
      where: file and line, or data set and number; for messages and for telling examples apart.
      fields: as read.
    """

    where: str
    fields: dict[str, Any]

    def error(self, message: str) -> ValueError:
        """Makes the error that says what is wrong with this entry."""
        return ValueError(f"{self.where}: {message}")

    def text(self, name: str) -> str:
        """Returns a field that must be text.

        Raises:
          ValueError: it is missing, or no Unicode text.
        """
        value = self.fields.get(name)
        if not isinstance(value, str):
            raise self.error(f'expected a text "{name}"; got {_fields(self.fields, name)}')
        try:
            return checked_text(value)
        except ValueError as error:
            raise self.error(str(error)) from error

    def texts(self, name: str) -> tuple[str, ...]:
        """Returns a field that must be a list of at least two texts, none empty.

        Raises:
          ValueError: it is something else.
        """
        value = self.fields.get(name)
        if not isinstance(value, list) or len(value) < 2 or not all(isinstance(v, str) and v.strip() for v in value):
            raise self.error(f'expected a list of two or more texts "{name}"; got {_fields(self.fields, name)}')
        return tuple(Record(self.where, {name: v}).text(name) for v in value)

    def index(self, name: str, count: int, *, first: int = 0) -> int:
        """Returns a field that must number one of `count` choices, counted from 0; it may be written as text.

        Args:
          name: of the field.
          count: of choices.
          first: what the field says for the first choice.

        Raises:
          ValueError: it is something else.
        """
        try:
            number = int(self.fields[name]) - first
        except (KeyError, TypeError, ValueError):
            number = -1
        if not 0 <= number < count:
            expected = f"{first} … {first + count - 1}"
            raise self.error(f'expected a number "{name}" from {expected}; got {_fields(self.fields, name)}')
        return number


def read_records(source: str | Path) -> list[Record]:
    """Returns the entries of a data set, in order.

    Args:
      source: a file of one JSON object a line (`.jsonl`), a file of one JSON list (`.json`), or a hub data set as
        `owner/name`, `owner/name:configuration` or `owner/name:configuration:split`, read through `datasets`. Beside
        `X.jsonl`, a file `X-labels.lst` with a line an entry gives each its `label`.

    Raises:
      FileNotFoundError: there is no such file.
      ImportError: a hub data set is named and the package `datasets` is not installed.
      ValueError: a line is malformed, which the message names, or there is no entry.
    """
    path = Path(source)
    if path.is_dir():
        raise FileNotFoundError(f"expected a file of records; {path} is a folder")
    if path.exists():
        records = list(_json_list(path) if path.suffix == ".json" else _json_lines(path))
        records = _labelled(records, path.with_name(f"{path.stem}-labels.lst"))
    elif path.suffix in (".json", ".jsonl") or not HUB_ID.fullmatch(str(source)):
        raise FileNotFoundError(f"data file does not exist: {path}")
    else:
        records = _hub(str(source))
    if not records:
        raise ValueError(f"{source} must hold at least one entry; got none")
    return records


def front(examples: Sequence[T], count: int | None, source: str | Path) -> Sequence[T]:
    """Returns the first `count` examples of a source, or all of them for None.

    Raises:
      ValueError: there are fewer.
    """
    if count is not None and count > len(examples):
        raise ValueError(f"count must be at most {len(examples)}, the examples of {source}; got {count}")
    return examples[:count]


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the lines of a text file that are not blank, with their numbers from 1.

    Raises:
      OSError: it cannot be read.
      ValueError: a line is not UTF-8, which the message names.
    """
    for number, line in enumerate(path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            try:
                yield number, line.decode().rstrip("\r")
            except UnicodeDecodeError as error:
                byte, place = error.object[error.start], error.start
                raise ValueError(f"{path}, line {number}: not UTF-8: byte {byte:#04x} at {place}") from error


def _json_lines(path: Path) -> Iterator[Record]:
    for number, line in read_lines(path):
        where = f"{path}, line {number}"
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}: not JSON: {error}") from error
        yield _record(where, fields)


def _json_list(path: Path) -> Iterator[Record]:
    try:
        entries = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    if not isinstance(entries, list):
        raise ValueError(f"{path} must hold a list of objects; got {type(entries).__name__}")
    for number, fields in enumerate(entries, start=1):
        yield _record(f"{path}, entry {number}", fields)


def _record(where: str, fields: Any) -> Record:
    if not isinstance(fields, dict):
        raise ValueError(f"{where}: expected an object; got {type(fields).__name__}")
    return Record(where=where, fields=fields)


def _labelled(records: list[Record], labels: Path) -> list[Record]:
    if not labels.exists():
        return records
    given = [line.strip() for _, line in read_lines(labels)]
    if len(given) != len(records):
        raise ValueError(f"{labels} must have a label for each of {len(records)} entries; got {len(given)}")
    return [Record(r.where, {"label": label} | r.fields) for r, label in zip(records, given, strict=True)]


def _hub(source: str) -> list[Record]:
    try:
        import datasets
    except ImportError as error:
        raise ImportError(
            f"{source} is no file, and to read it from the hub needs the package datasets (pip install datasets)"
        ) from error
    name, configuration, split = (*source.split(":"), None, None)[:3]
    try:
        split = split or next(s for s in HUB_SPLITS if s in datasets.get_dataset_split_names(name, configuration))
        found = datasets.load_dataset(name, configuration, split=split)
    except StopIteration:
        raise ValueError(f"{source} has none of the splits {', '.join(HUB_SPLITS)}: name one") from None
    except Exception as error:  # Whatever the library raises, the user is told which data set is meant.
        raise ValueError(f"cannot read {source} from the hub, and it is no file: {error}") from error
    return [_record(f"{source}, entry {i}", dict(fields)) for i, fields in enumerate(found, start=1)]


def _fields(fields: dict[str, Any], name: str) -> str:
    if name not in fields:
        return f"the fields {', '.join(map(repr, fields)) or 'none'}"
    shown = json.dumps(fields[name], default=str)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"
