import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash import generate
from jax_smash.draft.lookahead import Lookahead, LookaheadRows, _layout
from jax_smash.draft.trees.tree import topology, unpack
from jax_smash.methods import make_method
from jax_smash.pytree import replace
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.session import Session
from tests.drafting import proposed, proposing
from tests.tiny import tiny_model

SMALL = Lookahead(window=3, ngram=4, guesses=2)


def empty_rows(drafter=SMALL, batch=1) -> LookaheadRows:
    return drafter.init({}, batch, 0, 1)


def put(rows, *ngrams):
    token = jnp.asarray([ngrams], jnp.int32)
    return jax.jit(LookaheadRows.put)(rows, token, jnp.ones(token.shape[:2], bool))


def test_a_window_entry_sees_the_first_row_up_to_its_column_and_its_own_column():
    tree = SMALL.topology
    sees = np.asarray(unpack(tree.ancestors, tree.nodes))
    columns, levels = SMALL.window, SMALL.ngram - 1
    for level in range(levels):
        for column in range(columns):
            first_row = set(range(column + 1))
            own_column = {k * columns + column for k in range(level + 1)}
            node = level * columns + column
            assert set(np.flatnonzero(sees[node])) == first_row | own_column
            assert tree.depth[node] == level + column


def test_a_guess_sees_the_root_and_what_precedes_it():
    tree = SMALL.topology
    sees = np.asarray(unpack(tree.ancestors, tree.nodes))
    assert tree.nodes == 9 + 6
    assert [set(np.flatnonzero(row)) for row in sees[9:]] == [
        {0, 9}, {0, 9, 10}, {0, 9, 10, 11}, {0, 12}, {0, 12, 13}, {0, 12, 13, 14}
    ]  # fmt: skip


def test_the_latest_ngrams_of_a_token_are_found_and_none_twice():
    rows = put(empty_rows(), (1, 2, 3, 4), (5, 0, 0, 0), (1, 7, 7, 7))
    rows = put(rows, (1, 2, 3, 4), (1, 9, 9, 9), (1, 9, 9, 9))
    found = rows.beginning_with(jnp.asarray([1], jnp.int32), 4)
    assert found.tolist() == [[[9, 9, 9], [2, 3, 4], [7, 7, 7], [-1, -1, -1]]]


def test_a_full_pool_forgets_the_oldest():
    rows = empty_rows(Lookahead(ngram=2, capacity=3))
    for last in range(4):
        rows = put(rows, (1, last))
    assert rows.beginning_with(jnp.asarray([1], jnp.int32), 4).tolist() == [[[3], [2], [1], [-1]]]
    rows = put(rows, *((2, last) for last in range(5)))
    assert rows.beginning_with(jnp.asarray([1], jnp.int32), 1).tolist() == [[[-1]]]
    assert rows.beginning_with(jnp.asarray([2], jnp.int32), 4).tolist() == [[[4], [3], [2], [-1]]]


def test_rows_that_do_not_run_put_nothing():
    token = jnp.asarray([[[1, 2, 3, 4]], [[1, 2, 3, 4]]], jnp.int32)
    rows = empty_rows(batch=2).put(token, jnp.asarray([[True], [False]]))
    assert rows.beginning_with(jnp.asarray([1, 1], jnp.int32), 1).tolist() == [[[2, 3, 4]], [[-1, -1, -1]]]
    np.testing.assert_array_equal(rows.written, [1, 0])


@pytest.mark.slow
def test_the_window_is_jacobi_iteration():
    # Once the target's own text stands in the first row, each column's next token is the greedy one.
    model = tiny_model()
    prompt = list(b"to be or not to be")
    greedy = generate(model, [prompt], max_new_tokens=40)[0].token_ids
    made = make_method(model, "lookahead")
    session = Session(model, made, slots=128, max_new_tokens=8, sampling=[SamplingOptions()], seeds=[0])
    session.read([prompt])
    tree = made.memory["trees"].ladder[0]
    window = np.zeros((1, 4, 7), np.int32)
    emitted = len(session.outputs()[0])
    for level in range(4):
        window[0, level] = greedy[emitted - 1 + level : emitted + 6 + level]
    rows = session.state.rows
    drafter = LookaheadRows(
        window=jnp.asarray(window), pool=rows.memory["drafter"].pool, written=rows.memory["drafter"].written
    )
    session.state = replace(session.state, rows=rows.remembering(drafter=drafter))
    assert proposed(proposing(made.strategy)(made.params, session.state, tree))[0][:28] == window.reshape(-1).tolist()
    session.run(1)
    moved = np.asarray(session.state.rows.memory["drafter"].window)[0]
    # All of it was right, so it was kept whole, the window's last row included.
    assert session.outputs()[0] == greedy[:8]
    np.testing.assert_array_equal(moved[:3], window[0, 1:])
    assert moved[3].tolist() == greedy[emitted + 3 : emitted + 10]
    # Each column made an n-gram of greedy text.
    found = session.state.rows.memory["drafter"].beginning_with(jnp.asarray([greedy[emitted - 1]], jnp.int32), 1)
    assert found[0, 0].tolist() == greedy[emitted : emitted + 4]


def test_the_prompt_fills_the_window_and_the_pool():
    model = tiny_model()
    made = make_method(model, "lookahead")
    session = Session(model, made, slots=64, max_new_tokens=4, sampling=[SamplingOptions()] * 2, seeds=[0, 0])
    session.read([list(b"abcdefgh"), list(b"xyz")])
    rows = session.state.rows.memory["drafter"]
    assert set(np.asarray(rows.window[0]).reshape(-1).tolist()) == set(b"abcdefgh")
    assert set(np.asarray(rows.window[1]).reshape(-1).tolist()) == set(b"xyz")
    assert rows.beginning_with(jnp.asarray(list(b"dx"), jnp.int32), 2).tolist() == [
        [list(b"efgh"), [-1] * 4],
        [[-1] * 4] * 2,
    ]


@pytest.mark.parametrize(("nodes", "levels"), [(1, 0), *itertools.product([1, 2, 5, 9, 30, 81], [1, 2, 3, 6, 12])])
def test_what_does_not_fit_a_budget_is_left_out(nodes, levels):
    shape, columns, guesses, length = _layout(SMALL, nodes, levels)
    again = topology(shape.parent.tolist(), levels=levels)
    np.testing.assert_array_equal(shape.ancestors, again.ancestors)
    assert shape.nodes == nodes
    assert max(columns * 3, 1) + guesses * length <= nodes
    assert 0 <= columns <= SMALL.window
    assert 0 <= guesses <= SMALL.guesses


@pytest.mark.parametrize("field", ["window", "guesses", "capacity", "ngram"])
def test_numbers_out_of_range_are_refused(field):
    with pytest.raises(ValueError, match=f"{field} must be at least"):
        Lookahead(**{field: 0})
