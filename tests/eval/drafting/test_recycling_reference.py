import numpy as np
import pytest

from eval.drafting.recycling_reference import ReferenceRecycling
from jax_smash import generate
from tests.eval.markov import markov_model, ring
from tests.tiny import tiny_model

PROMPTS = ["the cat sat on the mat. the cat sat", "a b a b a b", "to be or not to be, to be or"]


@pytest.mark.parametrize("stop_tokens", [(), (10,)])
def test_its_text_is_that_of_plain_decoding(stop_tokens):
    model = tiny_model(stop_tokens=stop_tokens, num_layers=1, layer_kinds=("full",), window=0)
    reference = ReferenceRecycling(model, slots=256)
    texts = [reference.generate(model.encode(prompt), 48) for prompt in PROMPTS]
    plain = generate(model, PROMPTS, max_new_tokens=48)
    assert [t.tokens for t in texts] == [c.token_ids for c in plain]
    assert all(t.forwards <= max(len(t.tokens) - 1, 0) for t in texts)
    assert sum(t.forwards for t in texts) < sum(c.target_forwards for c in plain)


def test_one_forward_writes_the_rows_of_every_checked_token():
    # Nothing is known, so the tree is the first new token b and many a's: their rows alone are written.
    reference = ReferenceRecycling(ring(10), slots=64)
    text = reference.generate([0], 2)
    assert (text.tokens, text.forwards) == ([1, 2], 1)
    assert reference.matrix[:2, 0].tolist() == [1, 2]
    assert not reference.matrix[2:].any()


def test_a_known_ring_gives_seven_tokens_a_forward():
    reference = ReferenceRecycling(ring(10), slots=64)
    reference.generate([0], 24)
    assert (reference.matrix[:, 0] == (np.arange(10) + 1) % 10).all()
    assert reference.generate([0], 15).forwards == 2
    assert reference.generate([0], 16).forwards == 3


def test_the_matrix_begins_with_zeros_stays_and_takes_nothing_from_the_prompt():
    # In the text only c and d follow each other; the last letter stands in the prompt alone.
    model = markov_model([[1, 2], [2, 3], [3, 2], [2, 3], [0, 1], *([[5]] * 7)])
    reference = ReferenceRecycling(model, slots=64)
    assert not reference.matrix.any()
    first = reference.generate([11, 1], 12)
    assert not reference.matrix[11].any()
    assert reference.matrix[3, 0] == 2
    again = reference.generate([11, 1], 12)
    assert again.tokens == first.tokens
    assert again.forwards < first.forwards
