"""What a user may ask of decoding with HAMburger."""

import dataclasses
import re
from numbers import Integral

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
      token_confidence: a group ends before a token of which the micro-step decoder is less sure: than this its most
        probable one has at least; 0 to trust them all, as the paper does. Such a token's micro-step is made in vain.
      micro_steps: tokens of a group at most; None for as many as the modules were trained for.
      micro_head: what tokens behind a group's first are read with: one of `HEADS`, or a number of tokens.
      least_rows: rows that a further micro-step is worth: with fewer, all groups end, for the others wait. None
        chooses by what a micro-step costs; with 1 a row's text does not depend on the rows beside it.
      group_length: every group has as many tokens, whatever the stop head says; for measuring.
    """

    mode: str = "blind"
    confidence: float | int = 0.7
    token_confidence: float | int = 0.0
    micro_steps: int | None = None
    micro_head: str = "full"
    least_rows: int | None = None
    group_length: int | None = None

    @property
    def head_size(self) -> int | None:
        """Tokens of a reduced micro head; None for one that says all."""
        return None if self.micro_head in HEADS else int(self.micro_head)

    def check(self, config: SmashConfig | None = None, vocab_size: int | None = None) -> None:
        """Refuses what is out of range.

        Args:
          config: of the modules; None checks what can be checked without.
          vocab_size: tokens of the base; None likewise.

        Raises:
          ValueError: an option is out of range, or larger than what the modules were trained for or the vocabulary.
          TypeError: one is of the wrong type.
        """
        if self.mode not in MODES:
            raise ValueError(f"smash_mode must be one of {', '.join(MODES)}; got {self.mode!r}")
        for name in ("confidence", "token_confidence"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, float | int):
                raise TypeError(f"{name} must be a number; got {value!r}")
        if not 0 < self.confidence <= 1:
            raise ValueError(f"confidence must be over 0 and at most 1; got {self.confidence}")
        if not 0 <= self.token_confidence <= 1:
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
        if not isinstance(head, str):
            raise TypeError(f"micro_head must be a text: {', '.join(HEADS)} or a number of tokens; got {head!r}")
        if head not in HEADS and not re.fullmatch("[1-9][0-9]{0,9}", head):
            raise ValueError(f"micro_head must be {', '.join(HEADS)} or a number of tokens; got {head!r}")
        if vocab_size is not None and (self.head_size or 0) > vocab_size:
            raise ValueError(f"micro_head must be at most the vocabulary's {vocab_size} tokens; got {head}")

    def longest(self, config: SmashConfig) -> int:
        """Returns how many tokens a group may have."""
        return min(self.micro_steps or config.micro_steps, self.group_length or config.micro_steps)
