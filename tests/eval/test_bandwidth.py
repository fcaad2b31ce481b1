import numpy as np
import pytest

from eval.bandwidth import COLUMNS, read_bandwidth, readers

SMALL = 4 * 2**20


@pytest.fixture(scope="module")
def measured():
    return read_bandwidth(SMALL, repeats=3)


def test_the_fastest_reader_counts(measured):
    assert measured.bytes_per_second == max(measured.readers.values()) == measured.readers[measured.reader]
    assert measured.array_bytes == SMALL


def test_no_reader_is_slower_than_one_byte_a_nanosecond_by_a_hundredfold(measured):
    # Far below what any machine reads: a reader that measures compilation or a transfer would be caught.
    assert min(measured.readers.values()) > 1e7


def test_every_reader_reads_the_whole_array():
    rows = 64
    for name, read in readers(rows).items():
        result = np.asarray(read())
        if "maximum" in name:
            assert (result == 1).all(), name
        else:
            assert result.sum() == rows * COLUMNS, name


def test_an_array_too_small_to_measure_is_refused():
    with pytest.raises(ValueError, match=r"array_bytes must be at least \d+; got 1024"):
        read_bandwidth(1024)


def test_no_repeats_are_refused():
    with pytest.raises(ValueError, match="repeats must be at least 1; got 0"):
        read_bandwidth(SMALL, repeats=0)
