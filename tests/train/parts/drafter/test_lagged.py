"""Chimera's layer over packed rows beside the plain drafter, which reads each text again for every token and head."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.chimera import PlainChimera, random_drafter
from tests.tiny import tiny_model
from train.parts.drafter.lagged import lagged, moved, packed_grams, read_by_target_before

HEADS, LENGTHS = 3, (5, 4)
"""Heads, and the tokens of two documents side by side in a row."""


def row(seed, model):
    """Returns hidden states, tokens, positions and segments of two rows of two documents and padding."""
    rng, total = np.random.default_rng(seed), sum(LENGTHS) + 2
    hidden = jnp.asarray(rng.normal(size=(2, total, model.config.d_model)), jnp.float32)
    tokens = jnp.asarray(rng.integers(0, model.vocab_size, (2, total)), jnp.int32)
    position = np.concatenate([*map(np.arange, LENGTHS), np.zeros(2, int)]).astype(np.int32)
    segments = np.repeat([1, 2, 0], [*LENGTHS, 2]).astype(np.int32)
    return hidden, tokens, *(jnp.tile(x, (2, 1)) for x in (position, segments))


def made_of(model, drafter, hidden, tokens, position, segments):
    bound, target = drafter.definition.bind(drafter.params), model.definition.bind(model.params["target"])
    codes = bound.codes(packed_grams(tokens, segments, drafter.config.gram), target)
    return lagged(bound, hidden, codes, position, segments)


@pytest.mark.parametrize("changes", [{}, {"gram": 1}, {"gram": 4, "gram_encoder": "residual"}])
def test_what_is_made_of_each_token_is_what_decoding_makes_of_it(changes):
    model = tiny_model()
    drafter = random_drafter(model, decoding_heads=HEADS, **changes)
    hidden, tokens, position, segments = row(0, model)
    found = made_of(model, drafter, hidden, tokens, position, segments)
    plain, begin, compared = PlainChimera(model, drafter), 0, 0
    seen = np.asarray(read_by_target_before(segments, HEADS))
    for length in LENGTHS:
        states, text = np.asarray(hidden[1], np.float64)[begin : begin + length], tokens[1, begin : begin + length]
        for place in range(length):
            for head in range(HEADS):
                read = place - head
                assert seen[1, begin + place, head] == (read > 0)
                if read > 0:
                    expected = plain.full(states[:read], text[: place + 1].tolist())
                    np.testing.assert_allclose(found[head, 1, begin + place], expected, rtol=2e-4, atol=2e-4)
                    compared += 1
        begin += length
    assert compared == 15
    assert not seen[:, begin:].any()


def test_a_later_token_and_a_later_state_change_nothing_that_is_made_before():
    model = tiny_model()
    drafter = random_drafter(model, decoding_heads=HEADS)
    hidden, tokens, position, segments = row(1, model)
    before, place = made_of(model, drafter, hidden, tokens, position, segments), 2
    others = (hidden, tokens.at[:, place].add(1)), (hidden.at[:, place].add(1.0), tokens)
    by_token, by_state = (made_of(model, drafter, *other, position, segments) for other in others)
    for head in range(HEADS):
        same = np.all(np.asarray(by_token[head] == before[head]), axis=(0, 2))
        assert same[:place].all()
        assert not same[place : LENGTHS[0]].any()
        same = np.all(np.asarray(by_state[head] == before[head]), axis=(0, 2))
        assert same[: place + 1 + head].all()
        assert not same[place + 1 + head : LENGTHS[0]].any()


def test_a_gram_begins_with_its_document():
    tokens, segments = jnp.asarray([[3, 4, 5, 6, 7]], jnp.int32), jnp.asarray([[1, 1, 2, 2, 2]], jnp.int32)
    found = packed_grams(tokens, segments, 3)[0].tolist()
    assert found == [[-1, -1, 3], [-1, 3, 4], [-1, -1, 5], [-1, 5, 6], [5, 6, 7]]
    assert moved(tokens, 2)[0].tolist() == [0, 0, 3, 4, 5]
