import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.smash.segment import (
    RULES,
    Decreasing,
    RatioOnly,
    Sliding,
    UpperBound,
    allowed_lengths,
    cheapest_groups,
    greedy_groups,
    make_rule,
)

V = 4096
BOUND = {name: -c * math.log(c) - (1 - c) * math.log((1 - c) / (V - 1)) for name, c in (("s", 0.7), ("u", 0.95))}

# What each rule says in plain Python: may this entropy join a group of these?
JOINS = {
    "decreasing": lambda h, group: h < 0.05 or h < 0.3 * max(group),
    "ratio": lambda h, group: h < 0.3 * max(group),
    "sliding": lambda h, group: h < BOUND["s"],
    "upper-bound": lambda h, group: h < BOUND["u"] and max(group) < BOUND["u"],
}


def reference(joins, entropy, may_join, steps):
    """Groups made from left to right, in plain Python."""
    place, group = [], []
    for h, free in zip(entropy, may_join, strict=True):
        group = [*group, h] if group and free and len(group) < steps and joins(h, group) else [h]
        place.append(len(group) - 1)
    return place


def random_entropies(rows=6, width=40, seed=0):
    """Entropies as a language model's are: most near 0, some large; of the rounding of float32."""
    rng = np.random.default_rng(seed)
    entropy = np.exp(rng.normal(-1.5, 2.0, (rows, width))).astype(np.float32)
    return entropy, rng.random((rows, width)) > 0.15


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_each_rule_is_its_reference(name, steps):
    entropy, free = random_entropies()
    place = greedy_groups(make_rule(name, V), jnp.asarray(entropy), jnp.asarray(free), micro_steps=steps)
    assert place.dtype == jnp.int32
    expected = [reference(JOINS[name], e.tolist(), f.tolist(), steps) for e, f in zip(entropy, free, strict=True)]
    assert place.tolist() == expected
    assert np.max(expected) == steps - 1  # Some group is as long as it may be.


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        # 0.5 and 0.2 are below 0.3 of 2; 0.04 is below the floor; five in a row fall in groups of at most four.
        (Decreasing(), [0, 1, 2, 3, 0, 0, 1, 0]),
        (RatioOnly(), [0, 1, 2, 3, 0, 0, 1, 0]),
        (Sliding(1.0), [0, 1, 2, 3, 0, 0, 1, 2]),
        (UpperBound(1.0), [0, 0, 1, 2, 3, 0, 0, 1]),
    ],
)
def test_groups_worked_by_hand(rule, expected):
    entropy = jnp.array([[2.0, 0.5, 0.2, 0.04, 0.04, 1.5, 0.3, 0.5]])
    assert greedy_groups(rule, entropy, jnp.ones((1, 8), bool), micro_steps=4).tolist() == [expected]


def test_the_floor_and_the_peak_of_decreasing():
    entropy = jnp.array([[0.01, 0.04, 0.04, 0.01, 0.2, 0.07, 0.07, 0.059]])
    free = jnp.ones((1, 8), bool)
    assert greedy_groups(Decreasing(), entropy, free, micro_steps=4).tolist() == [[0, 1, 2, 3, 0, 0, 0, 0]]
    assert greedy_groups(RatioOnly(), entropy, free, micro_steps=4).tolist() == [[0, 0, 0, 1, 0, 0, 0, 0]]
    # 0.055 is below 0.3 of 0.2 though the token before it has 0.0.
    entropy = jnp.array([[0.2, 0.0, 0.055, 0.07]])
    assert greedy_groups(Decreasing(), entropy, free[:, :4], micro_steps=4).tolist() == [[0, 1, 2, 0]]


def test_a_token_that_may_not_join_begins_a_group():
    entropy = jnp.zeros((1, 6))
    free = jnp.array([[True, True, False, False, True, True]])
    assert greedy_groups(Decreasing(), entropy, free, micro_steps=4).tolist() == [[0, 1, 0, 0, 1, 2]]


@pytest.mark.parametrize("name", RULES)
def test_the_allowed_groups_are_those_whose_tokens_all_join(name):
    entropy, free = random_entropies(rows=4, width=12, seed=1)
    allowed = np.asarray(lengths_allowed(make_rule(name, V), jnp.asarray(entropy), jnp.asarray(free), micro_steps=4))
    for row, end, length in itertools.product(range(4), range(12), range(1, 5)):
        start = end - length + 1
        expected = start >= 0 and all(
            free[row, i] and JOINS[name](float(entropy[row, i]), entropy[row, start:i].tolist())
            for i in range(start + 1, end + 1)
        )
        assert bool(allowed[row, end, length - 1]) == expected, (row, end, length)


