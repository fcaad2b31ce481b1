import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jax_smash.cache import Block, Write
from jax_smash.smash.config import SmashConfig
from jax_smash.smash.macro_step import macro_step
from jax_smash.smash.smasher import abstract_smasher
from tests.smashers import base_of, filled, smasher_of
from tests.tiny import tiny_model

B, J = 4, 4
PROMPT = jnp.array([[7, 8, 9], [30, 31, 32], [90, 91, 92], [7, 8, 9]], jnp.int32)


def greedy(base, carry, hidden, index, active):
    """Says the likeliest token, and lists what was asked of it."""
    token = jnp.argmax(base.unembed(hidden), axis=-1).astype(jnp.int32)
    return carry.at[index].set(active.astype(jnp.int32)), token, active


@functools.cache
def reading(name):
    """Returns a compiled forward over prompts: the prefix and the hidden vector behind each."""
    base, smasher = base_of(name), smasher_of(name, micro_layers=1)

    @jax.jit
    def read(tokens):
        position = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32)[None], tokens.shape)
        out = base.forward(base.embed(tokens), position, None, Block.causal(jnp.ones(tokens.shape, bool)))
        return smasher.prefix(out.taps, out.hidden)[:, -1], out.hidden[:, -1]

    return read


def stepping(choose_first=None, choose_next=None, name="llama"):
    """Returns a compiled macro-step behind what was read, the rows' limits and confidences being its arguments."""
    base, smasher = base_of(name), smasher_of(name, micro_layers=1)

    @jax.jit
    def step(prefix, hidden, confidence, limit, running, least_rows):
        return macro_step(
            base,
            smasher,
            prefix,
            hidden,
            choose_first=choose_first or functools.partial(greedy, base),
            choose_next=choose_next,
            carry=jnp.zeros((smasher.config.micro_steps, hidden.shape[0]), jnp.int32),
            running=running,
            confidence=confidence,
            limit=limit,
            least_rows=least_rows,
        )

    return step


greedily = functools.cache(functools.partial(stepping, None, None))


def said(step, prefix, hidden, confidence=0.0, limit=J, running=True, least_rows=1):
    """Returns what the rows say: what was carried, the groups, the number of micro-steps."""

    def rows(x, dtype):
        return jnp.broadcast_to(jnp.asarray(x, dtype), (hidden.shape[0],))

    arguments = rows(confidence, jnp.float32), rows(limit, jnp.int32), rows(running, bool), jnp.int32(least_rows)
    return step(prefix, hidden, *arguments)


def groups(tokens=PROMPT, name="llama", **settings):
    """Returns what the prompts leave and what is said behind them, each token the likeliest."""
    prefix, hidden = reading(name)(tokens)
    return prefix, hidden, *said(greedily(name), prefix, hidden, **settings)


@functools.cache
def again(name="llama"):
    """Returns what reads a group's tokens in one go: the likeliest tokens, and how likely the group ends with each."""
    base, smasher = base_of(name), smasher_of(name, micro_layers=1)

    @jax.jit
    def read(prefix, hidden, tokens):
        read_from = smasher.spoken(prefix, hidden, base.embed(tokens))
        return jnp.argmax(base.unembed(read_from), axis=-1), jax.nn.sigmoid(smasher.stop_logits(read_from))

    return read


@pytest.mark.parametrize("name", ["llama", pytest.param("gemma2", marks=pytest.mark.slow)])
def test_a_group_is_what_reading_its_tokens_one_by_one_says(name):
    prefix, hidden, _, group, _ = groups(name=name)
    assert group.count.tolist() == [J] * B
    np.testing.assert_array_equal(again(name)(prefix, hidden, group.tokens)[0], group.tokens)
    assert len({tuple(row) for row in group.tokens.tolist()}) > 1


def test_each_row_has_a_group_of_its_own_length():
    whole = groups()[3]
    limit = [1, 3, 2, 4]
    _, _, asked, group, micro_steps = groups(limit=limit)
    assert group.count.tolist() == limit
    for row, n in enumerate(limit):
        assert group.tokens[row].tolist() == whole.tokens[row, :n].tolist() + [0] * (J - n)
    assert int(micro_steps) == 3
    assert asked.tolist() == [[1, 1, 1, 1], [0, 1, 1, 1], [0, 1, 0, 1], [0, 0, 0, 1]]


def test_a_group_ends_where_the_stop_head_is_surer_than_the_confidence_allows():
    prefix, hidden, _, whole, _ = groups()
    stop = np.asarray(again()(prefix, hidden, whole.tokens)[1])
    for confidence in (0.3, 0.5, 0.7):
        expected = [next((i + 1 for i in range(J) if 1 - row[i] < confidence), J) for row in stop]
        assert groups(confidence=confidence)[3].count.tolist() == expected
    # Each row by its own.
    assert groups(confidence=[0.0, 1.0, 0.0, 1.0])[3].count.tolist() == [4, 1, 4, 1]


def test_rows_are_independent():
    together = groups(limit=[4, 2, 4, 1])[3]
    for row, limit in enumerate([4, 2, 4, 1]):
        alone = groups(PROMPT[row : row + 1], limit=limit)[3]
        assert (alone.tokens[0].tolist(), int(alone.count[0])) == (together.tokens[row].tolist(), limit)
    same = groups()[3]
    assert same.tokens[0].tolist() == same.tokens[3].tolist()


