"""Training objectives."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from jax_smash.shapes import round_up

Unembed = Callable[[Float[Array, "B C D"]], Float[Array, "B C V"]]


def summed_cross_entropy(
    unembed: Unembed,
    hidden: Float[Array, "B T D"],
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"],
    *,
    chunk: int = 512,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Returns the weighted sum of the targets' negative log-likelihoods, in nats, and the sum of the weights' sizes.

    Two sums and no mean, so that what devices or batches contribute can be added up before it is divided.

    Logits exist for about `chunk` entries at a time (one of each row at least), forward and backward: the backward pass
    makes them again where there are more.

    Equivalent formula: Σ w · (logsumexp(logits) − logits[target]) over weights w above 0, and Σ −|w| · log(1 − p) over
    those below 0, p being the target's probability; float32.

    Source: of what a weight below 0 means, Welleck et al. 2020 (unlikelihood training).

    Args:
      unembed: logits of entries, `CausalLM.unembed`.
      hidden: after the final norm.
      targets: the token after each entry.
      weights: 0 where the target counts for nothing, below 0 where it should not follow.
      chunk: entries whose logits are in memory at once.

    Raises:
      ValueError: `chunk` is below 1.
    """

    def of_piece(vectors: Array, target: Array, weight: Array) -> Array:
        logits = unembed(vectors).astype(jnp.float32)
        of_target = jnp.take_along_axis(logits, target[..., None], axis=-1)[..., 0]
        likelihood = jax.nn.logsumexp(logits, axis=-1) - of_target
        # A certain token would cost infinitely much; its gradient needs no more than this.
        unlikelihood = -jnp.log(-jnp.expm1(-jnp.maximum(likelihood, 1e-4)))
        return jnp.sum(jnp.abs(weight) * jnp.where(weight >= 0, likelihood, unlikelihood))

    weights = weights.astype(jnp.float32)
    return _summed(of_piece, hidden, targets, weights, chunk=chunk), jnp.abs(weights).sum()


def summed_divergence(
    teacher: Unembed,
    of: Float[Array, "B T D"],
    student: Unembed,
    approximation: Float[Array, "B T D"],
    weights: Float[Array, "B T"],
    *,
    chunk: int = 512,
) -> Float[Array, ""]:
    """Returns the weighted sum of what one model's predictions lose of another's, in nats.

    Logits exist for about `chunk` entries at a time, as in `summed_cross_entropy`.

    Equivalent formula: Σ w · Σ p · (log p − log q), p and q the softmax of the teacher's and the student's logits.

    Args:
      teacher: logits of its entries, `CausalLM.unembed`.
      of: the teacher's hidden vectors, after the final norm.
      student: logits of its entries.
      approximation: the student's hidden vectors, of the same entries.
      weights: what each entry counts.
      chunk: entries whose logits are in memory at once.

    Raises:
      ValueError: `chunk` is below 1.
    """

    def of_piece(of: Array, approximation: Array, weight: Array) -> Array:
        log_p = jax.nn.log_softmax(teacher(of).astype(jnp.float32), axis=-1)
        log_q = jax.nn.log_softmax(student(approximation).astype(jnp.float32), axis=-1)
        return jnp.sum(weight * jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1))

    return _summed(of_piece, of, approximation, weights.astype(jnp.float32), chunk=chunk)


def most_probable(unembed: Unembed, hidden: Float[Array, "B T D"], *, chunk: int = 512) -> Int[Array, "B T"]:
    """Returns the most probable token of each entry, the first of several; no gradient passes.

    Logits exist for about `chunk` entries at a time, as in `summed_cross_entropy`.

    Args:
      unembed: logits of entries, `CausalLM.unembed`.
      hidden: after the final norm.
      chunk: entries whose logits are in memory at once.

    Raises:
      ValueError: `chunk` is below 1.
    """
    rows, length = hidden.shape[:2]
    pieces = in_pieces(jax.lax.stop_gradient(hidden), chunk)
    tokens = jax.lax.map(lambda vectors: jnp.argmax(unembed(vectors), axis=-1).astype(jnp.int32), pieces)
    return tokens.swapaxes(0, 1).reshape(rows, -1)[:, :length]


def _summed(of_piece: Callable[..., Array], *arrays: Shaped[Array, "B T ..."], chunk: int) -> Float[Array, ""]:
    """Returns the sum over the columns of what a function makes of a piece of them, a piece at a time."""
    pieces = tuple(in_pieces(x, chunk) for x in arrays)

    def add(total: Array, piece: tuple[Array, ...]) -> tuple[Array, None]:
        return total + of_piece(*piece), None

    if len(pieces[0]) > 1:
        add = jax.checkpoint(add)  # One piece alone saves nothing by it.
    return jax.lax.scan(add, jnp.zeros((), jnp.float32), pieces)[0]


def in_pieces(x: Shaped[Array, "B T ..."], chunk: int) -> Shaped[Array, "pieces B C ..."]:
    """Cuts rows into pieces of about `chunk` entries in all, zeros behind the last."""
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1; got {chunk}")
    rows, length = x.shape[:2]
    # Cut along T: rows may be divided among devices, and a loop over a divided axis would gather it.
    columns = min(length, max(1, chunk // rows))
    x = jnp.pad(x, ((0, 0), (0, round_up(length, columns) - length)) + ((0, 0),) * (x.ndim - 2))
    return x.reshape(rows, -1, columns, *x.shape[2:]).swapaxes(0, 1)


def cross_entropy(
    unembed: Unembed,
    hidden: Float[Array, "B T D"],
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"],
    *,
    chunk: int = 512,
) -> Float[Array, ""]:
    """Returns the weighted mean negative log-likelihood in nats a target; 0 where no target counts.

    Arguments are those of `summed_cross_entropy`.
    """
    total, weight = summed_cross_entropy(unembed, hidden, targets, weights, chunk=chunk)
    return total / jnp.where(weight > 0, weight, 1)
