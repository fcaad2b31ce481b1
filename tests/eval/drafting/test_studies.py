import dataclasses

import pytest

from eval.drafting.acceptance_plots import plot_study
from eval.drafting.acceptance_runs import Asking
from eval.drafting.studies import RECYCLING, Plan, cold_start, official, rounds, trees_and_chains, width_and_depth
from eval.drafting.told_trees import told_tree
from eval.prompts.question_sets import Question
from jax_smash import generate
from jax_smash.methods import DraftOptions
from tests.tiny import tiny_model

ONE_LAYER = {"num_layers": 1, "layer_kinds": ("full",), "window": 0}
TEXTS = ("the cat sat on the mat", "a b a b a b a b a b", "to be or not to be", "one two one two one two")


def plan_of(model, questions, **changes):
    plan = Plan(
        asking=Asking(model=model, slots=128, max_new_tokens=24),
        questions=questions,
        methods=(RECYCLING,),
        trees=("chain-3",),
        temperatures=(0.0,),
        draft=DraftOptions(),
        seen=(0, 1, 2, 9),
        widths=(1, 2),
        depths=(1, 2),
    )
    return dataclasses.replace(plan, **changes)


@pytest.fixture(scope="module")
def plan():
    return plan_of(tiny_model(**ONE_LAYER), [Question("some", (text,)) for text in TEXTS])


def run(study, name, plan):
    """Returns a study's rows; it advances as often as it says, and its picture can be drawn."""
    counted = []
    rows = study(plan, lambda: counted.append(1))
    assert len(counted) == rounds(name, plan)
    assert plot_study(name, rows, title="a title").startswith(b"\x89PNG")
    return rows


def test_rows_of_a_tree_s_file_are_not_made_again(plan, tmp_path):
    file = tmp_path / "tree.json"
    file.write_text("[[0], [1]]")
    same = {"temperature": 0.0, "category": "all"}
    done = [same | {"method": "ar", "tree": None}, same | {"method": "recycling", "tree": told_tree(str(file))}]
    given = {"trees": (str(file),), "questions": plan.questions[:1], "done": done}
    assert trees_and_chains(dataclasses.replace(plan, **given), lambda: None) == done


@pytest.mark.slow
def test_what_was_seen_before_helps(plan, tmp_path):
    file = tmp_path / "m.st"
    saved = DraftOptions(tree="chain-3", save_warm_start=file)
    # In the shapes of the study, whose programs do for it.
    generate(
        tiny_model(**ONE_LAYER),
        list(TEXTS),
        method="recycling",
        max_new_tokens=24,
        draft=saved,
        batch_size=1,
        slots=128,
    )
    rows = run(cold_start, "cold-start", dataclasses.replace(plan, draft=DraftOptions(warm_start=file)))
    curves = {}
    for row in rows:
        curves.setdefault(row["learner"], []).append(row)
    assert list(curves) == ["prompt and text", "text alone", "warm start"]
    for curve in curves.values():
        assert [(row["seen"], row["seen_tokens"]) for row in curve] == [(0, 0), (1, 24), (2, 48)]
    forwards = {learner: curve[0]["forwards"] for learner, curve in curves.items()}
    assert forwards["warm start"] < forwards["prompt and text"]


@pytest.mark.slow
def test_a_shape_stands_beside_a_chain_of_as_many_nodes(plan):
    rows = run(width_and_depth, "width-depth", plan)
    assert [(r["width"], r["depth"], r["nodes"]) for r in rows] == [(1, 1, 1), (1, 2, 2), (2, 1, 2), (2, 2, 6)]
    assert all(r["chain_mean_accepted_tokens"] == r["mean_accepted_tokens"] for r in rows[:2])
    assert rows[3]["forwards"] <= rows[1]["forwards"]


@pytest.mark.slow
def test_temperatures_are_told_apart_and_change_no_sample(plan):
    rows = run(trees_and_chains, "temperature", dataclasses.replace(plan, temperatures=(0.5, 0.9)))
    assert [(r["temperature"], r["method"]) for r in rows] == [
        (t, method) for t in (0.5, 0.9) for method in ("ar", "recycling")
    ]
    assert all(row["differing"] == 0 for row in rows if row["method"] != "ar")


@pytest.mark.slow
def test_ours_gives_the_authors_text_in_no_more_forwards(plan):
    rows = run(official, "official", plan)
    names = ["official", "ours, text alone", "ours, prompt and text"]
    assert [row["method"] for row in rows] == names
    assert all(row["differing"] == 0 for row in rows[1:])
    assert rows[2]["forwards"] <= rows[0]["forwards"]
