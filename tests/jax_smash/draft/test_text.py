import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.draft.text import Text, largest
from tests.drafting import plain_agreeing, plain_following


def text_of(*rows: list[int], slots: int = 40) -> Text:
    """Returns the text of some rows, read in one piece."""
    width = max(map(len, rows))
    padded = jnp.asarray([row + [7] * (width - len(row)) for row in rows], jnp.int32)
    return Text.empty(len(rows), slots).extended(padded, jnp.asarray([len(row) for row in rows], jnp.int32))


def test_tokens_stand_behind_each_other_and_padding_is_not_read():
    text = text_of([1, 2, 3], [4]).extended(jnp.asarray([[5, 6], [8, 9]], jnp.int32), jnp.asarray([1, 2], jnp.int32))
    np.testing.assert_array_equal(text.length, [4, 3])
    assert text.token[0, :4].tolist() == [1, 2, 3, 5]
    assert text.token[1, :3].tolist() == [4, 8, 9]
    assert text.ending(5).tolist() == [[5, 3, 2, 1, -1], [9, 8, 4, -1, -1]]


def test_what_does_not_fit_is_dropped():
    full = text_of([1, 2, 3], slots=3).extended(jnp.asarray([[4]], jnp.int32), jnp.asarray([1], jnp.int32))
    assert full.token.tolist() == [[1, 2, 3]]


@pytest.mark.parametrize("slots", [2, 9, 40])
@pytest.mark.parametrize("upto", [1, 3, 16])
def test_matches_are_those_that_a_plain_loop_counts(slots, upto):
    rng = np.random.default_rng(slots)
    rows = [rng.integers(0, 2, n).tolist() for n in (slots, slots // 2 + 1, 1)]
    count = jax.jit(Text.matches, static_argnums=1)(text_of(*rows, slots=slots), upto)
    for row, text in enumerate(rows):
        expected = [plain_agreeing(text, place, upto) for place in range(len(text) - 1)]
        assert count[row, : len(text) - 1].tolist() == expected


def test_a_text_shorter_than_what_is_compared_agrees_no_further_than_it_goes():
    # Token 0 at the beginning must not pass for the zeros of empty places.
    assert text_of([0, 0, 0, 0]).matches(8)[0, :3].tolist() == [1, 2, 3]


def test_the_longest_match_comes_first_and_of_equal_ones_the_latest():
    text = text_of([1, 2, 9, 3, 2, 9, 1, 2, 4, 2, 1, 2])
    place, agreeing = text.latest(text.matches(3), 5)
    assert place.tolist() == [[7, 1, 9, 4, 0]]
    assert agreeing.tolist() == [[2, 2, 1, 1, 0]]


@pytest.mark.parametrize("place", [0, 3, 7, 8])
def test_a_continuation_goes_on_as_if_the_text_repeated(place):
    row = [5, 1, 2, 3, 4, 6, 7, 8, 9, 5]
    following = text_of(row).following(jnp.asarray([[place]], jnp.int32), 12)
    assert following[0, 0].tolist() == plain_following(row, place, 12)


def test_the_largest_come_in_order_and_zero_fills_up():
    key = jnp.asarray([[3, 0, 9, 4, 1], [0, 0, 2, 0, 0]], jnp.int32)
    assert largest(key, 3).tolist() == [[9, 4, 3], [2, 0, 0]]
