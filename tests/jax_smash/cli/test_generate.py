"""`jax-smash generate` on a sound checkpoint."""

import dataclasses
import json
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

import jax_smash
from jax_smash.cli.options import SamplingFlags
from jax_smash.sampling import SamplingOptions
from tests.model_directory import write_model

PROMPT = "Once upon a time"
FIELDS = [
    "prompt",
    "text",
    "token_ids",
    "prompt_tokens",
    "new_tokens",
    "finish_reason",
    "target_forwards",
    "mean_accepted_tokens",
    "tokens_per_second",
    "time_to_first_token_s",
]
LETTERS = ("--regex", "[a-z]{12,}", "--max-new-tokens", "24")
"""Random weights say anything; this makes it text to look at."""


def records(directory: Path, name: str = "out.jsonl") -> list[dict]:
    return [json.loads(line) for line in (directory / name).read_text(encoding="utf-8").splitlines()]


def write_prompts(directory: Path, *prompts) -> Path:
    file = directory / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in prompts))
    return file


def wait_for_line(file: Path) -> None:
    deadline = time.monotonic() + 90
    while not (file.exists() and b"\n" in file.read_bytes()):
        assert time.monotonic() < deadline, f"{file} got no line"
        time.sleep(0.02)


@pytest.mark.slow
def test_a_run_writes_its_trace(run, model, tmp_path):
    result = run("generate", "--model", model, "--prompt", PROMPT, "--max-new-tokens", "4", "--profile", "trace")
    assert result.returncode == 0, result.stderr
    assert [*(tmp_path / "trace").rglob("*.xplane.pb")]


def test_the_program_gives_the_librarys_text_and_figures(run, model, tmp_path):
    result = run("generate", "--model", model, "--prompt", PROMPT, *LETTERS, "--json", "out.jsonl")
    assert result.returncode == 0, result.stderr
    (expected,) = jax_smash.generate(jax_smash.load(model), PROMPT, regex=LETTERS[1], max_new_tokens=24)
    assert result.stdout == expected.text + "\n"
    (record,) = records(tmp_path)
    assert list(record) == [*FIELDS, "made_with"]
    exact = FIELDS[:-2]
    assert {name: record[name] for name in exact} == {name: getattr(expected, name) for name in exact}
    assert record["target_forwards"] == record["new_tokens"] - 1
    assert record["tokens_per_second"] > 0
    assert record["time_to_first_token_s"] > 0
    assert len(result.stderr.splitlines()) == 1
    for said in (f"{record['new_tokens']} new tokens in", "first token after", "compiling took"):
        assert said in result.stderr
    assert result.stderr.count("tokens/s") == 1
    assert os.listdir(tmp_path) == ["out.jsonl"]


def test_streamed_pieces_are_the_text(call, monkeypatch, model, tmp_path):
    pieces = []
    write = sys.stdout.write
    arguments = ("generate", "--model", model, "--prompt", PROMPT, *LETTERS, "--json", "out.jsonl")
    whole = call(*arguments, "--no-stream")
    monkeypatch.setattr(sys.stdout, "write", lambda text: (pieces.append(text), write(text))[1])
    streamed = call(*arguments, "--stream", "--overwrite")
    assert whole[:2] == streamed[:2] == (0, records(tmp_path)[0]["text"] + "\n")
    assert len(pieces) > 3
    assert "".join(pieces) == streamed[1]


def test_prompts_of_every_kind_come_back_in_order(call, model, tmp_path):
    messages = [{"role": "user", "content": "Hello"}]
    prompts = ["Zwölf cats", [72, 105], messages]
    write_prompts(tmp_path, *prompts)
    status, out, _ = call(
        "generate", "--model", model, "--prompts", "prompts.jsonl", *LETTERS, "--batch-size", "2", "--json", "out.jsonl"
    )
    assert status == 0
    lines = records(tmp_path)
    assert [line["prompt"] for line in lines] == prompts
    assert [line["prompt_tokens"] for line in lines] == [11, 2, len("<user>Hello\n<assistant>")]
    assert out == "".join(f"== prompt {i} ==\n{line['text']}\n" for i, line in enumerate(lines))


