"""Which of many numbers are the highest, without sorting them: the threshold that they reach is bisected."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

PIECE = 64
"""Places whose marks are counted by one product."""


def in_order(x: Float[Array, "*batch V"]) -> Int[Array, "*batch V"]:
    """Returns integers in the order of the numbers: a float's bits, as a signed magnitude. −0 and 0 are equal."""
    bits = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32)
    return jnp.where(bits < 0, jnp.int32(jnp.iinfo(jnp.int32).min) - bits, bits)


def largest_threshold(order: Int[Array, "*batch V"], weight: Array, least_weight: Array) -> Int[Array, "*batch"]:
    """Returns the largest threshold that entries of at least this weight together reach.

    Bisecting the threshold takes 32 sums over the entries; sorting takes ten times as long on a CPU, and a sort or a
    top-k of a large vocabulary is slow on a TPU.

    Args:
      order: integers to be compared with the threshold.
      weight: of each entry, at least 0, or of all entries.
      least_weight: `[*batch]`, axes of 1 repeated; where all entries together do not reach it, the threshold lets all
        pass.
    """
    bounds = jnp.iinfo(jnp.int32)
    zero = jnp.zeros((), weight.dtype)

    def halve(_: Int[Array, ""], span: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = span
        middle = (low >> 1) + (high >> 1) + ((low | high) & 1)  # Rounded up, and free of overflow.
        reached = jnp.where(order >= middle[..., None], weight, zero).sum(-1, dtype=weight.dtype) >= least_weight
        return jnp.where(reached, middle, low), jnp.where(reached, high, middle - 1)

    low = jnp.full(order.shape[:-1], bounds.min, jnp.int32)
    high = jnp.full(order.shape[:-1], bounds.max, jnp.int32)
    return jax.lax.fori_loop(0, 32, halve, (low, high))[0]


def mark_highest(
    scores: Float[Array, "*batch V"], candidates: Bool[Array, "*#batch V"], count: Int[Array, "*#batch"]
) -> Bool[Array, "*batch V"]:
    """Marks the `count` candidates with the highest scores; of equal ones the first.

    Args:
      scores: over −∞ where there is a candidate.
      candidates: what may be marked; axes of 1 are repeated.
      count: where there are fewer candidates, all are marked.
    """
    order = in_order(jnp.where(candidates, scores, -jnp.inf))
    least = largest_threshold(order, jnp.int32(1), count)[..., None]
    above, equal = (order > least) & candidates, (order == least) & candidates
    left = count[..., None] - above.sum(-1, keepdims=True, dtype=jnp.int32)
    return above | (equal & (marks_before(equal) < left))


def marks_before(marks: Bool[Array, "*batch V"]) -> Int[Array, "*batch V"]:
    """Returns how many marks are before each place: within pieces by a product, then by sums over whole pieces.

    A running sum over thousands of places takes a CPU several times as long.
    """
    length = marks.shape[-1]
    padded = jnp.pad(marks.astype(jnp.float32), [(0, 0)] * (marks.ndim - 1) + [(0, -length % PIECE)])
    pieces = padded.reshape(*marks.shape[:-1], -1, PIECE)
    within = jnp.einsum("...PZ,ZY->...PY", pieces, jnp.triu(jnp.ones((PIECE, PIECE), jnp.float32), 1))
    whole = pieces.sum(-1)
    before = within + (jnp.cumsum(whole, -1) - whole)[..., None]
    return before.reshape(padded.shape)[..., :length].astype(jnp.int32)
