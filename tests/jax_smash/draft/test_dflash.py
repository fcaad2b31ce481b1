"""What DFlash proposes is what the plain drafter proposes, however the text was read and whatever was rejected."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash import generate
from jax_smash.cache import reaching
from jax_smash.config import RopeConfig
from jax_smash.draft.context import Context
from jax_smash.draft.dflash import DFlashDrafter
from jax_smash.draft.draft_model import Draws
from jax_smash.draft.trees.templates import named_tree
from jax_smash.draft.trees.tree import chain, tree_from_ranks
from jax_smash.methods import DraftOptions, make_method
from jax_smash.sampling import SamplingOptions, row_keys
from tests.dflash import PlainDFlash, random_drafter
from tests.drafting import proposing
from tests.goodness import FALSE_ALARM, TOKENS, goodness, unlikely
from tests.jax_smash.draft import test_draft_model as rejected
from tests.jax_smash.draft.test_eagle import CHOICES, Chat, prompts_of, siblings, target

__all__ = ["siblings"]

NODES = 7
"""Of a tree that grows where the drafter is most certain, the root among them."""


@functools.cache
def drafter(**changes):
    return random_drafter(target(), **changes)


def chat(changes=None, **options):
    return Chat(drafter(**(changes or {})), method="dflash", plain=PlainDFlash, **options)


@pytest.mark.parametrize(("chunk", "sampling"), [pytest.param(1, None, marks=pytest.mark.slow), (16, CHOICES)])
def test_trees_are_the_plain_drafters_in_chunks_of_any_size_with_the_noise_of_the_choice(chunk, sampling, siblings):
    made = chat(chunk=chunk, sampling=sampling)
    made.turn(prompts_of((19, 1, 7)))
    # A turn goes on behind a pending token that was never read. One row ends early, and one sits a turn out.
    made.turn(prompts_of((3, 11, 2), seed=1), limits=[14, 2, 14])
    made.turn(prompts_of((1, 4, 0), seed=2), limits=[5] * 3)
    made.turn(prompts_of((2, 0, 3), seed=3), limits=[5] * 3)
    assert made.compared > 60
    assert made.differing == 0
    assert made.kept > 10
    assert made.rejected > 10


@pytest.mark.parametrize(
    "changes",
    [
        {"max_positions": 16, "mask_token": 3, "block_size": 3},
        pytest.param({"window": 6, "taps": (0, 1, 2)}, marks=pytest.mark.slow),
        pytest.param({"block_size": 2, "num_layers": 1}, marks=pytest.mark.slow),
    ],
)
def test_trees_of_every_kind_of_drafter_are_the_plain_ones(changes, siblings):
    made = chat(changes)
    made.turn(prompts_of((4, 1, 9)))
    assert made.compared > 30
    assert made.differing == 0


def test_a_context_beside_other_positions_gives_other_trees(siblings):
    """The control."""
    made = chat(shift=1)
    made.turn(prompts_of((4, 3, 9)))
    assert made.differing > 0.5 * made.compared


@pytest.mark.slow
def test_nothing_is_drafted_below_the_block_nor_behind_the_positions_that_the_drafter_has(siblings):
    made = chat({"max_positions": 10, "block_size": 3})
    made.turn(prompts_of((4, 5, 6)), limits=[3, 3, 3])
    # The pending tokens have positions 6, 7 and 8, and blocks have two places behind them.
    assert made.session.state.rows.token_length.tolist() == [7, 8, 9]
    assert made.propose(chain(4)).valid.sum(1).tolist() == [3, 3, 2]


def test_context_and_blocks_are_turned_for_what_the_row_reaches():
    factors = {"short_factors": (1.0,) * 4, "long_factors": (1.0, 2.0, 4.0, 9.0)}
    made = drafter(rope=RopeConfig(scaling="longrope", original_positions=8, **factors), num_layers=1)
    model, method = target(), DFlashDrafter(target().definition, made.definition, made.config.taps)
    params = {"target": model.params["target"], "drafter": made.params}
    taps = tuple(jnp.asarray(np.random.default_rng(i).normal(size=(2, 4, 32)), jnp.float32) for i in range(3))

    @jax.jit
    def filled(reach):
        own, number = reaching(method.init(params, 2, 16, 4), reach), jnp.zeros(2, jnp.int32)
        position = jnp.broadcast_to(jnp.arange(4, dtype=jnp.int32), (2, 4))
        own = method._kept(params, own, taps, position, number + 4)
        now = {"pending": number + 3, "token_length": number + 5, "running": number == 0}
        context = Context(**now, key=row_keys(np.arange(2)), processors=(), processed=())
        return method._filled(params, own, context)

    found = filled(jnp.asarray([9, 4], jnp.int32))
    joined = np.concatenate([taps[i] for i in made.config.taps], axis=-1)
    short = dataclasses.replace(made, config=dataclasses.replace(made.config, rope=RopeConfig()))
    for row, one in enumerate((made, short)):
        expected = PlainDFlash(model, one).filled(np.asarray(joined[row], np.float64), 3)
        np.testing.assert_allclose(found[row, 1:], expected, rtol=1e-3, atol=1e-4)


class Watched(Chat):
    """A chat in which a chain, a tree of a fixed shape and one that grows are asked for after each step."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.strategy, self.seen = self.made.strategy, []
        growing = dataclasses.replace(self.strategy.drafter, grows=True, width=4)
        self._grown = functools.partial(
            proposing(dataclasses.replace(self.strategy, drafter=growing)), self.made.params
        )

    def compare(self, texts):
        """Notes the paths that each tree proposes, beside the text up to there."""
        trees = [self.propose(chain(3)), self.propose(named_tree("tree.json"))]
        trees.append(self._grown(self.session.state, chain(NODES - 1)))
        found = [(paths(tree), paths(tree, ranks=True)) for tree in trees]
        for row, text in enumerate(texts):
            if len(text) > 1:
                self.seen.append((row, text, [(tokens[row], ranks[row]) for tokens, ranks in found]))


