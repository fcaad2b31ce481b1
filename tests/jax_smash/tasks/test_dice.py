from collections import Counter

from jax_smash.tasks.dice import Dice


def test_all_options_come_up_about_equally_often():
    dice = Dice("picks")
    counts = Counter(dice.pick("abcd") for _ in range(4000))
    assert set(counts) == set("abcd")
    assert all(850 < n < 1150 for n in counts.values())


def test_both_bounds_of_a_number_come_up_and_nothing_outside():
    dice = Dice("numbers")
    assert {dice.number(3, 6) for _ in range(200)} == {3, 4, 5, 6}


def test_several_never_repeats_an_option():
    dice = Dice("several")
    for _ in range(100):
        assert len(set(dice.several("abcdef", 4))) == 4


def test_the_draws_are_those_of_every_python():
    dice = Dice("fixed")
    assert [dice.number(0, 999) for _ in range(5)] == [914, 525, 968, 755, 802]
