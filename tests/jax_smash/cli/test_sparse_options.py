"""`--sparse`, `--kv-budget` and `--page-size`."""

import json

import jax_smash
from jax_smash.sparse import Quest, sparsified

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
