import json

import pytest

from train.stages.recipe_file import load_recipe, split_reference

TOKENIZER = {"name": "tokenizer", "program": "train.tokenizer", "options": {"corpus": "c.json", "data_root": "@data"}}
RUN = {
    "name": "run",
    "program": "train.base",
    "seed": 3,
    "options": {"config": "c.json", "packed": "@data/packed", "tokenizer": "@tokenizer", "steps": 5},
}
AVERAGE = {
    "name": "average",
    "program": "train.average",
    "options": {"models": ["@run/model", "@data"], "shares": [0.4, 0.6]},
}


@pytest.fixture
def load(tmp_path):
    """Writes a recipe of some stages beside a configuration, and loads it."""
    (tmp_path / "c.json").write_text("{}")

    def load_(*stages, seed=0, **fields):
        fields = {"description": "a test", "inputs": {"data": "text"}, "stages": stages} | fields
        (tmp_path / "r.json").write_text(json.dumps(fields))
        return load_recipe(tmp_path / "r.json", seed)

    return load_


def with_options(stage, **options):
    return stage | {"options": stage["options"] | options}


def test_a_stage_is_a_command_that_names_what_it_reads(load):
    tokenizer, run, average = load(TOKENIZER, RUN, AVERAGE).stages
    assert tokenizer.told == "python -m train.tokenizer --corpus c.json --data-root @data"
    assert run.told.endswith("--packed @data/packed --tokenizer @tokenizer --steps 5 --seed 3")
    assert average.told == "python -m train.average --models @run/model @data --shares 0.4 0.6"
    assert run.reads == ("c.json", "@data/packed", "@tokenizer")
    assert average.reads == ("@run/model", "@data")
    assert (run.resumes, average.resumes) == (True, False)


def test_paths_stand_where_names_were(load):
    recipe = load(TOKENIZER, RUN)
    words = recipe.stages[1].words(lambda read: f"<{read}>")
    assert words[:6] == ["--config", "<c.json>", "--packed", "<@data/packed>", "--tokenizer", "<@tokenizer>"]
    assert recipe.files == ["c.json"]
    assert recipe.beside("c.json").is_file()
    assert (split_reference("@run/model/a"), split_reference("@run")) == (("run", "model/a"), ("run", ""))


def test_a_switch_that_is_off_is_told_too(load):
    segment = {"name": "cut", "program": "train.segment", "options": {"packed": "@data", "model": "tiny"}}
    on, off = (load(with_options(segment, answers_alone=value)).stages[0] for value in (True, False))
    assert on.words()[-1] == "--answers-alone"
    assert off.words()[-1] == "--no-answers-alone"
    assert on.reads == ("@data",)


def test_a_number_is_added_to_every_seed(load):
    first, second = load(TOKENIZER, RUN, seed=40).stages
    assert (first.seed, second.seed) == (None, 43)


WRONG = {
    "no stages": ([], "stages must not be empty"),
    "two of a name": ([TOKENIZER, TOKENIZER], "got 'tokenizer' more than once"),
    "name of an input": ([TOKENIZER | {"name": "data"}], "got 'data' more than once"),
    "path for a name": ([TOKENIZER | {"name": "../a"}], r"a name must be of a-z, 0-9, - and _; got '\.\./a'"),
    "unknown field": ([TOKENIZER | {"ouput": 1}], "is not a recipe: .*ouput"),
    "unknown program": ([TOKENIZER | {"program": "train.tokeniser"}], "stage 'tokenizer': unknown program"),
    "foreign program": (
        [TOKENIZER | {"program": "os.path"}],
        "unknown program 'os.path': it must be one of train or eval",
    ),
    "no program": (
        [TOKENIZER | {"program": "train.run"}],
        "train.run cannot be a stage: it has no option output",
    ),
    "unknown option": ([with_options(TOKENIZER, vocab=9)], "train.tokenizer has no option 'vocab'"),
    "wrong value": ([with_options(TOKENIZER, vocab_size="many")], "does not take these options: --vocab-size: .*many"),
    "given option": ([with_options(TOKENIZER, output="x")], "output is not an option of a stage: the recipe gives it"),
    "seed as option": (
        [TOKENIZER, with_options(RUN, seed=4)],
        "seed is not an option of a stage: it is a field of its own",
    ),
    "no seed": ([TOKENIZER, RUN | {"seed": None}], "train.base draws by a seed, which must be stated"),
    "seed of no use": ([TOKENIZER | {"seed": 1}], "train.tokenizer takes no seed; got 1"),
    "seed of words": ([TOKENIZER, RUN | {"seed": "one"}], "seed must be a whole number; got 'one'"),
    "missing option": ([AVERAGE | {"options": {}}], "train.average needs the option 'models'"),
    "unknown reference": ([with_options(TOKENIZER, data_root="@text")], "@text, which no stage makes; there are data"),
    "itself": ([with_options(TOKENIZER, data_root="@tokenizer")], "refers to @tokenizer, which needs it in turn"),
    "later": ([RUN, TOKENIZER], "stage 'run' refers to @tokenizer, a stage that comes later"),
    "circle": ([RUN, with_options(TOKENIZER, data_root="@run")], "refers to @tokenizer, which needs it in turn"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_recipe_is_told_by_stage(load, case):
    stages, said = WRONG[case]
    with pytest.raises(ValueError, match=said):
        load(*stages)


def test_a_file_that_is_not_there_is_named(load):
    with pytest.raises(FileNotFoundError, match=r"names a file .*absent\.json; there is none"):
        load(with_options(TOKENIZER, corpus="absent.json"))


@pytest.mark.parametrize("text", ['{"stages": [', "[]", '{"stages": []}', '{"description": "", "stages": 3}', "\xff"])
def test_a_broken_file_is_named(tmp_path, text):
    (tmp_path / "r.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"r\.json is not a recipe: "):
        load_recipe(tmp_path / "r.json")
    with pytest.raises(ValueError, match=r"absent\.json is not a recipe: .*No such file"):
        load_recipe(tmp_path / "absent.json")