def test_a_row_that_does_not_run_says_nothing():
    group = groups(running=[True, False, True, False])[3]
    assert group.count.tolist() == [4, 0, 4, 0]
    assert not group.tokens[1::2].any()


def test_all_groups_end_when_few_rows_remain():
    limit = [1, 2, 3, 4]
    assert groups(limit=limit, least_rows=2)[3].count.tolist() == [1, 2, 3, 3]
    assert groups(limit=limit, least_rows=3)[3].count.tolist() == [1, 2, 2, 2]
    assert groups(limit=limit, least_rows=9)[3].count.tolist() == [1, 1, 1, 1]


def test_a_token_that_ends_a_text_ends_its_group():
    base = base_of()
    prefix, hidden, _, whole, _ = groups()
    last = whole.tokens[1, 1]

    def choose_first(carry, hidden, index, active):
        carry, token, active = greedy(base, carry, hidden, index, active)
        return carry, token, token != last

    asked, group, _ = said(stepping(choose_first), prefix, hidden)
    assert asked.sum(0).tolist() == group.count.tolist()
    assert int(group.count[1]) == 2
    assert int(group.tokens[1, 1]) == int(last)


def test_another_head_may_say_the_further_tokens():
    prefix, hidden, _, whole, _ = groups()

    def fixed(carry, hidden, index, active):
        return carry, jnp.full_like(active, 77, jnp.int32), active

    _, group, _ = said(stepping(choose_next=fixed), prefix, hidden)
    np.testing.assert_array_equal(group.tokens[:, 0], whole.tokens[:, 0])
    assert (group.tokens[:, 1:] == 77).all()


def test_a_head_that_has_no_token_for_a_row_ends_its_group():
    base = base_of()
    prefix, hidden, _, whole, _ = groups()

    def speechless(carry, hidden, index, active):
        _, token, _ = greedy(base, carry, hidden, index, active)
        unable = (jnp.arange(B, dtype=jnp.int32) == 2) & (index == 2)
        return carry, jnp.where(unable, -1, token), active

    _, group, _ = said(stepping(speechless), prefix, hidden)
    assert group.count.tolist() == [4, 4, 2, 4]
    assert group.tokens[2].tolist() == [*whole.tokens[2, :2].tolist(), 0, 0]
    assert group.tokens[3].tolist() == whole.tokens[3].tolist()


def test_a_micro_step_that_gives_no_token_was_made_all_the_same():
    """Rows that may say two tokens, and a head that has none behind the first."""
    prefix, hidden, *_ = groups()

    def mute(carry, hidden, index, active):
        return carry, jnp.full_like(active, -1, jnp.int32), active

    step = stepping(choose_next=mute)
    for limit, made in ((1, 0), (2, 1), (4, 1)):
        _, group, micro_steps = said(step, prefix, hidden, limit=limit)
        assert (group.count.tolist(), int(micro_steps)) == ([1] * B, made)


@functools.cache
def plain_text(prompt, length):
    """Returns the prompt and what plain greedy decoding says behind it."""
    model = tiny_model()

    @jax.jit
    def following(params, tokens, count):
        base = model.definition.bind(params)
        position = jnp.arange(length, dtype=jnp.int32)[None]
        out = base.forward(base.embed(tokens), position, None, Block.causal(position < count))
        return jnp.argmax(base.unembed(out.hidden[0, count - 1]), axis=-1)

    text = list(prompt)
    while len(text) < length:
        padded = jnp.array([text + [0] * (length - len(text))], jnp.int32)
        text.append(int(following(model.params["target"], padded, len(text))))
    return text


@pytest.mark.parametrize("sizes", [{"micro_steps": 1}, {"micro_steps": 3}])
def test_groups_of_one_token_are_plain_decoding(sizes):
    """At J = 1, or where no group is longer, a loop of macro-steps says what plain greedy decoding does."""
    model = tiny_model()
    base = model.definition.bind(model.params["target"])
    config = SmashConfig.for_base(model.config, micro_layers=1, **sizes)
    smasher = nnx.merge(*filled(abstract_smasher(model.config, config)))
    prompt, new = [5, 17, 60, 2], 12
    cache = base.init_cache(1, 32, 8)

    @jax.jit
    def read(cache, inputs, position):
        out = base.forward(inputs, position, cache, Block.causal(jnp.ones(position.shape, bool)))
        cache = cache.commit(out.block_kv, Write(position=position, count=jnp.full((1,), position.shape[1], jnp.int32)))
        _, group, _ = macro_step(
            base,
            smasher,
            smasher.prefix(out.taps, out.hidden)[:, -1],
            out.hidden[:, -1],
            choose_first=functools.partial(greedy, base),
            carry=jnp.zeros((config.micro_steps, 1), jnp.int32),
            running=jnp.ones((1,), bool),
            confidence=jnp.zeros((1,)),
            limit=jnp.ones((1,), jnp.int32),
            least_rows=jnp.int32(1),
        )
        return cache, group, smasher.fuse(base.embed(group.tokens), group.count)[:, None]

    embed = jax.jit(lambda token: base.embed(token))
    said = []
    for i in range(len(prompt) + new - 1):
        if i < len(prompt):
            inputs = embed(jnp.array([[prompt[i]]], jnp.int32))
        cache, group, inputs = read(cache, inputs, jnp.array([[i]], jnp.int32))
        if i >= len(prompt) - 1:
            said.append(int(group.tokens[0, 0]))
    assert len({*said}) > 3
    assert prompt + said == plain_text(tuple(prompt), len(prompt) + new)
