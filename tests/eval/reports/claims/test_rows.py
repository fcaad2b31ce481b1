import pytest

from eval.reports.claims.rows import (
    exactness_totals,
    in_order,
    paired,
    where,
    with_chains,
    with_plain_in_turn,
    with_range,
)
from eval.reports.claims.table import text
from tests.eval.reports.claims.reports import accepted_row, quality_row, report, speed_row


def test_rows_are_chosen_by_their_fields_and_ordered_by_named_values():
    rows = [{"a": 1, "b": "z"}, {"a": 2, "b": "y"}, {"a": 3, "b": "x"}]
    assert where(rows, a=(1, 3)) == [rows[0], rows[2]]
    assert where(rows, a=2, b="x") == []
    assert [row["b"] for row in in_order(rows, text("b"), ["y"])] == ["y", "z", "x"]


def test_a_tree_stands_before_the_chain_of_as_many_nodes_and_plain_decoding_is_left_out():
    plain = accepted_row("ar", "all", 1.0, tree=None, nodes=0)
    drafted = accepted_row("recycling", "all", 2.3, chain=1.9, interval=(2.0, 2.6))
    tree, chain = with_chains([plain, drafted])
    assert tree == drafted
    assert (chain["tree"], chain["mean_accepted_tokens"], chain["interval"]) == ("chain-80", 1.9, None)


def test_a_chain_with_rows_of_its_own_is_not_told_twice():
    tree = accepted_row("recycling", "all", 2.3, tree="tree-15", nodes=15, chain=1.9)
    chain = accepted_row("recycling", "all", 1.9, tree="chain-15", nodes=15)
    assert with_chains([tree, chain]) == [tree, chain]


def test_the_range_is_that_of_the_repeats():
    (row,) = with_range([speed_row(speeds=(3.0, 1.0, 2.0))])
    assert row["range"] == {"low": 1.0, "high": 3.0}


def test_a_single_repeat_has_no_range():
    alone, untold = with_range([speed_row(speeds=(3.0,)), speed_row() | {"tokens_per_second_by_repeat": None}])
    assert (alone["range"], untold["range"]) == (None, None)


def test_a_method_stands_beside_the_plain_decoding_that_took_turns_with_it():
    plain = speed_row(task="all", plain_tokens_per_second=12.0)
    drafted = speed_row("suffix", task="all", speeds=(15.0,), plain_tokens_per_second=10.0)
    part = speed_row("suffix", task="qa", plain_tokens_per_second=9.0)
    kept, mine, beside, last = with_plain_in_turn(with_range([plain, drafted, part]))
    assert (kept["task"], mine["tokens_per_second"], last["task"]) == ("all", 15.0, "qa")
    assert (beside["method"], beside["task"]) == ("suffix", "all, plain in turn")
    assert (beside["tokens_per_second"], beside["range"]) == (10.0, None)


def exact_row(way="as it is", must="equal", passed=True, batch=1, **more):
    row = {"way": way, "method": "recycling", "tree": "chain-4", "model": "tiny", "dtype": "float32"}
    row |= {"prompts": 10, "tokens": 100, "forwards": 60, "divergences": 1, "beyond_near_ties": 0, "unexplained": 0}
    row |= {"processors": "none", "batch_size": batch, "worst_gap": None, "must": must, "passed": passed}
    return row | {"key": [way, row["method"]]} | more


def test_exactness_adds_up_conditions_and_counts_variants_and_faults_apart():
    rows = [
        exact_row(),
        exact_row(batch=8, worst_gap=0.2),
        exact_row(processors="all", divergences=0),
        exact_row(way="padded"),
        exact_row(way="bit flipped", must="differ"),
        exact_row(way="penalty skipped", must="differ", passed=False),
        exact_row(method="ar", tree=None),
    ]
    total, processed = exactness_totals(rows)
    assert (total["texts"], total["tokens"], total["divergences"]) == (20, 200, 2)
    assert (total["equal"], total["equal_of"], total["found"], total["found_of"]) == (1, 1, 1, 2)
    assert (total["batches"], total["processors"], total["worst_gap"]) == ([1, 8], "none", 0.2)
    assert (processed["batches"], processed["processors"], processed["texts"]) == ([1], "all", 10)


@pytest.mark.parametrize(
    ("forwards", "said"),
    [((60, 89), None), ((60, 90), "no draft was kept in 1 of 2 conditions"), ((90, 90), "no draft was kept")],
)
def test_exactness_tells_where_no_draft_was_kept(forwards, said):
    rows = [exact_row(batch=i + 1, forwards=n) for i, n in enumerate(forwards)]
    variants = [exact_row(way="padded", forwards=90), exact_row(must="differ", forwards=90)]
    assert [total["note"] for total in exactness_totals(rows + variants)] == [said]
    assert [total["note"] for total in exactness_totals([exact_row(tree="off", forwards=90)])] == [None]


def test_exactness_tells_what_drafts_apart():
    of_the_run = {"sparse": "quest", "draft_model": "int8"}  # Which the rows of other methods have as well.
    labels = ("self-sparse", "self-sparse int8", "eagle eagle@ab", "recycling")
    rows = [exact_row(method=label.split()[0], key=["as it is", label], **of_the_run) for label in labels]
    found = [row["method"] for row in exactness_totals(rows)]
    assert found == ["self-sparse quest", "self-sparse int8 quest", "eagle eagle@ab", "recycling"]


def test_contenders_stand_beside_the_baseline_of_the_same_examples():
    other = quality_row("piqa", 0.6, weights="int8", difference=(-0.01, -0.02, 0.0))
    alone = quality_row("gsm8k", 0.3)
    kept = report(program="eval.quality", rows=[quality_row("piqa", 0.61), alone, other])
    first, second = paired(kept.rows, lambda row: row["settings"]["weights"])
    assert (first["task"], first["score"], first["int8"]["score"]) == ("piqa", 0.61, 0.6)
    assert second["task"] == "gsm8k"
    assert "int8" not in second


def test_two_rows_of_one_contender_are_refused_not_chosen_from():
    other = quality_row("piqa", 0.6, weights="int8", difference=(-0.01, -0.02, 0.0))
    rows = report(program="eval.quality", rows=[quality_row("piqa", 0.61), other, other]).rows
    with pytest.raises(ValueError, match="int8 has two of piqa"):
        paired(rows, lambda row: row["settings"]["weights"])
