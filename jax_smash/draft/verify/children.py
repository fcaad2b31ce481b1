"""Children drawn from a drafter's distribution, so that `rejection.reject` can verify them without loss."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from jax_smash.draft.verify.noise import Purpose, gumbel, place_key
from jax_smash.pytree import pytree
from jax_smash.sampling import highest


@pytree
class Children:
    """What a drafter proposes below each node.

    Attributes:
      token: of each child, in the order in which children are tried; −1 is no child.
      proposal: the distribution that they were drawn from, as `DraftTree.proposal` holds it; None for deterministic
        ones.
    """

    token: Int[Array, "B M k"]
    proposal: Float[Array, "B M V"] | None = None


def draw_independent(
    logits: Float[Array, "B M V"],
    key: Key[Array, "B"],
    position: Int[Array, "B M"],
    node: Int[Array, "B M"],
    *,
    count: int,
) -> Children:
    """Draws children one by one, each from the whole distribution; a token may be drawn twice.

    The first children are the same whatever the count. A child that repeats another must stay in the tree: dropping it
    would change the distribution of what is emitted.

    Args:
      logits: of the drafter at each node, processed.
      key: of each row.
      position: index, in the row's sequence, of the tokens to be drawn.
      node: index of each node in the tree.
      count: children of each node, k.

    Raises:
      ValueError: count is below 1.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1; got {count}")
    proposal = jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
    likelihood, place = jnp.log(proposal), place_key(key, Purpose.CHILDREN, position, node)

    def draw(child: Int[Array, ""]) -> Int[Array, "B M"]:
        own = jax.vmap(jax.vmap(lambda key: jax.random.fold_in(key, child)))(place)
        return highest(likelihood + gumbel(own, logits.shape[-1]))

    token = jax.lax.map(draw, jnp.arange(count, dtype=jnp.int32))
    return Children(token=jnp.moveaxis(token, 0, -1), proposal=proposal)


def draw_without_replacement(
    logits: Float[Array, "B M V"],
    key: Key[Array, "B"],
    position: Int[Array, "B M"],
    node: Int[Array, "B M"],
    *,
    count: int,
) -> Children:
    """Draws different children: each from the distribution over what is left.

    The k largest of log-probability plus Gumbel noise, in order, are such draws. The first children are the same
    whatever the count. Where fewer tokens than `count` have a probability, the last children are missing.

    Args:
      logits: of the drafter at each node, processed.
      key: of each row.
      position: index, in the row's sequence, of the tokens to be drawn.
      node: index of each node in the tree.
      count: children of each node, k.

    Raises:
      ValueError: count is below 1 or above V.
    """
    vocab_size = logits.shape[-1]
    if not 1 <= count <= vocab_size:
        raise ValueError(f"count must be from 1 to the vocabulary's {vocab_size} tokens; got {count}")
    proposal = jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
    noise = gumbel(place_key(key, Purpose.CHILDREN, position, node), vocab_size)
    value, token = jax.lax.top_k(jnp.log(proposal) + noise, count)
    return Children(token=jnp.where(value > -jnp.inf, token, -1).astype(jnp.int32), proposal=proposal)