def test_several_prompts_stream_one_after_another_at_batch_size_one(call, model, tmp_path):
    write_prompts(tmp_path, "The cat", "The dog")
    arguments = ("generate", "--model", model, "--prompts", "prompts.jsonl", *LETTERS, "--batch-size", "1")
    assert call(*arguments, "--stream")[:2] == call(*arguments, "--no-stream")[:2]


def test_samples_say_which_they_are_and_follow_their_seed(call, model, tmp_path):
    arguments = ("generate", "--model", model, "--prompt", PROMPT, *LETTERS, "--temperature", "1", "--num-samples", "2")
    for seed, name in (("5", "a"), ("5", "b"), ("6", "c")):
        status, out, _ = call(*arguments, "--seed", seed, "--json", name)
        assert status == 0
    a, b, c = ([(r["sample"], r["text"]) for r in records(tmp_path, name)] for name in "abc")
    assert a == b != c
    assert [sample for sample, _ in a] == [0, 1]
    assert a[0][1] != a[1][1]
    assert out == "".join(f"== prompt 0, sample {i} ==\n{text}\n" for i, text in c)


def test_stop_strings_cut_the_text(call, model, tmp_path):
    arguments = ("generate", "--model", model, "--prompt", PROMPT, *LETTERS)
    text = call(*arguments)[1].strip()
    stop = text[6:8]
    for flags in (["--stop", stop], ["--stop", "0", stop], ["--stop", stop, "--stop", "0"]):
        status, out, _ = call(*arguments, *flags, "--json", "out.jsonl", "--overwrite")
        assert (status, out) == (0, text[: text.index(stop)] + "\n")
        assert records(tmp_path)[0]["finish_reason"] == "stop_string"


def test_chat_puts_the_prompt_into_the_template(call, model, tmp_path):
    arguments = ("generate", "--model", model, "--prompt", "Hello", "--max-new-tokens", "2", "--json", "out.jsonl")
    counts = []
    for flag in ("--no-chat", "--chat"):
        assert call(*arguments, "--overwrite", flag)[0] == 0
        counts.append(records(tmp_path)[0]["prompt_tokens"])
    assert counts == [5, len("<user>Hello\n<assistant>")]


def test_chat_without_a_template_is_refused(call, tmp_path):
    plain = write_model(tmp_path / "plain", template=None)
    status, out, err = call("generate", "--model", plain, "--prompt", "Hello", "--chat")
    assert (status, out) == (1, "")
    assert "plain has no chat template" in err


def test_a_conversation_that_the_template_refuses_is_told_of_by_its_prompt(call, tmp_path):
    strict = write_model(tmp_path / "strict", template="{{ raise_exception('System role not supported') }}")
    status, out, err = call("generate", "--model", strict, "--prompt", "Hello", "--chat")
    assert (status, out) == (1, "")
    assert f"prompt 0: the chat template of {strict} refuses the messages: System role not supported" in err


def test_a_grammar_and_a_bias_are_obeyed(call, two_layers, tmp_path):
    (tmp_path / "schema.json").write_text('{"type": "object", "properties": {"n": {"enum": [7]}}, "required": ["n"]}')
    arguments = ("generate", "--model", two_layers, "--prompt", PROMPT, "--max-new-tokens", "40")
    status, out, _ = call(*arguments, "--json-schema", "@schema.json")
    assert (status, json.loads(out)) == (0, {"n": 7})
    assert call(*arguments, "--logit-bias", "65=90", "3=-1")[:2] == (0, "A" * 40 + "\n")


def test_log_probabilities_are_recorded_where_asked_for(call, model, tmp_path):
    arguments = ("generate", "--model", model, "--prompt", "abc", "--max-new-tokens", "3", "--json", "out.jsonl")
    assert call(*arguments, "--logprobs", "2", "--prompt-logprobs", "0")[0] == 0
    (record,) = records(tmp_path)
    assert list(record) == [*FIELDS, "logprobs", "prompt_logprobs", "made_with"]
    assert [e["token_id"] for e in record["logprobs"]] == record["token_ids"]
    for entry in record["logprobs"]:
        likeliest, second = entry["top"]
        assert (likeliest["token_id"], likeliest["logprob"]) == (entry["token_id"], entry["logprob"])
        assert second["logprob"] <= entry["logprob"] < 0
    assert [(e["token"], e["top"]) for e in record["prompt_logprobs"]] == [("b", []), ("c", [])]


