import pytest

from eval.drafting.acceptance_runs import Asking
from eval.prompts.question_sets import Question
from eval.prompts.task_prompts import task_prompts
from jax_smash.methods import make_method
from tests.eval.markov import markov_model, ring


def tasks_of(model, questions, *, new=10, **options):
    asking = Asking(model=model, slots=0, max_new_tokens=new, batch_size=2)
    return list(task_prompts(asking, make_method(model, "ar"), questions, **{"count": 9} | options))


def test_prompts_stand_by_task_and_a_second_turn_holds_the_answer_to_the_first():
    talk = Question("talk", ("ab", "d"))
    first, second = tasks_of(ring(9, stop_tokens=(4,)), [Question("one", ("c",)), talk, Question("one", ("b",))])
    assert (first.name, first.prompts) == ("one", [[2], [1]])
    # b is followed by c, d and the stop e.
    said = [[0, 1], [0, 1, 2, 3, 4, 3]]
    assert second.name == "talk"
    assert second.prompts == [p for p in said if p != said[1]]
    assert second.too_short == 1  # d is followed by the stop alone.


def test_answers_in_circles_are_left_out_and_others_asked_in_their_place():
    # a and b follow each other for ever; the other letters follow in order.
    model = markov_model([[1], [0], [3], [4], [5], [6], [7], [8], [9], [10], [11], [2]])
    questions = [Question("t", (text,)) for text in ("a", "c", "b", "d", "e")]
    (task,) = tasks_of(model, questions, count=2)
    assert (task.prompts, task.in_circles, task.too_long) == ([[2], [3]], 2, 0)


def test_long_questions_are_left_out_and_counted():
    (task,) = tasks_of(ring(9), [Question("t", ("abcdef",)), Question("t", ("ab",))], longest=3)
    assert (task.prompts, task.too_long) == ([[0, 1]], 1)


def test_a_task_of_which_nothing_is_left_is_named():
    questions = [Question("short", ("a",)), Question("long", ("abcdef",))]
    with pytest.raises(ValueError, match="no prompt of long is left: of 1 questions 1 are too long"):
        tasks_of(ring(9), questions, longest=3)
