import random

import numpy as np
import pytest

from train.run.batches import Share, SharedBatches

ROWS = 12


class Documents:
    """Batches of documents' numbers, each document once."""

    def __init__(self):
        self.next = 0

    def __next__(self):
        self.next += ROWS
        return {"document": np.arange(self.next - ROWS, self.next)}

    def get_state(self):
        return {"next": self.next}

    def set_state(self, state):
        self.next = state["next"]


def hosts(count, state=None):
    """Returns the batches of each of so many hosts."""
    shares = [Share(host, count) for host in range(count)]
    made = [SharedBatches(Documents(), share, lambda batch: len(batch["document"])) for share in shares]
    for batches in made if state is not None else ():
        batches.set_state(state)
    return made


@pytest.mark.parametrize("seed", range(5))
def test_no_document_is_read_twice_or_left_out_however_often_a_run_is_killed(seed):
    rng, read, state = random.Random(seed), [], None
    for _ in range(8):  # Each time by another number of hosts, some steps of which are lost.
        every = hosts(rng.choice([1, 2, 3, 4, 6]), state)
        saved, lost = rng.randint(1, 3), rng.randint(0, 3)
        for step in range(saved + lost):
            rows = [next(batches)["document"] for batches in every]
            if step < saved:
                read += rows
                state = every[-1].get_state()
    assert sorted(np.concatenate(read)) == list(range(state["tokens"]))
    assert all(batches.get_state() == every[0].get_state() for batches in every)


def test_hosts_that_took_each_others_rows_would_be_seen():
    one, other = hosts(2)
    other.share = one.share
    read = np.concatenate([next(one)["document"], next(other)["document"]])
    assert sorted(read) != list(range(ROWS))


def test_rows_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="must divide among 5 hosts; got 12 rows"):
        Share(0, 5).check(ROWS)
