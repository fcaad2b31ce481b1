"""A model to draft with, and what drafters of looked-up continuations propose, written out plainly."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from jax_smash.decode.state import context
from jax_smash.draft.trees.templates import named_tree
from jax_smash.loading import Model
from jax_smash.methods import DraftOptions, make_method
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.session import Session
from tests.tiny import tiny_model

LETTERS = 4
"""Different tokens of a random text: few, so that much of it stands there twice."""


@functools.cache
def other_model(**changes) -> Model:
    """Returns a model whose distributions are not the target's, but near enough for some of its tokens to be kept."""
    model = tiny_model(**changes)
    noise = np.random.default_rng(3)
    changed = jax.tree.map(
        lambda w: w + jnp.asarray(noise.normal(size=w.shape) * 0.1 * float(w.std()), w.dtype) if w.ndim > 1 else w,
        model.params["target"],
    )
    return dataclasses.replace(model, name="changed", params={"target": changed})


def plain_tree(
    topology, pending: int, continuations: list[tuple[list[int], int]], agreeing: int = 0, least: float = 0.0
) -> list[int]:
    """Returns the tokens of a tree of weighted continuations, −1 where nothing is proposed.

    With `least`, of a text of which so many tokens agree with what the continuations follow.
    """
    members = {0: [i for i, (_, weight) in enumerate(continuations) if weight]}
    token = [pending]
    for node in range(1, topology.nodes):
        depth, children = int(topology.depth[node]) - 1, {}
        for i in members.get(int(topology.parent[node]), []):
            tokens = continuations[i][0]
            if depth < len(tokens) and tokens[depth] >= 0:
                children.setdefault(tokens[depth], []).append(i)
        ranked = sorted(children, key=lambda t: (-sum(continuations[i][1] for i in children[t]), children[t][0]))
        rank = int(topology.rank[node])
        token.append(ranked[rank] if rank < len(ranked) else -1)
        members[node] = children[token[-1]] if rank < len(ranked) else []
    if not least:
        return token
    whole, probability = sum(weight for _, weight in continuations), [0.0]
    for node in range(1, topology.nodes):
        share = sum(continuations[i][1] for i in members[node]) / max(whole, 1)
        probability.append(share * math.prod(1 - 0.5 ** (agreeing + i) for i in range(int(topology.depth[node]))))
    first = max((p for p, depth in zip(probability, topology.depth, strict=True) if depth == 1), default=0.0)
    kept = [first >= 3 * least and p >= least for p in probability]
    return [t if node == 0 or kept[node] else -1 for node, t in enumerate(token)]


def plain_agreeing(text: list[int], place: int, upto: int) -> int:
    """Returns how many tokens up to and with a place equal the text's last ones, read backwards."""
    count = 0
    while count < min(upto, place + 1) and text[place - count] == text[-1 - count]:
        count += 1
    return count


def plain_following(text: list[int], place: int, levels: int) -> list[int]:
    """Returns the tokens behind a place; the text goes on as what follows the place, again and again."""
    behind = text[place + 1 :]
    return [behind[i % len(behind)] for i in range(levels)]


def proposed(tree) -> list[list[int]]:
    """Returns each row's tokens, −1 where nothing is proposed."""
    return np.where(tree.valid, tree.token, -1).tolist()


def paths_of(tree, row: int) -> set[tuple[int, ...]]:
    """Returns the tokens from the root to each node of a row's tree, the root left out."""
    parent, token, valid = (np.asarray(x)[row].tolist() for x in (tree.parent, tree.token, tree.valid))
    found: dict[int, tuple[int, ...]] = {0: ()}
    for node in range(1, len(token)):
        if valid[node]:
            found[node] = (*found[parent[node]], token[node])
    return {path for node, path in found.items() if node}


@functools.cache
def proposing(strategy):
    """Returns a function from parameters, state and topology to the tree that is drafted."""

    @jax.jit
    def propose(params, state, topology):
        own, shared = state.rows.memory["drafter"], state.shared.memory["drafter"]
        return strategy.drafter.propose(params, own, shared, context(state), topology)[0]

    return propose


def follow_a_chat(
    method: str, plain_proposal, trees=("chain-4", "recycling-80"), tree="chain-4", **draft
) -> tuple[list[list[int]], list[list[int]]]:
    """Holds two turns of a chat of three rows. Returns what is drafted on the way, and what the plain proposal has.

    Args:
      method: that decodes.
      plain_proposal: returns the tokens of the tree of a topology for a text.
      trees: topologies that are asked for.
      tree: that the method drafts.
      draft: other options of drafting.
    """
    model = tiny_model(num_layers=1, layer_kinds=("full",))
    made = make_method(model, method, draft=DraftOptions(tree=tree, **draft))
    session = Session(model, made, slots=96, max_new_tokens=20, sampling=[SamplingOptions()] * 3, seeds=[0, 1, 2])
    rng = np.random.default_rng(0)
    texts: list[list[int]] = [[], [], []]
    propose = functools.partial(proposing(made.strategy), made.params)
    found: list[list[int]] = []
    expected: list[list[int]] = []
    for lengths in ((19, 1, 7), (5, 18, 2)):
        prompts = [rng.integers(97, 97 + LETTERS, n).tolist() for n in lengths]
        session.read(prompts)
        texts = [text + prompt for text, prompt in zip(texts, prompts, strict=True)]
        running = True
        while running:
            running = session.run(1)
            now = [text + said for text, said in zip(texts, session.outputs(), strict=True)]
            for name in trees if running else ():
                topology = named_tree(name)
                found += proposed(propose(session.state, topology))
                expected += [plain_proposal(topology, text) for text in now]
        texts = [text + said for text, said in zip(texts, session.outputs(), strict=True)]
    return found, expected
