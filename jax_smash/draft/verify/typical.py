"""Typical acceptance, which is LOSSY: what is emitted does not follow the target's distribution."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jax_smash.draft.trees.tree import DraftTree, all_ancestors, at_nodes, unpack
from jax_smash.draft.verify.accept import Accepted, path_to
from jax_smash.sampling import highest


def accept_typical_lossy(
    tree: DraftTree, logits: Float[Array, "B M V"], *, epsilon: float = 0.09, delta: float = 0.3
) -> tuple[Accepted, Int[Array, "B"]]:
    """Returns the longest path of tokens that the target finds likely enough, and its likeliest token after it. LOSSY.

    A token x is likely enough where p(x) > min(ε, δ·exp(−H(p))), p being the target's distribution at its parent and H
    the entropy in nats. Of paths of one length the likeliest is kept. No random number is drawn here. Only the first
    token of a reply, which is chosen before there is a tree, is a sample where rows sample. A row that decodes
    greedily, whose p is certain, gets what greedy decoding gives; any other gets neither samples nor the greedy text.

    Source: Medusa, section 2.3.1; Chimera, sections 4.3 and 4.4.

    Args:
      tree: the drafted nodes, chosen in whatever way.
      logits: of the target at each node, processed: what it can not emit is −inf.
      epsilon: over 0, at most 1.
      delta: over 0.

    Returns:
      The path, whose nodes' own tokens are emitted below the root; and the token emitted after it.

    Raises:
      ValueError: epsilon or delta is out of range.
    """
    if not 0 < epsilon <= 1:
        raise ValueError(f"epsilon must be over 0 and at most 1; got {epsilon}")
    if not delta > 0:
        raise ValueError(f"delta must be over 0; got {delta}")
    likelihood = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    # Where p is 0, its logarithm is −inf and the product not a number.
    surprise = jnp.where(likelihood > -jnp.inf, jnp.exp(likelihood) * likelihood, 0)
    threshold = jnp.minimum(epsilon, delta * jnp.exp(surprise.sum(-1)))
    own = likelihood[jnp.arange(tree.token.shape[0], dtype=jnp.int32)[:, None], tree.parent, tree.token]
    likely = jnp.exp(own) > at_nodes(threshold, tree.parent)
    kept = all_ancestors((tree.valid & likely).at[:, 0].set(True), tree.ancestors)

    on_path = unpack(tree.ancestors, tree.token.shape[1]).at[:, :, 0].set(False)
    score = jnp.where(on_path & kept[:, None], own[:, None], 0).sum(-1)
    deepest = kept & (tree.depth == jnp.where(kept, tree.depth, 0).max(1, keepdims=True))
    node = jnp.argmax(jnp.where(deepest, score, -jnp.inf), axis=1).astype(jnp.int32)[:, None]
    token = highest(jnp.take_along_axis(logits, node[..., None], axis=1)[:, 0])
    return Accepted(path=path_to(tree, node[:, 0]), count=at_nodes(tree.depth, node[:, 0]) + 1), token
