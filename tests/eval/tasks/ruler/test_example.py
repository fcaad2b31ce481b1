import pytest

from eval.tasks.ruler.example import Draft, Example, Units, fitted, inserted, needle_depths
from jax_smash.tasks.dice import Dice


@pytest.mark.parametrize(
    ("continuation", "share"),
    [(" KOBE and mull", 1), ("kobe", 0.5), ("Mulled wine", 0.5), ("kob e", 0), ("", 0)],
)
def test_the_score_is_the_share_of_references_that_are_contained_case_aside(continuation, share):
    assert Example("p", "", ("Kobe", "mull")).score(continuation) == share
    assert Example("p", "", ("Kobe", "mull"), any_reference=True).score(continuation) == (share > 0)


class Counted(Draft):
    least = 2

    def __init__(self, most=None):
        self.most = most

    def at(self, count):
        return Example("x" * (10 + 3 * count), "", ("x",))


@pytest.mark.parametrize("length", range(16, 60))
def test_as_many_units_fit_as_can(length):
    used = len(fitted(Counted(), length=length, size=lambda e: len(e.text), what="t").text)
    assert length - 3 < used <= length


def test_a_length_that_is_too_small_for_an_example_is_refused():
    with pytest.raises(ValueError, match="length must be at least 16 for this example of t; got 15"):
        fitted(Counted(), length=15, size=lambda e: len(e.text), what="t")


@pytest.mark.parametrize("most", [2, 3, 7, 8])
def test_a_length_that_all_text_does_not_fill_is_refused(most):
    longest = 10 + 3 * most
    with pytest.raises(ValueError, match=f"length must be at most {longest} for t: there is no more text; got 90"):
        fitted(Counted(most), length=90, size=lambda e: len(e.text), what="t")
    assert len(fitted(Counted(most), length=longest, size=lambda e: len(e.text), what="t").text) == longest


def test_needles_are_put_at_their_depths():
    assert inserted("abcd", ["1", "2", "3"], [1.0, 0.0, 0.5]) == ["2", "a", "b", "3", "c", "d", "1"]
    assert inserted("", ["1", "2"], [0.0, 1.0]) == ["1", "2"]
    assert inserted("ab", ["1", "2"], [0.4, 0.6]) == ["a", "1", "2", "b"]


def test_needles_take_all_forty_depths_and_no_depth_twice():
    drawn = [needle_depths(Dice(str(i)), 4) for i in range(200)]
    assert all(len(set(depths)) == 4 for depths in drawn)
    assert {round(39 * depth) for depths in drawn for depth in depths} == set(range(40))


def test_units_are_drawn_once():
    units = Units(iter("abcdef"))
    assert (units.first(2), units.first(4), units.first(1)) == (["a", "b"], ["a", "b", "c", "d"], ["a"])
