"""Token Recycling's matrix and trees."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash import SamplingOptions
from jax_smash.cache import Block
from jax_smash.draft.recycling import RANK_FALL, RANK_FIRST, TRUST, ByToken, Lesson, Recycling, _followed, _written
from jax_smash.draft.trees.acceptance import prior_rates
from jax_smash.draft.trees.templates import named_tree
from jax_smash.methods import DraftOptions, make_method
from jax_smash.pytree import replace
from jax_smash.serve.session import Session
from tests.drafting import proposed, proposing
from tests.tiny import tiny_model

model = functools.partial(tiny_model, num_layers=1, layer_kinds=("full",))
PROMPTS = ("a cat and a dog and a cat", "mm", "to be or not to be")


def decoded(*, stored, tree="chain-2", steps=9):
    """Returns a session that has decoded for a while."""
    made = make_method(model(), "recycling", draft=DraftOptions(tree=tree, stored_probabilities=stored))
    session = Session(model(), made, slots=96, max_new_tokens=40, sampling=[SamplingOptions()] * 3, seeds=[0, 1, 2])
    session.read([model().encode(text) for text in PROMPTS])
    session.run(steps)
    return session


def known(session):
    return session.state.shared.memory["drafter"]


def propose(session, tree):
    return proposing(session.method.strategy)(session.method.params, session.state, tree)


@pytest.mark.slow
def test_ids_do_not_depend_on_whether_probabilities_are_kept():
    """The same trees teach the same ids: a chain has one shape."""
    ids, both = (known(decoded(stored=stored)) for stored in (False, True))
    assert ids.probability is None
    np.testing.assert_array_equal(ids.matrix.values, both.matrix.values)
    np.testing.assert_array_equal(ids.common, both.common)


def test_probabilities_are_those_that_the_model_gave_last():
    """A row of a token that stands only once in what was read is the model's softmax there."""
    session = decoded(stored=True, steps=0)
    memory, tokens = known(session), model().encode(PROMPTS[1])
    assert tokens[-1] == tokens[-2]

    @jax.jit
    def softmax(chunk):
        target, place = (
            model().definition.bind(model().params["target"]),
            jnp.arange(len(tokens), dtype=jnp.int32)[None],
        )
        out = target.forward(
            target.embed(chunk), place, target.init_cache(1, 16, 8), Block.causal(jnp.ones_like(chunk, bool))
        )
        return jax.nn.softmax(target.unembed(out.hidden)[0, -1])

    said = softmax(jnp.asarray([tokens], jnp.int32))
    row = np.asarray(memory.matrix.table[tokens[-1]])
    np.testing.assert_allclose(memory.probability.table[tokens[-1]], said[row], rtol=1e-4)
    assert row.tolist() == np.argsort(-said, stable=True)[:8].tolist()


def test_unread_tokens_have_no_probability_and_read_ones_fall_by_rank():
    memory = known(decoded(stored=True))
    unread = np.asarray(memory.matrix.table)[:, 0] < 0
    assert 0 < unread.sum() < len(unread)
    assert not np.asarray(memory.probability.table)[unread].any()
    read = np.asarray(memory.probability.table)[~unread]
    assert (read > 0).all()
    assert (np.diff(read, axis=1) <= 0).all()
    assert (read.sum(1) <= 1 + 1e-6).all()


@pytest.mark.parametrize("stored", [False, True])
def test_of_several_entries_of_a_token_the_last_seen_is_written(stored):
    drafter = Recycling(target=tiny_model().definition, width=2, probabilities=stored)
    lesson = Lesson(
        token=jnp.asarray([[1, 2], [3, 4], [5, 6], [7, 8]], jnp.int32),
        probability=jnp.asarray([[0.5, 0.1], [0.6, 0.2], [0.7, 0.3], [0.8, 0.1]], jnp.float32) if stored else None,
    )
    token, seen = jnp.asarray([9, 9, 9, 11], jnp.int32), jnp.asarray([True, True, False, False])
    after = _written(drafter.empty(tiny_model().params), token, lesson, seen)
    assert after.matrix.table[9].tolist() == [3, 4]
    assert after.matrix.table[11].tolist() == [-1, -1]
    assert not stored or after.probability.table[9].tolist() == [np.float32(0.6), np.float32(0.2)]