def paths(tree, *, ranks=False):
    """Returns the tokens that lead to each valid node of each row, or their ranks."""
    ancestors = np.asarray(tree.parent)
    values = np.asarray(tree.rank if ranks else tree.token)
    rows = []
    for row, valid in enumerate(np.asarray(tree.valid)):
        to = {0: ()}
        for node in range(1, len(valid)):
            if valid[node]:
                to[node] = (*to[ancestors[row, node]], int(values[row, node]))
        rows.append([to[node] for node in sorted(to)][1:])
    return rows


def accepted(tokens, following):
    """Returns how many tokens of a text a tree of these paths has."""
    return max((len(path) for path in tokens if list(path) == following[: len(path)]), default=0)


@functools.cache
def watched():
    made = Watched(drafter(), method="dflash", plain=PlainDFlash)
    made.turn(prompts_of((4, 2, 9)))
    return made


def test_a_tree_never_accepts_less_than_the_chain_inside_it(siblings):
    made, more = watched(), 0
    for row, text, trees in made.seen:
        following = made.texts[row][len(text) :]
        assert trees[0][1] == [(0,), (0, 0), (0, 0, 0)]
        for tokens, ranks in trees:
            inside = [path for path, rank in zip(tokens, ranks, strict=True) if not any(rank)]
            # Every chain of the block's likeliest tokens begins alike.
            assert inside == trees[0][0][: len(inside)]
            assert accepted(tokens, following) >= accepted(inside, following)
            more += accepted(tokens, following) > accepted(inside, following)
    assert len(made.seen) > 20
    assert more > 5


def test_a_tree_that_grows_has_the_nodes_of_the_highest_products(siblings):
    made, chains = watched(), set()
    for _, text, trees in made.seen:
        logits = made.plain.logits(text)
        chance = np.exp(logits - logits.max(-1, keepdims=True))
        chance /= chance.sum(-1, keepdims=True)
        every = {
            path: np.prod([chance[place, token] for place, token in enumerate(path)])
            for length in (1, 2, 3)
            for path in itertools.product(*(np.argsort(-row)[:4].tolist() for row in chance[:length]))
        }
        tokens, _ = trees[2]
        assert len({*tokens}) == NODES - 1
        best = sorted(every.values(), reverse=True)[: NODES - 1]
        np.testing.assert_allclose(sorted((every[path] for path in tokens), reverse=True), best, rtol=1e-3)
        # Neither the chain nor a tree of a fixed shape is expected to keep more, and a chain is what grows in the end.
        for others, _ in trees[:2]:
            assert sum(best) >= (1 - 1e-6) * sum(every.get(path, 0.0) for path in others[: NODES - 1])
        chains.add(max(map(len, tokens)))
    assert len(chains) > 1


