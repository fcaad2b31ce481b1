import json

import pytest

from eval.acceptance import PROMPTS
from eval.prompts.question_sets import Question, fitting, read_questions, spec_bench_questions, turn_tokens
from jax_smash.loading import load
from tests.model_directory import write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load(write_model(tmp_path_factory.mktemp("model")))


def write(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_prompts_turns_and_categories_are_read(tmp_path):
    path = write(tmp_path / "some.jsonl", {"prompt": "a"}, {"turns": ["b", "c"], "category": "talk"})
    assert read_questions(path) == [Question("some", ("a",)), Question("talk", ("b", "c"))]


def test_few_questions_are_of_all_categories(tmp_path):
    lines = [{"prompt": f"{c}{i}", "category": c} for c in "xy" for i in range(3)]
    found = read_questions(write(tmp_path / "q.jsonl", *lines), count=3)
    assert [q.turns for q in found] == [("x0",), ("y0",), ("x1",)]


@pytest.mark.parametrize("line", [{"turns": []}, {"turns": "a"}, {"turns": ["a", 3]}, {"prompt": " "}, {"text": "a"}])
def test_a_malformed_question_is_named_by_line(tmp_path, line):
    with pytest.raises(ValueError, match="line 2"):
        read_questions(write(tmp_path / "q.jsonl", {"prompt": "a"}, line))


def test_more_questions_than_there_are_cannot_be_taken(tmp_path):
    with pytest.raises(ValueError, match="at most 1"):
        read_questions(write(tmp_path / "q.jsonl", {"prompt": "a"}), count=2)


def test_spec_bench_is_reported_by_task(tmp_path):
    lines = [
        {"question_id": i, "category": c, "turns": ["q"]}
        for i, c in enumerate(("writing", "writing", "coding", "math_reasoning"))
    ]
    path = write(tmp_path / "question.jsonl", *lines)
    assert [q.category for q in spec_bench_questions(path)] == ["multi-turn"] * 3 + ["math reasoning"]
    assert [q.category for q in spec_bench_questions(path, count=2)] == ["multi-turn", "math reasoning"]
    kept = ["writing", "writing", "coding", "math_reasoning"]
    assert [q.category for q in spec_bench_questions(path, categories=True)] == kept
    assert [q.category for q in spec_bench_questions(path, count=3, categories=True)] == kept[1:]
    with pytest.raises(ValueError, match="got 'cooking'"):
        spec_bench_questions(write(path, {"category": "cooking", "turns": ["q"]}))


def test_questions_that_do_not_fit_are_left_out(model):
    short, long = Question("a", ("short",)), Question("a", ("long " * 100,))
    kept, need = fitting(model, [short, long], max_new_tokens=20, chat=False)
    assert kept == [short]
    assert 25 <= need < 60
    with pytest.raises(ValueError, match="context of 256"):
        fitting(model, [long], max_new_tokens=20, chat=False)


def test_a_later_turn_follows_the_answers(model):
    plain = model.tokenizer.decode(turn_tokens(model, ("one", "two"), ["said"], chat=False))
    assert plain.endswith("one\nsaid\ntwo")
    chat = model.tokenizer.decode(turn_tokens(model, ("one", "two"), ["said"], chat=True))
    assert chat.endswith("<user>one\n<assistant>said\n<user>two\n<assistant>")


def test_the_shipped_prompts_are_of_several_categories():
    mixed = read_questions(PROMPTS.with_name("mixed.jsonl"))
    assert len({q.category for q in mixed}) == 6
    assert any(len(q.turns) == 2 for q in mixed)
    assert len(read_questions(PROMPTS)) == 24
