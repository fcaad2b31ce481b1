import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from eval.drafting.told_trees import told_tree
from eval.exact.conditions import Condition
from eval.exact.exactness_report import MOST_DIVERGENCES, earlier_rows, inputs_of, totals
from eval.exact.exactness_rows import FIRST_CHILDREN, Case, Study
from eval.exactness import Settings, cases_of, main, measure, read_tokens
from eval.prompts.shipped_prompts import shipped_prompts
from eval.reports.told_paths import told
from jax_smash.checkpoints.chimera import save_chimera
from jax_smash.checkpoints.dflash import save_dflash
from jax_smash.checkpoints.eagle import save_eagle
from jax_smash.checkpoints.eagle1 import save_eagle1
from jax_smash.checkpoints.medusa import save_medusa
from jax_smash.decode.programs import PROGRAMS
from jax_smash.loading import load
from jax_smash.quantise import has_int8
from tests.compiling import QUICKLY
from tests.eval.drafting.drafters import MODULES
from tests.interpreter import ROOT
from tests.model_directory import write_model, write_modules
from tests.tiny import tiny_model

SAVERS = {
    "eagle": save_eagle,
    "eagle1": save_eagle1,
    "medusa": save_medusa,
    "chimera": save_chimera,
    "dflash": save_dflash,
}
"""What writes a drafter of each kind."""

