import numpy as np
import pytest

from train.data.windows import Window, batches_of, document_chunks, windows_of


@pytest.mark.parametrize("count", [1, 7, 8, 9, 14, 15, 100])
def test_each_token_is_one_windows_own(count):
    windows = list(windows_of(30, 30 + count, 8))
    own = [token for window in windows for token in range(window.own, window.end)]
    assert own == list(range(30, 30 + count))
    assert all(window.end - window.start <= 8 for window in windows)
    # A quarter of each later window was read before; the document begins the first.
    assert [window.own - window.start for window in windows] == [0] + [2] * (len(windows) - 1)


def test_chunks_hold_about_as_many_tokens_as_asked_and_every_document_once():
    ends = np.cumsum([5, 5, 5, 40, 5, 5])
    assert document_chunks(ends, 10) == [(0, 2), (2, 3), (3, 4), (4, 6)]
    assert document_chunks(ends, 1) == [(i, i + 1) for i in range(6)]
    assert document_chunks(ends, 1000) == [(0, 6)]
    assert document_chunks(ends[:0], 10) == []


def test_batches_have_few_shapes_and_every_window_once():
    rng = np.random.default_rng(0)
    windows = [Window(i * 1000, i * 1000, i * 1000 + int(n)) for i, n in enumerate(rng.integers(1, 301, 200))]
    batches = list(batches_of(windows, 300, 1024))
    assert sorted(window for batch in batches for window in batch.windows) == windows
    assert len({(batch.rows, batch.width) for batch in batches}) <= 8
    for batch in batches:
        assert len(batch.windows) <= batch.rows
        assert batch.rows == max(1, 1024 // batch.width)
        assert all(window.end - window.start <= batch.width <= 300 for window in batch.windows)
    assert batches == list(batches_of(windows, 300, 1024))
