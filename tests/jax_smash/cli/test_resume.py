"""`jax-smash generate --resume`."""

import fcntl
import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from jax_smash.cli.errors import UsageError
from jax_smash.cli.records import RecordFile
from jax_smash.cli.resume import check_same, made_with, path_digest, read_kept
from tests.checkpoints import write_checkpoint

TIMES = ("tokens_per_second", "time_to_first_token_s")
SHORT = ("--max-new-tokens", "6", "--batch-size", "2")


@pytest.fixture
def prompts(tmp_path) -> list[str]:
    """Five, of which the longest comes last: what is left has the same cache as all."""
    texts = ["The cat", "A dog sat", "One day,", "Tom", "Once upon a time there was " + "a very " * 8]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": p}) + "\n" for p in texts))
    return texts


@pytest.fixture
def generate(call, model, prompts):
    """Runs `generate` on the prompts in this process."""

    def generate_(name: str, *more: object) -> tuple[int, str, str]:
        return call("generate", "--model", model, "--prompts", "prompts.jsonl", *SHORT, "--json", name, *more)

    return generate_


def without_times(file: Path) -> list[str]:
    """Returns the lines as they stand, but for what a clock said."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [json.dumps({k: v for k, v in line.items() if k not in TIMES}) for line in lines]


def cut(source: Path, partial: Path, *, lines: int, more: int = 0) -> None:
    """Makes the file that a killed run leaves: whole lines, and some bytes of the next."""
    whole = source.read_bytes().splitlines(keepends=True)
    partial.write_bytes(b"".join(whole[:lines]) + b"".join(whole[lines : lines + 1])[:more])


@pytest.mark.parametrize("lines", [0, 1, 2, 3, 4])
def test_a_resumed_file_is_that_of_a_run_without_a_break(generate, tmp_path, lines):
    assert generate("whole.jsonl", "--logprobs", "2")[0] == 0
    whole = tmp_path / "whole.jsonl"
    cut(whole, tmp_path / "out.jsonl.partial", lines=lines, more=40)
    status, out, err = generate("out.jsonl", "--logprobs", "2", "--resume")
    assert status == 0
    assert without_times(tmp_path / "out.jsonl") == without_times(whole)
    assert (tmp_path / "out.jsonl").read_bytes().splitlines()[:lines] == whole.read_bytes().splitlines()[:lines]
    assert [line for line in out.splitlines() if line.startswith("==")] == [
        f"== prompt {i} ==" for i in range(lines, 5)
    ]
    assert (f"{lines} texts were there before" in err) == (lines > 0)
    assert sorted(os.listdir(tmp_path)) == ["out.jsonl", "prompts.jsonl", "whole.jsonl"]


@pytest.mark.parametrize("lines", [3, 5])
def test_samples_of_one_prompt_are_continued_in_their_middle(generate, tmp_path, lines):
    samples = ("--num-samples", "2", "--temperature", "1", "--seed", "7")
    assert generate("whole.jsonl", *samples)[0] == 0
    cut(tmp_path / "whole.jsonl", tmp_path / "out.jsonl.partial", lines=lines)
    status, out, _ = generate("out.jsonl", *samples, "--resume")
    assert status == 0
    assert without_times(tmp_path / "out.jsonl") == without_times(tmp_path / "whole.jsonl")
    assert out.startswith(f"== prompt {lines // 2}, sample 1 ==\n")


def test_texts_are_the_same_with_a_drafter_that_began_warm(generate, tmp_path):
    recycling = ("--method", "recycling", "--tree", "chain-3")
    assert generate("first.jsonl", *recycling, "--save-warm-start", "known.st")[0] == 0
    warm = (*recycling, "--warm-start", "known.st")
    assert generate("whole.jsonl", *warm)[0] == 0
    cut(tmp_path / "whole.jsonl", tmp_path / "out.jsonl.partial", lines=3, more=7)
    assert generate("out.jsonl", *warm, "--save-warm-start", "known.st", "--resume")[0] == 0
    lines, whole = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("out.jsonl", "whole.jsonl")
    )
    for field in ("prompt", "text", "token_ids", "finish_reason"):
        assert [line[field] for line in lines] == [line[field] for line in whole]
    assert list(lines[0]) == [*list(lines[1]), "made_with"]


def test_a_run_that_ended_well_is_told_to_be_whole(generate, tmp_path):
    assert generate("out.jsonl", "--resume")[0] == 0  # Nothing is there: it begins.
    before = (tmp_path / "out.jsonl").read_bytes()
    for more in ((), ("--overwrite",)):
        status, out, err = generate("out.jsonl", "--resume", *more)
        assert (status, out) == (0, "")
        assert err == "out.jsonl is whole: all 5 texts were there before\n"
    assert (tmp_path / "out.jsonl").read_bytes() == before
    # Killed when all was written and only the name was missing.
    (tmp_path / "out.jsonl").rename(tmp_path / "out.jsonl.partial")
    assert generate("out.jsonl", "--resume")[0] == 0
    assert (tmp_path / "out.jsonl").read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["out.jsonl", "prompts.jsonl"]


def test_who_waits_for_a_warm_start_is_told_that_none_is_written(generate, tmp_path):
    assert generate("out.jsonl", "--method", "recycling")[0] == 0
    status, _, err = generate("out.jsonl", "--method", "recycling", "--resume", "--save-warm-start", "warm.st")
    assert status == 0
    assert "warm.st is not written: no text was left to learn from" in err


@pytest.mark.parametrize("option", ["--tree", "--costs"])
def test_another_tree_in_the_same_file_is_another_run(generate, tmp_path, option):
    curve = {"entries": [1, 4], "seconds": [1.0, 1.0], "batch": 2, "slots": 64, "source": "written"}
    (tmp_path / "file.json").write_text("[[0], [0, 0]]" if option == "--tree" else json.dumps(curve))
    given = ("--method", "lookup", option, "file.json")
    assert generate("out.jsonl", *given)[0] == 0
    (tmp_path / "file.json").write_text((tmp_path / "file.json").read_text() + "\n")
    status, _, err = generate("out.jsonl", *given, "--resume")
    assert status == 2
    assert f"was made with {option}: another file or folder; nothing was changed" in err


@pytest.fixture
def partial(generate, tmp_path) -> Path:
    assert generate("out.jsonl", "--temperature", "0.5")[0] == 0
    file = tmp_path / "out.jsonl.partial"
    cut(tmp_path / "out.jsonl", file, lines=2, more=9)
    (tmp_path / "out.jsonl").unlink()
    return file


def test_a_file_of_other_prompts_options_or_another_model_is_refused_and_kept(generate, partial, model, tmp_path):
    kept = partial.read_bytes()
    other = shutil.copytree(model, tmp_path / "other")
    write_checkpoint(other, json.loads((other / "config.json").read_text()), seed=1)
    cases = [
        (("--temperature", "0.8"), "with --temperature 0.5; got 0.8"),
        ((), "with --temperature 0.5; got at its default"),
        (("--temperature", "0.5", "--seed", "3"), "with --seed at its default; got 3"),
        (("--temperature", "0.5", "--stop", "x"), 'with --stop at its default; got [["x"]]'),
        (("--temperature", "0.5", "--model", other), "was made with another model"),
    ]
    for more, said in cases:
        status, out, err = generate("out.jsonl", "--resume", *more)
        assert (status, out, len(err.splitlines())) == (2, "", 1)
        assert said in err
        assert err.endswith("; nothing was changed\n")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Something else"}\n')
    status, _, err = generate("out.jsonl", "--resume", "--temperature", "0.5")
    assert status == 2
    assert "out.jsonl.partial was made with other prompts; nothing was changed" in err
    assert partial.read_bytes() == kept
    assert not (tmp_path / "out.jsonl").exists()


def test_without_resume_a_partial_file_is_refused_with_what_helps(generate, partial):
    status, _, err = generate("out.jsonl", "--temperature", "0.5")
    assert status == 2
    assert "out.jsonl.partial exists; --resume continues it, --overwrite permits replacing it" in err


def test_a_whole_file_of_other_options_is_replaced_on_request_alone(generate, tmp_path):
    assert generate("out.jsonl")[0] == 0
    before = (tmp_path / "out.jsonl").read_bytes()
    status, _, err = generate("out.jsonl", "--resume", "--seed", "3")
    assert (status, (tmp_path / "out.jsonl").read_bytes()) == (2, before)
    assert "out.jsonl was made with --seed" in err
    assert generate("out.jsonl", "--resume", "--seed", "3", "--overwrite")[0] == 0
    assert '"seed": 3' in (tmp_path / "out.jsonl").read_text()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"prompt": "a"}\nnot JSON\n', "line 1 of out.jsonl.partial is no completion"),
        (b'{"token_ids": [1]}\n', "out.jsonl.partial does not say what it was made with"),
        (b'{"token_ids": [1], "made_with": 3}\n', "does not say what it was made with"),
        (b'{"token_ids": [1], "made_with": {"options": {}, "sha256": {}}}\n', "was made with other prompts"),
        (b"\xff\n", "line 1 of out.jsonl.partial is no completion"),
    ],
)
def test_a_file_that_is_none_of_ours_is_left_as_it_is(generate, tmp_path, content, said):
    (tmp_path / "out.jsonl.partial").write_bytes(content)
    status, out, err = generate("out.jsonl", "--resume")
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert said in err
    assert (tmp_path / "out.jsonl.partial").read_bytes() == content


def test_resume_needs_a_file(call, model):
    status, _, err = call("generate", "--model", model, "--prompt", "a", "--resume")
    assert status == 2
    assert "--resume is about --json; give it a file" in err


def test_a_file_that_another_program_writes_is_refused(tmp_path):
    partial = tmp_path / "out.jsonl.partial"
    partial.write_text('{"token_ids": []}\n')
    with partial.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        for how in ({"resume": True}, {"overwrite": True}):
            with (
                pytest.raises(UsageError, match="another program is writing"),
                RecordFile(tmp_path / "out.jsonl", **how) as records,
            ):
                records.write({"token_ids": [1]})
    assert partial.read_text() == '{"token_ids": []}\n'


def test_a_file_that_has_grown_since_it_was_read_is_refused(tmp_path):
    partial = tmp_path / "out.jsonl.partial"
    partial.write_text('{"token_ids": []}\n')
    records = RecordFile(tmp_path / "out.jsonl", resume=True)
    with partial.open("a") as other:
        other.write('{"token_ids": [1]}\n')
    with pytest.raises(UsageError, match="another program is writing"), records:
        pass
    assert len(partial.read_text().splitlines()) == 2


def test_an_error_before_the_first_new_line_leaves_the_file_as_it_is(tmp_path):
    partial = tmp_path / "out.jsonl.partial"
    partial.write_text('{"token_ids": []}\n{"tok')
    with pytest.raises(ValueError, match="bad") as caught, RecordFile(tmp_path / "out.jsonl", resume=True):
        raise ValueError("bad")
    assert caught.value.__notes__ == [f"1 finished completions are in {partial}; --resume continues it"]
    assert partial.read_text() == '{"token_ids": []}\n{"tok'


def test_only_whole_lines_are_kept(tmp_path):
    (tmp_path / "a").write_bytes(b'{"token_ids": [], "made_with": 1}\n{"token_ids": [2]}\n{"token_ids": [3]}')
    kept = read_kept(tmp_path / "a")
    assert (kept.lines, kept.made_with) == (2, 1)
    assert kept.total - kept.size == len('{"token_ids": [3]}')


def test_a_folder_s_digest_follows_names_and_contents(tmp_path):
    (tmp_path / "a" / "sub").mkdir(parents=True)
    (tmp_path / "a" / "sub" / "w").write_bytes(bytes(10**6))
    first = path_digest(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "b" / "README.md").write_text("says something")
    assert path_digest(tmp_path / "b") == first
    (tmp_path / "b" / "programs" / "cpu" / "jax-1.0-jaxlib-1.0").mkdir(parents=True)
    (tmp_path / "b" / "programs" / "cpu" / "jax-1.0-jaxlib-1.0" / "x-cache").write_text("compiled")
    assert path_digest(tmp_path / "b") == first
    (tmp_path / "b" / "hamburger").mkdir()
    (tmp_path / "b" / "hamburger" / "w").write_text("modules")
    assert path_digest(tmp_path / "b", without="hamburger") == first != path_digest(tmp_path / "b")
    shutil.rmtree(tmp_path / "b" / "hamburger")
    (tmp_path / "b" / "sub" / "w").write_bytes(bytes(10**6 - 1) + b"x")
    changed = path_digest(tmp_path / "b")
    (tmp_path / "b" / "sub" / "w").rename(tmp_path / "b" / "w")
    assert len({first, changed, path_digest(tmp_path / "b")}) == 3


def test_another_version_or_another_file_is_named(tmp_path):
    (tmp_path / "m").write_text("1")
    here = made_with("m", options={}, prompts=["a"], paths={"model": tmp_path / "m", "warm_start": tmp_path / "m"})
    check_same(json.loads(json.dumps(here)), here, Path("out"))
    with pytest.raises(UsageError, match=r"out was made by jax_smash 0\.0; this is"):
        check_same(here | {"jax_smash": "0.0"}, here, Path("out"))
    cold = made_with("m", options={}, prompts=["a"], paths={"model": tmp_path / "m", "warm_start": None})
    with pytest.raises(UsageError, match="out was made with --warm-start: another file"):
        check_same(cold, here, Path("out"))


def test_after_a_kill_the_file_is_that_of_a_run_without_a_break(start, generate, model, tmp_path):
    """The program as users run it, killed at whatever it is about."""
    texts = [f"The cat sat {i}" for i in range(400)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": p}) + "\n" for p in texts))
    partial = tmp_path / "out.jsonl.partial"
    command = ("generate", "--model", model, "--prompts", "prompts.jsonl", *SHORT, "--json", "out.jsonl", "--resume")
    for lines in (2, 40):
        with (tmp_path / "said").open("w") as said:
            process = start(*command, stdout=said, stderr=said)
        deadline = time.monotonic() + 300
        while not (partial.exists() and partial.read_bytes().count(b"\n") >= lines):
            assert process.poll() is None, (tmp_path / "said").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait(timeout=60) == -signal.SIGKILL
    assert 40 <= partial.read_bytes().count(b"\n") < 400
    with (tmp_path / "said").open("w") as said:
        assert start(*command, stdout=said, stderr=said).wait(timeout=300) == 0
    whole = tmp_path / "whole.jsonl"
    with (tmp_path / "said").open("w") as said:
        alone = [*command[:-2], "whole.jsonl"]
        assert start(*alone, stdout=said, stderr=said).wait(timeout=300) == 0
    assert without_times(tmp_path / "out.jsonl") == without_times(whole)
    assert not partial.exists()
