import numpy as np
import pytest

from pallas_kernels.sparse_attention.cases import TESTS, make, random_case
from tests.kernels import flip, scribble, tolerance
from tests.sparse_kernels import attended, ending_in_the_newest_page, expected, named


@pytest.mark.parametrize("case", [*TESTS, *map(random_case, range(3))], ids=lambda case: case.name)
def test_the_xla_path_agrees_with_the_reference(case):
    np.testing.assert_allclose(attended(*make(case), case, "xla"), expected(case), **tolerance(case))


def test_slots_that_are_known_to_be_filled_give_what_their_positions_give():
    case = named("entries beside a page that is not full")
    inputs, pages = ending_in_the_newest_page(case)
    found = attended(inputs, pages, case, "xla")
    np.testing.assert_allclose(found, attended(inputs, pages, case, "reference"), **tolerance(case))
    one_less = attended(inputs, pages._replace(filled=pages.filled - 1), case, "xla")
    assert np.abs(found - one_less).max() > 1e-3


def test_a_flipped_bit_changes_its_entry_alone():
    case = named("ragged rows")
    inputs, pages = make(case)
    before, after = (attended(x, pages, case, "xla") for x in (inputs, flip(inputs, 4, 0)))
    assert np.abs(before - after)[:, 4].max() > 0.01
    np.testing.assert_array_equal(np.delete(before, 4, axis=1), np.delete(after, 4, axis=1))


def test_bits_without_meaning_change_nothing():
    case = named("padding between")
    inputs, pages = make(case)
    before, after = (attended(x, pages, case, "xla") for x in (inputs, scribble(inputs)))
    np.testing.assert_array_equal(before, after)
