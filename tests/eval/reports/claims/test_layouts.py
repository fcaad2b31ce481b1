"""Every table, on rows as the programs write them."""

import pytest

from eval.group_caps import Settings, caps
from eval.reports.claims import layouts
from tests.eval.reports.claims.reports import accepted_row, quality_row, report, speed_row


def test_accepted_by_task_has_a_line_a_tree_and_its_chain_and_all_tasks_first():
    rows = [
        accepted_row("ar", "all", 1.0, tree=None, nodes=0),
        accepted_row("recycling", "qa", 2.0, chain=1.8),
        accepted_row("recycling", "all", 2.333, chain=1.9, interval=(2.1, 2.5)),
    ]
    table = layouts.accepted_by_task(report(program="eval.acceptance", rows=rows).rows)
    assert table.header == ["Method", "Tree", "all", "qa"]
    assert table.lines == [
        ["recycling", "recycling-80", "2.33 (2.10 to 2.50)", "2.00"],
        ["recycling", "chain-80", "1.90", "1.80"],
    ]


def test_trained_drafters_have_a_line_a_verification_and_its_answers_and_a_column_a_tree():
    greedy, typical = {"answers": 22}, {"answers": 12, "temperature": 0.7}
    rows = [
        accepted_row("ar", "all", 1.0, tree=None) | greedy,
        accepted_row("eagle", "all", 2.0, tree="chain-8") | greedy,
        accepted_row("eagle", "qa", 1.9, tree="chain-8") | {"answers": 3},
        accepted_row("eagle", "all", 2.5, tree="tree-16") | greedy,
        accepted_row("eagle", "all", 2.6, tree="tree-16") | typical,
        accepted_row("eagle", "all", 2.4, tree="chain-8") | typical | {"answers": 15},
    ]
    made = report(program="eval.acceptance", rows=rows, settings={"verify": "typical-lossy"})
    table = layouts.accepted_by_tree(made.rows)
    assert table.header == ["Method", "Verification", "Answers", "chain-8", "tree-16"]
    assert table.lines == [
        ["eagle", "greedy", "22", "2.00", "2.50"],
        ["eagle", "typical, lossy at 0.7", "12", "–", "2.60"],
        ["eagle", "typical, lossy at 0.7", "15", "2.40", "–"],
    ]


def test_drafts_of_chains_are_told_by_depth_as_far_as_any_were_tried():
    row = accepted_row("eagle", "all", 2.0, tree="chain-3") | {"acceptance_by_depth": [0.5, 0.0, None]}
    others = [{"tree": "tree-16"}, {"category": "qa"}, {"method": "hybrid"}, {"method": "hybrid+eagle-3m"}]
    table = layouts.kept_by_depth([row, *(row | other for other in others)])
    assert (table.header, table.lines) == (
        ["Method", "Tree", "depth 1", "depth 2"],
        [["eagle", "chain-3", "50.0%", "0.0%"]],
    )


def test_accuracies_have_a_line_a_depth_and_a_column_a_rank():
    rows = [{"drafter": "medusa", "depth": depth, "tokens": 1200, "top1": 0.4, "top2": 0.625} for depth in (1, 2)]
    rows[1]["top1_interval"] = {"low": 0.35, "high": 0.45}
    table = layouts.accuracies(rows)
    assert table.header == ["Drafter", "Depth", "Tokens", "Top 1", "Top 2"]
    assert table.lines == [
        ["medusa", "1", "1,200", "40.0%", "62.5%"],
        ["medusa", "2", "1,200", "40.0% (35.0 to 45.0)", "62.5%"],
    ]


def test_a_picture_leaves_out_plain_decoding_and_chains_where_there_are_trees():
    rows = [
        accepted_row("ar", "all", 1.0, tree=None),
        accepted_row("recycling", "qa", 2.0, tree="tree-15"),
        accepted_row("recycling", "all", 2.1, tree="tree-15"),
        accepted_row("recycling", "all", 1.9, tree="chain-15"),
    ]
    assert [(row["tree"], row["category"]) for row in layouts.trees_of(rows)] == [("tree-15", "all"), ("tree-15", "qa")]
    assert layouts.trees_of(rows[3:]) == rows[3:]
    assert [row["tree"] for row in layouts.speeds_of(rows)] == [None, "tree-15", "tree-15"]
    assert layouts.method_and_tree(rows[1]) == "recycling, tree-15"
    assert layouts.method_and_tree(rows[0]) == "plain"


