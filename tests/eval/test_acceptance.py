import dataclasses
import json
from pathlib import Path

import pytest

from eval.acceptance import Settings, main, measure
from eval.drafting.told_trees import told_tree
from eval.reports.report import run_program
from jax_smash import generate, load
from jax_smash.checkpoints.medusa import save_medusa
from jax_smash.checkpoints.smasher import save_smasher, tokenizer_sha256
from jax_smash.decode.programs import PROGRAMS
from jax_smash.smash.options import SmashOptions
from tests.medusa import random_heads
from tests.model_directory import write_model
from tests.smashed import modules_for

SMALL = {"max_new_tokens": 12, "trees": ("chain-2",)}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_model(tmp_path_factory.mktemp("model"), num_hidden_layers=1))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    lines = [
        {"prompt": "the cat sat on the mat; " * 2, "category": "cats"},
        {"turns": ["a dog ran to the river and back", "and a cat"], "category": "dogs"},
        {"prompt": "to be or not to be; " * 2, "category": "cats"},
        {"prompt": "word " * 90, "category": "long"},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def written(model, prompts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("out")
    tree = folder / "tree.json"
    tree.write_text("[[0], [1], [0, 0]]")
    settings = Settings(
        model=model,
        prompts=(prompts,),
        trees=(str(tree), "chain-2"),
        max_new_tokens=12,
        json=folder / "a.json",
        plot=folder / "a.png",
    )
    with pytest.MonkeyPatch.context() as patched:
        # So few rows need no memory back, and the tree's own chain is then the one that stands beside it.
        patched.setattr(PROGRAMS, "forget", lambda: None)
        assert main(settings, ["--trees", "tree.json", "chain-2"]) == 0
    return folder


def test_a_report_has_plain_decoding_each_tree_and_its_chain(written):
    report = json.loads((written / "a.json").read_text())
    rows = report["rows"]
    kinds = [(None, "ar"), (told_tree(str(written / "tree.json")), "recycling"), ("chain-2", "recycling")]
    assert [(r["tree"], r["method"], r["category"]) for r in rows] == [
        (*kind, category) for kind in kinds for category in ("all", "cats", "dogs")
    ]
    assert (report["questions"], report["too_long"]) == (3, 1)
    assert report["command"].startswith("python -m eval.acceptance --trees")
    assert report["complete"]
    plain, tree, chain = (row for row in rows if row["category"] == "all")
    assert plain["mean_accepted_tokens"] in (1, None)
    assert plain["answers"] + plain["degenerate"] == tree["answers"] + tree["degenerate"] == 4
    assert (tree["nodes"], chain["nodes"]) == (3, 2)
    assert "chain_mean_accepted_tokens" in tree
    assert "chain_mean_accepted_tokens" not in chain
    assert tree["differing"] == chain["differing"] == 0


def test_the_picture_is_one(written):
    assert (written / "a.png").read_bytes().startswith(b"\x89PNG")


def cut_off():
    """Ends a run as a user does, where a tree is done."""
    raise KeyboardInterrupt


def test_a_run_that_was_cut_off_is_complete_when_it_has_gone_on(model, prompts, tmp_path, monkeypatch):
    asked = {"model": model, "prompts": (prompts,), "max_new_tokens": 12, "trees": ("chain-2", "off")}
    settings = Settings(**asked, json=tmp_path / "a.json")
    with monkeypatch.context() as patched:
        patched.setattr(PROGRAMS, "forget", cut_off)
        with pytest.raises(KeyboardInterrupt):
            main(settings)
    report = json.loads(settings.json.read_text())
    assert not report["complete"]
    assert {row["tree"] for row in report["rows"]} == {None, "chain-2"}
    main(dataclasses.replace(settings, resume=True))
    again = json.loads(settings.json.read_text())
    assert again["complete"]
    assert {row["tree"] for row in again["rows"]} == {None, "chain-2", "off"}


@pytest.mark.slow
def test_a_run_goes_on_with_the_trees_that_are_missing(written, model, prompts, tmp_path):
    first = Settings(model=model, prompts=(prompts,), **SMALL, prompt_tokens=48, json=tmp_path / "a.json")
    main(first)
    report = json.loads(first.json.read_text())
    assert (report["questions"], report["too_long"]) == (3, 1)
    rows = report["rows"]
    more = {"trees": ("chain-2", "tree-3"), "chains": False, "resume": True}
    with pytest.raises(ValueError, match="was made with chains True; got False"):
        main(dataclasses.replace(first, **more))
    main(dataclasses.replace(first, **more | {"chains": True}))
    found = json.loads(first.json.read_text())["rows"]
    assert found[: len(rows)] == rows
    assert {row["tree"] for row in found[len(rows) :]} == {"tree-3"}


@pytest.mark.slow
def test_modules_of_hamburger_draft_a_chain_of_their_own_in_mode_exact(model, prompts, tmp_path):
    base = load(model)
    for name in ("first", "second"):
        modules = modules_for(base, micro_steps=3)
        # Their stop head would end every draft, but a chain is whole.
        shy = SmashOptions(mode="blind", confidence=0.999, token_confidence=0.0, micro_steps=2)
        config = dataclasses.replace(modules.config, tokenizer_sha256=tokenizer_sha256(Path(model)))
        save_smasher(tmp_path / name / "drafter", config, modules.params, options=shy)
    given = {"model": model, "prompts": (prompts,), "max_new_tokens": 12, "methods": ("first",)}
    settings = Settings(drafters=(tmp_path / "first/drafter",), trees=("chain-8", "chain-5"), **given)
    rows = [row for row in measure(settings)["rows"] if row["category"] == "all" and row["method"] != "ar"]
    assert [(row["method"], row["tree"], row["nodes"], row["differing"]) for row in rows] == [
        ("first", "chain-2", 2, 0)
    ]
    assert rows[0]["drafter"].startswith("first@")
    assert rows[0]["tried_by_depth"][0] > 0
    with pytest.raises(ValueError, match="drafters must hold HAMburger's modules once"):
        Settings(drafters=(tmp_path / "first/drafter", tmp_path / "second/drafter"), **given).check()
    with pytest.raises(ValueError, match="methods must be ones that draft"):
        Settings(drafters=(tmp_path / "first/drafter",), **given | {"methods": ("hybrid+first",)}).check()


@pytest.mark.slow
def test_a_row_is_what_generate_makes(model, tmp_path):
    path = tmp_path / "p.jsonl"
    texts = ["the cat sat on the mat", "to be or not to be"]
    path.write_text("".join(json.dumps({"prompt": t}) + "\n" for t in texts))
    rows = measure(Settings(model=model, prompts=(path,), batch_size=2, **SMALL))["rows"]
    made = generate(load(model), texts, method="ar", max_new_tokens=12)
    assert rows[0]["new_tokens"] + 12 * rows[0]["degenerate"] == sum(c.new_tokens for c in made)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"methods": ("ar",)}, "methods must be ones that draft"),
        ({"methods": ("guessing",)}, "methods must be ones that draft, .*; got 'guessing'"),
        ({"methods": ("medusa",)}, "method medusa needs a drafter: give --drafters FOLDER, and its name"),
        ({"methods": ()}, "at least one"),
        ({"trees": ("oak",)}, "tree must be auto"),
        ({"study": "spec-bench"}, "needs --spec-bench"),
        ({"categories": True}, "categories are those of --spec-bench"),
        ({"study": "official", "methods": ("suffix",)}, "is of recycling"),
        ({"study": "official", "trees": ("chain-2",)}, "is of the tree recycling-80"),
        ({"study": "cold-start", "temperatures": (0.5,)}, "is greedy"),
        ({"study": "cold-start", "trees": ("chain-2", "chain-3")}, "is of one tree; got chain-2, chain-3"),
        ({"study": "official", "batch_size": 8}, "answers one question at a time; got batch_size 8"),
        ({"temperatures": (-1.0,)}, "temperatures must be at least 0"),
        ({"widths": (0,)}, "widths must be at least 1"),
        ({"resume": True}, "resume needs the file to go on with"),
        ({"max_new_tokens": 1}, "max_new_tokens must be at least 2"),
    ],
)
def test_what_cannot_be_measured_is_refused_first(changes, said):
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(Settings(model="absent"), **changes).check()


