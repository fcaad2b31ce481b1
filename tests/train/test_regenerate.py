"""A model's own answers as documents, however often the run is cut off."""

import json
import shutil

import pytest

import jax_smash
from tests.checkpoints import LLAMA, write_checkpoint
from tests.hosts import Hosts
from tests.train.corpus_files import make_tokenizer, write_lines
from train.data.documents import read_documents
from train.regenerate import main

PROMPTS = [{"prompt": f"Once there were {i} foxes."} for i in range(5)]
OPTIONS = {"max_new_tokens": 6, "batch_size": 2, "num_samples": 2, "temperature": 0.9}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A small model, its prompts, chats, and the whole of its answers."""
    folder = tmp_path_factory.mktemp("regenerate")
    write_checkpoint(folder / "model", {**LLAMA, "vocab_size": 290, "bos_token_id": 0, "eos_token_id": 1})
    for file in make_tokenizer(folder / "tokenizer").iterdir():
        shutil.copy(file, folder / "model")
    write_lines(folder / "prompts.jsonl", *PROMPTS)
    turns = [("user", "Is 1 odd?"), ("assistant", "Yes."), ("user", "And 2?"), ("assistant", "No.")]
    chat = [{"role": role, "content": content} for role, content in turns]
    write_lines(folder / "chats.jsonl", {"messages": chat}, {"messages": chat[:1]})
    main(str(folder / "model"), (folder / "prompts.jsonl",), folder / "whole.jsonl", **OPTIONS)
    return folder


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_answer_is_a_document_in_the_order_of_the_prompts(root):
    found = lines(root / "whole.jsonl")
    assert len(found) == 10
    for number, line in enumerate(found):
        prompt = PROMPTS[number // 2]["prompt"]
        assert line["text"].startswith(prompt)
        assert line["prompt"] == prompt
        assert 1 <= len(line["token_ids"]) <= 6
        assert line["finish_reason"] in ("length", "stop_token")
    assert found[0]["token_ids"] != found[1]["token_ids"]
    assert [document.text for document in read_documents(root / "whole.jsonl", passage=10_000)]


def test_sampled_answers_are_those_of_generate(root):
    model = jax_smash.load(root / "model")
    sampling = jax_smash.SamplingOptions(temperature=0.9)
    prompts = [row["prompt"] for row in PROMPTS]
    made = jax_smash.generate(
        model, prompts, sampling=sampling, max_new_tokens=6, num_samples=2, batch_size=2, seed=list(range(5))
    )
    assert [line["token_ids"] for line in lines(root / "whole.jsonl")] == [answer.token_ids for answer in made]


@pytest.mark.parametrize("share", [0.05, 0.5, 0.97])
def test_a_run_that_was_killed_leaves_nothing_out_and_writes_nothing_twice(root, tmp_path, share):
    whole = (root / "whole.jsonl").read_bytes()
    (tmp_path / "out.jsonl.partial").write_bytes(whole[: int(share * len(whole))])
    main(str(root / "model"), (root / "prompts.jsonl",), tmp_path / "out.jsonl", resume=True, **OPTIONS)
    assert (tmp_path / "out.jsonl").read_bytes() == whole
    assert not (tmp_path / "out.jsonl.partial").exists()


def test_a_run_goes_on_with_its_own_options_alone_and_is_not_written_over(root, tmp_path):
    half = b"".join((root / "whole.jsonl").read_bytes().splitlines(keepends=True)[:4])
    (tmp_path / "out.jsonl.partial").write_bytes(half)
    given = (str(root / "model"), (root / "prompts.jsonl",), tmp_path / "out.jsonl")
    with pytest.raises(ValueError, match=r"was made with --temperature 0\.9; got 0\.5"):
        main(*given, resume=True, **OPTIONS | {"temperature": 0.5})
    with pytest.raises(ValueError, match="exists; --resume continues it"):
        main(*given, **OPTIONS)
    assert (tmp_path / "out.jsonl.partial").read_bytes() == half


@pytest.mark.slow
def test_a_reply_at_the_end_of_a_chat_is_written_anew_under_a_mesh(root, tmp_path):
    main(str(root / "model"), (root / "chats.jsonl",), tmp_path / "out.jsonl", max_new_tokens=4, mesh="fsdp=2")
    first, second = lines(tmp_path / "out.jsonl")
    assert [m["role"] for m in first["messages"]] == ["user", "assistant", "user", "assistant"]
    assert [m["content"] for m in first["messages"][:3]] == ["Is 1 odd?", "Yes.", "And 2?"]
    assert second["messages"][:-1] == first["messages"][:1]


def test_what_is_wrong_is_named_and_nothing_written(root, tmp_path):
    write_lines(tmp_path / "stories.jsonl", {"text": "A story."})
    write_lines(tmp_path / "long.jsonl", PROMPTS[0], {"prompt": "fox " * 400})
    model = str(root / "model")
    write_lines(tmp_path / "alone.jsonl", {"messages": [{"role": "assistant", "content": "No."}]})
    with pytest.raises(ValueError, match=r"alone\.jsonl, line 1: a chat must have a message before the reply"):
        main(model, (tmp_path / "alone.jsonl",), tmp_path / "out.jsonl")
    with pytest.raises(ValueError, match=r"stories\.jsonl, line 1"):
        main(model, (tmp_path / "stories.jsonl",), tmp_path / "out.jsonl")
    with pytest.raises(ValueError, match=r"prompt 1 has \d+ tokens and may get 4 new ones: \d+ are more than"):
        main(model, (tmp_path / "long.jsonl",), tmp_path / "out.jsonl", max_new_tokens=4)
    with pytest.raises(ValueError, match="no-folder"):
        main(model, (root / "prompts.jsonl",), tmp_path / "no-folder/out.jsonl")
    assert not list(tmp_path.glob("out*"))


def test_prompts_that_an_evaluation_asks_are_left_out_and_counted_in_the_record(root, tmp_path, capsys, monkeypatch):
    asked = "Count the foxes that came out of the wood last night and say it."
    write_lines(tmp_path / "prompts.jsonl", *PROMPTS[:2], {"prompt": f"Hello. {asked}"})
    write_lines(tmp_path / "questions.jsonl", {"turns": [asked.upper()]})
    given = (str(root / "model"), (tmp_path / "prompts.jsonl",), tmp_path / "answers")
    options = {"avoid": (tmp_path / "questions.jsonl",), "max_new_tokens": 2}
    monkeypatch.setattr("train.regenerate.TOLD", 1)
    main(*given, **options)
    found = lines(tmp_path / "answers/answers.jsonl")
    assert [line["text"][: len(row["prompt"])] for line, row in zip(found, PROMPTS[:2], strict=True)] == [
        row["prompt"] for row in PROMPTS[:2]
    ]
    record = found[0]["made_with"]["options"]["avoid"]
    assert {name: record[name] for name in ("words", "left_out", "of")} == {"words": 13, "left_out": 1, "of": 3}
    assert [file.split()[0] for file in record["sha256"]] == ["questions.jsonl"]
    said = capsys.readouterr()
    assert "1 of 3 prompts left out: they share 13 words in a row with what is avoided" in said.out
    assert "2 of 2 answers" in said.err
    main(*given, resume=True, **options)
    write_lines(tmp_path / "questions.jsonl", {"turns": [asked, "And now?"]})
    with pytest.raises(ValueError, match="was made with --avoid"):
        main(*given, resume=True, **options)


def test_prompts_of_several_files_are_asked_one_after_another(root, tmp_path):
    write_lines(tmp_path / "first.jsonl", *PROMPTS[:2])
    write_lines(tmp_path / "second.jsonl", *PROMPTS[2:])
    main(str(root / "model"), (tmp_path / "first.jsonl", tmp_path / "second.jsonl"), tmp_path / "out.jsonl", **OPTIONS)
    assert (tmp_path / "out.jsonl").read_bytes() == (root / "whole.jsonl").read_bytes()
    with pytest.raises(ValueError, match="prompts must be at least one file; got none"):
        main(str(root / "model"), (), tmp_path / "none.jsonl", **OPTIONS)


@pytest.mark.slow
def test_two_hosts_write_what_one_does_and_go_on_where_one_stood(root, tmp_path):
    half = b"".join((root / "whole.jsonl").read_bytes().splitlines(keepends=True)[:4])
    program = ["-m", "train.regenerate", "--model", root / "model", "--prompts", root / "prompts.jsonl"]
    for name, value in OPTIONS.items():
        program += [f"--{name.replace('_', '-')}", value]
    for file, begun in ((tmp_path / "new.jsonl", b""), (tmp_path / "resumed.jsonl", half)):
        file.with_name(f"{file.name}.partial").write_bytes(begun)
        first, other = Hosts([*program, "--output", file, "--resume"]).ended()
        assert (first.status, other.status) == (0, 0), first.errors + other.errors
        assert f"{10 - begun.count(10)} answers written to {file}" in first.output
        assert "answers" not in other.output
        assert file.read_bytes() == (root / "whole.jsonl").read_bytes()


@pytest.mark.slow
def test_hosts_that_would_write_other_answers_are_refused_by_name(root, tmp_path):
    program = ["-m", "train.regenerate", "--model", root / "model", "--prompts", root / "prompts.jsonl"]
    program += ["--output", tmp_path / "answers"]
    for process in Hosts(program, each=[("--seed", 1), ("--seed", 2)]).ended():
        assert process.status == 1
        assert "process 1 of 2 has --seed 2 where process 0 has 1" in process.errors
        assert "Traceback" not in process.errors