def test_a_picture_of_drafters_shows_small_trees_first_and_methods_by_name():
    drawn = [accepted_row("suffix", "all", 1.5), accepted_row("eagle", "all", 2.5)]
    chain = accepted_row("suffix", "all", 1.2, tree="chain-8", nodes=8)
    rows = [*drawn, accepted_row("eagle", "qa", 2.4), chain, chain | {"temperature": 0.7}]
    assert layouts.greedy_trees(rows) == [chain, drawn[1], drawn[0]]


def test_the_published_algorithm_is_named():
    rows = [accepted_row(name, "all", 2.0) for name in ("official", "ours, text alone")]
    assert [line[0] for line in layouts.published(rows).lines] == ["Token Recycling, as published", "ours, text alone"]


def test_policies_stand_by_what_they_read_with_a_column_a_task():
    def row(policy, budget, task, score, **fields):
        made = {"policy": policy, "budget": budget, "task": task, "metric": "perplexity", "score": score}
        return made | {"unmet": None, "interval": None, "settings": {"length": 512}} | fields

    rows = [
        row("dense", 1.0, "perplexity:texts.jsonl", 20.0),
        row("quest", 0.25, "perplexity:texts.jsonl", 30.0),
        row("quest", 0.1, "perplexity:texts.jsonl", None, metric=None, unmet="its pages are larger"),
        row("quest", 0.5, "perplexity:texts.jsonl", 24.0),
        row("quest", 0.25, "piqa", 0.7, metric="accuracy", settings={}),
    ]
    table = layouts.by_policy(report(program="eval.sparsity", rows=rows).rows)
    assert table.header == ["Policy", "Of the cache's bytes", "perplexity:texts.jsonl, 512 tokens", "piqa"]
    assert table.lines == [
        ["dense", "100%", "20.00", "–"],
        ["quest", "50%", "24.00", "–"],
        ["quest", "25%", "30.00", "0.7000"],
        ["quest", "10%", "not met", "–"],
    ]
    again = report(program="eval.sparsity", rows=[*rows, rows[0]]).rows
    assert layouts.by_policy(again).lines == table.lines
    for contradicting in (row("dense", 1.0, "perplexity:texts.jsonl", 21.0), rows[1]):
        with pytest.raises(ValueError, match="one figure"):
            layouts.by_policy(report(program="eval.sparsity", rows=[*rows, contradicting]).rows)


def test_a_task_of_ruler_has_the_share_that_is_found():
    interval = {"low": 0.4, "high": 0.6, "kind": "bootstrap"}
    dense = {"policy": "dense", "task": "ruler_vt", "metric": "contained", "score": 0.5, "interval": interval}
    rows = [dense, dense | {"policy": "oracle", "score": 0.4}]
    table = layouts.by_ruler_task(report(program="eval.sparsity", rows=rows).rows)
    assert table.header == ["Task", "Found"]
    assert table.lines == [["vt", "50.0% (40.0 to 60.0)"]]
    every = [row | {"budget": budget, "unmet": None} for row, budget in zip(rows, (1.0, 0.1), strict=True)]
    table = layouts.by_policy_on_ruler(report(program="eval.sparsity", rows=every).rows)
    assert table.header == ["Policy", "Of the cache's bytes", "vt"]
    assert table.lines == [["dense", "100%", "50.0% (40.0 to 60.0)"], ["oracle", "10%", "40.0% (40.0 to 60.0)"]]


def test_nothing_found_in_fifty_examples_is_not_nothing_without_doubt():
    none = {"low": 0.0, "high": 0.0, "kind": "bootstrap"}
    row = {"policy": "dense", "task": "ruler_vt", "metric": "contained", "n": 50, "score": 0.0, "interval": none}
    table = layouts.by_ruler_task(report(program="eval.sparsity", rows=[row]).rows)
    assert table.lines == [["vt", "0.0% (0.0 to 7.1)"]]


def test_policies_have_the_mean_of_rulers_tasks_where_they_were_asked_all():
    def row(policy, task, budget, score, unmet=None):
        interval = {"low": 0.0, "high": 1.0, "kind": "bootstrap"}
        facts = {"policy": policy, "task": task, "metric": "contained", "budget": budget, "unmet": unmet}
        return facts | {"score": score, "interval": interval}

    rows = [
        row("dense", "ruler_vt", 1.0, 0.9),
        row("oracle", "ruler_vt", 0.5, 0.8),
        row("quest", "ruler_vt", 0.5, 0.7),
        row("dense", "ruler_fwe", 1.0, 0.5),
        row("oracle", "ruler_fwe", 0.5, 0.4),
        row("quest", "ruler_fwe", 0.5, None, "too few slots"),
    ]
    table = layouts.by_policy_on_ruler(report(program="eval.sparsity", rows=rows).rows)
    assert table.header[2:] == ["mean", "vt", "fwe"]
    assert [line[2] for line in table.lines] == ["70.0%", "60.0%", "–"]
    assert table.lines[2][3:] == ["70.0% (0.0 to 100.0)", "not met"]
    assert len(layouts.means_by_policy(rows)) == 2


