"""The committed recipes: they can be run, and do what they say they do."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import jax_smash
from jax_smash.checkpoints.chimera import load_chimera
from jax_smash.checkpoints.huggingface import read_config
from jax_smash.loading import ASSETS
from jax_smash.methods import DraftOptions
from jax_smash.models.families.presets import preset
from jax_smash.smash.options import SmashOptions
from tests.checkpoints import LLAMA, write_checkpoint
from tests.tiny import tiny_config
from tests.train.corpus_files import make_tokenizer, write_lines
from train.data.corpus import load_corpus
from train.drafter import KINDS as DRAFTERS
from train.drafter import changes_of
from train.parts.butler.settings import ButlerSettings
from train.parts.hamburger.settings import SmashSettings
from train.recipe import main as make_recipe
from train.run.settings import Settings, load_kind
from train.stages.recipe_file import load_recipe

RECIPES = Path(__file__).parents[2] / "train" / "recipes"
NAMES = sorted(path.stem for path in RECIPES.glob("*.json"))
FILES = sorted(path for path in RECIPES.with_name("configs").glob("*.json") if '"steps"' in path.read_text())
KINDS = {"train.base": Settings, "train.hamburger": SmashSettings, "train.butler": ButlerSettings}
KINDS |= {f"train.drafter {name}": part.kind for name, part in DRAFTERS.items()}
SMOLLM2 = tiny_config(
    vocab_size=49_152,
    num_layers=30,
    layer_kinds=("full",) * 30,
    window=0,
    d_model=576,
    num_heads=9,
    num_kv_heads=3,
    head_width=64,
    mlp_width=1536,
    max_positions=8192,
)

REPLY = {"role": "assistant", "content": "I think so. They ran away. Once there were foxes."}

GRAFTED = [f"grafted{number}" for number in range(1, 8)]


def recipe(name):
    return load_recipe(RECIPES / f"{name}.json")


def runs(found):
    """Returns the settings of each training run of a recipe, by the stage's name."""
    model = read_config(ASSETS / "tiny")[0]
    if "base" in found.inputs:
        model = SMOLLM2 if "SmolLM2" in found.inputs["base"] else preset("llama-3.2-1b")
    return {
        stage.name: load_kind(
            KINDS[program_of(stage)],
            found.beside(stage.options["config"]),
            model=model,
            seed=stage.seed,
            steps=stage.options.get("steps"),
            **changes_of(stage.options.get("change", ()), {}),
        )
        for stage in found.stages
        if program_of(stage) in KINDS
    }


def program_of(stage):
    """Returns a stage's program, of drafters with their kind."""
    return f"{stage.program} {stage.options['kind']}" if stage.program == "train.drafter" else stage.program


def kind_of(name, fields):
    """Returns the kind of settings that a training file holds, by its name or what is in it."""
    words = {"eagle-1": "eagle1", "blockwise": "medusa"} | {word: word for word in DRAFTERS}
    drafter = next((kind for word, kind in words.items() if word in name), None)
    if drafter is not None:
        return DRAFTERS[drafter].kind
    programs = {"predictors": "train.butler", "micro_steps": "train.hamburger"}
    return KINDS[next((program for field, program in programs.items() if field in fields), "train.base")]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_training_file_is_one_of_its_kind(file):
    fields = json.loads(file.read_text())
    model = preset("llama-3.1-8b") if file.stem.endswith("paper") or file.stem == "blockwise" else SMOLLM2
    found = load_kind(kind_of(file.stem, fields), file, model=None if "model" in fields else model)
    assert found.steps == fields["steps"]


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
    meant = {"hamburger-paper": ["grafted", "alone"], "smollm2-drafters": [*DRAFTERS]}
    meant |= {"smollm2-drafter-ablations": ["cost", "accuracy"]}
    assert unread == meant.get(name, [found.stages[-1].name])
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


def test_drafters_are_trained_on_equally_many_tokens_each():
    found = runs(recipe("smollm2-drafters"))
    assert len({settings.batch_size * settings.length * settings.steps for settings in found.values()}) == 1
    assert len({(settings.reply_begins, settings.length) for settings in found.values()}) == 1


def test_ablations_learn_from_the_same_half_a_million_tokens_and_differ_in_what_they_are_called():
    found = runs(recipe("smollm2-drafter-ablations"))
    tokens = {settings.batch_size * settings.length * settings.steps for settings in found.values()}
    assert tokens == {8 * 512 * 122}
    assert [found[f"gram-{n}"].chimera.gram for n in range(1, 6)] == [1, 2, 3, 4, 5]
    whole = found["gram-3"]
    differing = {
        name: {
            field.name
            for field in dataclasses.fields(settings)
            if getattr(settings, field.name) != getattr(found["eagle"] if "eagle" in name else whole, field.name)
        }
        for name, settings in found.items()
    }
    assert differing == {
        **{f"gram-{n}": {"gram"} if n != 3 else set() for n in range(1, 6)},
        "layer-frozen": {"gram_encoder", "encoder_frozen"},
        "layer-tuned": {"gram_encoder"},
        "no-residual": {"residual_heads"},
        "no-distillation": {"distillation"},
        "eagle": set(),
        "eagle-one-step": {"test_steps"},
    }


