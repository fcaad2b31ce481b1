"""Rotary embeddings that depend on how long the text is."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_smash
from jax_smash.cache import Block
from jax_smash.config import RopeConfig
from jax_smash.methods import make_method
from jax_smash.models.families import from_hf
from jax_smash.models.rope import longest, reach_of_turn, rotate, rotate_beside, rotation
from jax_smash.platform import tracing_for
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.session import Session
from tests.checkpoints import LLAMA, PHI3, factors, write_checkpoint

LONGROPE = {"rope_type": "longrope", "short_factor": factors(8, 1.0), "long_factor": factors(8, 9.0), "factor": 4.0}
MODELS = {
    "phi3": {**PHI3, "original_max_position_embeddings": 24, "rope_parameters": LONGROPE, "eos_token_id": None},
    "llama-dynamic": {
        **LLAMA,
        "max_position_embeddings": 24,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 30.0, "factor": 4.0},
        "eos_token_id": None,
        "tie_word_embeddings": False,
    },
}
NEW = 12
WITHIN, BEYOND, CROSSING = 24 - NEW, 30, 20
"""Lengths of prompts whose texts end with the original context, begin beyond it, and cross it."""


def model_of(name, directory):
    write_checkpoint(directory, MODELS[name])
    return jax_smash.load(directory)


def prompt_of(length):
    return np.random.default_rng(length).integers(0, 101, length).tolist()


def theirs(directory, prompt, new):
    """Returns what transformers says of a prompt, with a model that has read nothing before."""
    torch = pytest.importorskip("torch", reason="transformers needs torch to run a model (extra `peers`)")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager", dtype=torch.float32)
    tokens = torch.tensor([prompt])
    whole = model.generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=new, do_sample=False, eos_token_id=None
    )
    return whole[0, len(prompt) :].tolist()


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("phi3", WITHIN),
        ("phi3", BEYOND),
        pytest.param("llama-dynamic", BEYOND, marks=pytest.mark.slow),
        ("llama-dynamic", CROSSING),
    ],
)
def test_greedy_text_is_that_of_transformers_with_its_cache(name, length, tmp_path):
    model, prompt = model_of(name, tmp_path), prompt_of(length)
    with jax.default_matmul_precision("highest"):
        # The other row would change this one, were its length to count.
        ours = jax_smash.generate(model, [prompt, prompt_of(3)], max_new_tokens=NEW, batch_size=2)[0].token_ids
    assert ours == theirs(tmp_path, prompt, NEW)
    assert len(set(ours)) > NEW // 2


@pytest.mark.parametrize("name", [pytest.param("phi3", marks=pytest.mark.slow), "llama-dynamic"])
def test_drafted_text_is_plain_text_where_the_length_counts(name, tmp_path):
    model, prompts = model_of(name, tmp_path), [prompt_of(CROSSING) * 2, prompt_of(CROSSING), prompt_of(5)]
    with jax.default_matmul_precision("highest"):
        plain, drafted = (
            [c.token_ids for c in jax_smash.generate(model, prompts, max_new_tokens=NEW, method=method)]
            for method in ("ar", "lookup")
        )
    assert drafted == plain


def test_a_longrope_text_that_may_cross_is_long_from_its_first_entry(tmp_path):
    model, prompt = model_of("phi3", tmp_path), prompt_of(CROSSING)
    bound = model.definition.bind(model.params["target"])
    with jax.default_matmul_precision("highest"):
        said = jax_smash.generate(model, prompt, max_new_tokens=NEW)[0].token_ids
        tokens = jnp.asarray([prompt + said[:-1]], jnp.int32)
        assert tokens.shape[1] > 24
        position = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        block = Block.causal(jnp.ones(tokens.shape, bool))
        whole = bound.unembed(bound.forward(bound.embed(tokens), position, None, block).hidden)
    assert whole[0, len(prompt) - 1 :].argmax(-1).tolist() == said


def test_the_reach_of_a_turn_follows_what_it_reads_and_may_say():
    long, dynamic = from_hf(MODELS["phi3"]), from_hf(MODELS["llama-dynamic"])
    assert reach_of_turn(from_hf(LLAMA), held=5, before=0, prompt=300, new=9) == 0
    assert reach_of_turn(dynamic, held=0, before=0, prompt=20, new=40) == 20
    assert reach_of_turn(dynamic, held=20, before=20, prompt=9, new=40) == 29
    assert reach_of_turn(long, held=0, before=0, prompt=12, new=12) == 12
    assert reach_of_turn(long, held=0, before=0, prompt=12, new=13) == 25
    assert reach_of_turn(long, held=0, before=0, prompt=40, new=1) == 40
    assert reach_of_turn(long, held=40, before=40, prompt=3, new=1) == 43
    assert reach_of_turn(long, held=12, before=12, prompt=3, new=9) == 15
    with pytest.raises(ValueError, match=r"texts up to 24 positions; 25 positions \(12 taken, 3 prompt, 10 new\) need"):
        reach_of_turn(long, held=12, before=12, prompt=3, new=10)


def test_a_turn_that_outgrows_the_short_factors_is_refused_and_nothing_changes(tmp_path):
    model = model_of("phi3", tmp_path)
    session = Session(
        model, make_method(model, "ar"), slots=64, max_new_tokens=8, sampling=[SamplingOptions()], seeds=[0]
    )
    session.read([prompt_of(9)])
    session.run(100)
    said = session.outputs()
    with pytest.raises(ValueError, match="need the whole text read anew"):
        session.read([prompt_of(7)])
    assert session.outputs() == said
    session.read([prompt_of(4)], limits=[2])


def test_padding_is_no_part_of_a_text():
    position = jnp.asarray([[0, 1, 2, 3], [4, 5, 6, 7]], jnp.int32)
    valid = jnp.asarray([[True, True, False, False], [False] * 4])
    assert longest(position, valid).tolist() == [2, 0]


def test_the_front_of_a_head_is_turned_and_the_rest_stays():
    rope = dataclasses.replace(from_hf(PHI3).rope, partial=0.5)
    x = jax.random.normal(jax.random.key(0), (1, 3, 2, 8))
    angles = rotation(rope, 8, jnp.asarray([[3, 4, 5]], jnp.int32))
    turned = rotate(x, angles)
    np.testing.assert_array_equal(turned[..., 4:], x[..., 4:])
    np.testing.assert_array_equal(turned[..., :4], rotate(x[..., :4], angles))
    assert not np.allclose(turned[..., :4], x[..., :4])


def test_late_rounding_rounds_the_product_alone():
    x = jax.random.normal(jax.random.key(0), (1, 3, 2, 8), jnp.bfloat16)
    angles = rotation(from_hf(PHI3).rope, 8, jnp.asarray([[30, 41, 52]], jnp.int32))
    late = rotate(x, angles, late_rounding=True)
    np.testing.assert_array_equal(late, rotate(x.astype(jnp.float32), angles).astype(jnp.bfloat16))
    assert (late != rotate(x, angles)).any()


@pytest.mark.parametrize("late_rounding", [False, True])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("partial", [1.0, 0.5])
def test_a_tpus_rotation_is_the_same(late_rounding, dtype, partial):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(2, 3, 4, 2, 16)), dtype)
    position = jnp.asarray([[0, 5, 900], [1, 2, 3]], jnp.int32)
    angles = rotation(RopeConfig(partial=partial), 16, position)
    value = jnp.asarray(rng.normal(size=(2, 3, 4, 16)), dtype)
    rotated = functools.partial(rotate_beside, late_rounding=late_rounding)
    plain, same = jax.jit(rotated)(x, value, angles)
    with tracing_for("tpu"):
        found, kept = jax.jit(rotated)(x, value, angles)
    np.testing.assert_allclose(found.astype(jnp.float32), plain.astype(jnp.float32), atol=float(jnp.finfo(dtype).eps))
    np.testing.assert_array_equal(kept, value)
    np.testing.assert_array_equal(same, value)
