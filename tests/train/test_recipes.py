"""The committed recipes: they can be run, and do what they say they do."""

import json
from pathlib import Path

import pytest

from jax_smash.checkpoints.huggingface import read_config
from jax_smash.loading import ASSETS
from jax_smash.models.families.presets import preset
from train.data.corpus import load_corpus
from train.parts.butler.settings import ButlerSettings
from train.parts.hamburger.settings import SmashSettings
from train.run.settings import Settings, load_kind
from train.stages.recipe_file import load_recipe

RECIPES = Path(__file__).parents[2] / "train" / "recipes"
NAMES = sorted(path.stem for path in RECIPES.glob("*.json"))
KINDS = {"train.base": Settings, "train.hamburger": SmashSettings, "train.butler": ButlerSettings}
GRAFTED = [f"grafted{number}" for number in range(1, 8)]


def recipe(name):
    return load_recipe(RECIPES / f"{name}.json")


def runs(found):
    """Returns the settings of each training run of a recipe, by the stage's name."""
    model = preset("llama-3.2-1b") if "base" in found.inputs else read_config(ASSETS / "tiny")[0]
    return {
        stage.name: load_kind(
            KINDS[stage.program],
            found.beside(stage.options["config"]),
            model=model,
            seed=stage.seed,
            steps=stage.options.get("steps"),
        )
        for stage in found.stages
        if stage.program in KINDS
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_stage_of_a_recipe_can_be_run(name):
    found = recipe(name)
    assert len(found.description) > 200
    assert runs(found)
    for stage in found.stages:
        if "corpus" in stage.options:
            assert load_corpus(found.beside(stage.options["corpus"])).sources


@pytest.mark.parametrize("name", NAMES)
def test_all_that_is_made_is_read_or_is_what_the_recipe_is_for(name):
    found = recipe(name)
    read = {value.split("/")[0] for stage in found.stages for value in stage.reads}
    unread = [stage.name for stage in found.stages if f"@{stage.name}" not in read]
    assert unread == {"hamburger-paper": ["grafted", "alone"]}.get(name, [found.stages[-1].name])
    assert {f"@{given}" for given in found.inputs} <= read


def test_the_recipe_of_tiny_has_the_seeds_of_its_configurations():
    found = recipe("tiny")
    for name, settings in runs(found).items():
        path = found.beside(next(stage for stage in found.stages if stage.name == name).options["config"])
        assert settings.seed == json.loads(path.read_text()).get("seed", 0)


def test_the_recipes_end_with_the_runs_of_the_shipped_cards():
    close, last = runs(recipe("tiny"))["close"], runs(recipe("tiny-hamburger"))["grafted7"]
    card, modules = ((ASSETS / name / "README.md").read_text() for name in ("tiny", "tiny/hamburger"))
    assert f"| Steps | {close.steps} of {close.steps} planned, {close.batch_size} rows of {close.length} tokens" in card
    assert f"| Seed | {close.seed} |" in card
    assert f"| Steps | {last.steps} of {last.steps} planned, {last.batch_size} rows of {last.length} slots" in modules
    assert f"| Seed | {last.seed} |" in modules


def test_one_run_of_modules_has_the_steps_of_seven():
    staged, one = runs(recipe("tiny-hamburger")), runs(recipe("tiny-hamburger-one-run"))
    assert [name for name in staged if name.startswith("grafted")] == GRAFTED
    assert one["grafted"].steps == sum(staged[name].steps for name in GRAFTED)
    assert one["tasks"] == staged["tasks"]
    assert one["grafted"].smash == staged["grafted7"].smash
    assert one["grafted"].room == staged["grafted7"].room


def test_one_run_of_modules_reads_each_source_as_much_as_seven_on_average():
    found, one = recipe("tiny-hamburger"), recipe("tiny-hamburger-one-run")
    settings, stages = runs(found), {stage.name: stage for stage in found.stages}
    shares: dict[str, float] = {}
    total = sum(settings[name].steps for name in GRAFTED)
    for name in GRAFTED:
        packed = stages[stages[name].options["segmented"].removeprefix("@")].options["packed"].removeprefix("@")
        sources = load_corpus(found.beside(stages[packed].options["corpus"])).sources
        whole = sum(source.share for source in sources)
        for source in sources:
            part = 100 * source.share / whole * settings[name].steps / total
            shares[source.name] = shares.get(source.name, 0) + part
    (corpus,) = [stage.options["corpus"] for stage in one.stages if stage.name == "packed"]
    for source in load_corpus(one.beside(corpus)).sources:
        assert source.share == pytest.approx(shares.pop(source.name), abs=0.051)
    assert not shares
