"""What a user can get wrong, each through the program: one clear line, a status, and nothing on disk damaged."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.model_directory import write_model

GENERATE = ("--prompt", "Once upon a time", "--max-new-tokens", "4", "--json", "out.jsonl")
TWO_HOSTS = ("--coordinator", "localhost:1", "--num-processes", "2")


def files(directory: Path) -> dict[str, bytes]:
    """Returns the content of every file below a directory."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def refused(result, *said: str) -> None:
    """Checks that a program ended with one line that says all of this."""
    assert result.returncode in (1, 2), result
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert result.stderr.startswith("jax-smash: error: ")
    assert "Traceback" not in result.stderr
    for text in said:
        assert text in result.stderr


@pytest.fixture
def broken(two_layers, tmp_path):
    """A copy of a sound checkpoint, to be damaged."""
    return Path(shutil.copytree(two_layers, tmp_path / "broken"))


def change_tensors(directory: Path, change) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def change_config(directory: Path, **fields) -> None:
    raw = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(raw | fields))


def truncate(directory: Path) -> None:
    file = directory / "model.safetensors"
    os.truncate(file, file.stat().st_size // 2)


def drop_norm(tensors: dict[str, np.ndarray]) -> None:
    del tensors["model.layers.1.input_layernorm.weight"]


def add_tensor(tensors: dict[str, np.ndarray]) -> None:
    tensors["model.layers.7.bonus.weight"] = np.zeros((3, 5), np.float32)


def shorten_norm(tensors: dict[str, np.ndarray]) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:60].copy()


def poison(tensors: dict[str, np.ndarray]) -> None:
    tensors["model.layers.0.mlp.up_proj.weight"][3, 4] = np.nan


def overflow(tensors: dict[str, np.ndarray]) -> None:
    for name in tensors:
        if "up_proj" in name or "down_proj" in name:
            tensors[name] *= np.float32(1e25)


