"""`--sparse`, `--kv-budget` and `--page-size`."""

import json

import jax

import jax_smash
from jax_smash.checkpoints.butler import save_butler
from jax_smash.sparse import GroupedButler, Quest, sparsified
from tests.predictors import modules_of, sizes_of

PROMPT = "Once upon a time there was a dog who"


def test_generate_decodes_as_the_library_does_under_the_policy(call, two_layers, tmp_path):
    options = ("--sparse", "quest:dense_layers=0", "--kv-budget", "16", "--page-size", "4", "--max-new-tokens", "24")
    status, _, _ = call("generate", "--model", two_layers, "--prompt", PROMPT, *options, "--json", "out.jsonl")
    assert status == 0
    said = json.loads((tmp_path / "out.jsonl").read_text())["token_ids"]
    model = jax_smash.load(two_layers)
    sparse = sparsified(model, Quest(budget=16, page_size=4, dense_layers=0))
    assert said == jax_smash.generate(sparse, PROMPT, max_new_tokens=24)[0].token_ids
    assert said != jax_smash.generate(model, PROMPT, max_new_tokens=24)[0].token_ids


def test_what_a_share_is_at_least_is_said(call, two_layers):
    options = ("--sparse", "oracle", "--kv-budget", "25%", "--max-new-tokens", "2")
    status, _, err = call("generate", "--model", two_layers, "--prompt", PROMPT, *options)
    assert status == 0
    assert "a budget of 25% of a text is at least 4 slots, which are always read" in err


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


def test_a_predictor_in_a_folder_is_decoded_by_and_told_of(call, two_layers, tmp_path, caplog):
    model = jax_smash.load(two_layers)
    made = modules_of(sizes_of(model.config, "grouped"), base_fingerprint=model.fingerprint)
    save_butler(tmp_path / "trained", made.config, made.params, base_fingerprint=model.fingerprint, trained_length=16)
    options = ("--sparse", "grouped:trained,window=4", "--kv-budget", "16")
    said = ("--prompt", PROMPT, "--max-new-tokens", "12", "--json", "out.jsonl")
    status, _, _ = call("generate", "--model", two_layers, *said, *options)
    assert status == 0
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
    assert "no predictor of the form gate is shipped" in err
