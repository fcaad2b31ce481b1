"""What a user may ask of decoding with HAMburger."""

import dataclasses
import re
from collections.abc import Mapping
from numbers import Integral
from typing import Any

from jax_smash.smash.config import SmashConfig

MODES = ("blind", "exact", "checked")
"""How far groups are trusted: wholly, as the paper does; as drafts, so that the text is plain decoding's; or as far as
the base agrees, token by token."""

HEADS = ("full", "int8")
"""Micro heads by name; a number is one of so many tokens."""

CALIBRATED = ("mode", "confidence", "token_confidence", "micro_steps", "micro_head")
"""Options that modules carry."""


@dataclasses.dataclass(frozen=True)
class SmashOptions:
    """What a user may ask of decoding with HAMburger.

    What is None is the modules' own: they carry the settings that they were calibrated with, `CALIBRATED`.

    Attributes:
      mode: one of `MODES`.
      confidence: a group goes on where the stop head is at least so sure that it does; over 0 and at most 1.
      token_confidence: a group ends before a token whose probability, by the micro-step decoder, is less; 0 trusts
        them all, as the paper does. Such a token's micro-step is made in vain.
      micro_steps: tokens of a group at most; where the modules do not say, as many as they were trained for.
      micro_head: what tokens behind a group's first are read with: one of `HEADS`, or a number of tokens.
      least_rows: the fewest rows for which another micro-step is made. With fewer, all groups end, because the other
        rows would have to wait. None chooses by what a micro-step costs; with 1 a row's text does not depend on the
        rows beside it.
      group_length: every group has as many tokens, whatever the stop head says; for measuring.
    """

    mode: str | None = None
    confidence: float | int | None = None
    token_confidence: float | int | None = None
    micro_steps: int | None = None
    micro_head: str | None = None
    least_rows: int | None = None
    group_length: int | None = None

    @property
    def head_size(self) -> int | None:
        """Tokens of a reduced micro head; None for one that says all."""
        return None if self.micro_head is None or self.micro_head in HEADS else int(self.micro_head)

    def settled(self, own: "SmashOptions | None" = None) -> "SmashOptions":
        """Returns the options that decode: those given, else the modules' own, else those of `UNCALIBRATED`.

        Args:
          own: settings that the modules carry; None for modules without.
        """
        chosen = {}
        for name in CALIBRATED:
            if name == "micro_steps" and self.group_length is not None:
                continue  # Groups that all have one length are for measuring, longer ones than calibrated too.
            found = (getattr(options, name) for options in (self, own, UNCALIBRATED) if options is not None)
            chosen[name] = next((value for value in found if value is not None), None)
        return dataclasses.replace(self, **chosen)

    @classmethod
    def from_fields(cls, fields: Any, config: SmashConfig) -> "SmashOptions":
        """Returns the settings that modules carry, as `to_fields` wrote them.

        Args:
          fields: what was read.
          config: of the modules.

        Raises:
          ValueError: a field is unknown, of another type or out of range.
        """
        if not isinstance(fields, Mapping):
            raise ValueError(f"options must be an object; got {fields!r}")
        if unknown := sorted({*map(str, fields)} - {*CALIBRATED}):
            raise ValueError(f"options must be of {', '.join(CALIBRATED)}; got {unknown[0]!r}")
        options = cls()
        for name, value in fields.items():
            object.__setattr__(options, name, value)  # Anything may stand in a file; `check` says what is wrong.
        try:
            options.check(config)
        except TypeError as error:
            raise ValueError(str(error)) from error
        return options

    def to_fields(self) -> dict[str, Any]:
        """Returns those of `CALIBRATED` that are given, as JSON holds them."""
        return {name: value for name in CALIBRATED if (value := getattr(self, name)) is not None}

    def check(self, config: SmashConfig | None = None, vocab_size: int | None = None) -> None:
        """Refuses what is out of range.

        Args:
          config: of the modules; None checks what can be checked without.
          vocab_size: tokens of the base; None likewise.

        Raises:
          ValueError: an option is out of range, or larger than what the modules were trained for or the vocabulary.
          TypeError: one is of the wrong type.
        """
        if self.mode is not None and self.mode not in MODES:
            raise ValueError(f"smash_mode must be one of {', '.join(MODES)}; got {self.mode!r}")
        for name in ("confidence", "token_confidence"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, float | int)):
                raise TypeError(f"{name} must be a number; got {value!r}")
        if self.confidence is not None and not 0 < self.confidence <= 1:
            raise ValueError(f"confidence must be over 0 and at most 1; got {self.confidence}")
        if self.token_confidence is not None and not 0 <= self.token_confidence <= 1:
            raise ValueError(f"token_confidence must be from 0 to 1; got {self.token_confidence}")
        self._check_head(vocab_size)
        for name in ("micro_steps", "least_rows", "group_length"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, Integral)):
                raise TypeError(f"{name} must be a whole number; got {value!r}")
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

    def _check_head(self, vocab_size: int | None) -> None:
        head = self.micro_head
        if head is None:
            return
        if not isinstance(head, str):
            raise TypeError(f"micro_head must be a text: {', '.join(HEADS)} or a number of tokens; got {head!r}")
        if head not in HEADS and not re.fullmatch("[1-9][0-9]{0,9}", head):
            raise ValueError(f"micro_head must be {', '.join(HEADS)} or a number of tokens; got {head!r}")
        if vocab_size is not None and (self.head_size or 0) > vocab_size:
            raise ValueError(f"micro_head must be at most the vocabulary's {vocab_size} tokens; got {head}")

    def longest(self, config: SmashConfig) -> int:
        """Returns how many tokens a group may have."""
        return min(self.micro_steps or config.micro_steps, self.group_length or config.micro_steps)


UNCALIBRATED = SmashOptions(mode="blind", confidence=0.7, token_confidence=0.995, micro_head="full")
"""For modules that carry no settings: groups of tokens that the modules are all but certain of."""
