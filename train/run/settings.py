"""The settings that decide what weights a run ends with."""

from __future__ import annotations

import dataclasses
import json
import os
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import tokenizers

from jax_smash.config import ModelConfig, from_fields
from train.run.optimiser import Optimiser
from train.run.program import reason
from train.tokenizer import END

FILE = "settings.json"
PACKED = "packed_sha256"
"""In the file of a run: the hash of what it trains on."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What decides the weights that a run on given rows ends with.

    Attributes:
      model: its shape.
      optimiser: its settings.
      batch_size: rows a step.
      length: targets a row.
      steps: length of the run.
      seed: of the first weights and of the order of rows.
      recall: the first weights hold a circuit that copies what followed an earlier occurrence, as in `train.run.start`.
      answer_weight: what a target counts that belongs to a document's answer; others count 1.
      own_rows: rows of each step that hold the model's own texts, as in `train.data.own_texts`; 0 for none.
      own_every: steps between two times that it writes them.
      circle_weight: what a target counts that says again what it should not, by how unlikely it is.
      dtype: of the products, `float32` or `bfloat16`; the weights that are trained are float32.
      remat: the backward pass makes each layer's activations again, for less memory.
      scan: layers of a kind are one loop of the compiled program, which then compiles faster.
      accumulate: parts of a batch that a step works on one after the other, for less memory.
      init_sha256: of the weights that the run begins with; empty for random ones.
    """

    model: ModelConfig
    optimiser: Optimiser
    batch_size: int
    length: int
    steps: int
    seed: int = 0
    recall: bool = False
    answer_weight: float = 1.0
    circle_weight: float = 1.0
    own_rows: int = 0
    own_every: int = 10
    dtype: str = "float32"
    remat: bool = False
    scan: bool = False
    accumulate: int = 1
    init_sha256: str = ""

    def __post_init__(self) -> None:
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"dtype must be float32 or bfloat16; got {self.dtype!r}")
        if min(self.batch_size, self.length, self.steps, self.accumulate) < 1:
            raise ValueError("batch_size, length, steps and accumulate must be at least 1")
        if not 0 <= self.own_rows < self.batch_size or self.own_every < 1:
            raise ValueError(
                f"own_rows must be from 0 to less than the batch's {self.batch_size} rows, own_every at least 1; "
                f"got {self.own_rows} and {self.own_every}"
            )
        if self.batch_size % self.accumulate:
            raise ValueError(f"accumulate must divide the batch's {self.batch_size} rows; got {self.accumulate}")
        if self.recall and not (self.model.qkv_bias and self.model.num_layers > 1 and not self.model.qk_norm):
            raise ValueError("recall needs a model of at least 2 layers with biases, not norms, on queries and keys")
        if self.length > self.model.max_positions:
            raise ValueError(f"length must be at most the model's {self.model.max_positions}; got {self.length}")


def check_unused(settings: Settings, of: str, *names: str) -> None:
    """Refuses settings of `train.base` that say nothing of another kind of run.

    Args:
      settings: of the run.
      of: what is trained.
      names: of those of its settings that nothing reads, beside `recall` and `own_rows`.

    Raises:
      ValueError: one of them is not as usual.
    """
    if settings.recall or settings.own_rows:
        raise ValueError("recall and own_rows are settings of train.base alone")
    usual = {field.name: field.default for field in dataclasses.fields(Settings)}
    if given := [name for name in names if getattr(settings, name) != usual[name]]:
        raise ValueError(f"{given[0]} says nothing of {of}; got {getattr(settings, given[0])}")


Kind = TypeVar("Kind", bound=Settings)
OF_OPTIMISER = "optimiser."
PLAIN = {bool, int, float, str, type(None)}
LISTS = {tuple[int, ...]: "whole numbers", tuple[str, ...]: "texts"}
"""Types of the values that `load_kind` checks; others are checked where they are used."""


def load_settings(path: Path, **changes: Any) -> Settings:
    """Returns the settings of a JSON file as `load_kind` does."""
    return load_kind(Settings, path, **changes)


