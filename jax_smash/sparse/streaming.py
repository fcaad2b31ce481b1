"""StreamingLLM: a window of the last entries behind a few that stay."""

import dataclasses
from typing import Any

from jax_smash.cache import Sinks


@dataclasses.dataclass(frozen=True)
class StreamingLLM:
    """Keeps the first entries of a text and a window of the last ones, so that memory does not grow with the text.

    Source: Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks", section 3.
    Differs: the paper rotates every key anew at each step, for its place in the cache. Here a key stays rotated for its
    position in the text, and a query is rotated twice: for its position, to meet the window, and for its place in the
    cache, to meet the sinks. Their scores depend on the same differences.

    Attributes:
      slots: entries that a row keeps, its budget.
      sinks: of them, the first of its text.

    Raises:
      ValueError: a number is out of range.
    """

    slots: int = 512
    sinks: int = 4

    endless = True
    """Texts may be of any length."""

    def __post_init__(self) -> None:
        if self.sinks < 1:
            raise ValueError(f"sinks must be at least 1; got {self.sinks}")
        if self.slots <= self.sinks:
            raise ValueError(
                f"budget must be at least {self.sinks + 1} slots, more than the {self.sinks} sinks; got {self.slots}"
            )

    @property
    def window(self) -> int:
        """Last entries that an entry sees, itself included."""
        return self.slots - self.sinks

    @property
    def longest_block(self) -> int:
        """The largest power of two in the window: within a forward, every entry sees all sinks as they are."""
        return 1 << (self.window.bit_length() - 1)

    def check(self, model: Any) -> None:
        """Refuses a model whose positions are not by difference alone, or whose cache has too few slots.

        Raises:
          ValueError: the model is not of this package, its context is less than the slots that are kept, or its rotary
            embedding depends on the length of the text.
        """
        if model.config is None:
            raise ValueError(f"{model.name} must be a model of this package: StreamingLLM needs its cache")
        if self.slots > model.config.max_positions:
            raise ValueError(
                f"slots must be at most the {model.config.max_positions} slots that a cache of {model.name} may have; "
                f"got {self.slots}"
            )
        if model.config.follows_length:
            raise ValueError(
                f"the rotary embedding of {model.name} must not depend on the length of the text; it is stretched by it"
            )

    def init_cache(self, model: Any, batch: int, slots: int, block: int) -> Any:
        """Makes an empty cache: of `slots` slots, or as many as are kept.

        Raises:
          ValueError: a forward would read more entries than the window has.
        """
        if slots <= self.slots:
            return model.init_cache(batch, slots, block)
        if block > self.window:
            raise ValueError(f"a forward must read at most the window's {self.window} entries; got {block}")
        return model.init_cache(batch, slots, block, sinks=Sinks(self.sinks, self.window))
