"""Examples are asked with their answer's beginning, and scored by what follows it."""

import dataclasses

import pytest

from eval.scores.engine import Engine
from eval.scores.paired import difference_of_means, difference_of_shares
from eval.tasks.ruler.example import Example
from eval.tasks.ruler.measured import RulerSet, ruler_set
from tests.eval.reference import small

PROMPTS = ("The cat", "The wolf", "The queen of the sea")


@pytest.fixture(scope="module")
def engine():
    return Engine(small(), batch_size=4, context=96)


def examples(references, **options):
    return tuple(
        Example(f"{prompt}\n", "sat on", given, **options) for prompt, given in zip(PROMPTS, references, strict=True)
    )


def measured(engine, references, *, length=96, new_tokens=8, **options):
    found = RulerSet("ruler-x", examples(references, **options), length=length, new_tokens=new_tokens, seed=3)
    (outcome,) = found.measure(engine)
    return outcome


@pytest.fixture(scope="module")
def said(engine):
    """What the model writes behind each prompt and its answer's beginning."""
    prompts = [engine.encode(f"{prompt}\nsat on") for prompt in PROMPTS]
    return [c.text for c in engine.continuations(prompts, max_new_tokens=8)]


def test_what_the_model_writes_behind_the_beginning_of_the_answer_is_scored(engine, said):
    right = measured(engine, [(text,) for text in said])
    assert (right.task, right.metric, right.score, right.compare) == ("ruler-x", "contained", 1, difference_of_shares)
    assert [e["continuation"] for e in right.examples] == said
    assert right.settings == {"length": 96, "seed": 3, "chat": False, "max_new_tokens": 8}
    assert measured(engine, [("no such text",)] * 3).score == 0


def test_of_several_references_the_share_counts_and_its_interval_is_over_examples(engine, said):
    half = measured(engine, [(said[0], "no such text"), (said[1], said[1]), ("no", "such text")])
    assert [e["score"] for e in half.examples] == [0.5, 1, 0]
    assert half.score == 0.5
    assert half.compare is difference_of_means
    assert half.interval.low < 0.5 < half.interval.high


def test_any_reference_is_enough_where_the_task_says_so(engine, said):
    found = measured(engine, [(text, "no such text") for text in said], any_reference=True)
    assert (found.score, found.compare) == (1, difference_of_shares)


def test_examples_longer_than_the_context_are_refused_not_cut(engine):
    with pytest.raises(ValueError, match="context must be at least 97, the length of ruler-x; got 96"):
        measured(engine, [("a",)] * 3, length=97)


def test_a_drawn_set_fits_the_context_that_is_its_length():
    engine = Engine(small(), batch_size=2, context=500)
    found = ruler_set("qa_1", count=2, length=500, seed=0, size=lambda text: len(engine.model.encode(text)))
    assert (found.task, found.new_tokens, len(found.examples)) == ("ruler-qa_1", 32, 2)
    (outcome,) = found.measure(engine)
    assert outcome.more["prompt_tokens"] == sum(len(e.text.encode()) for e in found.examples) <= 2 * 468
    assert outcome.score == 0


def test_in_a_chat_the_answers_beginning_stands_behind_the_template(engine):
    model = small()
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "
    tokenizer = type(model.tokenizer)(tokenizer_object=model.tokenizer.backend_tokenizer, chat_template=template)
    asked = []

    class Recording(Engine):
        def continuations(self, prompts, **options):
            asked.extend(self.model.tokenizer.decode(prompt) for prompt in prompts)
            return super().continuations(prompts, **options)

    chatting = Recording(dataclasses.replace(model, tokenizer=tokenizer), batch_size=4, context=96)
    found = RulerSet("ruler-x", examples([("a",)] * 3), length=96, new_tokens=4, seed=0, chat=True)
    found.measure(chatting)
    assert asked == [f"user: {prompt}\n\nassistant: sat on" for prompt in PROMPTS]
