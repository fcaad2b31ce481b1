import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from eval.sparsity import Settings, main
from tests.model_directory import write_model

PERPLEXITY, PIQA = "perplexity:texts.jsonl", "piqa:piqa.jsonl"
TEXTS = ("a cat sat on a mat and saw a dog", "the dog ran to the river and sat")
CHOICES = {"query": "What sat?", "choices": ["the cat", "a river"], "gold": 0}


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sparsity")
    model = write_model(folder / "model", num_hidden_layers=1)
    for name, lines in {
        "texts": [{"text": text} for text in TEXTS],
        "piqa": [CHOICES] * 2,
    }.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Settings(
        model=str(model),
        policies=("recency", "tokenselect:sinks=2:window=2"),
        budgets=("50%", "100%"),
        tasks=(f"perplexity:{folder}/texts.jsonl", f"piqa:{folder}/piqa.jsonl"),
        num=2,
        length=24,
        batch_size=4,
        json=folder / "out.json",
        plot=folder / "out.png",
    )


@pytest.fixture(scope="module")
def report(given):
    main(given)
    return json.loads(given.json.read_text())


def rows(report, **wanted):
    return [row for row in report["rows"] if all(row[name] == value for name, value in wanted.items())]


def untimed(report):
    return [{k: v for k, v in row.items() if k != "seconds_per_example"} for row in report["rows"]]


@pytest.mark.slow
def test_a_report_has_a_row_a_task_metric_policy_and_budget(report, given):
    kinds = [(row["task"], row["metric"], row["policy"], row["budget"]) for row in report["rows"]]
    assert len(set(kinds)) == len(kinds)
    perplexity = rows(report, task=PERPLEXITY)
    recency, tokenselect = given.policies
    assert [(row["policy"], row["budget"]) for row in perplexity] == [
        ("dense", 1.0),
        *((name, share) for name in (recency, tokenselect) for share in (0.5, 1.0)),
    ]
    assert {row["protocol"] for row in perplexity} == {"stepwise"}
    assert {row["protocol"] for row in rows(report, task=PIQA)} == {"dense"}
    assert given.plot.read_bytes().startswith(b"\x89PNG")
    assert {"device", "versions", "commit", "settings", "code"} <= report.keys()


def test_at_the_whole_budget_every_policy_is_dense_decoding(report):
    whole = [row for row in rows(report, budget=1.0) if row["policy"] != "dense"]
    assert whole
    for row in whole:
        assert row["bytes_per_step"] == row["dense_bytes_per_step"]
        assert abs(row["difference"]["value"]) < 1e-6


def test_half_the_bytes_change_what_is_found(report):
    (row,) = rows(report, policy="recency", budget=0.5, task=PERPLEXITY)
    assert (row["slots"], row["bytes_per_step"] / row["dense_bytes_per_step"]) == (12, 0.5)
    assert row["difference"]["value"] != 0
    bounds = row["difference"]["interval"]
    assert bounds["low"] <= row["difference"]["value"] <= bounds["high"]


@pytest.mark.slow
def test_the_beginning_of_a_text_read_by_steps_may_read_as_many_slots_as_its_end(given, tmp_path):
    texts, out = tmp_path / "texts.jsonl", tmp_path / "out.json"
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in (TEXTS[0], "a cat sat")))
    changes = {"policies": ("recency", "streaming"), "budgets": ("50%",), "tasks": (f"perplexity:{texts}",)}
    settings = dataclasses.replace(given, json=out, plot=None, **changes)
    main(settings)
    kept = [json.loads(line) for line in settings.outcomes().read_text().splitlines()[1:]]
    dense, *found = [[one["nats"] for one in arm["outcomes"][0]["examples"]] for arm in kept]
    assert len(found) == 2
    for long, short in found:
        assert long != pytest.approx(dense[0], rel=1e-3)
        assert short == pytest.approx(dense[1], rel=1e-5)


def test_a_scorer_that_reads_half_the_bytes_cannot_do_with_half(report):
    unmet = rows(report, policy="tokenselect:sinks=2:window=2", budget=0.5)
    assert len(unmet) == 2
    for row in unmet:
        assert row["score"] is None
        assert "50.0% to choose by" in row["unmet"]


@pytest.mark.slow
def test_a_policy_that_votes_at_a_prompts_end_is_not_asked_of_texts_without_a_prompt(given, tmp_path):
    changes = {"policies": ("snapkv:observers=2",), "tasks": given.tasks[:1], "plot": None}
    settings = dataclasses.replace(given, json=tmp_path / "out.json", **changes)
    main(settings)
    found = {row["budget"]: row for row in rows(json.loads(settings.json.read_text()), policy="snapkv:observers=2")}
    assert found[0.5]["score"] is None
    assert found[0.5]["unmet"] == "it votes at the end of a prompt, and there is none: see snapkv:rolling=true"
    # With the whole budget nothing is left out, and there is nothing to vote on.
    assert found[1.0]["score"] is not None