OPTIONS = {"dtype": "float32", "max_new_tokens": 6, "seed": 0, "stop": (), "regex": "a"}
RANKS = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]
SMALL = ("--num-prompts", "6", "--max-new-tokens", "12", "--batch-sizes", "4", "--processors", "all")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Of a chain: trees with siblings, whose checks are compiled one by one too, stand below."""
    out = tmp_path_factory.mktemp("exactness") / "out.json"
    settings = Settings(
        trees=("chain-3",),
        batch_sizes=(4,),
        processors=("all",),
        choices=("greedy",),
        num_prompts=6,
        max_new_tokens=12,
        json=out,
    )
    with pytest.MonkeyPatch.context() as patched:
        # So few rows need no memory back, and what all of them call is then compiled once.
        patched.setattr(PROGRAMS, "forget", lambda: None)
        assert main(settings) == 0
    return json.loads(out.read_text()) | {"given": settings}


def row(report, way, method="recycling"):
    (found,) = (r for r in report["rows"] if (r["way"], r["method"]) == (way, method))
    return found


def test_drafted_text_is_plain_decoding_s(report):
    found = row(report, "as it is")
    assert (found["prompts"], found["divergences"], found["unexplained"]) == (6, 0, 0)
    assert found["tokens"] == row(report, "as it is", "ar")["tokens"]
    assert found["mean_accepted_tokens"] > 1
    assert 0 < found["worst_log_prob_error"] < 2e-5
    assert report["complete"]
    assert report["totals"]["passed"]


def test_an_equivalent_tree_changes_neither_text_nor_forwards(report):
    found = row(report, "padded")
    assert (found["divergences"], found["forwards_differing"], found["must"]) == (0, 0, "equal")


@pytest.mark.parametrize(("method", "chain"), [("recycling", "chain-4"), ("lookup", "chain-8")])
def test_first_children_are_compared_with_a_chain_as_long_as_theirs(method, chain):
    # Neither is as deep as the ladder's trees may be.
    study = Study(tiny_model(), [[1, 2]], **OPTIONS)
    found = study._compared_with(Case(FIRST_CHILDREN, method, "tree-15", Condition(4, "none", "greedy")))
    assert (found.way, found.tree) == ("as it is", chain)


@pytest.mark.parametrize("way", ["siblings swapped", pytest.param("first children", marks=pytest.mark.slow)])
def test_an_equivalent_tree_of_siblings_changes_neither_text_nor_forwards(tmp_path, way):
    tree = tmp_path / "tree.json"
    tree.write_text(json.dumps(RANKS))
    study = Study(
        tiny_model(num_layers=1, layer_kinds=("full",), window=0),
        [[1, 2, 3, 1, 2], [4, 5, 4]],
        **OPTIONS | {"max_new_tokens": 24},
    )
    found = study.row(Case(way, "recycling", str(tree), Condition(batch_size=2, processors="none", choice="greedy")))
    assert (found["divergences"], found["forwards_differing"], found["must"]) == (0, 0, "equal")
    assert found["mean_accepted_tokens"] > 1
    assert found["passed"]


@pytest.mark.slow
def test_the_program_checks_a_tree_of_siblings_under_all_processors(tmp_path):
    tree, out = tmp_path / "tree.json", tmp_path / "out.json"
    tree.write_text(json.dumps(RANKS))
    command = [sys.executable, "-m", "eval.exactness", *SMALL, "--choices", "greedy", "--trees", str(tree)]
    done = subprocess.run(
        [*command, "--json", str(out)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | QUICKLY,
    )
    assert done.returncode == 0, done.stderr
    assert "NOT AS IT MUST BE" not in done.stderr
    rows = {(r["way"], r["method"]): r for r in json.loads(out.read_text())["rows"]}
    for way in ("as it is", "padded", "siblings swapped", "first children"):
        found = rows.pop((way, "recycling"))
        assert (found["divergences"], found["must"], found["passed"]) == (0, "equal", True)
        assert way == "as it is" or found["forwards_differing"] == 0
    for way in ("bit flipped", "penalty skipped"):
        found = rows.pop((way, "recycling"))
        assert (found["must"], found["unexplained"] > 0, found["beyond_near_ties"] > 0) == ("differ", True, True)
    assert list(rows) == [("as it is", "ar")]


@pytest.mark.parametrize("way", ["bit flipped", "penalty skipped"])
def test_a_fault_is_found_out(report, way):
    found = row(report, way)
    assert found["must"] == "differ"
    assert found["beyond_near_ties"] > 0
    assert found["worst_gap"] > 1e-3
    assert found["unexplained"] > 0


def test_a_fault_is_decoded_up_to_the_batch_in_which_it_shows(report):
    found = row(report, "bit flipped")
    assert found["prompts"] == 4  # The first batch, of six prompts.


def test_the_faults_of_controls_do_not_count_as_ours(report):
    assert report["totals"]["divergences"] == 0
    assert report["totals"]["tokens"] == row(report, "as it is")["tokens"]


def test_a_finished_run_goes_on_with_nothing(report, capsys):
    settings = report["given"]
    status = main(dataclasses.replace(settings, resume=True))
    assert status == 0
    assert capsys.readouterr().err.startswith("0 rows")
    again = json.loads(settings.json.read_text())
    assert again["rows"] == report["rows"]


def test_a_row_in_which_no_draft_was_kept_has_a_note_and_is_no_fault(report, tmp_path, capsys):
    settings, file = dataclasses.replace(report["given"], resume=True), tmp_path / "out.json"
    main(settings)
    assert "no draft was kept" not in capsys.readouterr().out
    made = json.loads(settings.json.read_text())
    for found in made["rows"]:
        found["forwards"] = found["tokens"] - found["prompts"]
    file.write_text(json.dumps(made))
    assert main(dataclasses.replace(settings, json=file)) == 0
    lines = capsys.readouterr().out.splitlines()
    # Plain decoding drafts nothing, and faults need not be equal.
    assert [line for line in lines if line.startswith("*")] == [
        f"* {way} recycling chain-3 4 all greedy: no draft was kept" for way in ("as it is", "padded")
    ]
    assert sum("yes* │" in line for line in lines) == 2


def test_rows_of_other_settings_are_not_gone_on_with(report):
    with pytest.raises(ValueError, match="was made with max_new_tokens 12; got 13"):
        earlier_rows(report["given"].json, report["settings"] | {"max_new_tokens": 13})


def test_rows_of_other_code_are_not_gone_on_with(report, tmp_path):
    made = json.loads(report["given"].json.read_text())
    assert made["code"]["eval/exactness.py"]
    (tmp_path / "other.json").write_text(json.dumps(made | {"code": made["code"] | {"eval/exactness.py": "ab"}}))
    with pytest.raises(ValueError, match=r"was made by another eval/exactness\.py: its rows are not continued"):
        earlier_rows(tmp_path / "other.json", report["settings"])


def test_rows_of_another_model_or_other_files_of_the_same_names_are_not_gone_on_with(report, tmp_path):
    assert report["inputs"] == inputs_of(report["given"].model, [report["given"].prompts, None, None])
    assert earlier_rows(report["given"].json, report["settings"], inputs=report["inputs"]) == report["rows"]
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "x"}\n')
    other = inputs_of(report["given"].model, [tmp_path / "prompts.jsonl", None, None])
    with pytest.raises(ValueError, match="was made with another model or other files: its rows are not continued"):
        earlier_rows(report["given"].json, report["settings"], inputs=other)


def test_rows_of_other_weights_of_a_draft_model_are_not_gone_on_with(tmp_path):
    folder = write_model(tmp_path / "small", num_hidden_layers=1)
    before = inputs_of("tiny", [], draft_model=str(folder))
    assert {*before} == {"model", "files", "draft_model"}
    (folder / "model.safetensors").write_bytes(b"others")
    assert inputs_of("tiny", [], draft_model=str(folder))["draft_model"] != before["draft_model"]
    for name in (None, "int8", "sparse:quest"):
        assert {*inputs_of("tiny", [], draft_model=name)} == {"model", "files"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"device": {"kind": "TPU v5", "count": 1}}, "was measured with kind 'TPU v5'; got 'cpu': its times are not"),
        ({"device": {"kind": "cpu", "count": 8}}, "was measured with count 8; got 1"),
        ({"versions": {"jax": "0.1"}}, "was measured with jax '0.1'; got '0.2'"),
    ],
)
def test_times_of_another_machine_are_not_gone_on_with(tmp_path, changes, said):
    machine = {"device": {"kind": "cpu", "count": 1, "memory_bytes": 5}, "versions": {"jax": "0.2", "torch": "2"}}
    same = {"device": {"kind": "cpu", "count": 1, "memory_bytes": 6}, "versions": {"jax": "0.2"}}
    file = tmp_path / "a.json"
    file.write_text(json.dumps(same | {"settings": {}, "rows": [{}]}))
    assert earlier_rows(file, {}, machine=machine) == [{}]
    file.write_text(json.dumps(same | changes | {"settings": {}, "rows": [{}]}))
    assert earlier_rows(file, {}) == [{}]
    with pytest.raises(ValueError, match=said):
        earlier_rows(file, {}, machine=machine)


@pytest.mark.parametrize("text", ["", "[]", '{"settings": {}}'])
def test_what_is_no_report_is_not_gone_on_with(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=r"x\.json is no report that can be continued"):
        earlier_rows(tmp_path / "x.json", {})


def test_no_file_leaves_nothing_to_go_on_with(tmp_path):
    assert earlier_rows(tmp_path / "none.json", {}) == []


def sum_row(**changes):
    counts = ("beyond_near_ties", "unexplained", "log_probs_differing", "finish_differing")
    base = {"way": "as it is", "method": "recycling", "prompts": 1, "tokens": 1000, "divergences": 0, "passed": True}
    return base | dict.fromkeys(counts, 0) | changes


def test_near_ties_are_few():
    most = int(1e6 * MOST_DIVERGENCES)
    assert totals([sum_row(tokens=10**6, divergences=most)], "float32")["passed"]
    assert not totals([sum_row(tokens=10**6, divergences=most + 1)], "float32")["passed"]
    assert totals([sum_row(tokens=10**6, divergences=most + 1)], "bfloat16")["passed"]


def test_a_row_that_fails_fails_the_run():
    rows = [sum_row(), sum_row(way="bit flipped", passed=False)]
    assert not totals(rows, "float32")["passed"]
    assert totals(rows, "float32")["tokens"] == 1000


def test_shipped_prompts_are_many_ragged_and_in_one_length_bucket():
    prompts = shipped_prompts(tiny_model(), 300, longest=48)
    assert len({tuple(p) for p in prompts}) == 300
    assert {len(p) for p in prompts} == set(range(33, 49))


def test_prompts_of_a_file_are_cut(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": [1, 2, 3, 4, 5]}\n{"prompt": "ab"}\n')
    settings = Settings(prompts=file, num_prompts=2, prompt_tokens=4)
    assert read_tokens(settings, tiny_model()) == [[1, 2, 3, 4], tiny_model().encode("ab")]
    with pytest.raises(ValueError, match="num_prompts must be at most 2"):
        read_tokens(dataclasses.replace(settings, num_prompts=3), tiny_model())


def test_questions_of_spec_bench_are_cut_and_their_chat_template_is_whole(smashed, tmp_path):
    folder, _ = smashed
    model = load(folder / "base")
    file = tmp_path / "question.jsonl"
    lines = [{"category": c, "turns": [text]} for c, text in (("qa", "why " * 40), ("rag", "who?"), ("qa", "when?"))]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = Settings(spec_bench=file, num_prompts=2, prompt_tokens=40, chat=True)
    cut, whole = read_tokens(settings, model)
    assert whole == model.encode_chat([{"role": "user", "content": "who?"}])
    assert len(cut) == 40
    text = model.tokenizer.decode(cut)
    assert text.startswith("<user>why why")
    assert text.endswith("<assistant>")
    plain = dataclasses.replace(settings, chat=False)
    assert read_tokens(plain, model)[0] == model.encode("why " * 40)[:40]
    with pytest.raises(ValueError, match="prompt_tokens must leave room for text in the chat template; got 5"):
        read_tokens(dataclasses.replace(settings, prompt_tokens=5), model)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ("ar",)}, "methods must name some that draft; got ar"),
        ({"methods": ("magic",)}, "method must be one of .*; got 'magic'"),
        ({"trees": ()}, "trees and batch_sizes must each name one at least"),
        ({"processors": ("some",)}, "processors must be of none, all; got some"),
        ({"choices": ()}, "choices must be of greedy, sampled; got none"),
        ({"batch_sizes": (0,)}, "batch_sizes must be at least 1; got 0"),
        ({"num_prompts": 0}, "num_prompts must be at least 1; got 0"),
        ({"max_new_tokens": 1}, "max_new_tokens must be at least 2; got 1"),
        ({"resume": True}, "resume needs the file to go on with"),
        ({"num_prompts": 10**6}, "give --prompts"),
        ({"chat": True}, "chat goes with --spec-bench"),
        ({"prompts": Path("a"), "spec_bench": Path("b")}, "--prompts and --spec-bench exclude each other"),
        ({"trees": ("bush",)}, "tree must be auto, off"),
        ({"modules": "somewhere"}, "modules goes with method hamburger alone; got recycling"),
        ({"confidence": 0.5}, "confidence goes with method hamburger alone; got recycling"),
        (
            {"methods": ("hamburger",), "smash_mode": "blind"},
            "smash_mode must be exact, whose text is plain .*; got blind",
        ),
        ({"sparse": "quest"}, "sparse goes with method self-sparse alone; got recycling"),
        ({"methods": ("self-sparse",), "sparse": "h2o"}, "sparse: .*H2O evicts slots"),
        ({"draft_model": "int8"}, "draft_model goes with methods draft-model and self-sparse; got recycling"),
        ({"methods": ("self-sparse",), "draft_model": "tiny"}, "draft-model: .*it must be int8, or none; got a model"),
    ],
)
def test_what_cannot_be_checked_is_refused_before_decoding(changes, message):
    with pytest.raises(ValueError, match=message):
        main(Settings(**changes))


@pytest.fixture(scope="module")
def smashed(tmp_path_factory):
    """A base, and a folder of random modules for it elsewhere."""
    folder = tmp_path_factory.mktemp("smashed")
    base = write_model(folder / "base", num_hidden_layers=1)
    write_modules(folder / "modules", base, micro_steps=3)
    settings = {"model": str(base), "methods": ("hamburger",), "batch_sizes": (2,), "num_prompts": 2}
    return folder, settings | {"processors": ("none",), "choices": ("greedy",), "max_new_tokens": 6}


@pytest.mark.slow
def test_groups_as_drafts_say_what_plain_decoding_does(smashed):
    """With modules from a folder; random ones draft nothing that is kept, so no control can be found out."""
    folder, settings = smashed
    settings = Settings(**settings, modules=str(folder / "modules"), confidence=0.01, checks=False)
    plain, groups = measure(settings)
    assert (plain["method"], groups["method"], groups["tree"]) == ("ar", "hamburger", "auto")
    assert (groups["tokens"], groups["divergences"], groups["passed"]) == (plain["tokens"], 0, True)
    assert len(PROGRAMS) == 0  # A run of many rows would fill what a process may map.


def test_groups_are_tampered_with_as_chains_are(smashed):
    folder, settings = smashed
    settings = Settings(**settings, modules=str(folder / "modules"), trees=("off", "chain-4"))
    model = load(settings.model, modules=settings.folder())
    study = Study(model, [[1, 2, 3]], **OPTIONS)
    told = [(case.way, case.method, case.tree) for case in cases_of(settings, study)]
    assert told == [
        ("as it is", "ar", None),
        *((way, "hamburger", "auto") for way in ("as it is", "padded", "bit flipped")),
    ]


def test_the_key_of_a_row_is_that_of_its_report(tmp_path):
    tree, draft_model = tmp_path / "tree.json", tmp_path / "small"
    tree.write_text(json.dumps(RANKS))
    case = Case("as it is", "draft-model", str(tree), Condition(2, "none", "greedy"), draft_model=str(draft_model))
    assert case.key[1:3] == ("draft-model DATA/small", told_tree(str(tree)))
    assert told(list(case.key)) == list(case.key)


@pytest.mark.parametrize(
    ("way", "method", "draft_model", "passed"),
    [
        ("first children", "draft-model", "int8", True),
        ("first children", "draft-model", "tiny", False),
        ("first children", "self-sparse", "int8", True),
        ("first children", "self-sparse", None, False),
        ("first children", "recycling", None, False),
        ("first children", "lookahead", None, True),
        ("first children", "hybrid", None, True),
        ("siblings swapped", "lookahead", None, False),
        ("padded", "draft-model", "int8", False),
        ("as it is", "recycling", None, True),
    ],
)
def test_other_forwards_fail_a_row_but_where_drafts_may_be_others(smashed, way, method, draft_model, passed):
    _, settings = smashed
    study = Study(load(settings["model"]), [[1, 2, 3]], **OPTIONS)
    condition = Condition(batch_size=1, processors="none", choice="greedy")
    case = Case(way, method, "recycling-80", condition, draft_model=draft_model)
    clean = dict.fromkeys(("beyond_near_ties", "log_probs_differing", "finish_differing", "unexplained"), 0)
    assert study._equal(case, clean | {"forwards_differing": 2}) is passed
    assert not study._equal(case, clean | {"forwards_differing": 0, "unexplained": 1})


@pytest.mark.slow
def test_a_model_that_drafts_by_a_part_of_its_cache_says_what_plain_decoding_does(smashed):
    _, settings = smashed
    settings = settings | {
        "methods": ("self-sparse",),
        "trees": ("chain-3",),
        "prompt_tokens": 24,
        "max_new_tokens": 16,
    }
    plain, drafted = measure(Settings(**settings, sparse="oracle:budget=20", checks=False))
    assert (drafted["tokens"], drafted["divergences"], drafted["passed"]) == (plain["tokens"], 0, True)
    assert drafted["mean_accepted_tokens"] > 1
    assert (drafted["sparse"], drafted["draft_model"]) == ("oracle:budget=20", None)


@pytest.mark.slow
def test_the_int8_copy_of_a_model_that_drafts_for_itself_is_a_row_whose_drafts_are_checked(smashed):
    _, settings = smashed
    settings = settings | {"methods": ("self-sparse",), "trees": ("chain-3",), "prompt_tokens": 24}
    settings = Settings(
        **settings | {"max_new_tokens": 16}, sparse="oracle:budget=20", draft_model="int8", equivalents=False
    )
    plain, drafted, fault = measure(settings)
    assert (plain["draft_model"], drafted["draft_model"], fault["draft_model"]) == (None, "int8", "int8")
    assert drafted["key"][1] == "self-sparse int8"
    assert (drafted["tokens"], drafted["divergences"], drafted["passed"]) == (plain["tokens"], 0, True)
    assert drafted["mean_accepted_tokens"] > 1
    assert (fault["way"], fault["passed"], fault["beyond_near_ties"] > 0) == ("bit flipped", True, True)
    study = Study(load(settings.model), [[1, 2, 3]], **OPTIONS, sparse=settings.sparse)
    _, case, _ = cases_of(settings, study)
    assert has_int8(study._method(case).params["drafter"])


def random_folder(folder, model, kind):
    """Writes a random drafter of a kind for a model."""
    modules = MODULES[kind](model)
    SAVERS[kind](folder, modules.config, modules.params, base_fingerprint=model.fingerprint)
    return folder


@pytest.mark.parametrize(
    ("methods", "kinds", "changes"),
    [
        (("medusa",), ("medusa",), {}),
        (("hybrid",), ("medusa",), {"trees": ("chain-2:least=0.001",)}),
        pytest.param(
            ("eagle", "medusa", "chimera", "dflash", "hybrid"),
            [*SAVERS],
            {"batch_sizes": (1, 3), "processors": ("none", "all"), "choices": ("greedy", "sampled")},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_trained_drafters_are_rows_of_their_methods_and_of_hybrid(smashed, tmp_path, methods, kinds, changes):
    _, settings = smashed
    model = load(settings["model"])
    folders = tuple(random_folder(tmp_path / kind / "drafter", model, kind) for kind in kinds)
    given = settings | {"methods": methods, "trees": ("chain-2",), "checks": False} | changes
    plain, *rows = measure(Settings(**given, drafter=folders))
    rows = [row for row in rows if row["method"] != "ar"]
    expected = {(kind.removesuffix("1"), kind) for kind in kinds if kind.removesuffix("1") in methods}
    # A tree that asks for probabilities is none of hybrid alone.
    alone = () if "trees" in changes else ("",)
    expected |= {("hybrid", name) for name in (*alone, *kinds)} if "hybrid" in methods else set()
    assert {(row["method"], (row["drafter"] or "").partition("@")[0]) for row in rows} == expected
    conditions = len(given["batch_sizes"]) * len(given["processors"]) * len(given["choices"])
    assert len(rows) == len({row["key"] for row in rows}) == conditions * len(expected)
    for row in rows:
        assert (row["divergences"], row["passed"]) == (0, True), row["key"]
    assert plain["drafter"] is None


@pytest.mark.parametrize(
    ("methods", "kind", "message"),
    [
        (("eagle", "medusa"), "medusa", "method eagle needs a drafter: give --drafter FOLDER"),
        (("recycling",), "medusa", "holds a drafter of method medusa; got methods recycling"),
        (("medusa",), None, "medusa was trained for a base whose weights have fingerprint abab"),
    ],
)
def test_drafters_that_are_none_of_the_methods_or_the_base_are_refused(smashed, tmp_path, methods, kind, message):
    _, settings = smashed
    folder = random_folder(tmp_path / "medusa", load(settings["model"]), "medusa")
    if kind is None:
        file = folder / "medusa.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"base_fingerprint": "ab" * 32}))
    with pytest.raises(ValueError, match=message):
        main(Settings(**settings | {"methods": methods, "drafter": (folder,)}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "tree", "processors"),
    [
        ("medusa", "chain-2", "none"),
        ("medusa", "tree-4", "all"),
        ("dflash", "tree-4", "all"),
        ("eagle1", "confident-4:depth=2", "all"),
    ],
)
def test_random_drafters_of_a_kind_are_rows_of_its_method(smashed, kind, tree, processors):
    _, settings = smashed
    name = f"random:{kind}"
    given = {"methods": (kind.removesuffix("1"),), "trees": (tree,), "drafter": (Path(name),), "faults": False}
    plain, *rows = measure(Settings(**settings | given | {"processors": (processors,)}))
    assert {row["drafter"] for row in rows} == {name}
    siblings = set() if tree.startswith("chain-") else {"siblings swapped", "first children"}
    assert {row["way"] for row in rows} == {"as it is", "padded"} | siblings
    for row in rows:
        assert (row["tokens"], row["divergences"], row["passed"]) == (plain["tokens"], 0, True), row["key"]


@pytest.mark.slow
def test_random_modules_of_hamburger_draft_whole_groups(smashed):
    _, settings = smashed
    settings = Settings(**settings, modules="random", checks=False)
    plain, groups = measure(settings)
    assert (groups["tokens"], groups["divergences"], groups["passed"]) == (plain["tokens"], 0, True)
    with pytest.raises(ValueError, match="micro_steps must be at most 4, what the modules were trained for; got 5"):
        measure(dataclasses.replace(settings, micro_steps=5))


@pytest.mark.parametrize("name", ["random:magic", "random:micro"])
def test_random_drafters_of_no_kind_that_a_method_has_are_refused(smashed, name):
    _, settings = smashed
    with pytest.raises((ValueError, FileNotFoundError), match=name):
        Settings(**settings | {"methods": ("medusa",), "drafter": (Path(name),)}).check()


@pytest.mark.parametrize(
    ("given", "ways"),
    [({"equivalents": False}, ["bit flipped"]), ({"faults": False}, ["padded", "siblings swapped", "first children"])],
)
def test_the_faults_can_be_checked_alone_or_left_out(smashed, given, ways):
    _, settings = smashed
    study = Study(load(settings["model"]), [[1, 2, 3]], **OPTIONS)
    condition = Condition(batch_size=1, processors="none", choice="greedy")
    assert study.checks(Case("as it is", "recycling", "tree-7", condition), **given) == ways


@pytest.mark.parametrize("method", ["recycling", "lookahead", "hybrid"])
def test_trees_of_all_methods_are_compared_with_first_children(smashed, method):
    _, settings = smashed
    study = Study(load(settings["model"]), [[1, 2, 3]], **OPTIONS)
    condition = Condition(batch_size=1, processors="none", choice="greedy")
    told = study.checks(Case("as it is", method, "recycling-80", condition))
    assert told == ["padded", "siblings swapped", "first children", "bit flipped"]


def test_modules_that_do_not_fit_are_refused_before_weights_are_read(smashed, tmp_path):
    folder, settings = smashed
    bare = shutil.copytree(folder / "base", tmp_path / "base")
    (bare / "model.safetensors").unlink()
    settings = settings | {"model": str(bare)}
    with pytest.raises(FileNotFoundError, match=r"has no HAMburger modules in .*; give --modules FOLDER"):
        main(Settings(**settings))
    with pytest.raises(ValueError, match="micro_steps must be at most 3, what the modules were trained for; got 4"):
        main(Settings(**settings, modules=str(folder / "modules"), micro_steps=4))