@pytest.mark.slow
@pytest.mark.parametrize("tree", ["tree-6", "auto"])
def test_text_is_plain_decodings_and_a_tree_takes_fewer_forwards(tree):
    request = {"sampling": CHOICES, "seed": [1, 2, 3], "max_new_tokens": 24, "slots": 64}
    plain = generate(target(), prompts_of((4, 1, 9)), **request)
    draft = DraftOptions(tree=tree, drafter=drafter())
    drafted = generate(target(), prompts_of((4, 1, 9)), method="dflash", draft=draft, **request)
    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]
    if tree != "auto":  # How much that drafts is up to the machine.
        assert sum(c.target_forwards for c in drafted) < sum(c.target_forwards for c in plain)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verify", "tree"), [("rejection", "chain"), ("rejection", "siblings"), ("rejection-independent", "siblings")]
)
def test_drawn_places_that_are_checked_by_rejection_follow_the_target(verify, tree, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "siblings.json").write_text("[[0], [1], [0, 0], [0, 1]]")
    made = random_drafter(rejected.TARGET(), taps=(0, 1), block_size=3, spread=4.0)
    draft = DraftOptions(tree=rejected.TREES[tree], drafter=made, verify=verify)
    options = {"sampling": rejected.SAMPLED, "num_samples": rejected.DRAWN, "max_new_tokens": TOKENS, "batch_size": 1}
    completions = generate(rejected.TARGET(), [rejected.PROMPT], method="dflash", draft=draft, **options)
    assert unlikely(completions, rejected.joint(rejected.TARGET)) > FALSE_ALARM
    assert unlikely(completions, rejected.joint(rejected.OTHER)) < FALSE_ALARM
    # Some drafts were kept and some were not.
    assert 0 < sum(c.drafted.kept[0] for c in completions) < sum(c.drafted.tried[0] for c in completions)


@pytest.mark.parametrize("draws", [Draws.INDEPENDENT, Draws.DIFFERENT])
def test_what_a_place_proposes_is_drawn_from_what_the_tree_says_it_is(draws):
    rows, places, width, shape = 4_000, 2, 2, tree_from_ranks([[0], [1], [0, 0], [1, 0], [0, 0, 0]])
    logits = jnp.asarray(np.random.default_rng(1).normal(size=(places, 6)), jnp.float32)
    made = dataclasses.replace(drafter_of("chain-2"), draws=draws, width=width, sampled=True)
    number = jnp.zeros(rows, jnp.int32)
    rows_now = {"pending": number, "token_length": number + 5, "running": number == 0}
    context = Context(**rows_now, key=row_keys(np.arange(rows)), processors=(), processed=())

    @jax.jit
    def drawn(context):
        every = jnp.broadcast_to(logits[None], (rows, *logits.shape))
        return made._drawn(context, shape, every, jnp.ones((rows, places), bool))

    tree = drawn(context)
    expected = np.asarray(jax.nn.softmax(logits), np.float64)
    for node, place in enumerate([0, 1, 1]):
        np.testing.assert_allclose(tree.proposal[:, node], np.broadcast_to(expected[place], (rows, 6)), rtol=1e-5)
    for node, place in ((1, 0), (3, 1), (4, 1)):
        assert goodness(np.bincount(tree.token[:, node], minlength=6), expected[place]) > FALSE_ALARM
        # The control.
        assert goodness(np.bincount(tree.token[:, node], minlength=6), expected[1 - place]) < FALSE_ALARM
    # Nodes draw by themselves, and below the last place nothing is drafted.
    assert 0 < np.mean(tree.token[:, 3] == tree.token[:, 4]) < 0.9
    assert (np.asarray(tree.token[:, 1] == tree.token[:, 2]).any()) == (draws is Draws.INDEPENDENT)
    assert not tree.valid[:, 5].any()


@pytest.mark.parametrize("verify", ["rejection", "rejection-independent", "k-seq"])
def test_where_nothing_is_drafted_there_is_nothing_to_reject(verify):
    draft = DraftOptions(drafter=drafter(), tree="off", verify=verify)
    asked = {"sampling": SamplingOptions(temperature=0.8), "max_new_tokens": 8, "slots": 64, "seed": 3}
    found = generate(target(), prompts_of((4,)), method="dflash", draft=draft, **asked)
    assert [c.token_ids for c in found] == [c.token_ids for c in generate(target(), prompts_of((4,)), **asked)]


def drafter_of(tree):
    return make_method(target(), "dflash", draft=DraftOptions(drafter=drafter(), tree=tree)).strategy.drafter


def test_what_is_drafted_is_what_the_trees_name_says():
    def made(tree, **options):
        found = make_method(
            target(), "dflash", draft=DraftOptions(drafter=drafter(), tree=tree, **options), sampled=True
        )
        return found.source, found.strategy.levels, found.strategy.drafter.grows

    assert made("auto")[2]
    assert made("auto", verify="rejection") == ("the tree chain-3", 3, False)
    assert made("tree-2") == ("the tree tree-2", 2, True)
    assert made("tree-12") == ("the tree tree-12", 3, True)
    assert made("tree-2", verify="typical-lossy")[2]
    # Drawn tokens stand where they were drawn.
    assert not made("tree-12", verify="rejection")[2]