def test_overwrite_replaces_the_file_when_the_new_one_is_whole(call, model, tmp_path):
    (tmp_path / "out.jsonl").write_text("old")
    arguments = ("generate", "--model", model, "--prompt", "a", "--max-new-tokens", "2", "--json", "out.jsonl")
    assert call(*arguments)[0] == 2
    assert call(*arguments, "--overwrite", "--dtype", "bfloat16")[0] == 0
    assert [r["new_tokens"] for r in records(tmp_path)] == [2]


@pytest.mark.parametrize(("how", "status"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_a_program_that_is_ended_keeps_what_was_finished(start, model, tmp_path, how, status):
    (tmp_path / "out.jsonl").write_text("old")
    write_prompts(tmp_path, *(["The cat sat"] * 5000))
    process = start(
        *("generate", "--model", model, "--prompts", "prompts.jsonl", "--batch-size", "1", "--max-new-tokens", "8"),
        *("--json", "out.jsonl", "--overwrite"),
    )
    process.stdout.close()  # Nobody reads along; the file goes on.
    wait_for_line(tmp_path / "out.jsonl.partial")
    process.send_signal(how)
    assert process.wait(timeout=60) == status
    said = process.stderr.read()
    assert (tmp_path / "out.jsonl").read_text() == "old"
    kept = records(tmp_path, "out.jsonl.partial")
    assert 1 <= len(kept) < 5000
    assert {r["prompt"] for r in kept} == {"The cat sat"}
    if how == signal.SIGINT:
        told = f"interrupted; {len(kept)} finished completions are in out.jsonl.partial; --resume continues it"
        assert said == f"jax-smash: error: {told}\n"


def test_a_warm_start_that_this_run_is_to_write_may_be_missing(call, model, tmp_path):
    arguments = ("generate", "--model", model, "--prompt", PROMPT, "--max-new-tokens", "4", "--method", "recycling")
    grow = ("--warm-start", "known.st", "--save-warm-start", "./known.st")
    status, first, err = call(*arguments, *grow)
    assert status == 0
    assert err.splitlines()[0] == "known.st is not there yet: this run begins cold, and writes it at its end"
    assert (tmp_path / "known.st").is_file()
    status, second, err = call(*arguments, *grow)
    assert (status, second, len(err.splitlines())) == (0, first, 1)
    status, _, err = call(*arguments, "--warm-start", "other.st", "--save-warm-start", "new.st")
    assert status == 1
    assert "other.st is no file: there is nothing to start from" in err


@pytest.mark.slow
def test_a_run_whose_text_depends_on_its_trees_is_made_again_from_what_it_wrote(call, model, tmp_path):
    arguments = ("generate", "--model", model, "--prompt", PROMPT, "--max-new-tokens", "60", "--method", "recycling")
    arguments += ("--verify", "typical-lossy", "--temperature", "1")
    assert call(*arguments, "--json", "run.jsonl")[0] == 0
    status, _, err = call(*arguments, "--costs", "run.jsonl", "--json", "again.jsonl")
    assert status == 0
    assert "(by run.jsonl alone)" in err
    (first,), (second,) = records(tmp_path, "run.jsonl"), records(tmp_path, "again.jsonl")
    assert second["token_ids"] == first["token_ids"]
    assert second["drafted"]["choices"] == first["drafted"]["choices"] != []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--costs", "absent.json"), "absent.json: No such file"),
        (("--costs", "text.txt"), "--costs: text.txt holds no cost curve"),
        (("--costs", "text.txt", "--tree", "chain-4"), "--costs: they are for tree auto; got tree chain-4"),
    ],
)
def test_costs_that_cannot_decide_are_refused(call, tmp_path, options, said):
    (tmp_path / "text.txt").write_text("no curve")
    status, out, err = call("generate", "--model", "absent", "--prompt", "x", "--method", "lookup", *options)
    assert (out, len(err.splitlines())) == ("", 1)
    assert status in (1, 2)
    assert said in err


