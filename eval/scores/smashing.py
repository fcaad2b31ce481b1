"""Options of HAMburger that measuring programs share, and how many slots of the cache a text took."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np

from jax_smash.checkpoints.smasher import SmashModules
from jax_smash.decode.groups import Smashed
from jax_smash.loading import Model, grafted
from jax_smash.smash.config import SmashConfig
from jax_smash.smash.options import SmashOptions
from jax_smash.smash.smasher import SmasherDef, random_smasher


def smash_options(settings: Any, **more: Any) -> SmashOptions:
    """Returns the options that a program's settings have fields for; the field of `mode` is `smash_mode`.

    Args:
      settings: a dataclass.
      more: options in place of its fields.
    """
    fields = {f.name: "smash_mode" if f.name == "mode" else f.name for f in dataclasses.fields(SmashOptions)}
    given = {name: getattr(settings, field) for name, field in fields.items() if hasattr(settings, field)}
    return SmashOptions(**given | more)


@dataclasses.dataclass
class Compression:
    """Counts of texts whose tokens share slots.

    Attributes:
      prompt: tokens of the prompts, each in a slot of its own.
      tokens: that were fused, groups of one included.
      slots: that they took.
      micro_steps: that ran meanwhile.
    """

    prompt: int = 0
    tokens: int = 0
    slots: int = 0
    micro_steps: int = 0

    def add(self, rows: Iterable[tuple[int, Smashed | None]]) -> None:
        """Counts texts: of each the tokens of its prompt, and what became of its output."""
        for prompt, smashed in rows:
            if smashed is not None:
                self.prompt += prompt
                self.tokens += smashed.tokens
                self.slots += smashed.slots
                self.micro_steps += smashed.micro_steps

    def __add__(self, other: Compression) -> Compression:
        """Returns the counts of both texts."""
        return Compression(
            prompt=self.prompt + other.prompt,
            tokens=self.tokens + other.tokens,
            slots=self.slots + other.slots,
            micro_steps=self.micro_steps + other.micro_steps,
        )

    def figures(self) -> dict[str, float]:
        """Returns tokens a slot, of the output and of the whole cache, and micro-steps a slot; nothing where none was.

        A slot has the same bytes whatever it holds: `cache_compression` is the whole cache's, in bytes.
        """
        if not self.slots:
            return {}
        return {
            "output_compression": self.tokens / self.slots,
            "cache_compression": (self.prompt + self.tokens) / (self.prompt + self.slots),
            "micro_steps_a_slot": self.micro_steps / self.slots,
        }


def with_random_modules(model: Model, dtype: Any, *, micro_layers: int, micro_steps: int) -> Model:
    """Returns a model with untrained modules on it, to measure speed; all tokens are equally common.

    Raises:
      ValueError: the model is not one of this package's, or a size is out of range.
    """
    if model.config is None:
        raise ValueError(f"modules need a model of this package; {model.name} is none")
    config = SmashConfig.for_base(model.config, micro_layers=micro_layers, micro_steps=micro_steps)
    graphdef, params = random_smasher(model.config, config, dtype=dtype)
    counts = np.ones(model.vocab_size, np.int64)
    return grafted(model, SmashModules(config, SmasherDef(graphdef), params, counts))


def with_caps(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns a speed report's rows with the most that groups could gain, by the cheapest micro-step that was measured.

    With groups of r tokens and micro-steps that cost c forwards of the base, decoding is r / (1 + (r − 1) · c) times as
    fast where nothing else takes time. c is the least that any rows show. Two rows whose groups all have one length
    show it by what the longer groups take more; a row with groups shows it by what it takes beyond a plain step. So no
    measured row lies above its cap. Where one is faster than free micro-steps would make it, by chance, the cap is what
    it reached. Two rows of forced lengths are needed; without, rows stay as they are. The first row is plain
    decoding.
    """
    forced = {row["group_length"]: row["ms_per_step"] for row in rows if "group_length" in row}
    if len(forced) < 2:
        return rows
    cost = max(0.0, min(*_costs_between(forced, rows[0]["ms_per_step"]), *_costs_beyond(rows)))

    def capped(row: dict[str, Any]) -> dict[str, Any]:
        if "output_compression" not in row:
            return row
        r = row["mean_accepted_tokens"]
        cap = max(r / (1 + (r - 1) * cost), row["speedup"])
        return row | {"micro_step_cost": cost, "cap": cap, "share_of_cap": row["speedup"] / cap}

    return [capped(row) for row in rows]


def _costs_between(forced: dict[int, float], plain: float) -> list[float]:
    """Returns what the micro-steps between neighbouring group lengths cost, in steps of plain decoding."""
    return [(forced[b] - forced[a]) / (b - a) / plain for a, b in itertools.pairwise(sorted(forced))]


def _costs_beyond(rows: list[dict[str, Any]]) -> list[float]:
    """Returns what a micro-step costs at most, by each row with groups: all that it takes beyond a plain step."""
    groups = [(row["mean_accepted_tokens"], row["speedup"]) for row in rows if "output_compression" in row]
    return [(r / speedup - 1) / (r - 1) for r, speedup in groups if r > 1]
