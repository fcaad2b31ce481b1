import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.models.rope import rotation
from jax_smash.smash.slots import Following, Slots, group_vectors
from tests.smashers import BASES, base_of, smasher_of

PLAIN = ("llama", "qwen2", "qwen3")
"""Bases of which another one here has all that a forward over slots could tell apart."""


def row(*values):
    return jnp.array([values], jnp.int32)


# Of the first document, the prompt 50 51 stands unfused; then come groups of 3, 1 and 2 tokens.
DOCUMENTS = [[[50], [51], [52, 53, 54], [55], [56, 57]], [[60], [61, 62]]]
POSITION = [0, 1, 4, 5, 7, 0, 2]
"""Of each group's last token, by hand."""


def example(documents=DOCUMENTS, position=POSITION, *, micro_steps=3, slots=9):
    """Returns a row of documents, written out slot by slot; token 56 weighs 5."""
    tokens = np.zeros((1, slots, micro_steps), np.int32)
    count, places, segments = np.zeros((3, 1, slots), np.int32)
    numbered = [(number, group) for number, document in enumerate(documents, 1) for group in document]
    for i, (number, group) in enumerate(numbered):
        tokens[0, i, : len(group)], count[0, i] = group, len(group)
        places[0, i], segments[0, i] = position[i], number
    weights = (tokens > 0) * np.where(tokens == 56, 5.0, 1.0)
    arrays = (tokens, count, places, segments, weights.astype(np.float32))
    return Slots(
        **dict(zip(("tokens", "count", "position", "segments", "weights"), map(jnp.asarray, arrays), strict=True))
    )


def inputs_of(base, smasher, slots):
    return smasher.fuse(group_vectors(base, slots.tokens), slots.count)


def test_each_slot_predicts_the_next_group_of_its_document():
    following = example().following()
    assert following.count[0].tolist() == [1, 3, 1, 2, 0, 2, 0, 0, 0]
    assert following.tokens[0, 1].tolist() == [52, 53, 54]
    assert following.tokens[0, 4].tolist() == [0, 0, 0]
    assert following.weights[0, 3].tolist() == [5, 1, 0]
    assert following.ends()[0, :5].tolist() == [[1, 0, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 0, 0]]


def test_a_slot_sees_the_slots_before_it_in_its_document_alone():
    mask = np.asarray(example().block.mask()[0])
    assert np.flatnonzero(mask[4]).tolist() == [0, 1, 2, 3, 4]
    assert np.flatnonzero(mask[6]).tolist() == [5, 6]
    assert not mask[:, 7:].any()


@functools.cache
def forward_of(name="llama", **sizes):
    """Returns a compiled forward over slots, with the inputs it read."""
    base, smasher = base_of(name), smasher_of(name, **sizes)

    @jax.jit
    def forward(slots):
        inputs = inputs_of(base, smasher, slots)
        return inputs, base.forward(inputs, slots.position, None, slots.block)

    return forward


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in PLAIN else n for n in BASES])
def test_groups_of_one_token_are_plain_training_rows(name):
    base = base_of(name)
    documents = [[[token] for group in document for token in group] for document in DOCUMENTS]
    position = [*range(8), *range(3)]
    slots = example(documents, position, micro_steps=4, slots=12)
    tokens, position = slots.tokens[:, :, 0], row(*position, 0)
    inputs, out = forward_of(name)(slots)

    @jax.jit
    def plainly(tokens, position, block):
        embedded = base.embed(tokens)
        return embedded, base.forward(embedded, position, None, block).hidden

    embedded, plain = plainly(tokens, position, slots.block)
    np.testing.assert_array_equal(inputs[:, :11], embedded[:, :11])
    # Equal inputs, but other programs: XLA may round in another order.
    np.testing.assert_allclose(out.hidden[:, :11], plain[:, :11], rtol=1e-4, atol=1e-5)
    assert slots.following().tokens[0, :, 0].tolist() == [51, 52, 53, 54, 55, 56, 57, 0, 61, 62, 0, 0]


def test_a_window_compares_positions_not_slots():
    """The window is 3 positions: the slot of 56 57 (position 7) reaches back to that of 55, not to that of 52 53 54."""
    base, smasher = base_of("llama-windows"), smasher_of("llama-windows", micro_steps=3)
    # A layer that slides alone: what is seen through the full layers is left out.
    layer = base.layers[1]
    slots = example()
    inputs = jax.jit(lambda s: inputs_of(base, smasher, s))(slots)

    @jax.jit
    def last(inputs):
        angles = rotation(base.config.rope_sliding, base.config.head_width, slots.position)
        return layer(inputs, slots.position, angles, None, slots.block)[0][0, 4]

    def sees(other):
        return bool(np.abs(last(inputs) - last(inputs.at[0, other].add(1.0))).max() > 1e-6)

    assert [sees(other) for other in range(5)] == [False, False, False, True, True]


def test_documents_do_not_see_each_other():
    slots = example()
    other = Slots(
        tokens=slots.tokens.at[:, :5].add(1),
        count=slots.count,
        position=slots.position,
        segments=slots.segments,
        weights=slots.weights,
    )
    before, after = (forward_of(micro_steps=3)(s)[1].hidden for s in (slots, other))
    np.testing.assert_array_equal(before[:, 5:7], after[:, 5:7])
    assert np.abs(before[:, :5] - after[:, :5]).max() > 1e-3


def test_training_rows_lead_to_what_decoding_does():
    """What a slot's tokens are read from in training is what the micro-step decoder reads token by token."""
    base, smasher = base_of(), smasher_of(micro_steps=3)
    slots = example()

    @jax.jit
    def spoken(slots):
        (_, out), following = forward_of(micro_steps=3)(slots), slots.following()
        assert isinstance(following, Following)
        prefix = smasher.prefix(out.taps, out.hidden)
        return prefix, out.hidden, smasher.spoken(prefix, out.hidden, group_vectors(base, following.tokens))

    prefix, hidden, read_from = spoken(slots)
    assert read_from.shape == (1, 9, 3, 32)
    np.testing.assert_array_equal(read_from[:, :, 0], hidden)
    decoder, vectors = smasher.micro_decoder, jax.jit(lambda tokens: base.embed(tokens))(row(52, 53))
    read = jax.jit(lambda entries, cache: decoder.read(entries, cache))
    first, cache = read(jnp.concatenate([prefix[:, 1], vectors[:, :1]], axis=1), decoder.init_cache(1))
    second, _ = read(vectors[:, 1:], cache)
    np.testing.assert_allclose(read_from[:, 1, 1], first, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(read_from[:, 1, 2], second, rtol=1e-4, atol=1e-4)


def test_without_micro_steps_tokens_are_read_from_the_base_alone():
    smasher = smasher_of(micro_steps=1)
    hidden = jax.random.normal(jax.random.key(0), (2, 5, 32))
    out = jax.jit(lambda *x: smasher.spoken(*x))(jnp.zeros((2, 5, 4, 32)), hidden, jnp.zeros((2, 5, 1, 32)))
    np.testing.assert_array_equal(out[:, :, 0], hidden)
