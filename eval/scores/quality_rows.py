"""Rows of a quality report: who was measured, what was found, how far it lies from the baseline."""

import dataclasses
from typing import Any

from eval.scores.paired import Difference
from eval.tasks.outcome import Outcome
from jax_smash.protocols import SparsePolicy
from jax_smash.smash.options import SmashOptions
from jax_smash.sparse import named_policy

COLUMNS = (
    "model",
    "method",
    "weights",
    "task",
    "settings",
    "metric",
    "n",
    "score",
    "low",
    "high",
    "difference",
    "output_compression",
    "cache_compression",
    "truncated",
)
OPTIONAL = ("model", "weights", "difference", "output_compression", "cache_compression")
SHOWN = ("length", "shots", "file", "confidence", "token_confidence", "modules", "sparse", "kv_budget", "page_size")
"""Settings that tell the rows of a table apart."""


@dataclasses.dataclass(frozen=True)
class Contender:
    """What a row measures.

    Attributes:
      model: a shipped model's name, a directory or a hub id.
      weights: how they are kept.
      method: name of our decoding method.
      modules: HAMburger modules that the model is loaded with; None for none.
      smash: options of HAMburger; None for other methods.
      sparse: the policy that its cache is read by; None for the whole.
      kv_budget, page_size: of the policy; None for its own.
    """

    model: str
    weights: str
    method: str
    modules: str | None = None
    smash: SmashOptions | None = None
    sparse: str | None = None
    kv_budget: str | None = None
    page_size: int | None = None

    @property
    def loaded(self) -> tuple[str, str, str | None]:
        """What those that share weights have in common."""
        return self.model, self.weights, self.modules

    @property
    def policy(self) -> SparsePolicy | None:
        """What its cache is read by; None for the whole."""
        if self.sparse is None:
            return None
        return named_policy(self.sparse, budget=self.kv_budget, page_size=self.page_size)

    def fields(self) -> dict[str, Any]:
        """Returns what tells it apart, as JSON holds it."""
        return {"model": self.model, "weights": self.weights, "method": self.method} | self.told()

    def told(self) -> dict[str, Any]:
        """Returns the settings that tell its rows apart from others of the method."""
        modules = {} if self.modules is None else {"modules": self.modules}
        for name in ("sparse", "kv_budget", "page_size"):
            if getattr(self, name) is not None:
                modules[name] = getattr(self, name)
        if self.smash is None:
            return modules
        return modules | {("smash_mode" if k == "mode" else k): v for k, v in _given(self.smash)}


def _given(smash: SmashOptions) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in dataclasses.asdict(smash).items() if value is not None]


def row(
    contender: Contender, outcome: Outcome, *, dtype: str, against: tuple[Contender, Difference] | None
) -> dict[str, Any]:
    """Returns the report's row of one outcome.

    Args:
      contender: whose outcome it is.
      outcome: one metric of one set of examples.
      dtype: of the weights.
      against: the baseline and the difference from it; None in the baseline's own rows.
    """
    difference = None
    if against is not None:
        difference = {"baseline": against[0].fields(), **dataclasses.asdict(against[1])}
    return {
        "model": contender.model,
        "method": contender.method,
        "settings": outcome.settings | {"dtype": dtype, "weights": contender.weights} | contender.told(),
        "task": outcome.task,
        "metric": outcome.metric,
        "n": outcome.n,
        "score": outcome.score,
        "interval": None if outcome.interval is None else dataclasses.asdict(outcome.interval),
        "difference": difference,
        **outcome.more,
        **outcome.compression.figures(),
    }


def detail(contender: Contender, outcome: Outcome, example: dict[str, Any]) -> dict[str, Any]:
    """Returns the line of one example."""
    told = {k: v for k, v in outcome.settings.items() if k in SHOWN}
    return {**contender.fields(), "task": outcome.task, "metric": outcome.metric, **told, **example}


def shown(found: dict[str, Any]) -> dict[str, Any]:
    """Returns a row flat enough for a table."""
    told = ", ".join(f"{k} {v}" for k, v in found["settings"].items() if k in SHOWN)
    apart = {"weights": found["settings"]["weights"], "difference": signed(found["difference"])}
    return found | {"settings": told} | apart | (found["interval"] or {})


def signed(difference: dict[str, Any] | None) -> str | None:
    """Returns a difference and its interval with their signs; None for none."""
    if difference is None:
        return None
    bounds, unit = difference["interval"], " nats" if difference["unit"].startswith("nats") else ""
    between = "" if bounds is None else f" ({bounds['low']:+.4f} … {bounds['high']:+.4f})"
    return f"{difference['value']:+.4f}{unit}{between}"
