"""`--sparse`, `--kv-budget` and `--page-size`."""

import json
import re
import shutil

import jax
import pytest

import jax_smash
from jax_smash.checkpoints.butler import save_butler
from jax_smash.sparse import GroupedButler, Quest, sparsified
from tests.predictors import modules_of, sizes_of

PROMPT = "Once upon a time there was a dog who"


def test_generate_decodes_as_the_library_does_under_the_policy(call, two_layers, tmp_path):
    options = ("--sparse", "quest:dense_layers=0", "--kv-budget", "16", "--page-size", "4", "--max-new-tokens", "24")
    options = (*options, "--sparse-from", "0")
    status, _, _ = call("generate", "--model", two_layers, "--prompt", PROMPT, *options, "--json", "out.jsonl")
    assert status == 0
    said = json.loads((tmp_path / "out.jsonl").read_text())["token_ids"]
    model = jax_smash.load(two_layers)
    sparse = sparsified(model, Quest(budget=16, page_size=4, dense_layers=0))
    assert said == jax_smash.generate(sparse, PROMPT, max_new_tokens=24)[0].token_ids
    assert said != jax_smash.generate(model, PROMPT, max_new_tokens=24)[0].token_ids


@pytest.mark.parametrize("method", ["ar", "self-sparse"])
def test_what_a_share_is_at_least_is_said_once(call, two_layers, caplog, method):
    options = ("--sparse", "oracle", "--kv-budget", "25%", "--max-new-tokens", "2", "--method", method)
    status, _, err = call("generate", "--model", two_layers, "--prompt", PROMPT, *options)
    assert status == 0
    said = "a budget of 25% of a text is at least 4 slots, which are always read"
    assert (err + caplog.text).count(said) == 1


@pytest.mark.slow
def test_a_text_that_is_too_short_for_a_choice_to_pay_is_read_whole_and_that_is_said(call, two_layers):
    sparse = ("--sparse", "oracle", "--kv-budget", "16", "--max-new-tokens", "4")
    options = ("--model", two_layers, "--prompt", PROMPT, *sparse)
    status, out, err = call("generate", *options)
    assert status == 0
    assert re.search(r"texts below \d+ slots are read whole, which is faster; see --sparse-from", err)
    _, plain, _ = call("generate", *options[:4], "--max-new-tokens", "4")
    assert out == plain
    _, _, err = call("generate", *options, "--sparse-from", "0")
    assert "are read whole" not in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--sparse-from", "64"), "--sparse-from goes with --sparse"),
        (("--sparse", "quest", "--sparse-from", "soon"), "--sparse-from must be auto or a number of slots; got 'soon'"),
        (("--sparse", "streaming", "--sparse-from", "64"), "--sparse-from goes with a policy that chooses slots"),
        (("--sparse", "h2o", "--sparse-from", "64"), "pays_from must be 0 for H2O"),
        (
            ("--sparse", "streaming", "--kv-budget", "0"),
            "--kv-budget: budget must be at least 5 slots, more than the 4",
        ),
        (
            ("--sparse", "streaming", "--kv-budget", "3"),
            "--kv-budget: budget must be at least 5 slots, more than the 4",
        ),
        (("--sparse", "streaming:slots=3"), "--sparse: budget must be at least 5 slots"),
        (("--sparse", "streaming", "--kv-budget", "25%"), "--kv-budget: a budget of streaming must be a number of"),
        (("--sparse", "quest", "--kv-budget", "0"), "--kv-budget: budget must be at least 1 slot; got 0"),
        (
            ("--method", "self-sparse", "--sparse", "h2o"),
            "--sparse: a model that drafts for itself checks by its whole",
        ),
        (("--method", "self-sparse", "--draft-model", "tiny"), "--draft-model: method self-sparse drafts by the model"),
        (("--method", "self-sparse", "--costs", "x"), "--costs does not go with --method self-sparse"),
    ],
)
def test_what_does_not_go_together_is_refused(call, options, said):
    status, _, err = call("generate", "--prompt", PROMPT, *options)
    assert status != 0
    assert said in " ".join(err.split())


@pytest.mark.slow
def test_drafts_alone_read_by_the_policy_under_self_sparse(call, two_layers, tmp_path):
    options = ("--model", two_layers, "--prompt", PROMPT, "--max-new-tokens", "12")
    sparse = ("--sparse", "quest:dense_layers=0", "--kv-budget", "16", "--page-size", "4", "--sparse-from", "0")
    drafted = ("--method", "self-sparse", "--tree", "chain-2", *sparse, "--json", "out.jsonl")
    status, out, _ = call("generate", *options, *drafted)
    assert status == 0
    assert out == call("generate", *options)[1]
    tried = json.loads((tmp_path / "out.jsonl").read_text())["drafted"]["tried"]
    assert tried[0] > 0


