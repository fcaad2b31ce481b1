"""Trees by size, and the size that pays."""

import itertools

import numpy as np
import pytest

from jax_smash.costs.curve import CostCurve
from jax_smash.draft.trees.sizing import (
    best_tree,
    choose_budget,
    choose_ladder,
    expected_tokens,
    likeliest_paths,
    most_expected,
    places,
    weigh,
)
from jax_smash.draft.trees.tree import chain, tree_from_ranks


def random_rates(seed: int, levels: int = 5, ranks: int = 4, *, falling: bool) -> np.ndarray:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(ranks + 1, 0.7), size=levels)[:, :ranks]
    return -np.sort(-p, axis=1) if falling else p


def curve(seconds: dict[int, float]) -> CostCurve:
    return CostCurve(entries=tuple(seconds), seconds=tuple(seconds.values()), batch=1, slots=64, source="test")


RATES = np.array([[0.6, 0.2], [0.5, 0.1], [0.4, 0.1]])
FLAT = curve({1: 1.0, 15: 1.001})


@pytest.mark.parametrize("falling", [True, False], ids=["sorted", "unsorted"])
@pytest.mark.parametrize("seed", range(4))
def test_the_likeliest_paths_reach_what_dynamic_programming_finds(seed, falling):
    p = random_rates(seed, falling=falling)
    for budget in (0, 1, 2, 3, 5, 8, 13, 40, 81):
        best = expected_tokens(p, best_tree(p, budget))
        assert best == pytest.approx(most_expected(p, budget), rel=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_no_tree_at_all_beats_the_dynamic_programme(seed):
    p = random_rates(seed, levels=2, ranks=3, falling=False)
    paths = [path for n in (1, 2) for path in itertools.product(range(3), repeat=n)]
    for budget in (1, 2, 4):
        values = []
        for chosen in itertools.combinations(paths, budget):
            try:
                values.append(expected_tokens(p, tree_from_ranks(chosen)))
            except ValueError:  # Some node has no parent.
                continue
        assert max(values) == pytest.approx(most_expected(p, budget), rel=1e-12)


def test_a_smaller_tree_is_part_of_a_larger_one():
    p = random_rates(7, falling=False)
    assert likeliest_paths(p, 30)[:11] == likeliest_paths(p, 11)


def test_rates_of_single_children_make_a_chain():
    p = np.full((5, 1), 0.5)
    tree = best_tree(p, 5)
    np.testing.assert_array_equal(tree.parent, chain(5).parent)
    assert expected_tokens(p, tree) == pytest.approx(1 + 0.5 + 0.25 + 0.125 + 0.0625 + 0.03125)


def test_expected_tokens_are_the_sum_over_paths():
    tree = tree_from_ranks([[0], [1], [0, 1], [0, 1, 0]])
    assert expected_tokens(RATES, tree) == pytest.approx(1 + 0.6 + 0.2 + 0.6 * 0.1 + 0.6 * 0.1 * 0.4)


def test_nodes_beyond_the_rates_count_as_never_kept():
    deep = tree_from_ranks([[0], [5], [0, 0], [0, 0, 0], [0, 0, 0, 0], [5, 0]])
    assert expected_tokens(RATES, deep) == pytest.approx(1 + 0.6 + 0.3 + 0.12)


def test_a_root_alone_emits_one_token():
    tree = best_tree(RATES, 0, levels=4)
    assert (tree.nodes, tree.levels, expected_tokens(RATES, tree)) == (1, 4, 1.0)


def test_every_place_can_be_filled_even_with_nodes_that_are_never_kept():
    assert places(3, 2) == 14
    assert best_tree(np.zeros((3, 2)), 14).nodes == 15


@pytest.mark.parametrize(
    ("p", "budget", "said"),
    [
        (RATES, 15, "budget must be from 0 to 14"),
        (RATES, -1, "got -1"),
        (RATES * 2, 3, "rates must be from 0 to 1"),
        (RATES * np.nan, 3, "rates must be from 0 to 1"),
    ],
)
def test_what_makes_no_tree_is_refused(p, budget, said):
    for function in (likeliest_paths, most_expected, best_tree):
        with pytest.raises(ValueError, match=said):
            function(p, budget)


def test_the_whole_curve_is_searched_not_up_to_its_first_fall():
    # A step of 3 entries costs as much as one of 9: two drafted nodes lose, eight on the same shelf win.
    cost = curve({1: 1.0, 3: 2.0, 9: 2.0})
    rates = np.array([[0.5, 0.4, 0.05]] * 3)
    speed = {rung.budget: rung.tokens_per_second for rung in weigh(rates, cost, (0, 2, 8))}
    assert speed[2] < speed[0] < speed[8]
    assert choose_budget(rates, cost, (0, 2, 8)).budget == 8


def test_nothing_is_drafted_where_that_costs_more_than_it_brings():
    steep = curve({1: 1.0, 5: 5.0, 15: 15.0})
    assert choose_budget(RATES, steep, (0, 4, 14)).budget == 0
    assert choose_budget(RATES, FLAT, (0, 4, 14)).budget == 14


def test_drafting_costs_where_something_is_drafted():
    plain, drafted = weigh(RATES, FLAT, (0, 4), drafting_s=0.25)
    assert plain.seconds == 1.0
    assert drafted.seconds == pytest.approx(FLAT.at(5) + 0.25)
    assert choose_budget(RATES, FLAT, (0, 4), drafting_s=2.0).budget == 0


def test_of_equal_budgets_the_smaller_is_chosen():
    assert choose_budget(np.zeros((3, 2)), curve({1: 1.0, 15: 1.0}), (14, 4, 0)).budget == 0


def test_a_ladder_without_plain_decoding_is_refused():
    with pytest.raises(ValueError, match=r"budget of 0.*got \[4, 8\]"):
        choose_budget(RATES, FLAT, (4, 8))


def test_a_ladder_begins_with_plain_decoding_and_has_at_most_three_rungs():
    p = np.array([[0.5, 0.2, 0.1, 0.05]] * 6)
    cost = curve({1: 1.0, 4: 1.1, 8: 1.2, 16: 2.0, 32: 2.2, 64: 4.4})
    ladder = choose_ladder(p, cost)
    assert ladder[0] == 0
    assert len(ladder) <= 3
    assert set(ladder) <= {0, 3, 7, 15, 31, 63}
    assert choose_budget(p, cost, ladder).tokens_per_second >= 0.97 * max(
        r.tokens_per_second for r in weigh(p, cost, [m - 1 for m in cost.entries])
    )
    assert max(choose_ladder(p, cost, most=10)) <= 7
    assert choose_ladder(p, cost, rungs=1) == (0,)


def test_where_drafting_would_not_pay_at_a_third_of_its_cost_the_ladder_is_plain_decoding_alone():
    assert choose_ladder(RATES, curve({1: 1.0, 3: 15.0, 15: 75.0})) == (0,)
    assert len(choose_ladder(RATES, curve({1: 1.0, 3: 3.0, 15: 15.0}))) > 1
