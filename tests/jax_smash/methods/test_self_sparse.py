from pathlib import Path

import pytest

from jax_smash import DraftOptions
from jax_smash.loading import quantised
from jax_smash.methods import METHODS, make_method
from jax_smash.methods.self_sparse import POLICY, own_policy
from jax_smash.sparse import H2O, Quest, Recency, sparsified
from tests.tiny import tiny_config, tiny_model


def model():
    return tiny_model(layer_kinds=("full", "full"))


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        ({"sparse": H2O(budget=8)}, "sparse: a model that drafts for itself checks by its whole cache, and H2O evicts"),
        ({"sparse": "dense"}, "sparse: .*Dense leaves nothing out"),
        ({"sparse": "best"}, "sparse: a policy must be one of"),
        ({"sparse": "recency:budget=1024"}, "budget must be at most the 512 slots that a cache of two-layer may have"),
        ({"draft_model": "tiny"}, "draft-model: method self-sparse drafts by the model itself, so it must be int8"),
        ({"verify": "rejection"}, "verify rejection is for drawn tokens"),
        ({"costs": Path("x.json")}, "costs does not go with method self-sparse, which takes tree, draft_model, sparse"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(draft, said):
    with pytest.raises(ValueError, match=said):
        make_method(model(), "self-sparse", draft=DraftOptions(**draft))


def test_a_tree_that_is_asked_for_may_have_more_nodes_than_a_chain_has_levels():
    made = make_method(model(), "self-sparse", draft=DraftOptions(tree="tree-16"))
    (tree,) = made.memory["trees"].ladder
    assert (tree.nodes, made.strategy.drafter.width > 1) == (17, True)


def test_without_a_policy_a_layer_chooses_however_few_there_are():
    shapes = {n: tiny_config(num_layers=n, layer_kinds=("full",) * n) for n in (1, 2, 3, 30)}
    assert [own_policy(config).dense_layers for config in shapes.values()] == [0, 1, 2, 2]
    assert own_policy(shapes[30]) == POLICY
    make_method(model(), "self-sparse", slots=512)


def test_a_policy_goes_with_no_other_method():
    for name in METHODS:
        if name != "self-sparse":
            with pytest.raises(ValueError, match=f"sparse does not go with method {name}"):
                make_method(model(), name, draft=DraftOptions(sparse="quest"))


def test_a_model_with_a_policy_and_a_second_copy_in_int8_are_refused():
    with pytest.raises(ValueError, match="must have a cache without a policy"):
        make_method(sparsified(model(), Recency(budget=8)), "self-sparse")
    with pytest.raises(ValueError, match="the weights of two-layer are int8 already"):
        make_method(quantised(model()), "self-sparse", draft=DraftOptions(draft_model="int8"))


def test_a_chain_costs_a_draft_for_each_of_its_tokens():
    """A step is a check, and before it a drafted token at a time, cheaper the less is read."""

    def drafting(**draft):
        """Returns what each drafted token takes, in plain steps."""
        made = make_method(model(), "self-sparse", draft=DraftOptions(**draft), slots=512)
        trees, curve = made.memory["trees"], made.curve
        (none, chain), seconds = trees.ladder, trees.sizing.seconds
        assert none.nodes == 1, "nothing to draft is among what is compared"
        assert float(seconds[0]) == pytest.approx(curve.seconds[0])
        beside = float(seconds[1]) - curve.at(chain.nodes)
        return beside / (chain.nodes - 1) / curve.seconds[0]

    most, part = drafting(sparse=Quest(budget=496, dense_layers=0)), drafting(sparse=Quest(budget=64, dense_layers=0))
    assert most == pytest.approx(1, rel=0.1)
    assert part < 0.8 * most
    assert drafting(sparse=Quest(budget=64, dense_layers=0), draft_model="int8") < part


def test_where_drafts_would_read_the_whole_cache_nothing_is_drafted():
    """Such a draft takes as long as the text itself, unless its weights are in int8."""

    def nodes(**draft):
        policy = Quest(budget=64, dense_layers=0)
        made = make_method(model(), "self-sparse", draft=DraftOptions(sparse=policy, **draft), slots=64)
        return [tree.nodes for tree in made.memory["trees"].ladder]

    assert nodes() == [1]
    assert nodes(tree="chain-4") == [5]
    assert len(nodes(draft_model="int8")) > 1