def test_recall_stands_beside_that_of_the_last_entries():
    def row(policy, slots, metric, score, **more):
        interval = {"low": score - 0.01, "high": score + 0.01, "kind": "bootstrap"}
        facts = {"policy": policy, "slots": slots, "length": 512, "metric": metric, "unmet": None}
        return facts | {"score": score, "interval": interval} | more

    rows = [
        row("dense", 512, "recall", 1.0),
        row("dense", 512, "group_recall", 1.0),
        row("quest", 256, "recall", 0.7, recent_recall=0.6, kept=0.4),
        row("quest", 256, "group_recall", 0.75, recent_recall=0.6, kept=0.4),
        row("gate", 0, "recall", 0.0) | {"unmet": "too few slots"},
    ]
    table = layouts.by_recall(report(program="eval.sparsity", rows=rows).rows)
    assert table.header[2:] == [
        "Entries that it reads",
        "A query head",
        "A group of heads",
        "The last entries, as many, a query head",
    ]
    assert table.lines == [
        ["dense", "512 of 512", "–", "100.0% (99.0 to 101.0)", "100.0% (99.0 to 101.0)", "–"],
        ["quest", "256 of 512", "40.0%", "70.0% (69.0 to 71.0)", "75.0% (74.0 to 76.0)", "60.0%"],
    ]


def test_speed_tells_tree_range_and_ratios():
    rows = [
        speed_row(ours_over_peer=2.0),
        speed_row("recycling", speeds=(20.0, 24.0, 30.0), tree="chain-4", nodes=4, speedup=2.0, ours_over_peer=4.0),
        speed_row("transformers", speeds=(5.0, 6.0, 7.0), speedup=0.5),
    ]
    table = layouts.speed(report(rows=rows, settings={"tree": "chain-4"}).rows)
    assert table.lines[0][:5] == ["plain", "–", "1", "12.0 (10.0 to 14.0)", "1.00×"]
    assert table.lines[1][:6] == ["recycling", "chain-4", "1", "24.0 (20.0 to 30.0)", "2.00×", "4.00×"]
    assert table.lines[2][:6] == ["transformers, plain", "–", "1", "6.00 (5.00 to 7.00)", "0.500×", "–"]


def test_speed_by_task_has_a_column_a_task():
    rows = [speed_row(category="qa"), speed_row(category="all", speeds=(11.0,))]
    table = layouts.speed_by_task(report(rows=rows).rows)
    assert (table.header, table.lines) == (
        ["Method", "Tree", "all", "qa"],
        [["plain", "–", "11.0", "12.0"]],
    )


def test_speed_by_task_tells_each_methods_own_plain_decoding_behind_all_tasks():
    rows = [
        speed_row(task="qa", plain_tokens_per_second=12.0),
        speed_row(task="all", plain_tokens_per_second=12.0),
        speed_row("suffix", task="all", tree="auto", speeds=(15.0, 16.0), plain_tokens_per_second=9.5),
        speed_row("suffix", task="qa", tree="auto", plain_tokens_per_second=8.0),
    ]
    table = layouts.speed_by_task(report(program="eval.by_task", rows=rows).rows)
    assert (table.header[2:], table.lines) == (
        ["all", "all, plain in turn", "qa"],
        [
            ["plain", "–", "12.0 (10.0 to 14.0)", "–", "12.0"],
            ["suffix", "auto", "16.0 (15.0 to 16.0)", "9.50", "12.0"],
        ],
    )


def test_speed_ups_by_task_have_the_interval_over_all_tasks_and_leave_out_plain_decoding():
    bounds = {"low": 1.4, "high": 1.6}
    rows = [
        speed_row(task="all"),
        speed_row("suffix", task="all", tree="tree-15", speedup=1.5, speedup_interval=bounds),
    ]
    rows.append(speed_row("suffix", task="qa", tree="tree-15", speedup=1.2, speedup_interval=bounds))
    table = layouts.speedup_by_task(report(program="eval.by_task", rows=rows).rows)
    assert (table.header[2:], table.lines) == (["all", "qa"], [["suffix", "tree-15", "1.50 (1.40 to 1.60)", "1.20"]])