DAMAGES = {
    "half-written": (truncate, ["model.safetensors is damaged or incomplete"]),
    "config-cut": (lambda d: os.truncate(d / "config.json", 20), ["config.json is damaged", "JSON"]),
    "config-absent": (lambda d: (d / "config.json").unlink(), ["config.json is missing"]),
    "weights-absent": (lambda d: (d / "model.safetensors").unlink(), ["has no model.safetensors"]),
    "unknown-architecture": (lambda d: change_config(d, model_type="mamba"), ["config.json", "'mamba'", "llama"]),
    "missing-tensor": (
        lambda d: change_tensors(d, drop_norm),
        ["missing: model.layers.1.input_layernorm.weight [64]"],
    ),
    "extra-tensor": (lambda d: change_tensors(d, add_tensor), ["unexpected: model.layers.7.bonus.weight [3, 5]"]),
    "misshapen-tensor": (lambda d: change_tensors(d, shorten_norm), ["model.norm.weight must be [64], got [60]"]),
    "not-a-number": (lambda d: change_tensors(d, poison), ["model.layers.0.mlp.up_proj.weight", "NaN"]),
    "tokenizer-absent": (
        lambda d: [p.unlink() for p in d.glob("*token*")],
        ["has no tokenizer (no tokenizer.json", "prompts must be tokens"],
    ),
    "tokenizer-cut": (lambda d: os.truncate(d / "tokenizer.json", 300), ["cannot read the tokenizer in", "broken"]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused_by_what_is_wrong_with_it(called, broken, tmp_path, damage):
    change, said = DAMAGES[damage]
    change(broken)
    before = files(tmp_path)
    refused(called("generate", "--model", broken, *GENERATE), *said)
    assert files(tmp_path) == before


def test_the_packages_below_add_nothing_to_what_is_said_of_damage(run, broken):
    """They write past what this process's standard error is replaced by."""
    change, said = DAMAGES["tokenizer-cut"]
    change(broken)
    refused(run("generate", "--model", broken, *GENERATE), *said)


@pytest.mark.parametrize("damage", ["half-written", "missing-tensor", "not-a-number"])
def test_a_damaged_checkpoint_is_not_converted(call, broken, tmp_path, damage):
    change, said = DAMAGES[damage]
    change(broken)
    before = files(tmp_path)
    status, out, err = call("convert", broken, tmp_path / "target")
    assert (status, out, len(err.splitlines())) == (1, "", 1)
    assert all(text in err for text in said)
    assert files(tmp_path) == before
    assert os.listdir(tmp_path) == ["broken"]


def test_a_missing_checkpoint_is_named(called, call, tmp_path):
    refused(
        called("generate", "--model", "absent", *GENERATE),
        "no model 'absent'",
        "neither tiny, smollm2, a directory, a .gguf file nor a hub id",
    )
    for command in (["info", "absent"], ["convert", "absent", "target"]):
        status, _, err = call(*command)
        assert status == 1
        assert "no model 'absent'" in err
    assert os.listdir(tmp_path) == []


def test_weights_that_overflow_while_decoding_are_reported(called, tmp_path):
    large = write_model(tmp_path / "large", num_hidden_layers=1)
    change_tensors(large, overflow)
    refused(called("generate", "--model", large, *GENERATE, "--stream"), "logits are not numbers", "check the weights")
    assert os.listdir(tmp_path) == ["large"]


def test_a_prompt_that_does_not_fit_the_context_is_counted(called, model, tmp_path):
    refused(
        called("generate", "--model", model, "--prompt", "x" * 250, "--max-new-tokens", "10", "--json", "out.jsonl"),
        "prompt 0 has 250 tokens and may get 10 new ones",
        "260",
        "256",
    )
    assert os.listdir(tmp_path) == []


def test_a_budget_beyond_the_models_context_is_refused(called, model, tmp_path):
    refused(
        called("generate", "--model", model, *GENERATE, "--sparse", "tova", "--kv-budget", "257"),
        "budget must be at most the 256 slots",
        "257",
    )
    assert os.listdir(tmp_path) == []


def test_an_empty_prompt_is_refused(called, call, model, tmp_path):
    refused(called("generate", "--model", model, "--prompt", "", "--json", "out.jsonl"), "--prompt must not be empty")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n{"prompt": ""}\n')
    status, _, err = call("generate", "--model", model, "--prompts", "prompts.jsonl")
    assert status == 1
    assert "prompts.jsonl, line 2: prompt is empty" in err


def test_a_malformed_prompts_file_names_its_line_and_nothing_is_written(called, model, tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": 3}\n')
    refused(
        called("generate", "--model", model, "--prompts", "prompts.jsonl", "--json", "out.jsonl"),
        "prompts.jsonl, line 3: prompt must be text, tokens or chat messages; got 3",
    )
    assert os.listdir(tmp_path) == ["prompts.jsonl"]


def test_tokens_outside_the_vocabulary_are_refused(call, model, tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"prompt": [1, 2]}\n{"prompt": [1, 259]}\n')
    status, _, err = call("generate", "--model", model, "--prompts", "prompts.jsonl", "--json", "out.jsonl")
    assert status == 1
    assert "prompt 1 has tokens outside 0 … 258" in err
    assert os.listdir(tmp_path) == ["prompts.jsonl"]


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.partial"])
def test_an_output_file_that_exists_is_refused_before_anything_is_loaded(called, tmp_path, name):
    (tmp_path / name).write_text("precious")
    refused(called("generate", "--model", "absent", *GENERATE), f"{name} exists", "--overwrite")
    assert files(tmp_path) == {name: b"precious"}


def test_a_target_of_a_conversion_that_exists_is_refused(called, model, tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    (target / "notes.txt").write_text("precious")
    refused(called("convert", model, target), "target must be a new or empty directory")
    assert files(tmp_path) == {"target/notes.txt": b"precious"}


OPTIONS = {
    "--temperature": (["-1", "nan", "inf"], "temperature must be"),
    "--top-k": (["-1"], "top_k must be from 0"),
    "--top-p": (["0", "1.5", "-0.1"], "top_p must be over 0 and at most 1"),
    "--min-p": (["-0.1", "1.1"], "min_p must be from 0 to 1"),
    "--repetition-penalty": (["0", "-2"], "repetition_penalty must be over 0"),
    "--presence-penalty": (["3", "-3"], "presence_penalty must be from -2 to 2"),
    "--frequency-penalty": (["2.5", "nan"], "frequency_penalty must be"),
    "--logit-bias": (["3", "3=x", "x=3", "-4=1", "3=1e9", "3=nan", "3=1,3=2"], "logit"),
    "--min-new-tokens": (["-1"], "min_new_tokens must be from 0"),
    "--max-new-tokens": (["0", "-5"], "--max-new-tokens must be at least 1"),
    "--num-samples": (["0"], "--num-samples must be at least 1"),
    "--batch-size": (["0"], "--batch-size must be at least 1"),
    "--logprobs": (["-1"], "--logprobs must be at least 0"),
    "--prompt-logprobs": (["-1"], "--prompt-logprobs must be at least 0"),
    "--seed": (["-1", str(2**32)], "--seed must be from 0 to 4294967295"),
    "--stop": ([""], "--stop must not be empty"),
    "--method": (["magic"], "--method must be one of ar"),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_out_of_range_is_refused_before_anything_is_loaded(call, tmp_path, option):
    values, said = OPTIONS[option]
    for value in values:
        status, out, err = call("generate", "--model", "absent", *GENERATE, option, value)
        assert (status, out) == (2, "")
        assert len(err.splitlines()) == 1
        assert said in err
        assert value.partition("=")[0] in err
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("option", ["--top-k", "--top-p", "--min-p"])
def test_what_bears_on_sampling_alone_goes_with_a_temperature(call, option):
    value = "4" if option == "--top-k" else "0.5"
    status, _, err = call("generate", "--model", "absent", "--prompt", "a", option, value)
    assert status == 2
    assert f"{option} goes with a --temperature above 0" in err


@pytest.mark.parametrize(
    ("value", "status", "said"),
    [
        ("{'type': 'object'}", 2, "--json-schema must be a JSON schema; at line 1: "),
        ("@cut.json", 2, "cut.json must be a JSON schema; at line 2: "),
        ("@/bin/sh", 2, "/bin/sh must be a JSON schema; it is no UTF-8 text"),
        ("absent.json", 1, "absent.json: No such file or directory"),
    ],
)
def test_a_schema_that_cannot_be_read_is_refused(call, tmp_path, value, status, said):
    (tmp_path / "cut.json").write_text('{\n  "type":')
    got, out, err = call("generate", "--model", "absent", "--prompt", "a", "--json-schema", value)
    assert (got, out) == (status, "")
    assert err.startswith(f"jax-smash: error: {said}")
    assert os.listdir(tmp_path) == ["cut.json"]


def test_an_option_out_of_range_is_refused_by_the_program(run):
    refused(run("generate", *GENERATE, "--top-p", "1.5"), "top_p must be over 0 and at most 1; got 1.5")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "exactly one of --prompt and --prompts is needed; got neither"),
        (("--prompt", "a", "--prompts", "b"), "exactly one of --prompt and --prompts is needed; got both"),
        (("--prompt", "a", "--json-schema", "{}", "--regex", "a"), "--json-schema and --regex exclude each other"),
        (("--prompt", "a", "--logprobs", "2"), "--logprobs is written to --json"),
        (("--prompt", "a", "--overwrite"), "--overwrite is about --json"),
        (("--prompt", "a", "--kv-budget", "64"), "--kv-budget goes with --sparse"),
        (("--prompt", "a", "--page-size", "16"), "--page-size goes with --sparse"),
        (("--prompt", "a", "--sparse", "best"), "--sparse: a policy must be one of butler, dense"),
        (("--prompt", "a", "--sparse", "h2o:lazy=1"), "settings of h2o must be among budget"),
        (("--prompt", "a", "--sparse", "h2o:grace=x"), "grace must be of type int; got 'x'"),
        (("--prompt", "a", "--sparse", "h2o", "--kv-budget", "0"), "budget must be at least 1 slot; got 0"),
        (("--prompt", "a", "--sparse", "h2o", "--kv-budget", "half"), "a number of slots, or a share like 25%"),
        (("--prompt", "a", "--sparse", "h2o", "--kv-budget", "150%"), "at most 1 as a share of the text; got 1.5"),
        (("--prompt", "a", "--sparse", "quest", "--kv-budget", "72"), "page_size must divide the budget of 72 slots"),
        (("--prompt", "a", "--sparse", "tokenselect", "--kv-budget", "64"), "at least the 640 slots"),
        (("--prompt", "a", "--sparse", "streaming", "--kv-budget", "25%"), "must be a number of slots, which it keeps"),
        (("--prompt", "a", "--sparse", "dense", "--kv-budget", "64"), "budget does not go with the policy dense"),
        (("--prompt", "a", "--process-id", "1"), "go together; got no --coordinator and no --num-processes"),
        (("--prompt", "a", *TWO_HOSTS, "--process-id", "2"), "--process-id must be from 0 to 1"),
        (("--prompt", "a", *TWO_HOSTS, "--process-id", "0", "--start-timeout", "0"), "at least 1 second; got 0"),
        (("--prompt", "a", "--programs", "beside"), "and tiny comes in a package; name a folder"),
        (("--prompt", "a", "--programs", ""), "--programs must be a folder or beside; got ''"),
        (("--prompt", "a", "--programs", "/dev/null"), "must be a folder or beside; got the file /dev/null"),
        (("--prompt", "a", "--programs", "gs://a/b"), "for a bucket, set JAX_COMPILATION_CACHE_DIR=gs://a/b"),
        (("--prompt", "a", "--programs", "x", "--no-compilation-cache"), "exclude each other"),
        (("--prompt", "a", "--temprature", "1"), "--temprature"),
        (("--prompt", "a", "--top-k", "many"), "--top-k"),
        (("--prompt", "a", "--dtype", "int4"), "'int4'"),
        (("--prompt",), "--prompt"),
        (("--prompt", "a", "--json", "absent/out.jsonl"), "needs a directory"),
        (("--prompt", "a", "--json", "/dev/full", "--overwrite"), "must be a regular file"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_options_that_do_not_go_together_are_refused_by_name(call, args, said):
    status, out, err = call("generate", *args)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert err.startswith("jax-smash: error: ")
    assert said in err


def test_a_full_disk_while_writing_completions_is_reported(run, model, tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": "c"}\n')
    args = ("--model", model, "--prompts", "prompts.jsonl", "--max-new-tokens", "4", "--batch-size", "1")
    result = run("generate", *args, "--json", "out.jsonl", "--no-compilation-cache", blocks=2)
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert "out.jsonl.partial: File too large" in result.stderr
    assert "finished completions are in out.jsonl.partial" in result.stderr
    lines = (tmp_path / "out.jsonl.partial").read_text().splitlines()
    assert [json.loads(line)["prompt"] for line in lines] == ["a", "b", "c"][: len(lines)]
    assert 1 <= len(lines) <= 2
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_leaves_the_file_that_was_to_be_replaced(call, model, tmp_path):
    (tmp_path / "out.jsonl").write_text("precious")
    (tmp_path / "out.jsonl.partial").symlink_to("/dev/full")
    status, _, err = call("generate", "--model", model, *GENERATE, "--overwrite")
    assert status == 1
    assert "out.jsonl.partial: No space left on device" in err
    assert (tmp_path / "out.jsonl").read_text() == "precious"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("command", ["generate", "info", "--version", "--help"])
def test_a_full_disk_behind_stdout_is_reported(run, model, command):
    generate = ("generate", "--model", model, "--prompt", "a", "--max-new-tokens", "4")
    with open("/dev/full", "w") as full:
        result = run(*{"generate": generate, "info": ("info", model)}.get(command, (command,)), stdout=full)
    assert result.returncode == 1
    assert result.stderr.splitlines() == ["jax-smash: error: standard output: No space left on device"]


@pytest.mark.parametrize("command", ["info", "--version", "--help"])
def test_a_pipe_that_nobody_reads_ends_the_program_without_a_word(run, model, command):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        result = run(*{"info": ("info", model)}.get(command, (command,)), stdout=closed)
    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.slow
def test_without_stdout_a_command_does_its_work(environment, model, tmp_path):
    words = ["-m", "jax_smash", "generate", "--model", str(model), "--prompt", "a", "--max-new-tokens", "2"]
    words += ["--json", "out.jsonl"]
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, *words],
        env=environment,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert closed.returncode == 0, closed.stderr
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize("to", ["huggingface", "orbax"])
def test_a_full_disk_while_converting_leaves_nothing_behind(run, model, tmp_path, to):
    (tmp_path / "neighbour").mkdir()
    (tmp_path / "neighbour" / "notes.txt").write_text("precious")
    before = files(model)
    refused(run("convert", model, "target", "--to", to, blocks=40), "no room to save", "target")
    assert files(tmp_path) == {"neighbour/notes.txt": b"precious"}
    assert files(model) == before