def test_the_ablations_are_judged_together():
    found = recipe("smollm2-drafter-ablations")
    judged = found.stages[-1]
    assert judged.options["drafters"] == [f"@{name}/drafter" for name in runs(found)]


def test_ablations_of_a_predictor_change_one_size_each_of_the_shipped_one():
    found, shipped = (runs(recipe(name)) for name in ("smollm2-butler-ablations", "smollm2-butler"))
    configs = found["sizes"].configs
    butler = dataclasses.asdict(configs["butler"])
    assert configs["butler"] == shipped["butler"].configs["butler"]
    fields = {"hidden": "hidden", "width": "width", "layer": "attach"}
    for name, config in configs.items():
        what, _, value = name.partition("-")
        changed = {fields[what]: int(value)} if value else {}
        assert dataclasses.asdict(config) == butler | changed


def test_the_predictor_of_low_rank_learns_from_the_others_text_and_half_as_much_of_tasks():
    corpora = [load_corpus(RECIPES.parent / f"configs/smollm2-{name}.json").sources for name in ("butler", "low-rank")]
    others, own = corpora
    assert own[: len(others)] == others
    of_others, more = (sum(source.share for source in part) for part in (others, own[len(others) :]))
    assert more / of_others == pytest.approx(0.5, abs=0.05)


def test_the_states_that_are_kept_are_those_that_each_drafter_reads():
    found = recipe("smollm2-drafters")
    settings, stages = runs(found), {stage.name: stage.options for stage in found.stages}
    states = stages["states"]
    assert [name for name, given in stages.items() if given.get("states") == "@states"] == [*DRAFTERS] == [*settings]
    kept = {*states["taps"], *settings[states["kind"]].read_taps}
    assert {tap for each in settings.values() for tap in each.read_taps} == kept
    assert len(kept) == 6


@pytest.mark.parametrize(
    ("without", "said"),
    [
        ((), "seven vectors, {} a token"),
        (("dflash",), "Six, {}, are enough without DFlash;"),
        (("dflash", "micro"), "four, {}, without DFlash and the micro-step decoder."),
    ],
)
def test_the_recipe_of_drafters_tells_how_large_kept_states_are(without, said):
    found = recipe("smollm2-drafters")
    taps = {tap for name, each in runs(found).items() if name not in without for tap in each.read_taps}
    vectors = 1 + len(taps)  # The hidden state, too.
    assert vectors == {"seven": 7, "Six": 6, "four": 4}[re.match(r"\w+", said)[0]]
    assert said.format(f"{vectors * SMOLLM2.d_model * 2 / 1000:.1f} KB") in found.description


def small_recipe(root, name, changes):
    """Writes a recipe of drafters below `root` for a base of two small layers, of a few steps.

    Args:
      root: where the base, the recipe and its files are written.
      name: of the recipe.
      changes: of a stage's options, by the stage's name.
    """
    write_checkpoint(root / "base", {**LLAMA, "vocab_size": 290, "bos_token_id": 0, "eos_token_id": 1})
    for file in make_tokenizer(root / "tokenizer").iterdir():
        shutil.copy(file, root / "base")
    (root / "recipes").mkdir()
    (root / "configs").mkdir()
    fields = json.loads((RECIPES / f"{name}.json").read_text())
    small = {"steps": 2, "batch_size": 2, "length": 24, "mlp_width": 32, "head_size": 100, "test_steps": 2}
    small |= {"taps": [0, 2], "num_layers": 1, "block_size": 4, "tapped_layers": [1], "micro_steps": 3}
    for stage in fields["stages"]:
        options = stage["options"]
        options |= changes.get(stage["name"], {})
        options |= {"devices": 1} if stage["program"] == "train.drafter" else {}
        if "steps" in options:
            options["steps"] = 2
        if "reply_begins" in options:
            options |= {"reply_begins": "<|assistant|>", "reply_ends": "<|end|>"}
        if "config" in options:
            given = json.loads((RECIPES / options["config"]).read_text())
            given |= {field: value for field, value in small.items() if field in given}
            given["optimiser"] |= {"warmup": 1}
            given |= {"reply_begins": "<|assistant|>", "reply_ends": "<|end|>"}
            (root / "recipes" / options["config"]).write_text(json.dumps(given))
    corpus = {"held_out": 0.3, "sources": [{"name": "answers", "paths": ["answers.jsonl"]}]}
    (root / "configs/smollm2-answers.json").write_text(json.dumps(corpus))
    shutil.copy(RECIPES / f"{name}.md", root / "recipes")
    (root / f"recipes/{name}.json").write_text(json.dumps(fields))