def test_models_are_compared_with_transformers_each_with_its_own():
    peer = speed_row("transformers", speeds=(4.0, 6.0, 8.0), ours_over_peer=2.0)
    rows = report(rows=[speed_row(), peer]).rows + report("b", rows=[speed_row()], settings={"model": "other"}).rows
    assert layouts.speed_of_models(rows).lines == [
        ["tiny", "12.0 (10.0 to 14.0)", "6.00 (4.00 to 8.00)", "2.00×"],
        ["other", "12.0 (10.0 to 14.0)", "–", "–"],
    ]


def test_weights_stand_beside_each_other_with_the_paired_difference():
    other = quality_row("arc_easy", 0.59, weights="int8", difference=(-0.012, -0.025, 0.001))
    rows = report(program="eval.quality", rows=[quality_row("arc_easy", 0.6), other]).rows
    expected = ["arc-easy", "100", "60.0% (50.0 to 70.0)", "59.0% (49.0 to 69.0)", "−1.2 points (−2.5 to +0.1)"]
    assert layouts.weights(rows).lines == [expected]


def test_a_perplexity_is_no_share_and_its_difference_is_in_nats():
    apart = {"value": 0.0031, "unit": "nats per token", "interval": None}
    plain = quality_row("perplexity", 12.3456, metric="perplexity")
    other = quality_row("perplexity", 12.5, metric="perplexity", weights="int8") | {"difference": apart}
    (line,) = layouts.weights(report(program="eval.quality", rows=[plain, other]).rows).lines
    assert line[2:] == ["12.35 (12.25 to 12.45)", "12.50 (12.40 to 12.60)", "+0.0031 nats per token"]


def fused_rows():
    fused = [
        quality_row("copying", 0.5, method="hamburger", difference=(-0.1, -0.2, 0.0), output_compression=ratio)
        | {"settings": {"weights": "plain", "confidence": 0.7, "token_confidence": token}}
        for token, ratio in ((0.0, 2.0), (0.995, 1.1))
    ]
    return report(
        program="eval.quality", rows=[quality_row("copying", 0.6), *fused], settings={"token_confidence": [0.0, 0.995]}
    ).rows


def test_fused_slots_are_told_by_task_with_what_they_lose_and_gain():
    plain, _, fused = fused_rows()
    (line,) = layouts.fused_by_task([plain, fused]).lines
    assert line == [
        "copying",
        "100",
        "60.0% (50.0 to 70.0)",
        "50.0% (40.0 to 60.0)",
        "−10.0 points (−20.0 to +0.0)",
        "1.10",
    ]


def test_the_curve_has_a_line_a_setting_and_plain_decoding_has_none():
    lines = layouts.fused_curve(fused_rows()).lines
    assert [line[1:4] for line in lines] == [
        ["plain", "–", "–"],
        *(["hamburger", "0.700", t] for t in ("0.000", "0.995")),
    ]
    assert [row["token_confidence"] for row in layouts.arms_of_confidence(fused_rows())] == [0.0, 0.995]


def test_caps_have_a_column_a_group_length():
    rows = caps(Settings(shapes=("llama-100m",), micro_layers=(1,), micro_heads=("full",), group_lengths=(1, 2)))
    table = layouts.caps(report(program="eval.group_caps", rows=rows).rows)
    assert table.header[-1] == "2 tokens"
    assert table.lines[0][0] == "llama-100m"
    assert 1 < float(table.lines[0][-1].removesuffix("×")) < 2


def test_kernels_tell_the_range_and_drift_its_bounds():
    kernel = {"program": "tree_attention", "shape": "s", "method": "xla", "ms": 2.0, "ms_by_repeat": [1.0, 2.0, 3.0]}
    (line,) = layouts.kernels([kernel | {"speedup": 1.0, "gigabytes_per_second": 100.0}]).lines
    assert line == ["tree_attention", "s", "xla", "2.00 (1.00 to 3.00)", "1.00×", "100"]
    mode = {"mode": "blind", "confidence": 0.5, "texts": 4, "tokens": 400, "error": 0.01, "low": 0.005, "high": 0.02}
    (line,) = layouts.drift([mode | {"growth": -0.001, "growth_low": None}]).lines
    assert line == ["blind", "0.500", "4", "400", "1.00% (0.50 to 2.00)", "−0.10%"]
