"""Our logits against those of transformers, for every family and everything a family may switch on."""

import copy
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jax_smash.cache import Block, Write, after
from jax_smash.checkpoints.huggingface import load_params, read_config
from jax_smash.models.transformer import Transformer
from jax_smash.pytree import replace
from tests.checkpoints import CONFIGS, write_checkpoint

torch = pytest.importorskip("torch", reason="transformers needs torch to run a model (extra `peers`)")

TOLERANCE = 1e-5
"""Of the largest logit."""

LENGTHS = (37, 23, 30)
PROMPTS = (19, 9, 26)
CHUNK = 8


def reference(directory, tokens, *, alone=False):
    """Returns the logits of transformers over a batch padded on the right, or over each row alone."""
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(
        directory, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
    )
    # Ours and theirs must be the same model: nothing of the checkpoint unused, nothing made up.
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    if alone:
        logits = np.zeros((*tokens.shape, model.config.vocab_size), np.float32)
        for row, length in enumerate(LENGTHS):
            fresh = copy.deepcopy(model)  # A `dynamic` rope keeps what an earlier, longer text made of it.
            with torch.no_grad():
                logits[row, :length] = fresh(input_ids=torch.tensor(tokens[row : row + 1, :length])).logits.numpy()
        return logits
    valid = np.arange(tokens.shape[1]) < np.array(LENGTHS)[:, None]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor(tokens), attention_mask=torch.tensor(valid).long()).logits
    return logits.numpy()


@functools.partial(jax.jit, static_argnums=0)
def whole(graphdef, params, tokens, position, valid):
    model = nnx.merge(graphdef, params)
    return model.unembed(model.forward(model.embed(tokens), position, None, Block.causal(valid)).hidden)


@functools.partial(jax.jit, static_argnums=0)
def cached(graphdef, params, cache, tokens, position, valid):
    model = nnx.merge(graphdef, params)
    out = model.forward(model.embed(tokens), position, cache, Block.causal(valid))
    logits = model.unembed(out.hidden)
    count = after(valid.sum(1, dtype=jnp.int32), logits[:, 0, 0])
    cache = cache.commit(out.block_kv, Write(position=position, count=count))
    return logits, cache


def through_cache(graphdef, params, tokens):
    """Returns logits computed from prompts read in chunks and the rest token by token, rows at their own pace."""
    lengths, prompts = np.array(LENGTHS), np.array(PROMPTS)
    model: Transformer = nnx.merge(graphdef, params)
    cache = model.init_cache(len(LENGTHS), max(LENGTHS), CHUNK)
    if cache.reach is not None:
        cache = replace(cache, reach=jnp.asarray(LENGTHS, jnp.int32))
    at, logits = np.zeros_like(lengths), np.zeros((*tokens.shape, model.vocab_size), np.float32)
    while (at < lengths).any():
        reading = (at < prompts).any()
        width = CHUNK if reading else 1
        count = np.clip((prompts if reading else lengths) - at, 0, width)
        position = at[:, None] + np.arange(width)
        valid = np.arange(width) < count[:, None]
        chunk = np.take_along_axis(tokens, np.minimum(position, tokens.shape[1] - 1), axis=1)
        new, cache = cached(graphdef, params, cache, chunk, jnp.asarray(position, jnp.int32), valid)
        for row in range(len(lengths)):
            logits[row, at[row] : at[row] + count[row]] = new[row, : count[row]]
        at += count
    assert cache.slot_length.tolist() == list(LENGTHS)
    return logits, cache


ALIKE = (
    "llama",
    "llama-linear",
    "qwen2",
    "qwen3-biases",
    "mistral-full",
    "gemma3-old-fields",
    "smollm3",
    "phi3-within",
    "phi3-beyond",
    "granite-biases",
)
"""Whose computation is made of what others have: a scaled rope (gemma3), biases (llama-mha-biases), no window, and
wavelengths by length (phi4-mini, llama-longrope)."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in ALIKE else n for n in CONFIGS])
def test_logits_are_those_of_transformers(name, tmp_path):
    write_checkpoint(tmp_path, CONFIGS[name])
    config, _ = read_config(tmp_path)
    tokens = np.random.default_rng(1).integers(0, config.vocab_size, (len(LENGTHS), max(LENGTHS)), np.int32)
    expected = reference(tmp_path, tokens, alone=config.follows_length)
    graphdef, params = load_params(tmp_path, config)
    position = jnp.broadcast_to(jnp.arange(max(LENGTHS), dtype=jnp.int32), tokens.shape)
    valid = np.arange(tokens.shape[1]) < np.array(LENGTHS)[:, None]
    with jax.default_matmul_precision("highest"):
        direct = np.asarray(whole(graphdef, params, tokens, position, valid))
        stepped, cache = through_cache(graphdef, params, tokens)
    if "sliding" in config.layer_kinds:
        assert min(p.shape[1] for p in cache.positions) < min(LENGTHS), "the rotating cache must start over"
    bound = TOLERANCE * np.abs(expected[valid]).max()
    assert bound > TOLERANCE
    np.testing.assert_allclose(direct[valid], expected[valid], rtol=0, atol=bound)
    np.testing.assert_allclose(stepped[valid], expected[valid], rtol=0, atol=bound)
