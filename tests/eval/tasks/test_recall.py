import pytest

from eval.tasks.recall import recall_set
from jax_smash.checkpoints.tokenizer import load_tokenizer
from jax_smash.loading import ASSETS
from jax_smash.tasks import TASKS, examples

TOKENIZER = load_tokenizer(ASSETS / "tiny")


def size(text):
    return len(TOKENIZER(text)["input_ids"])


@pytest.mark.parametrize("task", TASKS)
def test_the_prompt_is_cut_where_the_answers_tokens_begin(task):
    for example in examples(task, split="test", count=20, seed=3, length=128, size=size):
        asked = TOKENIZER(f"{example.prompt}{example.separator}".rstrip(" "))["input_ids"]
        assert TOKENIZER(example.text)["input_ids"][: len(asked)] == asked


@pytest.mark.parametrize("task", TASKS)
def test_the_right_answer_is_right_and_another_questions_answer_seldom(task):
    found = recall_set(task, count=30, length=128, seed=0, size=size, chat=False).questions
    assert all(q.is_correct(f" {q.answer}") for q in found)
    others = [q.is_correct(f" {other.answer}") for q, other in zip(found, found[1:] + found[:1], strict=True)]
    assert sum(others) <= 6


def test_examples_have_the_length_that_is_asked_for():
    found = recall_set("coreference", count=20, length=200, seed=0, size=size, chat=False)
    lengths = [size(f"{q.prompt}{q.answer}") for q in found.questions]
    assert max(lengths) <= 200
    assert sorted(lengths)[10] > 150
    assert found.settings == {"length": 200, "seed": 0}
    assert found.stop == ("\n",)
    assert not any("\n" in q.answer for q in found.questions)


def test_as_chat_the_question_is_a_message():
    found = recall_set("state", count=1, length=96, seed=0, size=size, chat=True)
    assert found.chat
    assert not found.stop
    assert found.questions[0].message.endswith("Answer with one word.")


def test_a_length_that_is_too_small_is_refused():
    with pytest.raises(ValueError, match="length must be at least"):
        recall_set("coreference", count=1, length=8, seed=0, size=size, chat=False)
