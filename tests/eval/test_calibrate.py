"""Settings of HAMburger's modules, chosen by right answers."""

import json
import shutil

import pytest

from eval.calibrate import Settings, candidates, choice, main
from jax_smash.checkpoints.smasher import read_smasher
from jax_smash.loading import ASSETS, load
from jax_smash.smash.options import SmashOptions
from tests.model_directory import write_model, write_modules


def row(task, token_confidence, difference, tokens, *, length=128, method="hamburger", metric="accuracy"):
    """A row of a quality report, of 10 questions with `tokens` tokens a slot."""
    told = {"smash_mode": "blind", "confidence": 0.7, "token_confidence": token_confidence, "micro_head": "full"}
    return {
        "method": method,
        "task": task,
        "metric": metric,
        "settings": {"length": length} | (told if method == "hamburger" else {}),
        "n": 10,
        "score": 0.5 + difference,
        "difference": {"value": difference},
        "output_compression": tokens,
    }


ROWS = [
    row("copying", None, 0.0, 1.0, method="ar"),
    *(row("copying", 0.0, -0.01, 1.5), row("sums", 0.0, -0.6, 3.0), row("all tasks", 0.0, -0.3, 2.4)),
    *(row("copying", 0.9, 0.02, 1.2), row("sums", 0.9, -0.04, 2.5), row("all tasks", 0.9, -0.01, 1.9)),
    *(row("copying", 0.99, 0.0, 1.1), row("sums", 0.99, 0.0, 2.2), row("all tasks", 0.99, 0.0, 1.7)),
]


def test_a_setting_is_judged_by_the_questions_that_lose_most_and_its_slots_over_all():
    tried = candidates(ROWS)
    assert [(r["token_confidence"], r["lost_in"], r["output_compression"]) for r in tried] == [
        (0.0, "sums, length 128", 2.4),
        (0.9, "sums, length 128", 1.9),
        (0.99, "copying, length 128", 1.7),
    ]
    assert [r["most_lost"] for r in tried] == pytest.approx([60, 4, 0])
    assert [r["score"] for r in tried] == pytest.approx([0.2, 0.49, 0.5])


@pytest.mark.parametrize(("most_lost", "chosen"), [(100, 0.0), (60.1, 0.0), (5, 0.9), (3.9, 0.99), (0, 0.99)])
def test_the_most_tokens_a_slot_are_chosen_among_those_that_lose_little_enough(most_lost, chosen):
    assert choice(candidates(ROWS), most_lost)["token_confidence"] == chosen


def test_nothing_is_chosen_where_everything_loses_too_much():
    with pytest.raises(
        ValueError, match=r"every setting loses more than 3\.5 points somewhere; the best, confidence 0\.7"
    ):
        choice(candidates(ROWS[:7]), 3.5)


def test_one_set_of_questions_is_all_of_them():
    (found,) = candidates([row("sums", 0.9, -0.04, 2.5)])
    assert (found["score"], found["output_compression"]) == (0.46, 2.5)


def test_answers_that_are_not_written_tell_nothing():
    with pytest.raises(ValueError, match="tasks must have answers that the model writes, right or wrong; got piqa"):
        candidates([row("piqa", 0.9, 0.0, 1.0, metric="acc")])


def test_the_choice_is_written_and_decodes(tmp_path, capsys):
    """Of random modules; nothing they say is right, and nothing that the base says."""
    model = write_model(tmp_path / "model", num_hidden_layers=1)
    folder = write_modules(model / "hamburger", model)
    settings = Settings(
        model=str(model),
        tasks=("copying",),
        lengths=(96,),
        count=2,
        confidence=(0.01,),
        token_confidence=(0.0, 0.9),
        json=tmp_path / "a.json",
    )
    main(settings, [])
    report = json.loads((tmp_path / "a.json").read_text())
    own = SmashOptions(mode="blind", confidence=0.01, token_confidence=0.0, micro_head="full")
    assert SmashOptions(**report["options"]) == own
    assert [r["chosen"] for r in report["settings_tried"]] == ["yes", ""]
    assert "token confidence" in capsys.readouterr().out
    described = read_smasher(folder)
    assert described.options == own
    assert described.base_fingerprint == load(model).fingerprint
    assert load(model, modules="auto").modules.options == own


@pytest.mark.slow
def test_settings_that_ruin_the_answers_are_not_written(tmp_path):
    """The shipped modules, trusted in all they say: hardly an answer is right."""
    folder = shutil.copytree(ASSETS / "tiny" / "hamburger", tmp_path / "modules")
    before = (folder / "smasher.json").read_text()
    settings = Settings(
        modules=str(folder), tasks=("arithmetic",), count=8, confidence=(0.3,), token_confidence=(0.0,), most_lost=20.0
    )
    with pytest.raises(
        ValueError, match=r"every setting loses more than 20 points .* in arithmetic, length 128: nothing"
    ):
        main(settings, [])
    assert (folder / "smasher.json").read_text() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"most_lost": -1.0}, r"most_lost must be from 0 to 100 points; got -1\.0"),
        ({"confidence": ()}, "confidence must name at least one; got none"),
        ({"token_confidence": (2.0,)}, r"token_confidence must be from 0 to 1; got 2\.0"),
        ({"tasks": ("magic",)}, "task must be one of .*; got 'magic'"),
        ({"modules": "nowhere"}, r"nowhere has no HAMburger modules: smasher\.json is missing"),
    ],
)
def test_what_cannot_be_is_refused(changes, message):
    with pytest.raises((ValueError, OSError), match=message):
        main(Settings(**changes), [])