def test_info_tells_what_a_step_reads(call, two_layers):
    options = ("--slots", "256", "--sparse", "oracle", "--kv-budget", "64")
    facts = json.loads(call("info", two_layers, "--json", *options)[1])
    step, dense = facts["sparse_step"], facts["decode_step"]
    assert step["cache_bytes"] == dense["cache_bytes"] // 4
    assert step["scorer_bytes"] == dense["cache_bytes"] // 2
    assert step["bytes"] == step["weight_bytes"] + step["cache_bytes"] + step["scorer_bytes"]
    assert step["speedup_bound"] == dense["bytes"] / step["bytes"]
    _, out, _ = call("info", two_layers, *options)
    assert "oracle reads" in out
    assert "of attention alone" in out
    assert json.loads(call("info", two_layers, "--json")[1])["sparse_step"] is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--sparse", "quest:dense_layers=0", "--kv-budget", "99984"), "budget must be at most the"),
        (("--sparse", "quest:dense_layers=99", "--kv-budget", "64"), "dense_layers must be fewer than the 2 layers"),
        (("--sparse", "streaming:slots=99984"), "slots must be at most the"),
    ],
)
def test_info_refuses_a_policy_that_does_not_go_with_the_model(call, two_layers, options, said):
    status, out, err = call("info", two_layers, *options)
    assert (status, out) == (1, "")
    assert said in " ".join(err.split())


@pytest.mark.parametrize("option", ["--sparse", "--draft-model"])
def test_a_run_is_not_resumed_with_another_predictor(call, two_layers, tmp_path, option):
    model = jax_smash.load(two_layers)

    def train(seed):
        made = modules_of(sizes_of(model.config, "grouped"), seed=seed)
        shutil.rmtree(tmp_path / "trained", ignore_errors=True)
        save_butler(tmp_path / "trained", made.config, made.params, base_fingerprint=model.fingerprint)

    train(3)
    policy = "grouped:trained,window=4,budget=16"
    named = {"--sparse": (option, policy), "--draft-model": ("--method", "draft-model", option, f"sparse:{policy}")}
    options = ("--model", two_layers, "--prompt", PROMPT, "--max-new-tokens", "2", *named[option])
    assert call("generate", *options, "--json", "out.jsonl")[0] == 0
    (tmp_path / "out.jsonl").rename(tmp_path / "out.jsonl.partial")
    assert call("generate", *options, "--json", "out.jsonl", "--resume")[0] == 0
    (tmp_path / "out.jsonl").rename(tmp_path / "out.jsonl.partial")
    train(4)
    status, _, err = call("generate", *options, "--json", "out.jsonl", "--resume")
    assert status != 0
    assert f"was made with {option} predictor: another file or folder" in " ".join(err.split())


def test_a_predictor_in_a_folder_is_decoded_by_and_told_of(call, two_layers, tmp_path, caplog):
    model = jax_smash.load(two_layers)
    made = modules_of(sizes_of(model.config, "grouped"), base_fingerprint=model.fingerprint)
    save_butler(tmp_path / "trained", made.config, made.params, base_fingerprint=model.fingerprint, trained_length=16)
    options = ("--sparse", "grouped:trained,window=4", "--kv-budget", "16")
    said = ("--prompt", PROMPT, "--max-new-tokens", "12", "--json", "out.jsonl")
    status, _, err = call("generate", "--model", two_layers, *said, *options, "--sparse-from", "0")
    assert status == 0, err
    assert "the predictor was trained on texts of 16" in caplog.text
    sparse = sparsified(model, GroupedButler(budget=16, window=4), made)
    expected = jax_smash.generate(sparse, PROMPT, max_new_tokens=12)[0].token_ids
    assert json.loads((tmp_path / "out.jsonl").read_text())["token_ids"] == expected
    facts = json.loads(call("info", two_layers, "--json", *options)[1])
    each = jax.numpy.dtype(facts["decode_step"]["dtype"]).itemsize
    assert facts["sparse_step"]["predictor_bytes"] == sum(x.size for x in jax.tree.leaves(made.params)) * each
    assert "of a predictor's weights" in call("info", two_layers, *options)[1]
    status, _, err = call("info", two_layers, "--sparse", "gate")
    assert status == 1
    assert "policy gate has no predictor for" in err
