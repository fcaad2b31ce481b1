import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.draft.trees.tree import grow, topology
from jax_smash.draft.verify.accept import accept
from jax_smash.draft.verify.typical import accept_typical_lossy

jitted = jax.jit(accept_typical_lossy, static_argnames=("epsilon", "delta"))


def kept(parent, token, probability, **options):
    """Returns the kept path and the token after it of one tree, the target's probabilities given at each node."""
    tree = grow(topology(parent), jnp.array([token], jnp.int32))
    logits = jnp.log(jnp.array([probability], jnp.float32))
    accepted, last = jitted(tree, logits, **options)
    return np.asarray(accepted.path)[0, : int(accepted.count[0])].tolist(), int(last[0])


FLAT, SHARP = [0.25, 0.25, 0.25, 0.25], [0.05, 0.85, 0.06, 0.04]


def test_a_token_is_kept_where_it_is_likely_enough_for_its_entropy():
    # exp(−H) is 0.25 when flat, where δ·0.25 = 0.075 is the bound; when sharp ε = 0.09 is.
    assert kept([0, 0, 1], [0, 3, 1], [FLAT, SHARP, FLAT]) == ([0, 1, 2], 0)
    assert kept([0, 0, 1], [0, 3, 2], [FLAT, SHARP, FLAT]) == ([0, 1], 1)
    assert kept([0, 0, 1], [0, 2, 1], [SHARP, SHARP, FLAT]) == ([0], 1)
    # 0.08 is over the first bound and under the second.
    low = [0.08, 0.23, 0.23, 0.23, 0.23]
    assert kept([0, 0], [0, 0], [low, low])[0] == [0, 1]
    sure = [0.08, 0.92, 0, 0, 0]
    assert kept([0, 0], [0, 0], [sure, low])[0] == [0]


def test_the_bounds_are_taken_as_given():
    assert kept([0, 0], [0, 2], [SHARP, FLAT], epsilon=0.05)[0] == [0, 1]
    assert kept([0, 0], [0, 2], [SHARP, FLAT], delta=0.05)[0] == [0, 1]
    assert kept([0, 0], [0, 2], [FLAT, FLAT], epsilon=1.0, delta=1.01)[0] == [0]


def test_the_longest_path_is_kept_and_of_those_the_likeliest():
    some = [0.5, 0.3, 0.2]
    # Nodes 1 and 2 below the root; 3 below 1, 4 and 5 below 2.
    parent, token = [0, 0, 0, 1, 2, 2], [0, 0, 1, 2, 1, 0]
    assert kept(parent[:3], token[:3], [some] * 3)[0] == [0, 1]
    assert kept(parent[:5], [0, 0, 1, -1, 1], [some] * 5)[0] == [0, 2, 4]
    # 0.5·0.2 against 0.3·0.3 and 0.3·0.5.
    assert kept(parent[:5], token[:5], [some] * 5)[0] == [0, 1, 3]
    assert kept(parent, token, [some] * 6)[0] == [0, 2, 5]


def test_a_missing_node_is_not_kept():
    assert kept([0, 0, 1], [0, -1, 1], [SHARP] * 3) == ([0], 1)


def test_a_row_that_is_certain_gets_what_greedy_decoding_gives():
    rng = np.random.default_rng(0)
    tree = grow(topology([0, 0, 0, 1, 1, 2, 3, 3]), jnp.asarray(rng.integers(0, 3, (60, 8)), jnp.int32))
    target = jnp.asarray(rng.integers(0, 3, (60, 8)), jnp.int32)
    logits = jnp.where(jax.nn.one_hot(target, 3, dtype=bool), 2.0, -jnp.inf)
    accepted, token = jitted(tree, logits)
    expected = accept(tree, target)
    np.testing.assert_array_equal(accepted.count, expected.count)
    assert len(np.unique(accepted.count)) == 4
    last = jnp.take_along_axis(accepted.path, accepted.count[:, None] - 1, axis=1)
    np.testing.assert_array_equal(token, jnp.take_along_axis(target, last, axis=1)[:, 0])


@pytest.mark.parametrize(("option", "value"), [("epsilon", 0.0), ("epsilon", 1.5), ("delta", 0.0)])
def test_a_bound_out_of_range_is_refused(option, value):
    with pytest.raises(ValueError, match=f"{option} must be over 0.* got {value}"):
        kept([0, 0], [0, 2], [FLAT, FLAT], **{option: value})
