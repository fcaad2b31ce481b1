"""What holds of every trained drafter, whichever its kind."""

import functools

import jax
import pytest

from jax_smash import generate
from jax_smash.decode.state import context, running_rows
from jax_smash.draft.hybrid import Hybrid
from jax_smash.draft.trees.tree import chain
from jax_smash.methods import DraftOptions
from jax_smash.methods.draft_options import CONFIDENT
from jax_smash.sampling import SamplingOptions
from tests import chimera, dflash, eagle, eagle1, medusa
from tests.jax_smash.draft.test_dflash import accepted, paths
from tests.jax_smash.draft.test_eagle import SOME, TREES, Chat, prompts_of, siblings, target

__all__ = ["siblings"]

KINDS = {
    "eagle": ("eagle", functools.partial(eagle.random_drafter, tokens=SOME)),
    "eagle1": ("eagle", eagle1.random_drafter1),
    "medusa": ("medusa", medusa.random_heads),
    "chimera": ("chimera", chimera.random_drafter),
    "dflash": ("dflash", dflash.random_drafter),
}
"""The method that drafts with a kind, and what makes one with random weights."""


@functools.cache
def drafter(kind):
    return KINDS[kind][1](target())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "tree"), [*((kind, "tree.json") for kind in KINDS), *((kind, "confident-8:width=3") for kind in CONFIDENT)]
)
def test_greedy_rows_keep_their_text_beside_rows_of_typical_acceptance(kind, tree, siblings):
    choices = [*[SamplingOptions()] * 3, SamplingOptions(temperature=1.0)]
    request = {"sampling": choices, "seed": [1, 2, 3, 4], "batch_size": 4}
    request |= {"max_new_tokens": 20, "slots": 64}
    prompts = prompts_of((6, 1, 9, 3))
    plain = generate(target(), prompts, **request)
    draft = DraftOptions(tree=tree, drafter=drafter(kind), verify="typical-lossy")
    drafted = generate(target(), prompts, method=KINDS[kind][0], draft=draft, **request)
    assert [c.token_ids for c in drafted[:3]] == [c.token_ids for c in plain[:3]]
    assert sum(c.target_forwards for c in drafted[:3]) < sum(c.target_forwards for c in plain[:3])
    # The control: a row that samples is checked by the rule, which gives another text than the sample.
    assert drafted[3].token_ids != plain[3].token_ids


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_rows_take_as_many_forwards_beside_a_row_that_samples(kind, siblings):
    prompts, draft = prompts_of((6, 1, 9, 3)), DraftOptions(tree="tree.json", drafter=drafter(kind))
    request = {"method": KINDS[kind][0], "draft": draft, "batch_size": 4, "max_new_tokens": 20, "slots": 64}
    alone = generate(target(), prompts[:3], **request)
    choices = [*[SamplingOptions()] * 3, SamplingOptions(temperature=1.0)]
    beside = generate(target(), prompts, sampling=choices, seed=[1, 2, 3, 4], **request)
    assert [c.token_ids for c in beside[:3]] == [c.token_ids for c in alone]
    assert [c.target_forwards for c in beside[:3]] == [c.target_forwards for c in alone]


class Watched(Chat):
    """A chat in which a tree, and the trained drafter's chain in the same state, are noted after each step.

    Attributes:
      seen: of each row that runs, its number, its text so far, the tree's paths by tokens and by ranks, the chain's.
    """

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.seen, strategy, params = [], self.made.strategy, self.made.params

        @jax.jit
        def chained(state):
            inner, own, shared = strategy.drafter, state.rows.memory["drafter"], state.shared.memory["drafter"]
            while isinstance(inner, Hybrid):
                inner, own, shared = inner.tree, own[0], shared[0]
            return inner.propose(params, own, shared, context(state), chain(3))[0]

        self._chained = chained

    def compare(self, texts):
        tree, alone = self.propose(TREES[0]), self._chained(self.session.state)
        running = running_rows(self.session.state).tolist()
        found = zip(paths(tree), paths(tree, ranks=True), paths(alone), strict=True)
        for row, (text, drafted) in enumerate(zip(texts, found, strict=True)):
            if len(text) > 1 and running[row]:
                self.seen.append((row, text, *drafted))


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("medusa", "medusa"),
        ("chimera", "chimera"),
        ("eagle", "eagle"),
        ("hybrid", "eagle"),
        pytest.param("eagle", "eagle1", marks=pytest.mark.slow),
    ],
)
def test_a_tree_of_a_fixed_shape_keeps_no_less_than_the_chain_inside_it(method, kind, siblings):
    made = Watched(drafter(kind), method=method, plain=lambda *_: None)
    made.turn(prompts_of((6, 1, 9)))
    by_tree = by_chain = 0
    for row, text, tokens, ranks, alone in made.seen:
        following = made.texts[row][len(text) :]
        inside = [path for path, rank in zip(tokens, ranks, strict=True) if not any(rank)]
        # Of a hybrid the other drafters may have the tree's last nodes.
        assert inside == alone[: len(inside)]
        assert len(inside) == 3 or method == "hybrid"
        kept = accepted(tokens, following)
        assert kept >= accepted(inside, following)
        by_tree, by_chain = by_tree + kept, by_chain + accepted(inside, following)
    assert len(made.seen) > 15
    assert by_tree > by_chain > 0
