"""Every task is solved by a rule that reads its prompt, has its length, and is the same each time it is drawn."""

import functools
import re

import pytest

from eval.tasks.ruler.catalogue import RULER, ruler_examples
from eval.tasks.ruler.names import TRAINED
from jax_smash.checkpoints.tokenizer import load_tokenizer
from jax_smash.loading import ASSETS
from tests.eval.tasks.ruler.solvers import solver

TOKENIZER = load_tokenizer(ASSETS / "tiny")
NEW_TOKENS = {"vt": 30, "cwe": 120, "fwe": 50, "qa_1": 32, "qa_2": 32}
NEEDLES = [name for name in RULER if name.startswith("niah")]


def size(text):
    return len(TOKENIZER(text)["input_ids"])


@functools.cache
def drawn(task, *, count=4, length=1600, seed=0, **options):
    return list(ruler_examples(task, count=count, length=length, seed=seed, size=size, **options))


def test_there_are_thirteen_tasks_with_their_own_numbers_of_new_tokens():
    assert len(RULER) == 13
    assert {name: task.new_tokens for name, task in RULER.items()} == dict.fromkeys(NEEDLES, 128) | NEW_TOKENS


@pytest.mark.parametrize("length", [1600, 4200])
@pytest.mark.parametrize("task", RULER)
def test_a_rule_that_reads_only_the_prompt_answers_every_example(task, length):
    assert [e.score(solver(task)(e.prompt)) for e in drawn(task, length=length)] == [1] * 4


@pytest.mark.parametrize("task", RULER)
def test_answers_of_other_examples_are_wrong(task):
    found = drawn(task)
    answers = [" ".join(e.references) for e in found]
    scores = [e.score(other) for e, other in zip(found, answers[1:] + answers[:1], strict=True)]
    assert sum(scores) / len(scores) <= 0.2
    assert not any(e.score("") for e in found)


@pytest.mark.parametrize("task", [*NEEDLES, "vt", "qa_1", "qa_2"])
def test_a_rule_that_reads_only_the_end_of_the_text_answers_few(task):
    def reads_the_end(prompt):
        text, question = prompt.rsplit("Question:", 1)
        try:
            return solver(task)(text[-len(text) // 5 :] + "Question:" + question)
        except (ValueError, KeyError, TypeError):
            return ""

    found = drawn(task, count=12)
    assert sum(e.score(reads_the_end(e.prompt)) for e in found) / len(found) < 0.5


@pytest.mark.parametrize("task", RULER)
def test_no_example_is_longer_than_asked_and_none_much_shorter(task):
    for length in (1600, 4200):
        for example in drawn(task, length=length):
            used = size(example.text) + RULER[task].new_tokens
            assert 0.92 * length < used <= length


@pytest.mark.parametrize("task", ["niah_single_2", "cwe"])
def test_what_a_chat_template_takes_is_left_free(task):
    (plain,), (chat,) = (drawn(task, count=1, spare=spare) for spare in (0, 300))
    assert size(plain.text) + RULER[task].new_tokens > 1600 - 60
    assert 1600 - 360 < size(chat.text) + RULER[task].new_tokens <= 1600 - 300


@pytest.mark.parametrize("task", RULER)
def test_the_same_seed_draws_the_same_examples_and_another_seed_others(task):
    assert drawn(task, count=2) == drawn(task)[:2]
    assert not set(drawn(task, count=2)) & set(drawn(task, count=2, seed=1))


@pytest.mark.parametrize("task", RULER)
def test_answers_and_keys_hold_no_word_of_the_training_split(task):
    for example in drawn(task):
        told = " ".join((*example.references, example.prompt.rsplit("Question:", 1)[1]))
        assert not {w for w in re.findall(r"\w+", told) if w.lower() in TRAINED} - {"small"}


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("magic", {}, "task must be one of niah_single_1, .*qa_2; got 'magic'"),
        ("vt", {"count": 0}, "count must be at least 1; got 0"),
        ("fwe", {"length": 100}, r"length must be at least \d+ for this example of ruler-fwe; got 100"),
        ("niah_multikey_3", {"length": 130}, "length must be at least"),
        ("vt", {"path": "x"}, "vt draws its examples; it reads none from x"),
    ],
)
def test_what_cannot_be_drawn_is_refused(task, options, message):
    with pytest.raises(ValueError, match=message):
        drawn(task, **options)
