"""What logits processors that remember nothing have in common."""

from jaxtyping import Array, Bool, Int


class Stateless:
    """The part of `LogitsProcessor` that is about state, for a processor without one."""

    def init(self, batch: int, vocab_size: int) -> tuple[()]:
        """Returns the empty state."""
        return ()

    def observe_prompt(self, state: tuple[()], tokens: Int[Array, "B T"], valid: Bool[Array, "B T"]) -> tuple[()]:
        """Returns the empty state."""
        return state

    def advance(self, state: tuple[()], token: Int[Array, "B"], running: Bool[Array, "B"]) -> tuple[()]:
        """Returns the empty state."""
        return state
