import json

import pytest

import jax_smash
from eval.sparse_steps import BASELINE, Settings, main, measure
from jax_smash.checkpoints.butler import save_butler
from tests.predictors import modules_of, sizes_of

POLICY = "quest:budget=25%:page_size=4:dense_layers=1"


@pytest.mark.slow
def test_every_way_is_timed_behind_one_reading_of_the_prompt(tmp_path, capsys):
    out = tmp_path / "out.json"
    main(
        Settings(
            model="tiny", lengths=(96,), policies=(POLICY,), trees=("chain-2",), int8=False, steps=2, turns=2, json=out
        )
    )
    report = json.loads(out.read_text())
    rows = {row["method"]: row for row in report["rows"]}
    assert list(rows) == [BASELINE, f"sparse {POLICY}", f"self-sparse chain-2 {POLICY}"]
    assert all(row["ms_per_step"] > 0 for row in rows.values())
    assert [row["tokens_per_step"] for row in rows.values()][:2] == [1, 1]
    drafted = rows[f"self-sparse chain-2 {POLICY}"]
    # Drafts of a model by a part of its cache are kept as often as not.
    assert 1 < drafted["tokens_per_step"] <= 3
    assert 0 < drafted["kept"] <= 1
    (parts,) = report["parts"]
    assert all(parts[name] > 0 for name in ("whole_ms", "part_ms", "score_and_choose_ms", "gather_ms", "attend_ms"))
    assert "self-sparse" in capsys.readouterr().out


def test_short_texts_are_read_whole_where_that_pays():
    found = measure(
        Settings(
            model="tiny", lengths=(96,), policies=(POLICY,), trees=("auto",), int8=False, auto=True, steps=1, turns=1
        )
    )
    assert [row["method"] for row in found["rows"]] == [BASELINE, f"sparse {POLICY}", f"self-sparse auto {POLICY}"]
    # No layer of so short a text chooses, so there is no choice to time.
    assert found["parts"] == []


@pytest.mark.slow
def test_a_trained_predictors_choice_is_timed_as_a_whole(tmp_path):
    model = jax_smash.load("tiny")
    made = modules_of(sizes_of(model.config, "grouped"))
    save_butler(tmp_path / "made", made.config, made.params, base_fingerprint=model.fingerprint, trained_length=96)
    policy = f"grouped:{tmp_path}/made:budget=25%:window=4"
    found = measure(
        Settings(model="tiny", lengths=(96,), policies=(policy,), trees=("chain-2",), int8=False, steps=2, turns=1)
    )
    assert [row["method"] for row in found["rows"]] == [BASELINE, f"sparse {policy}", f"self-sparse chain-2 {policy}"]
    assert found["parts"] == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"turns": 0}, "turns must be at least 1; got 0"),
        ({"lengths": ()}, "there must be lengths over 0 and policies"),
        ({"policies": ("streaming",)}, "policies must choose slots; got streaming"),
    ],
)
def test_what_cannot_be_measured_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        Settings(**changes).check()


def test_a_length_beyond_the_models_positions_is_refused_before_anything_is_timed():
    settings = Settings(model="tiny", lengths=(96, 10_000), policies=(POLICY,), trees=(), steps=2, turns=1)
    with pytest.raises(ValueError, match=r"lengths must be at most .* so that 5 new tokens fit the .* got 10000"):
        measure(settings)