@pytest.mark.slow
def test_policies_that_share_prompts_do_not_wait_for_those_that_read_by_themselves(given, tmp_path):
    changes = {"policies": ("streaming", "recency"), "budgets": ("50%",), "tasks": given.tasks[1:], "plot": None}
    settings = dataclasses.replace(given, json=tmp_path / "out.json", **changes)
    main(settings)
    report = json.loads(settings.json.read_text())
    assert list(dict.fromkeys(row["policy"] for row in report["rows"])) == ["dense", "recency", "streaming"]


def test_a_run_goes_on_behind_a_file_that_was_cut(given, report, capsys):
    kept = given.outcomes()
    whole = kept.read_bytes()
    kept.write_bytes(whole[: whole.rstrip(b"\n").rfind(b"\n") + 20])
    main(given)
    assert untimed(json.loads(given.json.read_text())) == untimed(report)
    assert capsys.readouterr().err.count(" s\n") == 1
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    assert len(lines) == 1 + 2 * 4  # What the run is, and dense, recency at both budgets and TokenSelect at one.
    with pytest.raises(ValueError, match="was begun with length"):
        main(dataclasses.replace(given, length=25))


@pytest.mark.slow
def test_a_policy_whose_file_has_changed_is_asked_again_and_no_other(given, tmp_path, capsys):
    def asked(second):
        (tmp_path / "shares.json").write_text(json.dumps({"shares": [[1.0, second]]}))
        main(settings)
        return capsys.readouterr().err.count(" s\n")

    policies = ("recency", f"recency:shares={tmp_path / 'shares.json'}")
    changes = {"policies": policies, "budgets": ("50%",), "tasks": given.tasks[:1], "plot": None}
    settings = dataclasses.replace(given, json=tmp_path / "out.json", **changes)
    assert asked(0.5) == 3
    assert asked(0.25) == 1


def test_the_command_goes_on_with_what_it_finds_and_leaves_errors_in_a_line(given, report, tmp_path):
    def run(*options):
        command = [sys.executable, "-m", "eval.sparsity", "--model", given.model, "--num", "2", "--length", "24"]
        command += ["--batch-size", "4", "--budgets", "50%,100%", "--tasks", *given.tasks, *options]
        return subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)

    done = run("--policies", ",".join(given.policies), "--json", str(given.json))
    assert done.returncode == 0, done.stderr
    assert " s\n" not in done.stderr  # Nothing is measured again.
    assert "not met" in done.stdout
    refused = run("--policies", "guess")
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: a policy must be one of")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policies": ("guess",)}, "a policy must be one of"),
        ({"policies": ()}, "policies must name at least one; got none"),
        ({"policies": ("quest:page_size=8",)}, "must not say page_size"),
        ({"tasks": ("chess",)}, "tasks must be of perplexity, recall, locations"),
        ({"tasks": ("path",)}, "path must name its file, as in path:FILE"),
        ({"tasks": ("path:missing.jsonl",)}, "missing.jsonl"),
        ({"tasks": ("piqa",)}, "piqa does not come with the project: name its file, as in piqa:FILE"),
        ({"tasks": ("recall",), "length": 256}, "length must be over 256, the first position of recall; got 256"),
        ({"budgets": ("64",)}, "budgets must be shares over 0% and at most 100%, as in 25%; got '64'"),
        ({"budgets": ("120%",)}, "budgets must be shares over 0% and at most 100%"),
        (
            {"policies": ("quest",), "budgets": ("50%",), "length": 64},
            "a budget of 50% of 64 slots, the length of perplexity, must be at least the 48 that quest always reads",
        ),
        (
            {"policies": ("streaming",), "budgets": ("5%",), "length": 64},
            "a budget of 5% of 64 slots, the length of perplexity, must be at least the 5 that streaming always reads",
        ),
        ({"page_size": 24, "length": 64}, "page_size must divide the length of 64 tokens; got 24"),
        ({"num": 0}, "num must be at least 1; got 0"),
        ({"json": Path("nowhere/a.json")}, "nowhere"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_read(changes, message):
    settings = dataclasses.replace(Settings(model="no-such-model", length=512), **changes)
    with pytest.raises((ValueError, OSError), match=message.replace("(", r"\(")):
        settings.check()
