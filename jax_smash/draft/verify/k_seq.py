"""K-SEQ: independent siblings that are all tried under one discount."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jax_smash.draft.verify.rules import Rule, Trial, left_over
from jax_smash.pytree import replace

HALVINGS = 24
"""After so many the bracket of ρ is as narrow as float32 can tell."""


@dataclasses.dataclass(frozen=True)
class KSeq(Rule):
    """Each of k independent children is accepted with probability min(1, p / (ρ·q)), whatever came before it.

    With β = Σ min(q, p/ρ), ρ is the least number from 1 to k for which 1 − (1 − β)^k ≤ ρ·β: below it, some token would
    be emitted more often than the target does. What follows k refusals is p − min(q, p/ρ)·(1 − (1 − β)^k) / β,
    normalised. Every ρ above is as exact, only less often accepted, so that the rounding of ρ costs nothing.

    Source: SpecTr, the k-sequential selection.
    """

    def arrive(self, target: Float[Array, "B V"], proposal: Float[Array, "B V"], children: Int[Array, "B"]) -> Trial:
        """Returns the trial at a node, with its discount."""
        trial = super().arrive(target, proposal, children)
        most = jnp.maximum(children, 1).astype(jnp.float32)

        def halve(_: Int[Array, ""], span: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = span
            middle = (low + high) / 2
            covered = _covered(target, proposal, middle).sum(1)
            exact = _tries(covered, children) <= middle
            return jnp.where(exact, low, middle), jnp.where(exact, middle, high)

        _, discount = jax.lax.fori_loop(0, HALVINGS, halve, (jnp.ones_like(most), most))
        return replace(trial, discount=discount)

    def refuse(self, trial: Trial, token: Int[Array, "B"]) -> Trial:
        """Returns the trial as it is."""
        return trial

    def rest(self, trial: Trial) -> Float[Array, "B V"]:
        """Returns what the target emits beyond what its children cover."""
        covered = _covered(trial.target, trial.proposal, trial.discount)
        tries = _tries(covered.sum(1), trial.children)
        return left_over(trial.target, covered * tries[:, None])


def _covered(
    target: Float[Array, "B V"], proposal: Float[Array, "B V"], discount: Float[Array, "B"]
) -> Float[Array, "B V"]:
    """Returns the probability that one child is a token and accepted."""
    return jnp.minimum(proposal, target / discount[:, None])


def _tries(accepted: Float[Array, "B"], children: Int[Array, "B"]) -> Float[Array, "B"]:
    """Returns how many of k children are tried on average: (1 − (1 − β)^k) / β, which is k at β = 0."""
    # Below 1, so that no infinity meets k = 0.
    accepted = jnp.minimum(accepted, 1 - jnp.finfo(jnp.float32).epsneg)
    count = children.astype(jnp.float32)
    some = -jnp.expm1(count * jnp.log1p(-accepted))
    return jnp.where(accepted > 0, some / jnp.where(accepted > 0, accepted, 1), count)
