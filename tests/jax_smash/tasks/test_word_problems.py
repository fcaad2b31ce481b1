import re

import pytest

from jax_smash.tasks.dice import Dice
from jax_smash.tasks.word_problems import GAINS, LOSSES, word_problem


@pytest.fixture(scope="module")
def problems():
    dice = Dice("problems")
    return [word_problem(dice, "test") for _ in range(1000)]


def test_no_number_passes_101_and_none_is_below_nothing(problems):
    for problem in problems:
        assert all(0 < int(n) <= 101 for n in re.findall(r"\d+", f"{problem.question} {problem.steps}"))
        assert 0 < problem.result <= 101


def test_problems_take_one_or_two_steps(problems):
    counts = [problem.steps.count("=") for problem in problems]
    assert set(counts) == {1, 2}
    assert counts.count(2) > 200


def test_each_step_goes_on_from_the_one_before(problems):
    for problem in problems:
        results = re.findall(r"= (\d+)", problem.steps)
        begins = re.findall(r"(?:^|\. )(\d+)", problem.steps)
        assert begins[1:] == results[:-1]
        assert results[-1] == str(problem.result)


def test_every_way_to_gain_and_lose_comes_up(problems):
    said = " ".join(problem.question for problem in problems)
    for sentence, _ in GAINS + LOSSES:
        start = re.escape(sentence).replace(r"\{n\}", r"\d+")
        assert re.search(re.sub(r"\\\{\w+\\\}", r"\\w+", start), said)


def test_a_solution_ends_in_its_result(problems):
    assert all(problem.solution.endswith(f". So the answer is {problem.result}") for problem in problems)
