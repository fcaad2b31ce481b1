import dataclasses
import json
from pathlib import Path

import jax.numpy as jnp
import pytest

from eval.drafters import PICTURE, REPORT, Settings, main
from eval.drafting.random_drafters import KINDS
from eval.exact.exactness_report import inputs_of
from jax_smash.checkpoints.chimera import save_chimera
from jax_smash.checkpoints.medusa import save_medusa
from jax_smash.checkpoints.smasher import tokenizer_sha256
from jax_smash.loading import load
from tests.chimera import random_drafter
from tests.medusa import random_heads
from tests.model_directory import write_model, write_modules
from tests.tiny import tiny_model


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A base, random drafters that were made for it, and a file of answers."""
    root = tmp_path_factory.mktemp("trained")
    model = load(write_model(root / "base", num_hidden_layers=1))
    mark = {"base_fingerprint": model.fingerprint}
    heads, chimera = random_heads(model, num_heads=2), random_drafter(model, decoding_heads=3)
    save_medusa(root / "heads/drafter", heads.config, heads.params, **mark)
    save_chimera(root / "grams", chimera.config, chimera.params, **mark)
    write_modules(root / "groups", root / "base", micro_steps=3)
    chats = [[{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": "abc" * i}] for i in (2, 3)]
    (root / "answers.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    folders = tuple(root / name for name in ("heads/drafter", "grams", "groups"))
    given = {"drafters": folders, "model": str(root / "base"), "batch_size": 2}
    return root, given | {"answers": root / "answers.jsonl", "length": 24}


def test_a_report_has_a_row_for_each_depth_of_each_drafter(trained, tmp_path, capsys):
    _, given = trained
    main(Settings(**given, output=tmp_path / "found"))
    report = json.loads((tmp_path / "found" / REPORT).read_text())
    assert (tmp_path / "found" / PICTURE).read_bytes().startswith(b"\x89PNG")
    told = [(row["drafter"], row["kind"], row["depth"]) for row in report["rows"]]
    kinds = (("heads", "medusa", 2), ("grams", "chimera", 3), ("groups", "micro", 2))
    assert told == [(name, kind, depth + 1) for name, kind, depths in kinds for depth in range(depths)]
    tokens = {row["depth"]: row["tokens"] for row in report["rows"]}
    # Prompts have 20 tokens in their template, which leaves 4 of each reply.
    assert tokens == {1: 8, 2: 8, 3: 8}
    for row in report["rows"]:
        assert 0 <= row["top1"] <= row["top5"] <= 1
    assert [drafter["drafter"] for drafter in report["drafters"]] == ["heads", "grams", "groups"]
    assert all(drafter["bytes"] > 0 for drafter in report["drafters"])
    assert {"command", "commit", "device"} <= {*report}
    assert report["inputs"] == inputs_of(given["model"], [None, given["answers"]])
    assert (report["texts"], report["left_out"]) == (2, 0)
    assert report["costs"] == []
    assert "top1" in capsys.readouterr().out


def test_answers_that_go_in_circles_are_left_out_and_counted(trained, tmp_path, capsys):
    _, given = trained
    answers, length = tmp_path / "answers.jsonl", 32
    chat = [{"role": "user", "content": "2?"}, {"role": "assistant", "content": "abababababab"}]
    answers.write_text(given["answers"].read_text() + json.dumps({"messages": chat}) + "\n")
    asked = {"drafters": given["drafters"][:1], "answers": answers}
    main(Settings(**given | asked, json=tmp_path / "cut.json"))
    report = json.loads((tmp_path / "cut.json").read_text())
    assert (report["texts"], report["left_out"]) == (3, 0)  # Four tokens of a reply do not go round.
    capsys.readouterr()
    main(Settings(**given | asked | {"length": length}, json=tmp_path / "whole.json"))
    report = json.loads((tmp_path / "whole.json").read_text())
    assert (report["texts"], report["left_out"]) == (1, 2)
    assert "1 texts, 2 left out that go in circles" in capsys.readouterr().out


@pytest.mark.slow
def test_drafting_is_timed_where_it_is_asked_for(trained, tmp_path):
    _, given = trained
    main(Settings(**given, json=tmp_path / "cost.json", cost_repeats=2, gram_slots=(0, 4)))
    costs = json.loads((tmp_path / "cost.json").read_text())["costs"]
    told = [(row["drafter"], row["gram_slots"], row["nodes"]) for row in costs]
    assert told == [("heads", 0, 2), ("grams", 0, 3), ("grams", 4, 3), ("groups", 0, 2)]
    for row in costs:
        assert row["base_forwards"] > 0
        assert len(row["base_forwards_by_repeat"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_drafting_of_random_drafters_of_each_kind_is_timed(trained, tmp_path, kind):
    _, given = trained
    changes = {"drafters": (Path(f"random:{kind}"),), "cost_repeats": 1, "depths": 2, "json": tmp_path / "cost.json"}
    main(Settings(**given | changes))
    report = json.loads((tmp_path / "cost.json").read_text())
    (row,), (drafter,) = report["costs"], report["drafters"]
    assert (row["drafter"], row["kind"], row["nodes"]) == (f"random:{kind}", kind, 2)
    assert row["base_forwards"] > 0
    assert (drafter["weights_sha256"], drafter["base_fingerprint"]) == ("", "")


@pytest.mark.parametrize("kind", KINDS)
def test_random_drafters_are_of_the_sizes_that_are_told_of_them(kind):
    target, made = tiny_model().config, KINDS[kind].make(tiny_model().config, dtype=jnp.float32)
    assert made.config == KINDS[kind].config(target)


def test_a_drafter_of_another_base_is_refused_by_name_before_the_base_is_loaded(trained, tmp_path, monkeypatch):
    root, given = trained
    monkeypatch.setattr("eval.drafting.trained.load", lambda *_, **__: pytest.fail("weights went to a device"))
    write_model(tmp_path / "wide", hidden_size=32)
    with pytest.raises(ValueError, match=r"heads is for a base with a width of 64; .*wide has one of 32"):
        main(Settings(**given | {"model": str(tmp_path / "wide")}))
    described = json.loads((root / "grams/chimera.json").read_text())
    changed = tmp_path / "changed"
    changed.mkdir()
    (changed / "chimera.json").write_text(json.dumps(described | {"base_fingerprint": "ab" * 32}))
    with pytest.raises(
        ValueError, match=r"changed was trained for a base whose weights have fingerprint abab.*; those"
    ):
        main(Settings(**given | {"drafters": (changed,)}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"drafters": ()}, "drafters must name one folder at least; got none"),
        ({"drafters": (Path("nowhere"),)}, "nowhere must hold a drafter, one of eagle.json"),
        ({"answers": None}, "judged on packed or on answers; got both or neither"),
        ({"answers": Path("nowhere")}, "nowhere must be a file of answers; there is none"),
        ({"drafters": (Path("random:magic"),)}, "a random drafter must be one of random:eagle, .*; got random:magic"),
        ({"depths": 0}, "depths must be at least 1; got 0"),
        ({"choice_share": 1.0}, "choice_share must be from 0 to below 1; got 1"),
        ({"gram_slots": (8,)}, "gram_slots change what drafting takes alone: give cost_repeats"),
        ({"gram_slots": ()}, "gram_slots must be one or more"),
        ({"reply_begins": "a"}, "reply_begins goes with packed"),
        ({"reply_ends": "a"}, "reply_ends goes with packed; a file of answers tells its replies"),
        (
            {"answers": None, "packed": Path("nowhere"), "reply_ends": "a"},
            "reply_ends goes with reply_begins; without, all of a document counts",
        ),
        ({"output": Path("out"), "json": Path("a.json")}, "give neither json nor plot beside it"),
        ({"answers": None, "packed": Path("nowhere")}, r"nowhere must be a folder that train\.pack wrote"),
    ],
)
def test_what_cannot_be_measured_is_refused(trained, changes, message):
    with pytest.raises((ValueError, OSError), match=message):
        main(Settings(**trained[1] | changes))


def test_a_drafter_that_encodes_texts_is_judged_but_not_timed(trained, tmp_path):
    _, given = trained
    model = load(given["model"])
    sizes = {"gram_encoder": "layer", "encoder_mlp_width": model.config.mlp_width}
    chimera = random_drafter(model, decoding_heads=2, **sizes)
    save_chimera(tmp_path / "texts", chimera.config, chimera.params, base_fingerprint=model.fingerprint)
    settings = Settings(**given | {"drafters": (tmp_path / "texts",)})
    assert [drafter.name for drafter in settings.trained()] == ["texts"]
    with pytest.raises(ValueError, match="texts encodes texts and does not draft: it is judged without cost_repeats"):
        main(dataclasses.replace(settings, cost_repeats=1))


def test_texts_of_another_tokenizer_are_refused_before_anything_is_loaded(trained, tmp_path):
    _, given = trained
    index = {"sources": [{"held_out": {"shards": []}}], "tokenizer_sha256": tokenizer_sha256(Path(given["model"]))}
    settings = Settings(**given | {"answers": None, "packed": tmp_path})
    (tmp_path / "index.json").write_text(json.dumps(index))
    settings.check()
    (tmp_path / "index.json").write_text(json.dumps(index | {"tokenizer_sha256": "ab"}))
    with pytest.raises(ValueError, match=r"was packed with the tokenizer of hash ab; .*base has [0-9a-f]{64}"):
        settings.check()


def test_two_drafters_of_one_name_are_refused(trained):
    root, given = trained
    with pytest.raises(ValueError, match="drafters must have different names; got grams twice"):
        main(Settings(**given | {"drafters": (root / "grams", root / "grams")}))


def test_a_link_to_a_drafter_has_a_name_of_its_own(trained, tmp_path):
    root, given = trained
    (tmp_path / "run").mkdir()
    (tmp_path / "run/drafter").symlink_to(root / "heads/drafter")
    (tmp_path / "link").symlink_to(root / "grams")
    asked = (tmp_path / "run/drafter", tmp_path / "link", root / "grams/../heads/drafter")
    found = Settings(**given | {"drafters": asked}).trained()
    assert [drafter.name for drafter in found] == ["run", "link", "heads"]
