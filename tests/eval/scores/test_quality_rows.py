import json
from pathlib import Path

import pytest

from eval.quality import Settings, main, measure
from jax_smash.checkpoints.smasher import describe_smasher
from jax_smash.smash.options import SmashOptions
from tests.checkpoints import write_checkpoint
from tests.model_directory import write_model, write_modules


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A random model with a context of 256 bytes."""
    return str(write_model(tmp_path_factory.mktemp("made") / "model", num_hidden_layers=1))


@pytest.fixture(scope="module")
def compared(model, tmp_path_factory):
    """Two sets of modules beside another base, on two tasks."""
    folder = tmp_path_factory.mktemp("compared")
    base = write_model(folder / "base", num_hidden_layers=1)
    write_checkpoint(base, json.loads((base / "config.json").read_text()), seed=1)
    write_modules(folder / "one", Path(model))
    write_modules(folder / "other", Path(model), seed=1)
    settings = Settings(
        model=model,
        base=str(base),
        methods=("ar", "hamburger"),
        modules=(str(folder / "one"), str(folder / "other")),
        confidence=(0.01, 0.4),
        tasks=("coreference", "state"),  # Of one bucket of lengths: prompts and answers.
        lengths=(160,),
        count=3,
        json=folder / "a.json",
        details=folder / "a.jsonl",
        plot=folder / "a.png",
    )
    main(settings, ["--base", "base"])
    return folder


def told(row):
    modules = Path(row["settings"].get("modules", "–")).name
    return Path(row["model"]).name, row["method"], modules, row["settings"].get("confidence")


@pytest.mark.slow
def test_modules_are_compared_with_another_base_over_all_tasks_together(compared):
    rows = json.loads((compared / "a.json").read_text())["rows"]
    totals = [row for row in rows if row["task"] == "all tasks"]
    assert [told(row) for row in totals] == [
        ("base", "ar", "–", None),
        ("model", "ar", "one", None),
        *(("model", "hamburger", modules, c) for modules in ("one", "other") for c in (0.01, 0.4)),
    ]
    for i, total in enumerate(totals):
        parts = rows[3 * i : 3 * i + 2]
        assert (total["n"], total["sets"], total["settings"]["tasks"]) == (6, 2, ["coreference", "state"])
        assert total["score"] == pytest.approx(sum(part["score"] for part in parts) / 2)
        if i:
            assert total["difference"]["baseline"]["model"] == totals[0]["model"]
            assert total["difference"]["interval"]["low"] < 0 < total["difference"]["interval"]["high"]
        if total["method"] == "hamburger":
            for name in ("output_compression", "cache_compression"):
                assert min(p[name] for p in parts) <= total[name] <= max(p[name] for p in parts)
            assert total["output_compression"] > total["cache_compression"] > 1


@pytest.mark.slow
def test_details_hold_each_example_of_all_tasks_once(compared):
    details = [json.loads(line) for line in (compared / "a.jsonl").read_text().splitlines()]
    assert len(details) == 6 * 6
    told = [(d["model"], d["method"], d.get("modules"), d.get("confidence"), d["example"]) for d in details]
    assert len(set(told)) == len(told)


def test_modules_of_another_base_are_refused_before_any_are_measured(model, compared, tmp_path):
    other = write_model(tmp_path / "wider", hidden_size=48)
    wrong = write_modules(tmp_path / "wrong", other)
    settings = Settings(model=model, methods=("hamburger",), modules=(str(compared / "one"), str(wrong)), count=1)
    with pytest.raises(ValueError, match=r"wrong/smasher\.json: .*base"):
        settings.check()


def test_modules_are_measured_as_they_were_calibrated_where_nothing_else_is_asked(model, tmp_path):
    folder = write_modules(tmp_path, Path(model))
    own = describe_smasher(folder, options=SmashOptions(confidence=0.4, token_confidence=0.9, micro_steps=2)).options
    given = {"model": model, "methods": ("ar", "hamburger"), "modules": (str(folder),)}
    plain, smashed = Settings(**given).contenders()
    assert smashed.smash == SmashOptions(least_rows=1).settled(own)
    assert (smashed.told()["confidence"], smashed.told()["token_confidence"], smashed.told()["micro_steps"]) == (
        0.4,
        0.9,
        2,
    )
    assert plain.smash is None
    several = Settings(**given, token_confidence=(0.9, 0.0), micro_steps=3).contenders()[1:]
    assert [(c.smash.confidence, c.smash.token_confidence, c.smash.micro_steps) for c in several] == [
        (0.4, 0.9, 3),
        (0.4, 0.0, 3),
    ]


@pytest.mark.slow
def test_hamburger_is_measured_at_each_confidence_with_the_slots_that_it_took(model, tmp_path):
    settings = Settings(
        model=model,
        methods=("ar", "hamburger"),
        modules=(str(write_modules(tmp_path, Path(model))),),
        confidence=(0.01, 1.0),
        tasks=("variety",),
        count=2,
        max_new_tokens=12,
        batch_size=2,
    )
    rows, details = measure(settings)
    plain, eager, sure = (row for row in rows["rows"] if row["metric"] == rows["rows"][0]["metric"])
    assert "output_compression" not in plain
    # Groups of four, but for those that a text ends within.
    assert 2.4 < eager["output_compression"] <= 4
    assert sure["output_compression"] == 1
    assert [row["settings"].get("confidence") for row in (plain, eager, sure)] == [None, 0.01, 1.0]
    assert sure["difference"]["value"] == 0  # Groups of one are plain decoding.
    assert sure["difference"]["baseline"]["method"] == "ar"
    assert {line.get("confidence") for line in details} == {None, 0.01, 1.0}
