import dataclasses
import json
import shutil

import pytest

from train.stages.recipe_file import load_recipe
from train.stages.recipe_lock import BEGUN, MADE, PLANNED, hash_files
from train.stages.recipe_plan import Places, find_inputs, make_plan, new_entry

STAGES = [
    {"name": "tokenizer", "program": "train.tokenizer", "options": {"corpus": "c.json", "data_root": "@data"}},
    {
        "name": "packed",
        "program": "train.pack",
        "options": {"corpus": "c.json", "data_root": "@data", "tokenizer": "@tokenizer/inner"},
    },
    {
        "name": "run",
        "program": "train.base",
        "seed": 1,
        "options": {"config": "c.json", "packed": "@packed", "tokenizer": "@tokenizer/inner"},
    },
]


class Made:
    """A recipe whose first two stages are made, by hand, and whose third is begun."""

    def __init__(self, root):
        self.root = root
        for name in ("c.json", "data/a.txt", "data/b.txt", "out/tokenizer/inner/t", "out/packed/p", "out/packed/q"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(name)
        self.write(STAGES)
        self.lock = make_plan(self.places(), None).lock
        for stage, state in zip(self.places().recipe.stages, (MADE, MADE, BEGUN), strict=True):
            files = hash_files(root / "out" / stage.name) if state == MADE else {}
            entry = dataclasses.replace(new_entry(stage, self.lock), state=state, outputs=files)
            self.lock = self.lock.with_entry(stage.name, entry)

    def write(self, stages):
        fields = {"description": "", "inputs": {"data": "text"}, "stages": stages}
        (self.root / "r.json").write_text(json.dumps(fields))

    def places(self, seed=0):
        return Places(load_recipe(self.root / "r.json", seed), {"data": self.root / "data"}, self.root / "out")

    def plan(self, *, seed=0, again=()):
        return make_plan(self.places(seed), self.lock, again=again)

    def states(self, **options):
        return [entry.state for entry in self.plan(**options).lock.stages.values()]


@pytest.fixture
def made(tmp_path):
    return Made(tmp_path)


def test_what_is_as_it_was_stays_made_or_begun(made):
    assert made.plan().differences == []
    assert made.plan().lock == made.lock
    assert made.states() == [MADE, MADE, BEGUN]


def test_commands_say_where_things_lie(made):
    places = made.places()
    words = places.command(places.recipe.stages[1])
    assert words[0] == "train.pack"
    assert words[1::2] == ["--corpus", "--data-root", "--tokenizer", "--output"]
    assert words[2::2] == [str(made.root / name) for name in ("c.json", "data", "out/tokenizer/inner", "out/packed")]


CHANGES = {
    "an input": ("data/a.txt", ["input @data: a.txt changed"], [PLANNED] * 3),
    "a new input": ("data/c.txt", ["input @data: c.txt is new"], [PLANNED] * 3),
    "a configuration": ("c.json", ["input c.json: it changed"], [PLANNED] * 3),
    "an output": ("out/packed/p", ["stage 'packed': of its output, p changed"], [MADE, MADE, PLANNED]),
    "an output that is read": (
        "out/tokenizer/inner/t",
        ["stage 'tokenizer': of its output, inner/t changed"],
        [MADE, PLANNED, PLANNED],
    ),
    "an output that is not read": (
        "out/tokenizer/u",
        ["stage 'tokenizer': of its output, u is new"],
        [MADE, MADE, BEGUN],
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_what_changed_is_named_and_what_comes_of_it_is_due(made, case):
    name, said, states = CHANGES[case]
    (made.root / name).write_text("otherwise")
    assert made.plan().differences == said
    assert made.states() == states


def test_what_is_gone_is_named_and_due(made):
    shutil.rmtree(made.root / "out/packed")
    assert made.plan().differences == [f"stage 'packed': its output {made.root / 'out/packed'} is gone"]
    assert made.states() == [MADE, PLANNED, PLANNED]


def test_another_command_is_named_by_what_is_other(made):
    made.write([STAGES[0], STAGES[1] | {"options": STAGES[1]["options"] | {"shard_tokens": 99}}, STAGES[2]])
    (difference,) = made.plan().differences
    assert difference.startswith("stage 'packed': it was ")
    assert difference.endswith("now --shard-tokens 99")
    assert made.states() == [MADE, PLANNED, PLANNED]


def test_another_seed_is_another_command(made):
    assert made.plan(seed=6).differences == ["stage 'run': it was 1, now 7"]
    assert made.states(seed=6) == [MADE, MADE, PLANNED]


def test_stages_that_come_and_go_are_named(made):
    made.write([STAGES[0], STAGES[1] | {"name": "shards"}])
    plan = made.plan()
    gone = ["stage 'packed' is gone from it", "stage 'run' is gone from it"]
    assert plan.differences == [*gone, "stage 'shards' is new in it"]
    assert made.states() == [MADE, PLANNED]
    (made.root / "out/shards").mkdir()
    with pytest.raises(FileExistsError, match="shards is not this recipe's"):
        made.plan()


def test_stages_are_made_again_on_demand(made):
    plan = made.plan(again=("packed", "run"))
    assert plan.differences == []
    assert [stage.name for stage in plan.due(made.places().recipe)] == ["packed", "run"]


def test_a_lock_of_another_recipe_is_refused(made):
    (made.root / "r.json").rename(made.root / "s.json")
    recipe = load_recipe(made.root / "s.json")
    places = Places(recipe, {"data": made.root / "data"}, made.root / "out")
    with pytest.raises(ValueError, match="out holds what recipe 'r' made; got 's'"):
        make_plan(places, made.lock)


def test_a_stage_that_reads_what_was_not_made_is_named(made):
    made.write([STAGES[0], STAGES[1] | {"options": STAGES[1]["options"] | {"tokenizer": "@tokenizer/iner"}}])
    with pytest.raises(ValueError, match="stage 'packed' reads @tokenizer/iner: stage 'tokenizer' made no such file"):
        made.plan()
    made.write([STAGES[0] | {"options": STAGES[0]["options"] | {"data_root": "@data/texts"}}])
    with pytest.raises(ValueError, match="stage 'tokenizer' reads @data/texts: there is no such file"):
        made.plan()


GIVEN = {
    "none": ([], "needs --input data=PATH: text"),
    "no name": (["{root}/data"], "--input must be NAME=PATH"),
    "no path": (["data="], "--input must be NAME=PATH"),
    "unknown": (["text={root}/data"], "has no input 'text'; it has data"),
    "twice": (["data={root}/data", "data={root}/c.json"], "--input data must be given once"),
    "absent": (["data={root}/absent"], "input 'data' must be a file or folder; there is no"),
    "around the output": (["data={root}"], "output must not lie in input 'data'"),
}


@pytest.mark.parametrize("case", GIVEN)
def test_wrong_inputs_are_named(made, case):
    given, said = GIVEN[case]
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        find_inputs(made.places().recipe, [word.format(root=made.root) for word in given], made.root / "out")


def test_inputs_are_found_by_name(made):
    found = find_inputs(made.places().recipe, [f"data={made.root}/data"], made.root / "out")
    assert found == {"data": made.root / "data"}
