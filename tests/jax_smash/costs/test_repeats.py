import pytest

from jax_smash.costs.repeats import settled, spread


def test_seconds_of_a_quiet_machine_are_medians():
    times = [[1.0, 1.0, 1.0], [3.0, 3.0, 3.0]]
    assert settled(times) == (1, 3)
    assert spread(times) == 0


def test_a_machine_that_is_slow_for_a_while_changes_no_ratio():
    quiet, slow = [1.0, 1.0, 1.0, 1.0], [1.0, 4.0, 4.0, 1.0]
    for plain in (quiet, slow):
        times = [plain, [3 * t for t in plain]]
        seconds = settled(times)
        assert seconds[1] / seconds[0] == pytest.approx(3)
        assert spread(times) == pytest.approx(0)


def test_a_step_that_was_cheap_by_luck_is_not_believed():
    """Other work slowed plain steps in half of the repeats: medians alone would make a tree of four look cheap."""
    plain, tree = [1.0, 2.0, 2.0, 2.0, 1.0], [3.0, 3.0, 3.0, 3.0, 3.0]
    seconds = settled([plain, tree])
    assert seconds[0] == 2
    assert seconds[1] == pytest.approx(2 * 3)
    assert spread([plain, tree]) == pytest.approx(1)


def test_one_repeat_is_taken_as_it_is():
    assert settled([[2.0], [5.0]]) == (2, 5)
    assert spread([[2.0], [5.0]]) == 0
