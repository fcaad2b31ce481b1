import numpy as np
import pytest

from eval.drafting.acceptance_runs import (
    Answer,
    Asking,
    by_category,
    cut,
    figures,
    mean_accepted_tokens,
    with_drafter,
    with_tree,
)
from eval.prompts.question_sets import Question
from jax_smash.draft.trees.templates import named_tree
from jax_smash.draft.trees.tree import chain
from jax_smash.methods import DraftOptions, make_method
from jax_smash.serve.session import Session
from tests.eval.markov import ring

START = [Question("letters", ("a",))]


def answer(tokens, forwards, category="a", **counts):
    return Answer(category=category, tokens=tokens, text="", forwards=forwards, **counts)


def chain_of_two(model):
    """Returns recycling that drafts two tokens in a row and learns from what it checks alone."""
    return with_drafter(make_method(model, "recycling", draft=DraftOptions(tree="chain-2")), learn_prompt=False)


@pytest.mark.parametrize(
    ("limit", "forwards", "accepted"),
    [
        # Nine letters in a ring: nothing is known in the first round, so its nine letters take a forward each. The
        # prefill's b is none of them. From then on each forward gives three.
        (2, 1, 1),
        (10, 9, 1),
        (13, 10, 12 / 10),
        (16, 11, 15 / 11),
        # The limit cuts the last forward's three to one.
        (17, 12, 16 / 12),
    ],
)
def test_mean_accepted_tokens_as_worked_by_hand(limit, forwards, accepted):
    model = ring(9)
    asking = Asking(model=model, slots=64, max_new_tokens=limit)
    (found,), _ = asking.answers(chain_of_two(model), START)
    assert found.tokens == [(i + 1) % 9 for i in range(limit)]
    assert found.forwards == forwards
    assert mean_accepted_tokens([found]) == pytest.approx(accepted)


def test_nothing_is_counted_past_a_stop():
    model = ring(9, stop_tokens=(0,))
    asking = Asking(model=model, slots=64, max_new_tokens=32)
    first = asking.answers(chain_of_two(model), START)
    (again,), _ = asking.answers(chain_of_two(model), START, memory=first[1])
    assert again.tokens == [1, 2, 3, 4, 5, 6, 7, 8, 0]
    # b comes with the prefill; cde, fgh, and of the last three i and a.
    assert again.forwards == 3
    assert mean_accepted_tokens([again]) == pytest.approx(8 / 3)


def test_forwards_are_summed_before_they_divide():
    answers = [answer([1, 2, 3], 1), answer([1], 0), answer([1, 2, 3, 4], 3)]
    assert mean_accepted_tokens(answers) == 5 / 4
    assert mean_accepted_tokens([answer([1], 0)]) is None


def test_answers_in_circles_are_left_out_and_counted():
    circle, text = answer([1, 2] * 20, 2, tried=[2], kept=[2]), answer(list(range(41)), 20, tried=[20], kept=[10])
    found = figures([circle, text, answer([5, 5, 5], 2, tried=[1], kept=[0])])
    assert (found["answers"], found["degenerate"]) == (2, 1)
    assert found["mean_accepted_tokens"] == 42 / 22
    assert (found["tried_by_depth"], found["acceptance_by_depth"]) == ([21], [10 / 21])
    assert figures([circle])["mean_accepted_tokens"] is None


def test_categories_stand_beside_the_whole():
    mine, other = answer([1], 0), answer([1], 0, category="b")
    assert by_category([mine, other]) == {"all": [mine, other], "a": [mine], "b": [other]}
    assert by_category([mine]) == {"all": [mine]}


def test_what_is_learned_is_carried_or_not():
    model = ring(9)
    asking = Asking(model=model, slots=64, max_new_tokens=13)
    twice = START * 2
    carried, memory = asking.answers(chain_of_two(model), twice)
    alone, untouched = asking.answers(chain_of_two(model), twice, carry=False)
    assert [a.forwards for a in carried] == [10, 4]
    assert [a.forwards for a in alone] == [10, 10]
    assert untouched is None
    assert (np.asarray(memory["drafter"].matrix.table)[:, 0] == (np.arange(9) + 1) % 9).all()


def test_a_second_turn_reads_the_first_answer():
    model = ring(9)
    asking = Asking(model=model, slots=64, max_new_tokens=3)
    found, _ = asking.answers(make_method(model, "ar"), [Question("two", ("ab", "f")), Question("one", ("d",))])
    assert [(a.category, a.text) for a in found] == [("two", "cde"), ("two", "ghi"), ("one", "efg")]


def test_alone_questions_are_asked_in_their_order():
    model, read, reads = ring(9), Session.read, []
    questions = [Question("one", ("d",)), Question("two", ("ab", "f")), Question("one", ("c",))]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Session, "read", lambda session, prompts: reads.extend(prompts) or read(session, prompts))
        Asking(model=model, slots=64, max_new_tokens=3).answers(make_method(model, "ar"), questions)
    assert ["".join(chr(ord("a") + token) for token in prompt) for prompt in reads] == ["d", "ab", "abcdef", "c"]


def test_questions_of_several_turns_share_batches():
    model, read, reads = ring(9), Session.read, []
    one, two = Question("one", ("d",)), Question("two", ("ab", "f"))
    asking = Asking(model=model, slots=64, max_new_tokens=3, batch_size=2)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Session, "read", lambda session, prompts: reads.append(prompts) or read(session, prompts))
        found, _ = asking.answers(make_method(model, "ar"), [one, two, one, two])
    assert len(reads) == 3
    both = [("two", "cde"), ("two", "ghi")]
    assert [(a.category, a.text) for a in found] == [("one", "efg"), *both, ("one", "efg"), *both]


def test_rows_of_a_batch_are_answered_as_alone():
    model = ring(9)
    questions = [Question("two", ("ab", "f")), Question("one", ("d",)), Question("one", ("c",))]
    method = make_method(model, "ar")
    alone, _ = Asking(model=model, slots=64, max_new_tokens=3).answers(method, questions)
    together, _ = Asking(model=model, slots=64, max_new_tokens=3, batch_size=2).answers(method, questions)
    assert sorted(a.text for a in alone) == sorted(a.text for a in together)


def test_a_cut_keeps_what_a_smaller_tree_has():
    template = named_tree("recycling-80")
    assert [cut(template, width=width)[1] for width in (1, 8)] == [6, 79]
    assert [cut(template, depth=depth)[1] for depth in (1, 2, 6)] == [8, 29, 79]
    assert cut(template, width=2, depth=2)[1] == 6
    assert cut(chain(9), depth=4)[1] == 4


def test_a_cut_drafts_as_the_smaller_tree():
    model = ring(9)
    asking = Asking(model=model, slots=64, max_new_tokens=40)
    method = chain_of_two(model)
    (small,), _ = asking.answers(method, START)
    (whole,), _ = asking.answers(with_tree(method, chain(5)), START)
    (part,), _ = asking.answers(with_tree(method, cut(chain(5), depth=2)[0]), START)
    assert part.forwards == small.forwards > whole.forwards
