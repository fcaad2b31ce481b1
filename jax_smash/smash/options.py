"""What a user may ask of decoding with HAMburger, and what of it a compiled program is told."""

import dataclasses
import math
import re

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.pytree import pytree
from jax_smash.smash.config import SmashConfig

MODES = ("blind", "exact", "checked")
"""How far groups are trusted: wholly, as the paper does; as drafts, so that the text is plain decoding's; or as far as
the base agrees, token by token."""

HEADS = ("full", "int8")
"""Micro heads by name; a number is one of so many tokens."""


@dataclasses.dataclass(frozen=True)
class SmashOptions:
    """What a user may ask of decoding with HAMburger.

    Attributes:
      mode: one of `MODES`.
      confidence: a group goes on where the stop head is at least so sure that it does; over 0 and at most 1.
      micro_steps: tokens of a group at most; None for as many as the modules were trained for.
      micro_head: what tokens behind a group's first are read with: one of `HEADS`, or a number of tokens.
      least_rows: rows that a further micro-step is worth: with fewer, all groups end, for the others wait. None
        chooses by what a micro-step costs; with 1 a row's text does not depend on the rows beside it.
      group_length: every group has as many tokens, whatever the stop head says; for measuring.
    """

    mode: str = "blind"
    confidence: float | int = 0.7
    micro_steps: int | None = None
    micro_head: str = "full"
    least_rows: int | None = None
    group_length: int | None = None

    @property
    def head_size(self) -> int | None:
        """Tokens of a reduced micro head; None for one that says all."""
        return None if self.micro_head in HEADS else int(self.micro_head)

    def check(self, config: SmashConfig | None = None) -> None:
        """Refuses what is out of range.

        Args:
          config: of the modules; None checks what can be checked without.

        Raises:
          ValueError: an option is out of range, or larger than what the modules were trained for.
          TypeError: one is no number.
        """
        if self.mode not in MODES:
            raise ValueError(f"smash_mode must be one of {', '.join(MODES)}; got {self.mode!r}")
        if isinstance(self.confidence, bool) or not isinstance(self.confidence, float | int):
            raise TypeError(f"confidence must be a number; got {self.confidence!r}")
        if not 0 < self.confidence <= 1:
            raise ValueError(f"confidence must be over 0 and at most 1; got {self.confidence}")
        if self.micro_head not in HEADS and not re.fullmatch("[1-9][0-9]*", self.micro_head):
            raise ValueError(f"micro_head must be {', '.join(HEADS)} or a number of tokens; got {self.micro_head!r}")
        for name in ("micro_steps", "least_rows", "group_length"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1; got {value}")
        if self.group_length and self.micro_steps and self.group_length > self.micro_steps:
            raise ValueError(
                f"group_length must be at most the micro_steps of {self.micro_steps}; got {self.group_length}"
            )
        if config is None:
            return
        for name in ("micro_steps", "group_length"):
            value = getattr(self, name)
            if value is not None and value > config.micro_steps:
                raise ValueError(
                    f"{name} must be at most {config.micro_steps}, what the modules were trained for; got {value}"
                )

    def longest(self, config: SmashConfig) -> int:
        """Returns how many tokens a group may have."""
        return min(self.micro_steps or config.micro_steps, self.group_length or config.micro_steps)


@pytree
class SmashSettings:
    """Options as a compiled program is told them: other values compile nothing.

    Attributes:
      confidence: from 0; at 0 the stop head is not heeded.
      limit: tokens of a group at most.
      least_rows: rows that a further micro-step is worth; 0 to go by `share`.
      share: of the rows that run, those that a further micro-step is worth: what one costs over a forward of the base.
    """

    confidence: Float[Array, ""]
    limit: Int[Array, ""]
    least_rows: Int[Array, ""]
    share: Float[Array, ""]

    @classmethod
    def of(cls, options: SmashOptions, config: SmashConfig, *, cost: float) -> "SmashSettings":
        """Makes the settings of checked options.

        Args:
          options: what is asked.
          config: of the modules.
          cost: of a micro-step, in forwards of the base.
        """
        forced = options.group_length is not None
        return cls(
            confidence=jnp.asarray(0.0 if forced else options.confidence, jnp.float32),
            limit=jnp.asarray(options.longest(config), jnp.int32),
            least_rows=jnp.asarray(1 if forced and not options.least_rows else options.least_rows or 0, jnp.int32),
            # Of one row, always that one: who decodes with HAMburger wants groups.
            share=jnp.asarray(min(cost, 1.0) if math.isfinite(cost) else 1.0, jnp.float32),
        )

    def least(self, running: Bool[Array, "B"]) -> Int[Array, ""]:
        """Returns how many rows a further micro-step is worth, at least 1.

        A micro-step that n of R running rows take makes n tokens in the time in which plain decoding makes `share` · R.
        """
        worth = jnp.ceil(self.share * running.sum(dtype=jnp.float32)).astype(jnp.int32)
        return jnp.maximum(jnp.where(self.least_rows > 0, self.least_rows, worth), 1)
