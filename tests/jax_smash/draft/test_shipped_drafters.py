"""At every node, a drafter for a real model proposes what its own full forward does."""

import functools
import json

import numpy as np
import pytest

import jax_smash
from eval.prompts.shipped_prompts import shipped_prompts
from jax_smash.checkpoints.chimera import load_chimera
from jax_smash.checkpoints.eagle import load_eagle
from jax_smash.draft.trees.tree import tree_from_ranks
from jax_smash.methods import DraftOptions, make_method
from jax_smash.methods.shipped import SHIPPED_DRAFTERS
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.session import Session
from tests.chimera import PlainChimera
from tests.dflash import PlainDFlash, random_drafter
from tests.drafting import proposed, proposing
from tests.eagle import PlainEagle
from tests.eagle1 import PlainEagle1, random_drafter1
from tests.medusa import PlainMedusa, random_heads
from tests.real_model import needs_smollm2

RANKS = [[0], [1], [0, 0], [0, 1], [0, 0, 0], [1, 0]]
TREE = tree_from_ranks(RANKS)
PROMPTS, STEPS = 20, 5
CLOSE = 1e-4
"""Of the largest logit: nearer tokens may change places, for the plain drafters compute in float64."""


def differing_nodes(plain, text, found):
    """Returns how many of a tree's nodes hold another token than the full forward says, and how many near-ties do.

    What stands below a node that differs is not looked at.
    """
    said = {}

    def remembered(logits, path):
        said[tuple(path)] = logits
        return logits

    expected = plain.tree(TREE, text, remembered)
    paths, differing, near = {0: ()}, 0, 0
    for node in range(1, TREE.nodes):
        above = int(TREE.parent[node])
        if above not in paths:
            continue
        if found[node] == expected[node]:
            paths[node] = (*paths[above], found[node])
            continue
        # Heads and blocks are asked for a depth, not for a path.
        logits = said.get(paths[above], said.get((-1,) * len(paths[above])))
        gap = abs(logits[found[node]] - logits[expected[node]]) if found[node] >= 0 else np.inf
        if gap <= CLOSE * np.abs(logits[np.isfinite(logits)]).max():
            near += 1
        else:
            differing += 1
    return differing, near


def shipped(method, load):
    """Returns what loads the drafter of a method that comes with the package."""
    return lambda model: load(SHIPPED_DRAFTERS / "smollm2" / method, dtype=np.float32)


KINDS = {
    "eagle": ("eagle", shipped("eagle", load_eagle), PlainEagle, 1.2),
    "chimera": ("chimera", shipped("chimera", load_chimera), PlainChimera, 1.2),
    "eagle1": ("eagle", functools.partial(random_drafter1, spread=2.0), PlainEagle1, 1.0),
    "medusa": ("medusa", functools.partial(random_heads, own_rows=False), PlainMedusa, 1.0),
    "dflash": ("dflash", functools.partial(random_drafter, spread=2.0, taps=(2, 15, 27)), PlainDFlash, 1.0),
}
"""Of each kind the method, what makes a drafter, the plain one, and tokens that a step emits at least. Random weights
keep next to nothing, so caches of theirs hold what follows rejected nodes."""


@pytest.mark.slow
@needs_smollm2
@pytest.mark.parametrize("kind", KINDS)
def test_every_node_is_what_the_full_forward_says(kind, tmp_path):
    method, make, plain, least = KINDS[kind]
    model = jax_smash.load("smollm2")
    drafter = make(model)
    tree = tmp_path / "tree.json"
    tree.write_text(json.dumps(RANKS))
    made = make_method(model, method, draft=DraftOptions(tree=str(tree), drafter=drafter))
    sampling, seeds = [SamplingOptions()] * PROMPTS, list(range(PROMPTS))
    session = Session(model, made, slots=96, max_new_tokens=24, sampling=sampling, seeds=seeds)
    prompts = shipped_prompts(model, PROMPTS, longest=30)
    session.read(prompts)
    propose, right, wrong = proposing(made.strategy), plain(model, drafter), plain(model, drafter, shift=1)
    sums = np.zeros(2, int)
    for step in range(STEPS):
        texts = [prompt + said for prompt, said in zip(prompts, session.outputs(), strict=True)]
        trees = proposed(propose(made.params, session.state, TREE))
        sums += np.sum([differing_nodes(right, *row) for row in zip(texts, trees, strict=True)], axis=0)
        if step == 0:
            control = sum(differing_nodes(wrong, *row)[0] for row in zip(texts[:4], trees[:4], strict=True))
            assert control > 4  # States that stand beside other tokens are told.
        session.run(1)
    assert sums[0] == 0
    assert sums[1] <= 0.01 * STEPS * PROMPTS * len(RANKS)
    kept = sum(len(said) for said in session.outputs())
    assert kept >= least * STEPS * PROMPTS  # Caches hold several tokens of a step, and none of the rejected ones.
