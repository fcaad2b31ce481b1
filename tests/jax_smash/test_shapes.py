import pytest

from jax_smash.shapes import bucket, chunks, round_up, rows_for


def test_a_bucket_holds_its_length_and_little_more():
    for n in range(1, 5000):
        size = bucket(n)
        assert size >= n
        assert size == 16 or size - n < size / 3
        assert bucket(size) == size


def test_buckets_are_few():
    assert len({bucket(n) for n in range(1, 4097)}) == 17


@pytest.mark.parametrize("length", [1, 15, 16, 17, 100, 512, 513, 1500])
@pytest.mark.parametrize("chunk", [16, 256, 512])
def test_chunks_hold_a_prompt_and_only_the_last_is_no_whole_one(length, chunk):
    *whole, last = chunks(length, chunk)
    assert all(width == chunk for width in whole)
    assert sum(whole) < length <= sum(whole) + last
    assert last == min(bucket(length - sum(whole)), chunk)


def test_a_multiple_is_the_least_that_is_enough():
    assert [round_up(n, 8) for n in (1, 8, 9)] == [8, 8, 16]


def test_a_batch_has_a_power_of_two_of_rows_or_as_many_as_are_allowed():
    assert [rows_for(n, most=16) for n in range(1, 18)] == [1, 2, 4, 4, *[8] * 4, *[16] * 9]
    assert [rows_for(n, most=6) for n in range(1, 8)] == [1, 2, 4, 4, 6, 6, 6]