def test_a_closed_pipe_ends_the_program_without_a_word(start, model):
    process = start("generate", "--model", model, "--prompt", PROMPT, "--max-new-tokens", "50", "--stream")
    process.stdout.close()
    assert process.wait(timeout=90) == 141
    assert process.stderr.read() == ""


def test_the_help_names_every_method(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")  # Options below one another, not in two columns.
    status, out, _ = call("generate", "--help")
    help_of_method = " ".join(re.search(r"--method METHOD(.*?)--prompt TEXT", out, re.DOTALL)[1].split())
    assert status == 0
    assert all(re.search(rf"\b{name}\b", help_of_method) for name in jax_smash.METHODS)


def test_flags_and_library_have_the_same_defaults():
    assert SamplingFlags().options() == SamplingOptions()
    names = {f.name for f in dataclasses.fields(SamplingFlags)} - {"seed"}
    assert names == {f.name for f in dataclasses.fields(SamplingOptions)}


def test_int8_weights_are_asked_for_by_name(call, model, tmp_path):
    arguments = ("generate", "--model", model, "--prompt", PROMPT, *LETTERS)
    status, out, _ = call(*arguments, "--weights", "int8")
    (expected,) = jax_smash.generate(jax_smash.load(model, weights="int8"), PROMPT, regex=LETTERS[1], max_new_tokens=24)
    assert (status, out) == (0, expected.text + "\n")
    status, _, err = call(*arguments, "--weights", "int3")
    assert status == 2
    assert "plain" in err
    assert "int8" in err
    assert len(err.splitlines()) == 1


def test_a_mesh_of_virtual_devices_gives_the_same_text(run, call, model, tmp_path):
    arguments = ("generate", "--model", model, "--prompt", PROMPT, "--max-new-tokens", "12", "--json", "out.jsonl")
    result = run(*arguments, "--mesh", "fsdp=2,tp=2")
    assert result.returncode == 0, result.stderr
    assert len(result.stderr.splitlines()) == 1
    (divided,) = records(tmp_path)
    assert call(*arguments, "--overwrite")[0] == 0
    assert divided["token_ids"] == records(tmp_path)[0]["token_ids"]


@pytest.mark.parametrize(
    ("mesh", "status", "said"),
    [
        (
            "tp:2",
            2,
            "--mesh: mesh must be AXIS=SIZE pairs, as in fsdp=4,tp=2, or one of dp, fsdp, tp, fsdp+tp; got 'tp:2'",
        ),
        ("tp=2,expert=2", 2, "--mesh: a mesh axis must be one of data, fsdp, tp; got 'expert'"),
        ("tp=0", 2, "--mesh: mesh axis tp must be at least 1; got 0"),
        ("tp=5000", 1, "mesh tp=5000 needs 5000 devices; got "),
        ("fsdp=5", 1, "must be divisible by the mesh's fsdp=5"),
    ],
)
def test_a_mesh_that_cannot_be_is_refused(call, model, tmp_path, mesh, status, said):
    arguments = ("generate", "--model", model, "--prompt", PROMPT, "--json", "out.jsonl", "--mesh", mesh)
    found, out, err = call(*arguments)
    assert (found, out, len(err.splitlines())) == (status, "", 1)
    assert err.startswith(f"jax-smash: error: {said}") or (status == 1 and said in err)
    assert os.listdir(tmp_path) == []


def test_a_model_without_a_tokenizer_writes_its_tokens_to_a_file_alone(call, model, tmp_path):
    bare = shutil.copytree(model, tmp_path / "bare", ignore=shutil.ignore_patterns("*token*", "chat*", "special*"))
    (tmp_path / "prompts.jsonl").write_text('{"prompt": [5, 6]}\n')
    given = ("generate", "--model", bare, "--prompts", "prompts.jsonl", "--max-new-tokens", "2")
    status, out, err = call(*given)
    assert (status, out) == (2, "")
    assert "has no tokenizer to show texts with; --json FILE writes their tokens" in err
    assert call(*given, "--json", "out.jsonl")[0] == 0
    assert len(json.loads((tmp_path / "out.jsonl").read_text())["token_ids"]) == 2
