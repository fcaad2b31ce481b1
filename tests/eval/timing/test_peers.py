import pytest

from eval.timing.measure import Sample
from eval.timing.peers import Transformers


class Noting(Transformers):
    """Notes what it is asked, in place of decoding it."""

    def __init__(self, device):
        self.device, self.threads, self.tried = device, (1,), {}
        self.ways = dict.fromkeys(("slow", "fast"))
        self.asked = []

    def run(self, prompts):
        self.asked.append((self.chosen[0], prompts))
        seconds = 1.0 if self.chosen[0] == "fast" else 2.0
        return Sample(tokens=[[1, 2]], started=1, first_token_s=0.5, decode_s=seconds, steps=1, forwards=1)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_on_cuda_each_length_is_read_once_before_it_is_timed(device):
    first, alike, long, short = [[1, 2], [3]], [[4, 5], [6, 7]], [[1], [2, 3, 4]], [[9], [8]]
    peer = Noting(device)
    peer.warm_up([first, alike, long, alike, short, long])
    tried, later = peer.asked[:4], peer.asked[4:]
    assert tried == [("slow", first)] * 2 + [("fast", first)] * 2
    assert sorted(later) == ([("fast", long), ("fast", short)] if device == "cuda" else [])
    assert peer.chosen == ("fast", 1)