lengths_allowed = jax.jit(allowed_lengths, static_argnums=0, static_argnames="micro_steps")


def cost_of(place, loss, allowed, price):
    """The sum that groups cost, infinite where one is not allowed."""
    lengths = [p + 1 for p, following in zip(place, [*place[1:], 0], strict=True) if following == 0]
    ends = [i for i, following in enumerate([*place[1:], 0]) if following == 0]
    groups = zip(ends, lengths, strict=True)
    return sum(price + loss[e][g - 1] if g == 1 or allowed[e][g - 1] else math.inf for e, g in groups)


def every_segmentation(width, steps):
    """Yields the places of every way to cut so many tokens into groups."""
    if width == 0:
        yield []
        return
    for first in range(1, min(width, steps) + 1):
        for rest in every_segmentation(width - first, steps):
            yield [*range(first), *rest]


@pytest.mark.parametrize("price", [0.0, 0.3, 5.0])
def test_the_cheapest_groups_are_the_cheapest_of_all(price):
    rng = np.random.default_rng(int(price * 10))
    loss = rng.random((5, 9, 3)).astype(np.float32)
    loss[:, :, 0] = 0.0
    loss[0, 2:, 2] = np.inf
    allowed = rng.random((5, 9, 3)) > 0.3
    place = np.asarray(cheapest_groups(jnp.asarray(loss), jnp.asarray(allowed), jnp.float32(price)))
    for row in range(5):
        table = loss[row].tolist(), allowed[row].tolist(), price
        best = min(cost_of(p, *table) for p in every_segmentation(9, 3))
        assert cost_of(place[row].tolist(), *table) == pytest.approx(best, rel=1e-5, abs=1e-6)
    assert (place.max() > 0) == (price > 0)


def test_boundaries_move_to_where_fusing_costs_least():
    """Greedy groups would be 4 and 2; the embedder is bad at any group that ends at the fourth token."""
    entropy, free = jnp.zeros((1, 6)), jnp.ones((1, 6), bool)
    loss = jnp.zeros((1, 6, 4)).at[0, 3, 1:].set(9.0)
    assert greedy_groups(Decreasing(), entropy, free, micro_steps=4).tolist() == [[0, 1, 2, 3, 0, 1]]
    allowed = lengths_allowed(Decreasing(), entropy, free, micro_steps=4)
    place = cheapest_groups(loss, allowed, jnp.float32(1.0)).tolist()
    assert place in ([[0, 1, 0, 1, 2, 3]], [[0, 1, 2, 0, 1, 2]])


def test_long_rows_keep_their_precision():
    """Thousandths of a nat decide where the one short group stands, though the sum is above a hundred thousand."""
    place = jnp.arange(4096, dtype=jnp.int32)[None] % 3
    loss = jnp.stack([jnp.zeros((1, 4096)), jnp.full((1, 4096), 4e-3), jnp.where(place == 2, 1e-3, 5e-3)], axis=-1)
    allowed = jnp.ones((1, 4096, 3), bool)
    np.testing.assert_array_equal(cheapest_groups(loss, allowed, jnp.float32(100.0)), place)


def test_rules_have_names_settings_and_ranges():
    assert make_rule("decreasing", V) == Decreasing(0.05, 0.3)
    assert make_rule("decreasing", V, ratio=0.5) == Decreasing(0.05, 0.5)
    assert make_rule("sliding", V).bound == pytest.approx(BOUND["s"])
    assert make_rule("upper-bound", V, confidence=1.0) == UpperBound(0.0)
    with pytest.raises(ValueError, match="rule must be one of decreasing, ratio, sliding, upper-bound; got 'fixed'"):
        make_rule("fixed", V)
    with pytest.raises(ValueError, match="rule 'decreasing' has floor and ratio; got 'confidence'"):
        make_rule("decreasing", V, confidence=0.5)
    with pytest.raises(ValueError, match="ratio must be from 0 to 1; got 2"):
        make_rule("ratio", V, ratio=2.0)
    with pytest.raises(ValueError, match="floor must be from 0 to inf; got -1"):
        make_rule("decreasing", V, floor=-1.0)
    with pytest.raises(ValueError, match="confidence must be above 0 and at most 1; got 0"):
        make_rule("sliding", V, confidence=0.0)


def test_rows_are_independent():
    entropy, free = map(jnp.asarray, random_entropies())
    together = greedy_groups(Decreasing(), entropy, free, micro_steps=4)
    alone = jax.vmap(lambda e, f: greedy_groups(Decreasing(), e[None], f[None], micro_steps=4)[0])(entropy, free)
    np.testing.assert_array_equal(together, alone)
