"""`jax-smash info`."""

import json

import jax
import pytest

import jax_smash
from jax_smash.checkpoints.eagle import random_modules, save_eagle
from jax_smash.checkpoints.eagle1 import random_eagle1_modules, save_eagle1
from jax_smash.cli.info import describe, rows
from jax_smash.plan import tree_bytes
from tests.checkpoints import CONFIGS, GEMMA2, write_checkpoint


def test_a_checkpoint_is_described_as_it_is_when_loaded(call, two_layers):
    status, out, _ = call("info", two_layers, "--json")
    facts = json.loads(out)
    loaded = jax_smash.load(two_layers)
    assert status == 0
    assert facts["parameters"] == sum(x.size for x in jax.tree.leaves(loaded.params["target"]))
    assert facts["bytes_by_dtype"] == {"float32": tree_bytes(loaded.params["target"])}
    assert (facts["family"], facts["layers"], facts["width"], facts["vocabulary"]) == ("llama", 2, 64, 259)
    assert [s["token_id"] for s in facts["stop_tokens"]] == list(loaded.stop_tokens)
    assert (facts["tokenizer_size"], facts["chat_template"]) == (259, True)
    # Keys and values of 2 layers, 2 heads of 16, in float32.
    assert facts["cache_bytes_per_token"] == 2 * 2 * 2 * 16 * 4
    step = facts["decode_step"]
    assert step["slots"] == facts["context"] == 256
    assert step["cache_bytes"] == 256 * facts["cache_bytes_per_token"]
    assert step["weight_bytes"] == facts["bytes_by_dtype"]["float32"] - 4 * 259 * 64


def test_the_table_says_the_same(call, two_layers):
    status, out, _ = call("info", two_layers)
    table = dict(line.split(maxsplit=1) for line in out.splitlines() if not line.startswith(" "))
    assert status == 0
    assert table["parameters"] == "94,912"
    assert table["weights"] == "float32 380 kB"
    assert table["tokenizer"].endswith("259 tokens, with a chat template")
    assert table["decode"].startswith("step  reads 444 kB at batch 1 in float32")


def test_a_model_without_a_tokenizer_and_with_windows_is_described(call, tmp_path):
    write_checkpoint(tmp_path / "gemma", GEMMA2, dtype="BF16")
    status, out, _ = call("info", "gemma")
    assert status == 0
    for said in ("bfloat16", "1 sliding, 1 full over 8 positions", "none: prompts must be tokens", "head tied"):
        assert said in out


def test_both_layouts_are_described_alike(call, two_layers, tmp_path):
    assert call("convert", two_layers, tmp_path / "orbax", "--to", "orbax")[0] == 0
    ours, theirs = (json.loads(call("info", path, "--json")[1]) for path in (tmp_path / "orbax", two_layers))
    assert (ours.pop("layout"), theirs.pop("layout")) == ("Orbax", "Hugging Face")
    del ours["model"], ours["path"], theirs["model"], theirs["path"]
    assert ours == theirs


def test_a_step_of_several_rows_reads_the_weights_once(call, two_layers):
    options = ("--sparse", "quest:dense_layers=0", "--kv-budget", "64", "--page-size", "8")
    one, three = (
        json.loads(call("info", two_layers, "--json", "--batch-size", number, *options)[1]) for number in ("1", "3")
    )
    for step in ("decode_step", "sparse_step"):
        assert three[step]["weight_bytes"] == one[step]["weight_bytes"]
        assert three[step]["cache_bytes"] == 3 * one[step]["cache_bytes"]
    assert three["sparse_step"]["scorer_bytes"] == 3 * one["sparse_step"]["scorer_bytes"]
    assert three["sparse_step"]["speedup_bound"] > one["sparse_step"]["speedup_bound"]
    assert "at batch 3 in float32" in call("info", two_layers, "--batch-size", "3")[1]


@pytest.mark.parametrize("option", ["--slots", "--batch-size"])
@pytest.mark.parametrize("number", ["0", "-3"])
def test_numbers_out_of_range_are_refused(call, option, number):
    assert call("info", "absent", option, number) == (
        2,
        "",
        f"jax-smash: error: {option} must be at least 1; got {number}\n",
    )


def test_int8_weights_are_a_quarter_of_what_a_step_reads(call, two_layers):
    plain, small = (json.loads(call("info", two_layers, "--json", "--weights", w)[1]) for w in ("plain", "int8"))
    loaded = jax_smash.load(two_layers, weights="int8").params["target"]
    # The embedding of an untied head is left out: 259 rows of 64 integers and a scale.
    assert small["decode_step"]["weight_bytes"] == tree_bytes(loaded) - 259 * (64 + 4)
    assert small["decode_step"]["cache_bytes"] == plain["decode_step"]["cache_bytes"]
    assert small["parameters"] == plain["parameters"]
    assert "int8 weights" in call("info", two_layers, "--weights", "int8")[1]


def test_a_rotation_of_part_of_a_head_and_of_some_layers_is_told(tmp_path):
    write_checkpoint(tmp_path / "phi", CONFIGS["phi4-mini"])
    write_checkpoint(tmp_path / "smollm", CONFIGS["smollm3"])
    told = [dict(rows(describe(str(tmp_path / name), slots=64)))["rope"] for name in ("phi", "smollm")]
    assert told == ["full: base 10,000, longrope × 16, 75% of each head", "full: base 2,000,000; in 3 of 4 layers"]


def test_a_drafters_folder_is_described(call, two_layers, tmp_path):
    config = jax_smash.load(two_layers).config
    for made, save, said in (
        (random_eagle1_modules(config), save_eagle1, "EAGLE-1's drafter, for --method eagle"),
        (random_modules(config), save_eagle, "EAGLE-3's drafter, for --method eagle"),
    ):
        folder = tmp_path / said[:7]
        save(folder, made.config, made.params, base_fingerprint="ab", trained_length=64)
        status, out, _ = call("info", folder)
        assert status == 0
        assert said in out
        assert "weights with fingerprint ab" in out
        assert "rows of 64 tokens" in out
        facts = json.loads(call("info", folder, "--json")[1])
        assert facts["parameters"] == sum(x.size for x in jax.tree.leaves(made.params))
        assert facts["configuration"]["d_model"] == config.d_model
        assert facts["trained_length"] == 64
    for flags in (("--slots", "64"), ("--weights", "int8"), ("--sparse", "quest")):
        status, _, errors = call("info", folder, *flags)
        assert status == 2
        assert f"{flags[0]} goes with a model; {folder} is a drafter" in errors
