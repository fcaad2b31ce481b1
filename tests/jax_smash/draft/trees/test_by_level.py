"""Trees that grow by confidence are those of a drafter that reads every path whole and ranks all it has seen."""

import functools

import pytest

from jax_smash import generate
from jax_smash.decode.state import running_rows
from jax_smash.draft.trees.tree import chain
from jax_smash.methods import DraftOptions, make_method
from jax_smash.sampling import SamplingOptions
from tests import chimera
from tests.drafting import paths_of, proposed, proposing
from tests.eagle import PlainEagle, plain_confident, random_drafter
from tests.eagle1 import PlainEagle1, random_drafter1
from tests.jax_smash.draft.test_eagle import CHOICES, SOME, Chat, prompts_of, target

TREE = "confident-8:depth=4,width=3"


KINDS = {
    "eagle": ("eagle", lambda: random_drafter(target(), tokens=SOME), PlainEagle),
    "eagle1": ("eagle", lambda: random_drafter1(target()), PlainEagle1),
    "chimera": ("chimera", lambda: chimera.random_drafter(target(), decoding_heads=4), chimera.PlainChimera),
    "chimera-few": ("chimera", lambda: chimera.random_drafter(target(), decoding_heads=2), chimera.PlainChimera),
}
"""Methods, their drafters, and these written out plainly."""


@functools.cache
def drafter(kind):
    return KINDS[kind][1]()


class Confident(Chat):
    """Rows that decode with trees that grow.

    Attributes:
      trees: of each comparison, the text so far of a row and the paths that were drafted.
      chains: the tokens of the drafter's chain in the same states.
    """

    def __init__(self, kind, *, tree=TREE, **options):
        method, _, plain = KINDS[kind]
        super().__init__(drafter(kind), method=method, tree=tree, plain=plain, **options)
        self.sizes = self.made.strategy.drafter.trees.sizes
        chained = make_method(self.model, method, draft=DraftOptions(tree="chain-4", drafter=drafter(kind)))
        self._chain = functools.partial(proposing(chained.strategy), chained.params)
        self.trees, self.chains = [], []

    def compare(self, texts):
        tree = self.propose(self.sizes.topology)
        beside = proposed(self._chain(self.session.state, chain(4)))
        running = running_rows(self.session.state).tolist()
        for row, text in enumerate(texts):
            if len(text) > 1 and running[row]:
                found = paths_of(tree, row)
                self.compared += 1
                self.differing += found != plain_confident(self.plain, self.sizes, text, self._chosen(row, len(text)))
                self.trees.append((row, text, found))
                self.chains.append(tuple(beside[row][1:]))


def accepted(drafted, text):
    """Returns how many tokens a set of paths has of what follows."""
    return max((n for n in range(1, 5) if tuple(text[:n]) in drafted), default=0)


@pytest.mark.parametrize("kind", ["eagle1", pytest.param("eagle", marks=pytest.mark.slow), "chimera"])
def test_a_tree_is_the_plain_one_and_accepts_no_less_than_the_chain_inside_it(kind):
    chat = Confident(kind)
    chat.turn(prompts_of((6, 1, 9)))
    assert chat.compared > 20
    assert chat.differing == 0
    by_tree = by_chain = 0
    for (row, text, found), greedy in zip(chat.trees, chat.chains, strict=True):
        assert len(found) == chat.sizes.nodes
        assert {greedy[:n] for n in range(1, 5)} <= found
        behind = chat.texts[row][len(text) :]
        kept = accepted(found, behind)
        assert kept >= accepted({greedy[:n] for n in range(1, 5)}, behind)
        by_tree, by_chain = by_tree + kept, by_chain + accepted({greedy[:n] for n in range(1, 5)}, behind)
    assert by_tree > by_chain > 0


@pytest.mark.parametrize(
    ("kind", "tree"),
    [
        ("eagle", "chain-4:least=0.02"),
        ("chimera", "chain-4:least=0.2"),
        pytest.param("eagle", "confident-20:depth=3,width=3,least=0.05", marks=pytest.mark.slow),
        pytest.param("chimera", "confident-20:depth=3,width=3,least=0.1", marks=pytest.mark.slow),
    ],
)
def test_drafting_stops_where_the_drafter_is_unsure(kind, tree):
    chat = Confident(kind, tree=tree)
    chat.turn(prompts_of((6, 1, 9)))
    assert chat.compared > 20
    assert chat.differing == 0
    drafted = {len(found) for _, _, found in chat.trees}
    assert min(drafted) < chat.sizes.nodes
    assert max(drafted) > 0


def test_no_node_is_deeper_than_there_are_heads():
    chat = Confident("chimera-few")
    chat.turn(prompts_of((6, 1, 9)))
    assert chat.compared > 20
    assert chat.differing == 0
    assert max(len(path) for _, _, found in chat.trees for path in found) == 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eagle", "chimera"])
def test_a_tree_without_the_chain_is_the_papers_and_of_rows_that_sample_that_of_the_noise(kind):
    chat = Confident(kind, tree=f"{TREE},chain=false", sampling=CHOICES)
    chat.turn(prompts_of((4, 1, 9)), limits=[10] * 3)
    assert chat.compared > 15
    assert chat.differing == 0
    # Not every tree happens to have the whole chain.
    assert any(greedy not in found for (_, _, found), greedy in zip(chat.trees, chat.chains, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eagle1", "eagle", "chimera"])
def test_sampled_text_is_plain_decodings(kind):
    request = {"sampling": [*CHOICES, SamplingOptions(temperature=1.0)], "seed": [1, 2, 3, 4]}
    request |= {"max_new_tokens": 20, "slots": 64, "batch_size": 4}
    prompts = prompts_of((4, 1, 9, 3))
    plain = generate(target(), prompts, **request)
    draft = DraftOptions(tree="confident-12:depth=4,width=4", drafter=drafter(kind))
    drafted = generate(target(), prompts, method=KINDS[kind][0], draft=draft, **request)
    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]
    assert sum(c.target_forwards for c in drafted) < sum(c.target_forwards for c in plain)


@pytest.mark.slow
def test_nothing_grows_behind_the_positions_that_the_drafter_has():
    made = random_drafter1(target(), max_positions=7)
    draft = DraftOptions(tree=TREE, drafter=made)
    prompts = prompts_of((4, 1, 6))
    drafted = generate(target(), prompts, method="eagle", draft=draft, max_new_tokens=12, slots=64)
    plain = generate(target(), prompts, max_new_tokens=12, slots=64)
    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]
    # The root's entry has the position of the token before it.
    assert all(0 < c.drafted.tried[0] <= 8 - len(prompt) for c, prompt in zip(drafted, prompts, strict=True))
