"""How far groups go while a program decodes."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.pytree import pytree
from jax_smash.smash.config import SmashConfig
from jax_smash.smash.options import SmashOptions


@pytree
class GroupLimits:
    """How far groups go, as a compiled program is told it: other values compile nothing.

    Attributes:
      confidence: from 0; at 0 the stop head is not heeded.
      token_confidence: from 0, likewise of the micro-step decoder's most probable token.
      longest: tokens of a group at most.
      least_rows: the fewest rows for which another micro-step is made; 0 to go by `share`.
      share: the fewest as a share of the rows that run: what a micro-step costs over a forward of the base.
    """

    confidence: Float[Array, ""]
    token_confidence: Float[Array, ""]
    longest: Int[Array, ""]
    least_rows: Int[Array, ""]
    share: Float[Array, ""]

    @classmethod
    def of(cls, options: SmashOptions, config: SmashConfig, *, cost: float) -> "GroupLimits":
        """Makes the limits of checked options.

        Args:
          options: what is asked, settled by the modules' own.
          config: of the modules.
          cost: of a micro-step, in forwards of the base.
        """
        forced, options = options.group_length is not None, options.settled()
        confidence, token_confidence = (0.0 if forced else c for c in (options.confidence, options.token_confidence))
        return cls(
            confidence=jnp.asarray(confidence, jnp.float32),
            token_confidence=jnp.asarray(token_confidence, jnp.float32),
            longest=jnp.asarray(options.longest(config), jnp.int32),
            least_rows=jnp.asarray(1 if forced and not options.least_rows else options.least_rows or 0, jnp.int32),
            # Of one row, always that one: who decodes with HAMburger wants groups.
            share=jnp.asarray(min(cost, 1.0) if math.isfinite(cost) else 1.0, jnp.float32),
        )

    def least(self, running: Bool[Array, "B"]) -> Int[Array, ""]:
        """Returns the fewest rows for which another micro-step is made, at least 1.

        A micro-step that n of R running rows take makes n tokens in the time in which plain decoding makes `share` · R.
        """
        worth = jnp.ceil(self.share * running.sum(dtype=jnp.float32)).astype(jnp.int32)
        return jnp.maximum(jnp.where(self.least_rows > 0, self.least_rows, worth), 1)