def test_options_that_no_method_takes_are_refused(tmp_path):
    file = tmp_path / "m.st"
    with pytest.raises(FileNotFoundError, match=r"m\.st is no file"):
        Settings(warm_start=file).check()
    file.write_text("")
    with pytest.raises(ValueError, match="warm_start does not go with suffix"):
        Settings(methods=("suffix",), trees=("auto",), warm_start=file).check()
    with pytest.raises(ValueError, match="warm_start does not go with the study official"):
        Settings(study="official", warm_start=file).check()
    with pytest.raises(FileExistsError, match="output file exists"):
        Settings(json=file).check()


def test_a_drafter_that_no_method_names_is_refused(model, tmp_path):
    heads = random_heads(load(model), num_heads=2)
    save_medusa(tmp_path / "run/drafter", heads.config, heads.params)
    given = {"model": model, "drafters": (tmp_path / "run/drafter",), "trees": ("chain-2",)}
    with pytest.raises(ValueError, match=r"no method drafts with run: name it in methods, as run or hybrid\+run"):
        Settings(**given).check()
    Settings(**given, methods=("recycling", "run")).check()


def test_an_error_of_the_users_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["acceptance", "--model", "absent", "--num-prompts", "99"])
    with pytest.raises(SystemExit) as end:
        run_program(Settings, main)
    assert str(end.value.code).startswith("error: ")
    assert "\n" not in str(end.value.code)