@pytest.mark.parametrize("stored", [False, True])
def test_what_followed_a_token_moves_to_the_front_of_its_successors(stored):
    drafter = Recycling(target=tiny_model().definition, width=3, probabilities=stored)
    memory = drafter.empty(tiny_model().params)
    table = memory.matrix.table.at[9].set(jnp.asarray([5, 6, 7], jnp.int32))
    memory = replace(memory, matrix=ByToken.of(table))
    if stored:
        table = memory.probability.table.at[9].set(jnp.asarray([0.5, 0.25, 0.125]))
        memory = replace(memory, probability=ByToken.of(table))

    def follow(*pairs):
        token, then, seen = (jnp.asarray(x) for x in zip(*pairs, strict=True))
        after = jax.jit(_followed)(memory, token.astype(jnp.int32), then.astype(jnp.int32), seen)
        kept = after.probability.table[9].tolist() if stored else None
        return after.matrix.table[9].tolist(), kept, after.matrix.table[11].tolist()

    known_one, new_one = follow((9, 6, True), (11, 4, True), (11, 3, False)), follow((9, 4, True), (9, 8, True))
    assert known_one == ([6, 5, 7], [0.25, 0.5, 0.125] if stored else None, [4, -1, -1])
    # The last one of a token counts.
    first = float(np.float32(RANK_FIRST))
    assert new_one == ([8, 5, 6], [first, 0.5, 0.25] if stored else None, [-1, -1, -1])


def test_a_chain_is_the_same_chain_with_probabilities():
    """One child a node leaves nothing to choose."""
    chain = named_tree("chain-4")
    plain, grown = (propose(decoded(stored=stored), chain) for stored in (False, True))
    assert proposed(plain) == proposed(grown)
    np.testing.assert_array_equal(plain.parent, grown.parent)


def test_the_tree_holds_the_highest_products_of_likelihoods():
    session = decoded(stored=True, tree="recycling-80")
    memory, pending = known(session), np.asarray(session.state.rows.pending)
    tree = propose(session, named_tree("recycling-80"))
    held = (memory.matrix.table, memory.probability.table, memory.common)
    matrix, probability, common = (np.asarray(x) for x in held)
    often = np.asarray(memory.count)[np.maximum(common, 0)] / np.asarray(memory.count).sum()
    by_rank = RANK_FIRST * RANK_FALL ** np.arange(8)

    def children(token):
        token_known = matrix[token, 0] >= 0
        p = probability[token] if token_known else often
        return zip(matrix[token] if token_known else common, p**TRUST * by_rank ** (1 - TRUST), strict=True)

    for row in range(3):
        found = {(): (1.0, int(pending[row]))}
        for depth in range(3):
            for path in [p for p in found if len(p) == depth]:
                for rank, (token, p) in enumerate(children(found[path][1])):
                    if token >= 0:
                        found[*path, rank] = (found[path][0] * p, int(token))
        drafted = {}
        for node in range(1, 81):
            above = int(tree.parent[row, node])
            drafted[node] = (*drafted.get(above, ()), int(tree.rank[row, node]))
            if len(drafted[node]) <= 3:
                assert found[drafted[node]][1] == int(tree.token[row, node])
        least = min(found[path][0] for path in drafted.values() if len(path) <= 3)
        left = {path for path, (product, _) in found.items() if path and product > least * 1.001}
        assert left <= set(drafted.values())


def test_a_matrix_without_probabilities_begins_with_guesses_by_rank():
    drafter = Recycling(target=tiny_model().definition, width=2, probabilities=True)
    empty = drafter.empty(tiny_model().params)
    matrix = np.zeros(empty.matrix.table.shape, np.int32)
    guessed = drafter.warmed(empty, matrix, None)
    np.testing.assert_array_equal(guessed.probability.table, np.broadcast_to(prior_rates(1, 2), matrix.shape))
    given = drafter.warmed(empty, matrix, np.full(matrix.shape, 0.25, np.float32))
    assert (given.probability.values == 0.25).all()


def test_a_row_s_own_matrix_keeps_probabilities_of_its_own():
    model = tiny_model()
    drafter = Recycling(target=model.definition, own=True, probabilities=True)
    own = drafter.init(model.params, 3, 16, 1)
    assert own.probability.table.shape == (3, model.vocab_size, 8)
    token = jnp.asarray([[5], [5], [6]], jnp.int32)
    lesson = Lesson(
        token=jnp.broadcast_to(jnp.arange(8, dtype=jnp.int32), (3, 1, 8)),
        probability=jnp.broadcast_to(jnp.asarray([0.1, 0.2, 0.3], jnp.float32)[:, None, None], (3, 1, 8)),
    )
    after = drafter._each(_written, own, token, lesson, jnp.ones((3, 1), bool))
    ids, likelihood = drafter._children(after, token)
    assert ids[:, 0].tolist() == [list(range(8))] * 3
    expected = np.asarray([0.1, 0.2, 0.3])[:, None] ** TRUST * (RANK_FIRST * RANK_FALL ** np.arange(8)) ** (1 - TRUST)
    np.testing.assert_allclose(likelihood[:, 0], expected, rtol=1e-5)
