"""Policies by name."""

import pytest

from jax_smash.sparse import (
    H2O,
    POLICIES,
    Butler,
    Oracle,
    PageGate,
    Quest,
    StreamingLLM,
    TokenSelect,
    named_files,
    named_policy,
    predictors,
    sparsified,
    told,
)
from tests.tiny import tiny_model


def test_a_name_is_the_policy_with_its_papers_settings():
    for name, policy in POLICIES.items():
        assert named_policy(name) == policy()
    assert named_policy("tokenselect") == TokenSelect(sinks=128, window=512, budget=2688, cosine=0.9)
    assert named_policy("quest").page_size == 16


@pytest.mark.parametrize(
    ("text", "options", "policy"),
    [
        ("h2o:grace=16,decay=0.98", {"budget": "64"}, H2O(grace=16, decay=0.98, budget=64)),
        ("h2o:grace=16:prompt=stepwise", {"budget": 64}, H2O(grace=16, prompt="stepwise", budget=64)),
        ("h2o", {"budget": "12.5%"}, H2O(budget=0.125)),
        ("quest:budget=128:form=script", {"page_size": 32}, Quest(budget=128, form="script", page_size=32)),
        ("streaming:sinks=8", {"budget": "64"}, StreamingLLM(slots=64, sinks=8)),
        ("gate:a/folder,top_p=0.9", {"budget": 640}, PageGate(path="a/folder", top_p=0.9, budget=640)),
        ("butler:sinks=8:path=a=b", {"page_size": 4}, Butler(path="a=b", sinks=8, page_size=4)),
    ],
)
def test_settings_stand_behind_a_name(text, options, policy):
    assert named_policy(text, **options) == policy


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("best", {}, "a policy must be one of butler, dense, .*; got 'best'"),
        ("h2o:lazy=1", {}, "settings of h2o must be among budget, .*; got 'lazy=1'"),
        ("h2o:grace", {}, "got 'grace'"),
        ("snapkv:rolling=yes", {}, "rolling must be of type bool; got 'yes'"),
        ("streaming", {"budget": "25%"}, "must be a number of slots, which it keeps; got 25%"),
        ("dense", {"page_size": 16}, "page_size does not go with the policy dense, whose settings are none"),
        ("h2o", {"budget": "many"}, "a budget must be a number of slots, or a share like 25%; got 'many'"),
    ],
)
def test_what_cannot_be_is_refused(text, options, said):
    with pytest.raises(ValueError, match=said):
        named_policy(text, **options)


def test_what_a_share_is_at_least_is_told():
    assert told(named_policy("quest", budget="25%")) == (
        "a budget of 25% of a text is at least 48 slots, which are always read"
    )
    assert told(named_policy("quest")) is None
    assert told(named_policy("quest", budget="100%")) is None
    assert told(StreamingLLM()) is None


def test_who_gives_a_model_a_policy_is_told_of_a_share(caplog):
    model = tiny_model(layer_kinds=("full", "full"))
    sparsified(model, Oracle(budget=16))
    assert not caplog.records
    sparsified(model, Oracle(budget=0.25))
    assert [record.getMessage() for record in caplog.records] == [f"jax-smash: {told(Oracle(budget=0.25))}"]


def test_the_files_that_a_text_names_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(predictors, "SHIPPED_PREDICTORS", tmp_path)
    for folder in (tmp_path / "two-layer" / "gate", tmp_path / "own"):
        folder.mkdir(parents=True)
        (folder / "butler.json").write_text("{}")
    (tmp_path / "a.json").write_text('{"shares": [[1.0, 0.5]]}')
    shares = {"shares": tmp_path / "a.json"}
    assert named_files("h2o:grace=700", "two-layer") == {}
    assert named_files("dense", "two-layer") == {}
    assert named_files(f"quest:shares={tmp_path}/a.json", "two-layer") == shares
    assert named_files("gate:top_p=0.9", "a/two-layer") == {"predictor": tmp_path / "two-layer" / "gate"}
    assert named_files(f"gate:{tmp_path}/own,shares={tmp_path}/a.json", "x") == {"predictor": tmp_path / "own"} | shares
    with pytest.raises(FileNotFoundError, match=r"grouped has no predictor for two-layer \(shipped: gate"):
        named_files("grouped", "two-layer")
