import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eval.drafting.forced import ForcedTextChimera, forced
from eval.drafting.head_accuracy import RANKS, Counts, accuracy_rows, ranker, read_by_target
from eval.drafting.held_out import Text
from jax_smash.draft.context import Context, Seen
from tests.eval.drafting.drafters import (
    DEPTHS,
    MODULES,
    SAYING_SOME,
    TEXTS,
    method_of,
    saying_some,
    told_by_training,
)
from tests.tiny import tiny_model

SLOW = ("eagle1", "dflash", TEXTS)
"""Kinds whose comparisons take most time."""

EACH = [pytest.param(kind, marks=[pytest.mark.slow] if kind in SLOW else []) for kind in MODULES]


def texts_of(model, lengths=(21, 9), *, prompt=1):
    rng = np.random.default_rng(3)
    tokens = [rng.integers(0, model.vocab_size, n).tolist() for n in lengths]
    return [Text(t, [i >= prompt for i in range(len(t))]) for t in tokens]


@pytest.mark.parametrize("kind", EACH)
def test_accuracies_are_those_that_training_measures(kind):
    model = tiny_model(vocab_size=14)
    check_beside_training(model, kind, MODULES[kind](model))


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if kind in SLOW else []) for kind in SAYING_SOME]
)
def test_accuracies_of_drafters_that_say_some_tokens_are_those_that_training_measures(kind):
    model = tiny_model(vocab_size=14)
    check_beside_training(model, kind, saying_some(model, kind))


def check_beside_training(model, kind, modules):
    texts = texts_of(model)
    method = method_of(model, kind, modules)
    drafter, params = method.strategy.drafter, method.params
    ranks = ranker(forced(drafter, modules.config), DEPTHS)
    reads = read_by_target(model, texts, drafter.needs.taps, batch_size=2)
    found = Counts.all([Counts.of(read, ranks(params, read)) for read in reads])
    told = told_by_training(model, kind, modules, [t.tokens for t in texts], [t.said for t in texts])
    for depth in range(DEPTHS):
        assert found.tried[:, depth].sum() == told[f"top1_{depth + 1}"][1]
        for rank in range(RANKS):
            assert found.hits[:, depth, rank].sum() == told[f"top{rank + 1}_{depth + 1}"][0]
    assert 0 < found.hits[:, 0, -1].sum() < found.tried[:, 0].sum()


def test_a_drafter_that_encodes_texts_is_judged_though_it_does_not_draft():
    model = tiny_model(vocab_size=14)
    modules = MODULES[TEXTS](model)
    chain = forced(method_of(model, TEXTS, modules, tree=f"chain-{DEPTHS}").strategy.drafter, modules.config)
    assert isinstance(chain, ForcedTextChimera)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in MODULES if kind != TEXTS])
def test_a_chain_that_is_forced_along_what_a_drafter_proposes_says_what_it_proposes(kind):
    model = tiny_model(vocab_size=14)
    modules, (text, _) = MODULES[kind](model), texts_of(model)
    method = method_of(model, kind, modules, tree=f"chain-{DEPTHS}")
    drafter, params = method.strategy.drafter, method.params
    chain = forced(drafter, modules.config)
    (read,) = read_by_target(model, [text], drafter.needs.taps, batch_size=1)
    root = 12

    @jax.jit
    def both(params, tokens, hidden, taps):
        every = tuple(hidden if tap is None else tap for tap in taps)
        own = chain.begin(params, 1, 64)
        for place in range(root):
            one = (x[:, place : place + 1] for x in (tokens, hidden, *every))
            token, state, *more = one
            at = jnp.full((1, 1), place, jnp.int32)
            own = chain.read(
                params,
                own,
                Seen(token=token, valid=jnp.ones((1, 1), bool), position=at, hidden=state, taps=tuple(more)),
            )
        told = Context(
            pending=tokens[:, root],
            token_length=jnp.full((1,), root + 1, jnp.int32),
            running=jnp.ones((1,), bool),
            key=jax.random.split(jax.random.key(0), 1),
            processors=(),
            processed=(),
        )
        tree, _ = drafter.propose(params, own, method.memory["drafter"], told, method.memory["trees"].ladder[0])
        ahead = tree.token[:, :DEPTHS]
        made = chain.chain(params, own, ahead, jnp.full((1,), root, jnp.int32))
        return tree.token[0, 1:], jnp.argmax(chain.logits(params, made)[0], axis=-1)

    proposed, said = both(params, read.tokens, read.hidden, read.taps)
    np.testing.assert_array_equal(proposed, said)
    assert (np.asarray(proposed) >= 0).all()


def test_what_is_not_said_is_not_counted():
    model = tiny_model(vocab_size=14)
    (read,) = read_by_target(model, texts_of(model, (7, 5), prompt=4), (), batch_size=2)
    counts = Counts.of(read, np.zeros((*read.tokens.shape, DEPTHS), np.int32))
    # Behind tokens 3, 4 and 5 of the longer text and 3 of the shorter, from roots behind the first token.
    np.testing.assert_array_equal(sorted(counts.tried.tolist()), [[1, 1, 1], [3, 3, 3]])
    np.testing.assert_array_equal(counts.hits, np.repeat(counts.tried[..., None], RANKS, axis=2))


def test_rows_say_shares_and_intervals_over_texts():
    tried = np.array([[4.0, 2.0], [6.0, 0.0], [0.0, 0.0]])
    hits = np.zeros((3, 2, RANKS))
    hits[:, 0] = [[1, 2, 3, 4, 4], [2, 2, 3, 3, 6], [0] * 5]
    first, second = accuracy_rows(Counts(tried, hits))
    assert (first["depth"], first["tokens"], first["texts"]) == (1, 10, 2)
    assert [first[f"top{rank}"] for rank in range(1, 6)] == [0.3, 0.4, 0.6, 0.7, 1.0]
    assert first["top1_interval"]["low"] == pytest.approx(0.25)
    assert first["top1_interval"]["high"] == pytest.approx(1 / 3)
    assert (second["tokens"], second["top5"], second["top5_interval"]) == (2, 0.0, None)
