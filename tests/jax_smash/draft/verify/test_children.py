import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.draft.verify import children
from jax_smash.sampling import row_keys
from tests.goodness import FALSE_ALARM, goodness, softmax

draw_independent = jax.jit(children.draw_independent, static_argnames="count")
draw_without_replacement = jax.jit(children.draw_without_replacement, static_argnames="count")
both = pytest.mark.parametrize("draw", [draw_independent, draw_without_replacement], ids=["independent", "different"])
DRAWS = 20_000
LOGITS = np.random.default_rng(0).normal(size=6).astype(np.float32)


def drawn(draw, logits, count, draws=DRAWS):
    """Returns the children of one node at many positions, and the proposal."""
    position = jnp.arange(draws, dtype=jnp.int32)[None]
    everywhere = jnp.broadcast_to(jnp.asarray(logits), (1, draws, len(logits)))
    out = draw(everywhere, row_keys([2]), position, jnp.zeros_like(position), count=count)
    return np.asarray(out.token)[0], np.asarray(out.proposal)[0]


def pairs(tokens, vocab_size):
    return np.bincount(tokens[:, 0] * vocab_size + tokens[:, 1], minlength=vocab_size**2)


def test_independent_children_are_draws_of_the_proposal():
    q = softmax(LOGITS)
    tokens, proposal = drawn(draw_independent, LOGITS, 3)
    np.testing.assert_allclose(proposal, np.tile(q, (DRAWS, 1)), rtol=1e-5)
    for some, other in itertools.combinations(range(3), 2):
        assert goodness(pairs(tokens[:, [some, other]], 6), np.outer(q, q)) > FALSE_ALARM
    assert goodness(pairs(tokens, 6), np.outer(q, softmax(LOGITS * 0.7))) < FALSE_ALARM


def test_different_children_are_draws_of_what_is_left_of_the_proposal():
    q = softmax(LOGITS)
    without = q[:, None] * q / (1 - q[:, None]) * (1 - np.eye(6))
    tokens, proposal = drawn(draw_without_replacement, LOGITS, 3)
    np.testing.assert_allclose(proposal, np.tile(q, (DRAWS, 1)), rtol=1e-5)
    assert all(len(set(row)) == 3 for row in tokens.tolist())
    assert goodness(pairs(tokens, 6), without) > FALSE_ALARM
    assert goodness(pairs(tokens[:, ::-1], 6), without) < FALSE_ALARM  # The order is that of the draws.
    third = sum(
        q[a] * q[b] / (1 - q[a]) * q / (1 - q[a] - q[b]) * ~np.isin(np.arange(6), [a, b])
        for a, b in itertools.permutations(range(6), 2)
    )
    assert goodness(np.bincount(tokens[:, 2], minlength=6), third) > FALSE_ALARM


@both
def test_the_first_children_are_the_same_whatever_the_count(draw):
    few, _ = drawn(draw, LOGITS, 2, draws=50)
    many, _ = drawn(draw, LOGITS, 5, draws=50)
    np.testing.assert_array_equal(few, many[:, :2])


@both
def test_children_depend_on_the_key_the_position_and_the_node_alone(draw):
    logits = jnp.asarray(np.random.default_rng(1).normal(size=(3, 4, 50)), jnp.float32)
    position = jnp.array([[4, 4, 5, 9], [4, 4, 5, 9], [0, 1, 2, 3]], jnp.int32)
    node = jnp.array([[0, 1, 0, 3], [0, 1, 0, 3], [0, 0, 1, 1]], jnp.int32)
    keys = row_keys([7, 8, 7])
    together = draw(logits, keys, position, node, count=3).token
    for row, column in np.ndindex(3, 4):
        here = (slice(row, row + 1), slice(column, column + 1))
        alone = draw(logits[here], keys[here[0]], position[here], node[here], count=3).token
        np.testing.assert_array_equal(alone[0, 0], together[row, column])
    flat = draw(jnp.zeros_like(logits), keys, position, node, count=3).token
    different = {tuple(np.asarray(flat[row, column])) for row, column in np.ndindex(3, 4)}
    assert len(different) == 12


def test_children_that_no_token_is_left_for_are_missing():
    logits = np.array([-np.inf, 1.0, -np.inf, 0.0, -200.0], np.float32)
    tokens, proposal = drawn(draw_without_replacement, logits, 4, draws=40)
    assert {tuple(sorted(row)) for row in tokens.tolist()} == {(-1, -1, 1, 3)}
    assert (tokens[:, 2:] == -1).all()
    assert (proposal[:, [0, 2, 4]] == 0).all()
    again, _ = drawn(draw_independent, logits, 4, draws=40)
    assert set(again.ravel().tolist()) == {1, 3}


def test_a_certain_drafter_proposes_one_token():
    logits = np.array([-np.inf, 2.0, -np.inf], np.float32)
    tokens, _ = drawn(draw_without_replacement, logits, 2, draws=5)
    np.testing.assert_array_equal(tokens, [[1, -1]] * 5)
    tokens, _ = drawn(draw_independent, logits, 2, draws=5)
    np.testing.assert_array_equal(tokens, [[1, 1]] * 5)


@pytest.mark.parametrize(
    ("draw", "count"), [("independent", 0), ("without_replacement", 0), ("without_replacement", 7)]
)
def test_a_count_that_cannot_be_drawn_is_refused(draw, count):
    with pytest.raises(ValueError, match=f"count must be .* got {count}"):
        drawn(getattr(children, f"draw_{draw}"), LOGITS, count, draws=1)
