"""StreamingLLM beside a plain program that does what the paper says."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash import DraftOptions, generate
from jax_smash.config import RopeConfig
from jax_smash.methods import make_method
from jax_smash.models.rope import rotate, rotation
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.session import Session
from jax_smash.sparse import StreamingLLM, sparsified
from tests.tiny import tiny_model

SLOTS, SINKS = 24, 4
PROMPTS = [list(b"a text that is longer than what is kept of it, by far"), list(b"short"), list(b"neither of the two")]


def full_model():
    return tiny_model(layer_kinds=("full", "full"))


@functools.cache
def streaming(slots=SLOTS, sinks=SINKS):
    return sparsified(full_model(), StreamingLLM(slots=slots, sinks=sinks))


def attend(layer, config, x, keys, values, held, places, place):
    """Attends with every key rotated at its place; returns the output, and what is kept with the new entry behind."""
    heads = (layer.attention_norm(x) @ layer.attention.w_qkv[...]).reshape(config.num_kv_heads, -1, config.head_width)
    full = held == len(places)
    # What is behind the sinks moves on by one place if there is no room.
    keys, values = (
        jnp.where(full, jnp.concatenate([kept[:SINKS], kept[SINKS + 1 :], kept[:1]]), kept) for kept in (keys, values)
    )
    at = jnp.minimum(held, len(places) - 1)
    keys, values = keys.at[at].set(heads[:, -2]), values.at[at].set(heads[:, -1])
    turned = rotate(keys[None], rotation(config.rope, config.head_width, places[None]))[0]
    query = rotate(heads[None, None, :, :-2], rotation(config.rope, config.head_width, place.reshape(1, 1)))[0, 0]
    scores = jnp.einsum("KGH,SKH->KGS", query, turned) * jnp.float32(config.query_scale)
    weights = jax.nn.softmax(jnp.where(places <= at, scores, -jnp.inf), axis=-1)
    mixed = jnp.einsum("KGS,SKH->KGH", weights, values).reshape(-1)
    return mixed @ layer.attention.w_o[...].reshape(-1, config.d_model), keys, values


@functools.partial(jax.jit, static_argnames="near")
def plain_logits(tokens, *, near=True):
    """Returns the logits after each token of a text; `near=False` sees the sinks from as far as they are."""
    config, model = full_model().config, full_model().definition.bind(full_model().params["target"])
    places = jnp.arange(SLOTS, dtype=jnp.int32)

    def step(carry, token):
        kept, position = carry
        held = jnp.minimum(position, SLOTS)
        x, after = model.embed(token[None, None])[0, 0], []
        for layer, (keys, values) in zip(model.layers, kept, strict=True):
            # From the paper's place, or from the text's.
            moved = 0 if near else jnp.maximum(position - (SLOTS - 1), 0)
            at = jnp.where(places < SINKS, places, places + moved)
            out, keys, values = attend(layer, config, x, keys, values, held, at, jnp.minimum(held, SLOTS - 1) + moved)
            after.append((keys, values))
            x = x + out
            x = x + layer.mlp(layer.mlp_norm(x)[None, None])[0, 0]
        logits = model.unembed(model.final_norm(x)[None])[0]
        return (after, position + 1), logits

    empty = jnp.zeros((SLOTS, config.num_kv_heads, config.head_width))
    return jax.lax.scan(step, ([(empty, empty)] * config.num_layers, jnp.int32(0)), tokens)[1]


def worst_loss(prompt, said, **differs):
    """Returns how far below the likeliest token the emitted ones are, in the largest logit: 0 where they are equal."""
    logits = np.asarray(plain_logits(jnp.asarray(prompt + said[:-1], jnp.int32), **differs))[len(prompt) - 1 :]
    chosen = logits[np.arange(len(said)), said]
    return float(((logits.max(1) - chosen) / np.abs(logits).max(1)).max())


@functools.cache
def texts(count, new):
    done = generate(streaming(), PROMPTS[:count], max_new_tokens=new, slots=4096)
    return [c.token_ids for c in done]


def test_two_thousand_tokens_are_those_of_keys_rotated_anew_at_every_step():
    (said,) = texts(1, 2000)
    assert len(said) == 2000
    assert len(set(said[-200:])) > 5, "the text must vary for the test to say anything"
    assert worst_loss(PROMPTS[0], said) < 1e-4


def test_sinks_seen_from_afar_would_be_found_out():
    """The control of the test above."""
    assert worst_loss(PROMPTS[0], texts(1, 2000)[0], near=False) > 1e-2


def test_rows_of_a_batch_are_what_they_are_alone():
    for prompt, said in zip(PROMPTS, texts(3, 120), strict=True):
        assert worst_loss(prompt, said) < 1e-4
        assert said == generate(streaming(), [prompt], max_new_tokens=120, slots=4096)[0].token_ids


@pytest.mark.parametrize(
    ("method", "tree"), [("recycling", "tree-15"), ("lookup", "chain-7"), ("suffix", "tree-7"), ("hybrid", "tree-15")]
)
def test_drafted_text_is_plain_text(method, tree):
    done = generate(streaming(), PROMPTS, method=method, draft=DraftOptions(tree=tree), max_new_tokens=120, slots=4096)
    assert [c.token_ids for c in done] == texts(3, 120)
    assert sum(c.new_tokens for c in done) > sum(c.target_forwards for c in done) + 3


def test_a_short_text_is_that_of_the_whole_cache():
    new = SLOTS - len(PROMPTS[1])
    whole, kept = (generate(m, [PROMPTS[1]], max_new_tokens=new, slots=4096)[0] for m in (full_model(), streaming()))
    assert kept.token_ids == whole.token_ids
    longer = generate(full_model(), [PROMPTS[1]], max_new_tokens=120)[0]
    assert longer.token_ids != texts(3, 120)[1]


def test_memory_does_not_grow_with_the_text():
    def kept(model, slots):
        sampling = [SamplingOptions()]
        session = Session(model, make_method(model, "ar"), slots=slots, max_new_tokens=4, sampling=sampling, seeds=[0])
        return sum(x.nbytes for x in session.state.rows.cache.keys)

    assert kept(streaming(512), 4096) == kept(streaming(512), 1 << 20) == kept(full_model(), 512)
    assert kept(full_model(), 4096) == 8 * kept(full_model(), 512)


def test_a_sliding_layer_keeps_its_own_window():
    model = tiny_model()
    policy = StreamingLLM(slots=SLOTS, sinks=SINKS)
    cache = sparsified(model, policy).definition.bind(model.params["target"]).init_cache(1, 4096, 8)
    assert cache.layer(0).sinks == cache.sinks
    assert cache.layer(1).sinks is None
    assert cache.starts == (SINKS, 0)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"slots": 0}, "^budget must be at least 5 slots, more than the 4 sinks; got 0$"),
        ({"slots": 4}, "^budget must be at least 5 slots, more than the 4 sinks; got 4$"),
        ({"slots": 8, "sinks": 8}, "^budget must be at least 9 slots, more than the 8 sinks; got 8$"),
        ({"sinks": 0}, "^sinks must be at least 1; got 0$"),
    ],
)
def test_sizes_out_of_range_are_refused(sizes, said):
    with pytest.raises(ValueError, match=said):
        StreamingLLM(**sizes)


def test_the_least_budget_has_a_window_of_one_entry():
    assert StreamingLLM(slots=5).window == 1


def test_what_cannot_be_is_refused():
    model = streaming()
    bound = model.definition.bind(model.params["target"])
    with pytest.raises(ValueError, match="at most the window's 20 entries; got 21"):
        bound.init_cache(1, 4096, 21)
    stretched = tiny_model(rope=RopeConfig(scaling="dynamic", factor=2.0, original_positions=64))
    with pytest.raises(ValueError, match="must not depend on the length of the text"):
        sparsified(stretched, StreamingLLM())


def test_a_cache_cannot_keep_more_slots_than_the_model_has_positions():
    sparsified(full_model(), StreamingLLM(slots=512))
    with pytest.raises(
        ValueError, match="slots must be at most the 512 slots that a cache of two-layer may have; got 513"
    ):
        sparsified(full_model(), StreamingLLM(slots=513))
