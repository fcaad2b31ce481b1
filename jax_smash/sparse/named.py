"""Policies by name, with settings as a text."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jax_smash.protocols import SparsePolicy
from jax_smash.sparse.butler import Butler
from jax_smash.sparse.calibrate import load_shares
from jax_smash.sparse.controls import Dense, Oracle, Random, Recency
from jax_smash.sparse.gate import PageGate
from jax_smash.sparse.grouped import GroupedButler
from jax_smash.sparse.h2o import H2O
from jax_smash.sparse.learned import Learned
from jax_smash.sparse.low_rank import LowRankKeys
from jax_smash.sparse.predictors import find_predictor
from jax_smash.sparse.quest import Quest
from jax_smash.sparse.selecting import Selecting
from jax_smash.sparse.snapkv import SnapKV
from jax_smash.sparse.streaming import StreamingLLM
from jax_smash.sparse.tokenselect import TokenSelect
from jax_smash.sparse.tova import TOVA

POLICIES: MappingProxyType[str, Callable[..., SparsePolicy]] = MappingProxyType(
    {
        "butler": Butler,
        "dense": Dense,
        "gate": PageGate,
        "grouped": GroupedButler,
        "h2o": H2O,
        "low-rank": LowRankKeys,
        "oracle": Oracle,
        "quest": Quest,
        "random": Random,
        "recency": Recency,
        "snapkv": SnapKV,
        "streaming": StreamingLLM,
        "tokenselect": TokenSelect,
        "tova": TOVA,
    }
)
"""Policies of sparse caches by name."""

UNNAMED = ("predictor", "trained_length")
"""Fields that are no settings of a text."""

SHARES = "shares"
"""Setting of a file of `calibrate.save_shares`, which tells what each KV head may read of the budget."""


def named_policy(text: str, *, budget: str | int | None = None, page_size: int | None = None) -> SparsePolicy:
    """Returns the policy that a text names, as in `quest`, `h2o:recent=0.25,decay=0.98` or `butler:FOLDER,sinks=8`.

    Args:
      text: a name of `POLICIES`, and behind a colon settings of its class, with commas or colons between them. Of a
        policy with a trained predictor, a setting without a name is the predictor's folder. `shares=FILE` takes
        `head_shares` from a file of `calibrate.save_shares`.
      budget: slots that a step reads, or a share of the text, as in `25%`; None for the policy's own.
      page_size: consecutive slots that are chosen together; None for the policy's own.

    Raises:
      ValueError: there is no such policy or setting, or a value is out of range.
    """
    name, _, settings = text.partition(":")
    if name not in POLICIES:
        raise ValueError(f"a policy must be one of {', '.join(POLICIES)}; got {name!r}")
    policy = POLICIES[name]
    settable = [field for field in dataclasses.fields(policy) if field.init and field.name not in UNNAMED]  # type: ignore[arg-type]
    fields = {SHARES if field.name == "head_shares" else field.name: field for field in settable}
    given: dict[str, Any] = {}
    for setting in _split(settings):
        key, equals, value = setting.partition("=")
        if not equals and "path" in fields and "path" not in given:
            key, equals, value = "path", "=", setting
        if not equals or key not in fields:
            raise ValueError(f"settings of {name} must be among {', '.join(fields) or 'none'}; got {setting!r}")
        if key == SHARES:
            given["head_shares"] = load_shares(Path(value))
        else:
            given[key] = parse_budget(value) if key == "budget" else _parsed(key, value, fields[key].default)
    if budget is not None:
        given["slots" if policy is StreamingLLM else "budget"] = parse_budget(budget)
    if page_size is not None:
        given["page_size"] = page_size
    for key in given:
        if key not in fields and key != "head_shares":
            raise ValueError(
                f"{key} does not go with the policy {name}, whose settings are {', '.join(fields) or 'none'}"
            )
    if policy is StreamingLLM and isinstance(given.get("slots"), float):
        raise ValueError(f"a budget of streaming must be a number of slots, which it keeps; got {budget}")
    return policy(**given)


def named_whole(text: str) -> SparsePolicy:
    """Returns the policy that a text names, with a budget of the whole text where it chooses slots.

    So no setting is too large for the policy's own budget.

    Raises:
      ValueError: there is no such policy or setting, or a value is out of range.
    """
    kind = POLICIES.get(text.partition(":")[0])
    chooses = isinstance(kind, type) and issubclass(kind, Selecting)
    return named_policy(text, budget="100%" if chooses else None)


def named_files(text: str, base: str) -> dict[str, Path]:
    """Returns what a text names that lies in files: `predictor`, a folder, and `shares`, a file; each where it is read.

    Args:
      text: as `named_policy` takes it.
      base: name of the model, whose shipped predictor is taken where no folder is named.

    Raises:
      FileNotFoundError: there is no predictor or file.
      ValueError: there is no such policy or setting, or a value is out of range.
    """
    found: dict[str, Path] = {}
    policy = named_whole(text)
    if isinstance(policy, Learned):
        found["predictor"] = find_predictor(policy, base)
    for setting in _split(text.partition(":")[2]):
        key, _, value = setting.partition("=")
        if key == SHARES:
            found[SHARES] = Path(value)
    return found


def parse_budget(budget: str | int) -> int | float:
    """Returns a budget: a whole number of slots, or of a text like `25%` a share.

    Raises:
      ValueError: it is neither.
    """
    text = str(budget)
    digits, percent = text.removesuffix("%"), text.endswith("%")
    try:
        return float(digits) / 100 if percent else int(digits)
    except ValueError:
        raise ValueError(f"a budget must be a number of slots, or a share like 25%; got {text!r}") from None


def told(policy: SparsePolicy) -> str | None:
    """Returns what a user should know of a budget that is a share; None where there is nothing to say."""
    if not isinstance(policy, Selecting) or isinstance(policy.budget, int) or policy.budget >= 1:
        return None
    return f"a budget of {policy.budget:.0%} of a text is at least {policy.least} slots, which are always read"


def _split(settings: str) -> list[str]:
    return [setting for setting in re.split("[,:]", settings) if setting]


def _parsed(key: str, value: str, default: Any) -> Any:
    """Returns a setting in the type of its default."""
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[value.lower()]
        return type(default)(value)
    except (KeyError, ValueError):
        raise ValueError(f"{key} must be of type {type(default).__name__}; got {value!r}") from None
