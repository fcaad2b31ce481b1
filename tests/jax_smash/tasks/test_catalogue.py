import hashlib
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from jax_smash.tasks import TASKS, examples, smallest_length
from jax_smash.tasks.words import WORDS

ROOT = Path(__file__).parents[3]
SPLITS = ("train", "test")
each_task = pytest.mark.parametrize("task", TASKS)
each_split = pytest.mark.parametrize("split", SPLITS)


def vocabulary(split):
    words = WORDS[split]
    listed = {word for field in fields(words) for word in getattr(words, field.name)}
    return listed | {f"{thing}s" for thing in words.objects}


def words_of(example):
    return set(re.findall(r"[A-Za-z]+", f"{example.text} {example.question}"))


def byte_size(text):
    """A tokenizer that puts a token before each text and has one for each byte."""
    return 1 + len(text.encode())


def digest(task, split):
    drawn = "\0".join(example.text + example.question for example in examples(task, split=split, count=40, seed=0))
    return hashlib.sha256(drawn.encode()).hexdigest()[:16]


# Of the first 40 examples of seed 0: another value means that no corpus packed before can be made again.
DIGESTS = {
    "coreference": {"train": "cd906465f8b8eba9", "test": "4e8f81a90e3765b2"},
    "key_value": {"train": "18e37bde4331204a", "test": "c4e0f054c2c4bef7"},
    "copying": {"train": "9929b24c1e42f1c3", "test": "b9aaa1dff134b4fa"},
    "arithmetic": {"train": "a4cd76ff7615cee7", "test": "ae22c4fbf6fdfe69"},
    "state": {"train": "73b1e697930f0d4c", "test": "999bdbdd06f87414"},
}


@each_task
def test_the_same_arguments_draw_the_same_examples_on_every_python(task):
    assert {split: digest(task, split) for split in SPLITS} == DIGESTS[task]


def test_examples_do_not_depend_on_the_order_of_sets():
    program = (
        "from jax_smash.tasks import TASKS, examples;"
        "print([e.text for t in TASKS for e in examples(t, split='train', count=5, seed=1, length=300)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert len(eval(outputs.pop())) == 5 * len(TASKS)


@each_task
def test_fewer_examples_are_the_first_of_more(task):
    few = list(examples(task, split="train", count=3, seed=5))
    assert few == list(examples(task, split="train", count=6, seed=5))[:3]


@each_task
def test_other_seeds_draw_other_examples(task):
    drawn = [
        {example.text for example in examples(task, split="train", count=15, seed=seed, length=64)} for seed in (1, 2)
    ]
    assert not drawn[0] & drawn[1]


@each_task
def test_no_word_of_one_split_occurs_in_the_other(task, corpus):
    for split, other in (SPLITS, SPLITS[::-1]):
        seen = set().union(*(words_of(example) for example in corpus[task, split]))
        assert not seen & vocabulary(other)


@each_task
def test_no_test_example_is_a_training_example(task, corpus):
    assert not {e.text for e in corpus[task, "train"]} & {e.text for e in corpus[task, "test"]}


def test_no_answer_of_one_split_is_an_answer_of_the_other_but_for_sums(corpus):
    for task in ("coreference", "key_value", "copying", "state"):
        answers = [{example.answer for example in corpus[task, split]} for split in SPLITS]
        assert not answers[0] & answers[1], task


@each_task
@each_split
def test_the_answer_and_the_whole_document_fit_their_form(task, split, corpus):
    for example in corpus[task, split]:
        assert example.task == task
        assert example.prompt == example.prompt.strip() != ""
        assert example.answer == example.answer.strip() != ""
        assert example.separator in (" ", "\n")
        assert example.is_correct(example.text[len(example.prompt) :])
        user, assistant = example.messages
        assert (user["role"], assistant["role"]) == ("user", "assistant")
        assert user["content"].strip() != ""
        assert example.is_correct(assistant["content"])


@each_task
@each_split
@pytest.mark.parametrize(("length", "least"), [(100, 0.85), (500, 0.9)])
def test_lengths_in_words_are_reached_and_not_passed(task, split, length, least):
    for example in examples(task, split=split, count=10, seed=2, length=length):
        size = len(f"{example.prompt}{example.separator}{example.answer}".split())
        assert least * length <= size <= length


@each_task
@each_split
def test_lengths_by_another_measure_are_reached_and_not_passed(task, split):
    for example in examples(task, split=split, count=10, seed=2, length=900, size=byte_size):
        assert 0.85 * 900 <= byte_size(f"{example.prompt}{example.separator}{example.answer}") <= 900


@each_task
@each_split
@pytest.mark.parametrize("size", [None, byte_size])
def test_the_smallest_length_works_and_one_less_is_refused_with_its_name(task, split, size):
    smallest = smallest_length(task, split=split, size=size)
    for example in examples(task, split=split, count=8, seed=3, length=smallest, size=size):
        whole = f"{example.prompt}{example.separator}{example.answer}"
        assert (size or (lambda text: len(text.split())))(whole) <= smallest
    with pytest.raises(ValueError, match=f"at least {smallest} for {task} examples .*; got {smallest - 1}"):
        examples(task, split=split, count=1, seed=3, length=smallest - 1, size=size)


def test_an_unknown_task_is_named_with_the_known_ones():
    with pytest.raises(ValueError, match="coreference, key_value, copying, arithmetic, state; got 'sorting'"):
        examples("sorting", split="train", count=1, seed=0)


def test_an_unknown_split_is_named():
    with pytest.raises(ValueError, match="train, test; got 'valid'"):
        examples("state", split="valid", count=1, seed=0)


def test_a_negative_count_is_refused():
    with pytest.raises(ValueError, match="count must be 0 or more; got -1"):
        examples("state", split="train", count=-1, seed=0)


def test_a_count_of_none_draws_nothing():
    assert list(examples("state", split="train", count=0, seed=0)) == []


def test_neither_jax_nor_transformers_is_imported():
    program = "import sys, jax_smash.tasks; print({'jax', 'transformers', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
