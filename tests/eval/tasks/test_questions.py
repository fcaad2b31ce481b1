import pytest

from eval.scores.engine import Engine
from eval.tasks.questions import Question, QuestionSet
from tests.eval.reference import small

PROMPTS = [f"The {word} sat on the" for word in ("cat", "dog", "old man", "king", "queen of the sea", "sun", "wolf")]


@pytest.fixture(scope="module")
def engine():
    return Engine(small(), batch_size=4, context=64)


@pytest.fixture(scope="module")
def said(engine):
    """What the model says, each time something else."""
    prompts = [engine.encode(prompt) for prompt in PROMPTS]
    found = [c.text for c in engine.continuations(prompts, max_new_tokens=6)]
    assert len(set(found)) == len(found)
    return found


def questions(answers, prompts=PROMPTS):
    return tuple(
        Question(name=f"{i}", prompt=prompt, message=prompt, answer=answer, is_correct=answer.__eq__)
        for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    )


def measured(engine, answers, **options):
    items = QuestionSet(task="t", questions=questions(answers), settings={"x": 1}, max_new_tokens=6, **options)
    (outcome,) = items.measure(engine)
    return outcome


def test_right_answers_are_counted(engine, said):
    outcome = measured(engine, said)
    assert (outcome.n, outcome.score, outcome.metric) == (7, 1.0, "accuracy")
    assert [e["continuation"] for e in outcome.examples] == said


def test_answers_of_other_questions_are_wrong(engine, said):
    assert measured(engine, said[1:] + said[:1]).score == 0


def test_one_wrong_answer_lowers_the_score_by_its_share(engine, said):
    outcome = measured(engine, [*said[:-1], "?"])
    assert outcome.score == pytest.approx(6 / 7)
    assert [e["score"] for e in outcome.examples] == [1] * 6 + [0]
    assert outcome.interval.low < 6 / 7 < outcome.interval.high


def test_a_space_at_the_prompts_end_is_left_to_the_model(engine, said):
    spaced = questions(said, [f"{prompt} " for prompt in PROMPTS])
    (outcome,) = QuestionSet(task="t", questions=spaced, settings={}, max_new_tokens=6).measure(engine)
    assert outcome.score == 1


def test_a_prompt_that_does_not_fit_is_cut_and_counted(engine):
    long = questions(["a", "b"], ["cat " * 100, "cat"])
    (outcome,) = QuestionSet(task="t", questions=long, settings={}, max_new_tokens=6).measure(engine)
    assert outcome.n == 2
    assert outcome.more["truncated"] == 1
    assert outcome.more["truncated_tokens"] == 399 - (64 - 6)
    assert outcome.more["prompt_tokens"] == (64 - 6) + 3


def test_the_limit_leaves_room_for_the_longest_answer(engine):
    (outcome,) = QuestionSet(task="t", questions=questions(["a"] * 6 + ["b" * 20]), settings={}).measure(engine)
    assert outcome.settings["max_new_tokens"] == 8 + 21


def test_chat_without_a_template_is_refused(engine, said):
    with pytest.raises(ValueError, match="no chat template"):
        measured(engine, said, chat=True)
