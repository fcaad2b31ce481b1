"""From `--tree` to the trees that are compiled."""

import dataclasses

import numpy as np
import pytest

from jax_smash import ladder
from jax_smash.costs import CostCurve, save_costs
from jax_smash.costs.store import cost_key
from jax_smash.ladder import STOPPED, Reach, make_ladder
from jax_smash.methods import REACH, make_method
from jax_smash.methods.drafted import STOPPING
from jax_smash.platform import tracing_for
from tests.tiny import tiny_model

FLAT = CostCurve(
    entries=(1, 2, 4, 8, 16, 32), seconds=(1.0, 1.01, 1.02, 1.04, 1.1, 1.9), batch=1, slots=64, source="forward alone"
)


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_SMASH_HOME", str(tmp_path))


def store(curve, method=""):
    save_costs(curve, cost_key(tiny_model().config, tiny_model().params["target"], batch=1, slots=64, method=method))


def made(method="recycling", tree="auto", reach=Reach(ranks=8, levels=6)):  # noqa: B008 - frozen
    return make_ladder(tiny_model(), tree, method=method, reach=reach, batch=1, slots=64)


def sizes(ladder):
    return [tree.nodes - 1 for tree in ladder.trees]


def test_a_ladder_has_zero_nodes_and_at_most_two_more_budgets_with_what_their_steps_cost():
    store(FLAT)
    found = made()
    assert sizes(found)[0] == 0
    assert sizes(found) == sorted(set(sizes(found)))
    assert 2 <= len(found.trees) <= 3
    assert found.source == "forward alone"
    np.testing.assert_allclose(found.sizing.seconds, [FLAT.at(n + 1) for n in sizes(found)])
    assert found.sizing.known.hits.shape == (6, 8)


def test_a_method_s_own_steps_come_before_the_forward_alone():
    """Where drafting eats what it saves, nothing is drafted; other methods still go by the forward."""
    store(FLAT)
    slow = dataclasses.replace(FLAT, seconds=(1.0, 3.0, 4.0, 6.0, 8.0, 9.0), source="whole steps")
    store(slow, "lookup")
    plain, own = made("suffix"), made("lookup")
    assert (plain.source, own.source) == ("forward alone", "whole steps")
    assert sizes(plain)[plain.first] > 0
    assert sizes(own)[own.first] == 0


@pytest.mark.parametrize("levels", [1, 3, 10])
def test_trees_have_room_for_the_method_s_levels_and_no_more_than_their_nodes(levels):
    store(FLAT)
    found = made(reach=Reach(ranks=40, levels=levels))
    assert [tree.levels for tree in found.trees] == [min(levels, n) for n in sizes(found)]
    assert all(int(tree.depth.max()) <= levels for tree in found.trees)


def test_looked_up_continuations_go_deeper_and_recycled_ones_as_deep_as_published():
    store(FLAT)

    def levels():
        return {name: make_method(tiny_model(), name, slots=64).strategy.levels for name in REACH}

    with tracing_for("tpu"):
        assert levels() == {"recycling": 6, "lookup": 10, "suffix": 10, "hybrid": 10}
    # On a CPU lookups stop by themselves.
    assert levels() == {"recycling": 6, "lookup": STOPPING.levels, "suffix": STOPPING.levels, "hybrid": 10}


def test_deeper_rates_make_deeper_trees():
    wide, deep = Reach(ranks=4, levels=10), Reach(ranks=4, levels=10, deeper=0.8, fall=0.1)
    assert deep.rates().shape == (10, 4)
    assert int(deep.tree(12).depth.max()) == 10
    assert int(wide.tree(12).depth.max()) < 6


@pytest.mark.parametrize("ranks", [1, 4])
def test_drafting_takes_as_much_for_each_level_however_many_nodes_it_has(ranks):
    store(FLAT)
    each, once, reach = 0.005, 0.02, Reach(ranks=ranks, levels=5)
    with tracing_for("tpu" if ranks > 1 else "cpu"):
        found = make_ladder(
            tiny_model(), "auto", method="eagle", reach=reach, batch=1, slots=64, drafting=each, once=once
        )
    drafted = sizes(found)[1:]
    assert (max(drafted) > reach.levels) == (ranks > 1)
    levels = [tree.levels for tree in found.trees[1:]]
    np.testing.assert_allclose(
        found.sizing.seconds[1:],
        [FLAT.at(n + 1) + each * deep + once for n, deep in zip(drafted, levels, strict=True)],
        rtol=1e-6,
    )


@pytest.mark.parametrize(("dear", "first"), [(2.2, 1), (6.0, 0)])
def test_where_a_drafter_stops_there_is_one_tree_which_costs_by_what_it_is_expected_to_keep(dear, first):
    seconds = (1.0, *np.linspace(1.5, dear, 5).tolist())
    store(dataclasses.replace(FLAT, entries=(1, 2, 4, 6, 8, 16), seconds=seconds))
    found = made("eagle", reach=Reach(ranks=1, levels=5, stopping=5))
    assert sizes(found) == [0, 5]
    assert found.first == first
    plain, stopping = found.sizing.seconds.tolist()
    kept = float(found.sizing.expected[1]) - 1
    np.testing.assert_allclose(stopping, plain + STOPPED * kept * (seconds[3] - plain), rtol=1e-6)


def test_a_named_tree_is_alone_and_needs_no_costs():
    found = made(tree="chain-3", reach=None)
    assert (sizes(found), found.first, found.sizing) == ([3], 0, None)
    assert "chain-3" in found.source


def test_a_tree_of_a_size_has_the_shape_that_suits_the_method():
    deep = Reach(ranks=4, levels=10, deeper=0.8, fall=0.1)
    (suited,), (general,) = (made(tree="tree-12", reach=reach).trees for reach in (deep, None))
    np.testing.assert_array_equal(suited.parent, deep.tree(12).parent)
    assert (suited.nodes, general.nodes) == (13, 13)
    assert int(suited.depth.max()) > int(general.depth.max())


def test_without_costs_those_of_a_usual_accelerator_are_assumed_and_the_user_told(monkeypatch):
    monkeypatch.setattr(ladder, "estimate_costs", lambda *args, **kwargs: None)
    found = made()
    assert len(found.trees) > 1
    assert found.source == "assumed, for nothing is known of this device; jax-smash tune measures it"


def test_a_ladder_has_a_tree_to_try_even_where_none_seems_to_pay():
    store(dataclasses.replace(FLAT, seconds=(1.0, 3.0, 4.0, 6.0, 8.0, 9.0)))
    found = made()
    assert len(found.trees) > 1
    assert found.first == 0


def test_what_was_learned_of_a_curve_is_kept_for_the_next_ladder():
    store(FLAT)
    follower = made().follower
    assert follower is not None
    assert made().follower is follower
    assert made("suffix").follower is not follower
    store(dataclasses.replace(FLAT, seconds=(1.0, 1.1, 1.2, 1.4, 1.8, 2.9)))
    assert made().follower is not follower


def test_a_curve_that_is_named_decides_alone(tmp_path):
    path = save_costs(FLAT, cost_key(tiny_model().config, tiny_model().params["target"], batch=1, slots=64))
    found = make_ladder(
        tiny_model(), "auto", method="recycling", reach=Reach(ranks=8, levels=6), batch=8, slots=4096, costs=path
    )
    assert found.follower is None
    assert found.curve == FLAT
    assert found.source == f"by {path} alone"


def test_a_method_without_an_automatic_size_is_named():
    with pytest.raises(ValueError, match="trees of method lookahead have no automatic size"):
        made("lookahead", reach=None)