@pytest.fixture
def drafters(tmp_path):
    """The recipe of drafters for a small base, and its inputs."""
    changes = {"answers": {"max_new_tokens": 12, "method": "ar"}, "states": {"taps": [0, 2]}, "asked": {"count": 2}}
    small_recipe(tmp_path, "smollm2-drafters", changes)
    write_lines(tmp_path / "prompts/a.jsonl", *({"question": f"What is {i}?", "answer": "It is."} for i in range(40)))
    asked = "Say in thirteen words or more why it is that you ask me this?"
    write_lines(tmp_path / "prompts/b.jsonl", {"prompt": asked}, {"prompt": "Why?"})
    write_lines(tmp_path / "questions.jsonl", {"turns": [asked]})
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("# Foxes\n\nThey sleep in a den that they dig in a dry slope of the wood.\n")
    inputs = {name: tmp_path / name for name in ("base", "texts", "prompts")}
    inputs |= {"questions": tmp_path / "questions.jsonl"}
    return tmp_path, tuple(f"{name}={path}" for name, path in inputs.items())


def test_the_plan_of_drafters_names_each_program_in_its_turn(drafters, capsys):
    root, inputs = drafters
    make_recipe(root / "recipes/smollm2-drafters.json", root / "out", input=inputs, dry_run=True)
    commands = [line.split()[2] for line in capsys.readouterr().out.splitlines()]
    assert commands == [
        "train.ask",
        "train.regenerate",
        "train.pack",
        "train.states",
        *["train.drafter"] * len(DRAFTERS),
    ]


@pytest.mark.slow
def test_drafters_of_each_kind_are_made_by_their_recipe_and_draft(drafters):
    root, inputs = drafters
    make_recipe(root / "recipes/smollm2-drafters.json", root / "out", input=inputs)
    first = json.loads((root / "out/answers/answers.jsonl").read_text().splitlines()[0])
    assert first["made_with"]["options"]["avoid"]["left_out"] == 1
    model, options = jax_smash.load(root / "base"), {"max_new_tokens": 6, "slots": 64}
    plain = jax_smash.generate(model, ["What is 3?"], **options)[0].token_ids
    beside = jax_smash.load(root / "base", modules=root / "out/micro/drafter")
    eager = SmashOptions(confidence=0.01)  # The mode is the modules' own.
    drafted = jax_smash.generate(beside, ["What is 3?"], method="hamburger", smash=eager, **options)
    assert drafted[0].token_ids == plain
    for kind in DRAFTERS.keys() - {"micro"}:
        draft, method = DraftOptions(drafter=root / "out" / kind / "drafter"), kind.removesuffix("1")
        assert jax_smash.generate(model, ["What is 3?"], method=method, draft=draft, **options)[0].token_ids == plain


@pytest.mark.slow
def test_ablations_are_made_by_their_recipe_and_judged(tmp_path):
    cheap = {"tokens": 60, "length": 24, "depths": 2}
    changes = {"accuracy": cheap, "cost": cheap | {"cost_repeats": 2, "gram_slots": [0, 4]}}
    small_recipe(tmp_path, "smollm2-drafter-ablations", changes)
    chats = [{"messages": [{"role": "user", "content": f"Is it {i}?"}, REPLY]} for i in range(40)]
    write_lines(tmp_path / "answers/answers.jsonl", *chats)
    inputs = tuple(f"{name}={tmp_path / name}" for name in ("base", "answers"))
    make_recipe(tmp_path / "recipes/smollm2-drafter-ablations.json", tmp_path / "out", input=inputs)
    report = json.loads((tmp_path / "out/accuracy/drafters.json").read_text())
    names = [*runs(recipe("smollm2-drafter-ablations"))]
    assert [(row["drafter"], row["depth"]) for row in report["rows"]] == [(n, d) for n in names for d in (1, 2)]
    assert (tmp_path / "out/accuracy/drafters.png").is_file()
    costs = json.loads((tmp_path / "out/cost/drafters.json").read_text())["costs"]
    assert [(row["drafter"], row["gram_slots"]) for row in costs] == [("gram-3", 0), ("gram-3", 4), ("eagle", 0)]
    layer = load_chimera(tmp_path / "out/layer-frozen/drafter").params["grams"]["layer"]["mlp"]["w_down"][...]
    first = jax_smash.load(tmp_path / "base").params["target"]["layers"][0]["mlp"]["w_down"][...]
    np.testing.assert_array_equal(np.asarray(layer, np.float32), np.asarray(first.astype(layer.dtype), np.float32))
