import re
from statistics import mean

import pytest

from jax_smash.tasks.arithmetic import addition_steps, product_steps, subtraction_steps

ASKED = re.compile(r"(?:What is|Work out)? ?(\d+) ([-+x]) (\d+)(?: = \?|\?|\.)")
SAID = {r"Add (\d+) and (\d+)\.": "+", r"Take (\d+) from (\d+)\.": "from", r"Multiply (\d+) by (\d+)\.": "x"}
CALCULATE = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "from": lambda a, b: b - a,
    "x": lambda a, b: a * b,
}
SOLVED = re.compile(r"Question: (.+)\nAnswer: (.+)\.(?:\n|$)")


def operation(question):
    """Returns what is to be calculated, or None for a word problem."""
    found = ASKED.fullmatch(question)
    if found:
        return found[2], int(found[1]), int(found[3])
    for pattern, sign in SAID.items():
        found = re.fullmatch(pattern, question)
        if found:
            return sign, int(found[1]), int(found[2])
    return None


def result(question):
    """Works a problem out: column problems by their sign, stories by what their sentences do."""
    found = operation(question)
    if found:
        sign, a, b = found
        return CALCULATE[sign](a, b)
    numbers = [int(number) for number in re.findall(r"\d+", question)]
    if "together" in question or re.search(r"has \d+ more than", question):
        return sum(numbers)
    first, *others = re.split(r"(?<=\.) ", question)[:-1]
    groups = [int(number) for number in re.findall(r"\d+", first)]
    have = groups[0] * (groups[1] if len(groups) > 1 else 1)
    for sentence in others:
        sign = 1 if re.search("more", sentence) else -1
        have += sign * int(re.search(r"\d+", sentence)[0])
    return have


@pytest.fixture(scope="module")
def both(corpus):
    return {split: corpus["arithmetic", split] for split in ("train", "test")}


@pytest.fixture(params=["train", "test"])
def drawn(request, both):
    return both[request.param]


def asked(example):
    return re.findall(r"Question: (.+)\nAnswer:$", example.prompt)[-1]


def equations(steps):
    return re.findall(r"(\d+(?: [-+x] \d+)+) = (\d+)", steps)


def test_working_the_problem_out_gives_the_final_number(drawn):
    for example in drawn:
        assert str(result(asked(example))) == example.final
        assert example.answer.endswith(f"So the answer is {example.final}")


def test_problems_that_are_shown_are_solved_right(drawn):
    shown = [pair for example in drawn for pair in SOLVED.findall(example.prompt)]
    assert len(shown) > len(drawn)
    for question, solution in shown:
        assert solution.endswith(f"So the answer is {result(question)}")


def test_every_step_is_right(drawn):
    for example in drawn:
        steps = equations(example.answer)
        assert steps
        for left, right in steps:
            assert eval(left.replace("x", "*")) == int(right)


def test_steps_of_column_problems_stay_within_the_tables(drawn):
    for example in drawn:
        if operation(asked(example)):
            assert all(int(n) <= 89 for left, right in equations(example.answer) for n in (*left.split()[::2], right))


def test_test_problems_never_occur_in_training(both):
    seen = {
        split: {
            operation(question)
            for example in both[split]
            for question in (asked(example), *(q for q, _ in SOLVED.findall(example.prompt)))
        }
        - {None}
        for split in both
    }

    def key(problem):
        sign, a, b = problem
        return "-" if sign == "from" else sign, max(a, b), min(a, b)

    train, test = ({key(problem) for problem in seen[split]} for split in ("train", "test"))
    assert len(test) > 500
    assert not train & test
    assert not [problem for problem in test if problem[1] < 10]


def test_the_last_number_of_the_prompt_is_no_good_guess(drawn):
    assert mean(re.findall(r"\d+", example.prompt)[-1] == example.final for example in drawn) < 0.1


def test_the_last_conclusion_is_no_good_guess(drawn):
    def last(example):
        return [None, *re.findall(r"answer is (\d+)", example.prompt)][-1]

    assert mean(last(example) == example.final for example in drawn) < 0.1


def test_word_problems_and_all_signs_come_up(drawn):
    kinds = [(operation(asked(example)) or ("words",))[0] for example in drawn]
    assert 0.25 < mean(kind == "words" for kind in kinds) < 0.45
    assert all(kinds.count(sign) > 30 for sign in ("+", "-", "from", "x"))


def test_numbers_have_up_to_three_digits_and_results_are_never_negative(drawn):
    for example in drawn:
        assert int(example.final) >= 0
        assert max(int(n) for n in re.findall(r"\d+", asked(example))) < 1000


def test_the_chat_asks_the_same_and_says_how_to_end(drawn):
    for example in drawn:
        assert f"{asked(example)} Show the steps" in example.messages[0]["content"]


def test_carries_reach_the_last_digit():
    assert addition_steps(95, 7) == "5 + 7 = 12, write 2, carry 1. 9 + 0 + 1 = 10, write 102."


def test_a_borrow_passes_through_a_zero():
    assert subtraction_steps(302, 147) == (
        "12 - 7 = 5, write 5, borrow 1. 10 - 1 - 4 = 5, write 55, borrow 1. 3 - 1 - 1 = 1, write 155."
    )


def test_a_product_adds_what_was_carried():
    assert product_steps(47, 6) == "7 x 6 = 42, write 2, carry 4. 4 x 6 + 4 = 28, write 282."


@pytest.mark.parametrize(
    ("steps", "calculate"),
    [(addition_steps, "+"), (subtraction_steps, "-"), (product_steps, "x")],
)
def test_the_last_step_writes_the_result(steps, calculate):
    for a in range(1, 400, 7):
        for b in range(1, 10 if calculate == "x" else a + 1, 5):
            written = re.findall(r"write (\d+)", steps(a, b))[-1]
            assert int(written) == CALCULATE[calculate](a, b)


def test_shown_answers_are_the_solutions_in_the_prompt(drawn):
    for example in drawn:
        assert example.shown == tuple(re.findall(r"\nAnswer: (.+)\.\n\n", example.prompt))
    assert any(example.shown for example in drawn)
