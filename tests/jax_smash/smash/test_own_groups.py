import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.cache import Block
from jax_smash.smash.entry import entry_at
from jax_smash.smash.macro_step import macro_step
from jax_smash.smash.own_groups import own_lengths
from tests.smashers import base_of, smasher_of

WIDTH, STEPS = 24, 4
LENGTH = np.array([24, 17], np.int32)


@pytest.fixture(scope="module")
def rows():
    """Two rows of tokens, one of them padded, and what a base computes for them."""
    base = base_of()
    rng = np.random.default_rng(5)
    valid = jnp.arange(WIDTH, dtype=jnp.int32)[None] < LENGTH[:, None]
    tokens = jnp.where(valid, jnp.asarray(rng.integers(1, 50, (2, WIDTH)), jnp.int32), 0)
    position = jnp.broadcast_to(jnp.arange(WIDTH, dtype=jnp.int32)[None], tokens.shape)
    forward = jax.jit(lambda tokens: base.forward(base.embed(tokens), position, None, Block.causal(valid)))(tokens)
    return tokens, valid, forward


def lengths_of(rows, confidence, token_confidence, micro_steps=STEPS):
    tokens, valid, forward = rows
    return np.asarray(
        own_lengths(
            base_of(),
            smasher_of(),
            forward,
            tokens,
            valid,
            micro_steps=micro_steps,
            confidence=confidence,
            token_confidence=token_confidence,
            chunk=16,
        )
    )


def said(rows, begin, confidence, token_confidence):
    """Returns how many tokens of the text a macro-step says in each row, from the entry before `begin` on."""
    base, (tokens, valid, forward) = base_of(), rows
    smasher = smasher_of()
    entry = entry_at(smasher, forward.taps, forward.hidden, jnp.full((2,), begin - 1, jnp.int32))

    def speak(carry, hidden, index, going):
        at = jnp.minimum(begin + index, WIDTH - 1)
        token = tokens[:, at]
        likely = jax.nn.softmax(base.unembed(hidden[:, None]), axis=-1)[jnp.arange(2), 0, token]
        there = valid[:, at] & (begin + index < WIDTH)
        refused = (index > 0) & ~(there & (likely >= token_confidence))
        return carry, jnp.where(refused, -1, token), jnp.ones_like(going)

    _, group, _ = macro_step(
        base,
        smasher,
        entry.prefix,
        entry.hidden,
        speak=speak,
        carry=(),
        running=jnp.ones(2, bool),
        confidence=jnp.full((2,), confidence, jnp.float32),
        limit=jnp.full((2,), STEPS, jnp.int32),
        least_rows=jnp.ones((), jnp.int32),
    )
    return group.count


@pytest.mark.parametrize(("confidence", "token_confidence"), [(0.0, 0.0), (0.0, 0.003), (0.48, 0.0), (0.48, 0.002)])
def test_a_group_is_as_long_as_a_macro_step_that_says_the_text(rows, confidence, token_confidence):
    lengths = lengths_of(rows, confidence, token_confidence)
    say = jax.jit(lambda begin: said(rows, begin, confidence, token_confidence))
    expected = np.stack([np.asarray(say(jnp.int32(begin))) for begin in range(1, WIDTH)], axis=1)
    assert lengths[:, 0].tolist() == [1, 1]
    for row, length in enumerate(LENGTH):
        assert lengths[row, 1:length].tolist() == expected[row, : length - 1].tolist()
    if token_confidence or confidence:
        assert len(np.unique(lengths[:, 1:17])) > 1  # Some go on and some do not.


def test_no_group_leaves_its_row(rows):
    lengths = lengths_of(rows, 0.0, 0.0)
    for row, length in enumerate(LENGTH):
        assert lengths[row, 1:length].tolist() == [min(STEPS, length - begin) for begin in range(1, length)]


def test_modules_that_say_one_token_make_no_groups(rows):
    assert (lengths_of(rows, 0.0, 0.0, micro_steps=1) == 1).all()
