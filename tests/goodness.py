"""Whether tokens follow a distribution, and chains of speculative steps whose joint distribution is known."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from jax_smash.draft.trees.tree import grow, topology
from jax_smash.draft.verify.rejection import reject
from jax_smash.pytree import replace
from jax_smash.sampling import row_keys

FALSE_ALARM = 1e-6
LEAST_EXPECTED = 5
TOKENS = 3
"""Emitted tokens whose joint distribution is looked at."""


def softmax(logits):
    e = np.exp(np.asarray(logits, np.float64) - np.max(logits, axis=-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def goodness(counts, probability):
    """Returns the p-value of Pearson's test; 0 where something was drawn that has no probability.

    Bins that expect fewer than five draws are pooled, with the least of the others where they are too few together.
    """
    counts, probability = np.ravel(counts), np.ravel(probability)
    if counts[probability == 0].any():
        return 0.0
    order = np.argsort(probability)
    order = order[probability[order] > 0]
    expected, seen = counts.sum() * probability[order], counts[order]
    pooled = int((expected < LEAST_EXPECTED).sum())
    while pooled and expected[:pooled].sum() < LEAST_EXPECTED:
        pooled += 1
    if pooled:
        expected = np.append(expected[pooled:], expected[:pooled].sum())
        seen = np.append(seen[pooled:], seen[:pooled].sum())
    return stats.chisquare(seen, expected * (seen.sum() / expected.sum())).pvalue


def unlikely(completions, expected):
    """Returns the p-value of completions' tokens, of which each run is expected with some probability."""
    place = {run: i for i, run in enumerate(expected)}
    counts = np.zeros(len(expected) + 1)
    for completion in completions:
        counts[place.get(tuple(completion.token_ids), len(expected))] += 1
    return goodness(counts, np.array([*expected.values(), 0.0]))


def joint(target):
    """Returns the probability of each run of tokens that a Markov chain of these logits emits after token 0."""
    step = softmax(target)
    vocab_size = len(step)
    probability = np.ones((vocab_size,) * TOKENS)
    for run in itertools.product(range(vocab_size), repeat=TOKENS):
        for last, token in itertools.pairwise((0, *run)):
            probability[run] *= step[last, token]
    return probability


def counted(tokens, vocab_size):
    """Returns how often each run of tokens occurs among rows."""
    return np.bincount(np.ravel_multi_index(np.asarray(tokens).T, (vocab_size,) * TOKENS), minlength=vocab_size**TOKENS)


def drawn_tree(draft, claimed, pending, keys, length, valid, *, parent, draw):
    """Returns a tree whose every node's children are drawn from the draft's logits after its token."""
    shape = topology(parent)
    batch, nodes = pending.shape[0], len(parent)
    token = jnp.zeros((batch, nodes), jnp.int32).at[:, 0].set(pending)
    for node in range(nodes):
        children = [child for child in range(1, nodes) if parent[child] == node]
        if children:
            position = (length + shape.depth[node])[:, None]
            place = jnp.full((batch, 1), node, jnp.int32)
            own = draw(draft[jnp.maximum(token[:, node], 0)][:, None], keys, position, place, count=len(children))
            token = token.at[:, jnp.asarray(children)].set(own.token[:, 0])
    token = token if valid is None else jnp.where(valid, token, -1)
    tree = grow(shape, token)
    return replace(tree, proposal=claimed[tree.token])


@functools.partial(jax.jit, static_argnames=("parent", "rule", "draw"))
def speculate(target, draft, claimed, keys, valid=None, *, parent, rule, draw):
    """Emits tokens after token 0 of each row in chained speculative steps.

    Args:
      target: logits of the token after each token.
      draft: logits that proposals are drawn from.
      claimed: the distribution they are said to be drawn from.
      keys: of each row.
      valid: of each node of each row; None for all.
      parent: of each node of every tree.
      rule: for `reject`.
      draw: from `draft/verify/children.py`.

    Returns:
      The first tokens `[B, TOKENS]`, and how many the first step emitted `[B]`.
    """
    batch = keys.shape[0]
    row = jnp.arange(batch)
    start = jnp.arange(batch, dtype=jnp.int32) % 7 + 1

    def step(carry, _):
        output, length, pending = carry
        tree = drawn_tree(draft, claimed, pending, keys, length, valid, parent=parent, draw=draw)
        accepted, token = reject(tree, target[tree.token], keys, length, rule=rule)
        kept = jnp.take_along_axis(tree.token, accepted.path, axis=1)
        for depth in range(tree.levels + 1):
            emitted = jnp.where(depth + 1 < accepted.count, kept[:, min(depth + 1, tree.levels)], token)
            place = jnp.where(depth < accepted.count, length - start + depth, TOKENS)
            output = output.at[row, place].set(emitted, mode="drop")
        return (output, length + accepted.count, token), accepted.count

    nothing = jnp.zeros((batch, TOKENS), jnp.int32)
    (output, _, _), count = jax.lax.scan(step, (nothing, start, nothing[:, 0]), length=TOKENS)
    return output, count[0]


@functools.cache
def keys_of(draws):
    return row_keys([17], samples=draws)


def tables(vocab_size, *, seed=0, spread=1.0):
    """Returns logits of a random target and of a draft that resembles it."""
    rng = np.random.default_rng(seed)
    target = rng.normal(size=(vocab_size, vocab_size)) * spread
    return target.astype(np.float32), (target + rng.normal(size=target.shape) * spread).astype(np.float32)


def wrong_by(probability, distance):
    """Returns distributions at this total variation from some: from the likeliest token to the second likeliest."""
    moved = np.array(probability)
    order = np.argsort(-moved, axis=-1)
    row = np.arange(len(moved))
    moved[row, order[:, 0]] -= distance
    moved[row, order[:, 1]] += distance
    return moved