def load_kind(kind: type[Kind], path: Path, /, **changes: Any) -> Kind:
    """Returns settings of a kind from a JSON file; changes that are not None replace what it says.

    `optimiser.learning_rate` changes a field of the optimiser, and so on. Of the model, fields with a default may be
    absent, and `layer_kinds` too: all layers are then full.

    Raises:
      ValueError: the file cannot be read, or a field is missing, unknown, of another type or out of range.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        given = {name: value for name, value in changes.items() if value is not None}
        model = given.pop("model", None) or _model(fields["model"])
        names = {field.name for field in dataclasses.fields(kind)} - {"model", "optimiser"}
        optimiser = fields.get("optimiser", {}) | {
            name.removeprefix(OF_OPTIMISER): given.pop(name) for name in [*given] if name.startswith(OF_OPTIMISER)
        }
        known = {OF_OPTIMISER + field.name for field in dataclasses.fields(Optimiser)}
        asked = {*fields} - {"model", "optimiser", "corpus", PACKED} | {*given} | {OF_OPTIMISER + x for x in optimiser}
        if unknown := asked - names - known:
            raise ValueError(f"unknown field {sorted(unknown)[0]!r}")
        rest = {name: fields[name] for name in names if name in fields} | given
        _check_types(kind, rest)
        _check_types(Optimiser, optimiser, OF_OPTIMISER)
        return kind(model=model, optimiser=Optimiser(**optimiser), **rest)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a training file: {reason(error)}") from error


def _check_types(kind: type, values: Mapping[str, Any], prefix: str = "") -> None:
    """Refuses values that are not of the plain types that a dataclass's fields have, or no lists of these.

    A whole number is a float too.
    """
    hints = typing.get_type_hints(kind)
    for name, value in values.items():
        wanted = typing.get_args(hints[name]) if isinstance(hints[name], types.UnionType) else (hints[name],)
        fits = type(value) in wanted or (float in wanted and type(value) is int)
        of = next((kind for kind in wanted if kind in LISTS), None)
        if of is not None and not fits:
            item = typing.get_args(of)[0]
            if not isinstance(value, list | tuple) or not all(type(x) is item for x in value):
                raise ValueError(f"{prefix}{name} must be a list of {LISTS[of]}; got {value!r}")
        if PLAIN.issuperset(wanted) and not fits:
            told = wanted[0].__name__ if len(wanted) == 1 else hints[name]
            raise ValueError(f"{prefix}{name} must be of type {told}; got {value!r}")


def _model(fields: dict[str, Any]) -> ModelConfig:
    return from_fields({"layer_kinds": ["full"] * fields["num_layers"], **fields})


def with_special_tokens(settings: Settings, tokenizer: Path) -> Settings:
    """Returns the settings with the tokenizer's ids.

    The end of a document and of a turn both end a text, and so does what the model's own settings name.

    Raises:
      ValueError: the folder holds no tokenizer, or one with more ids than the model's vocabulary or with special tokens
        that are no texts.
    """
    try:
        vocabulary = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
        names = json.loads((tokenizer / "tokenizer_config.json").read_text(encoding="utf-8"))
        written = {kind: _written(names, f"{kind}_token") for kind in ("bos", "eos", "pad")}
    except Exception as error:  # The tokenizers library raises bare Exception.
        raise ValueError(f"{tokenizer} is not a tokenizer's folder: {error}") from error
    config = settings.model
    if (size := vocabulary.get_vocab_size()) > config.vocab_size:
        raise ValueError(f"vocab_size must be at least the tokenizer's {size}; got {config.vocab_size}")
    bos, eos, pad = (None if text is None else vocabulary.token_to_id(text) for text in written.values())
    ends = tuple(token for token in (eos, vocabulary.token_to_id(END)) if token is not None)
    stops = tuple(dict.fromkeys((*ends, *config.eos_tokens)))
    model = dataclasses.replace(config, bos_token=bos, eos_tokens=stops, pad_token=pad)
    return dataclasses.replace(settings, model=model)


def _written(names: dict[str, Any], name: str) -> str | None:
    """Returns how a special token is written in texts; None where the tokenizer has none.

    Raises:
      ValueError: it is neither a text nor `{"content": text}`.
    """
    found = names.get(name)
    text = found.get("content") if isinstance(found, dict) else found
    if found is not None and not isinstance(text, str):
        raise ValueError(f"{name} must be a text or have one as content; got {found!r}")
    return text


def check_remembered(settings: Settings, output: Path, *, resume: bool, packed: str) -> bool:
    """Returns whether a run's folder holds these settings already.

    Arguments are those of `remember`.

    Raises:
      ValueError: the folder holds a run that is not to be resumed, or one with other settings or on other rows.
    """
    path, now = output / FILE, _fields(settings, packed)
    if not path.exists():
        return False
    if not resume:
        raise ValueError(f"{output} holds a run; resume it or choose another folder")
    # A field that the file lacks had its default.
    begun = json.loads(path.read_text(encoding="utf-8")).get(PACKED, packed)
    before = _fields(load_kind(type(settings), path), begun)
    if differing := _differing(before, now):
        name, old, new = differing
        raise ValueError(f"{output} was begun with {name} {old}; got {new}")
    return True


def remembered_rows(run: Path) -> str | None:
    """Returns the hash of what a run's folder says that it trains on; None where it does not say."""
    return json.loads((run / FILE).read_text(encoding="utf-8")).get(PACKED)


def remember(settings: Settings, output: Path, *, resume: bool, packed: str) -> None:
    """Writes the settings into a run's folder.

    Args:
      settings: of the run.
      output: its folder.
      resume: the folder may hold this run already.
      packed: hash of what it trains on.

    Raises:
      ValueError: as `check_remembered`.
    """
    if check_remembered(settings, output, resume=resume, packed=packed):
        return
    path = output / FILE
    output.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(_fields(settings, packed), indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def _fields(settings: Settings, packed: str) -> dict[str, Any]:
    """Returns what a run's file holds, as JSON reads it back."""
    return json.loads(json.dumps(dataclasses.asdict(settings))) | {PACKED: packed}


def _differing(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> tuple[str, Any, Any] | None:
    """Returns the first field that differs, dotted, and what it was and is; None where all are the same."""
    for name, value in now.items():
        old = before.get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            if found := _differing(old, value, f"{prefix}{name}."):
                return found
        elif old != value:
            return f"{prefix}{name}", old, value
    return None
