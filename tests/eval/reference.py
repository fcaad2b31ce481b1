"""Log-likelihoods by a plain forward, without any of the evaluation's own code."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jax_smash.cache import Block
from jax_smash.loading import Model
from tests.tiny import tiny_model

OPENING = 256
"""The byte tokenizer's token for a text's beginning, which it puts before none; a text's tokens are its bytes."""


WIDTH = 128
"""One program for texts of fewer bytes."""


def small() -> Model:
    """Returns a one-layer random model with a byte tokenizer and a context of 512."""
    return tiny_model(num_layers=1, layer_kinds=("full",), window=0)


@jax.jit
def _logits(params, tokens):
    # What stands behind the text changes nothing before it.
    bound = small().definition.bind(params)
    position = jnp.arange(WIDTH, dtype=jnp.int32)[None]
    hidden = bound.forward(bound.embed(tokens), position, None, Block.causal(jnp.ones(tokens.shape, bool))).hidden
    return bound.unembed(hidden)


@functools.cache
def token_log_probs(text: bytes, *, opened: bool = True) -> np.ndarray:
    """Returns the log-probability of each byte of a text, the first behind the opening; without it, of the others."""
    whole = [OPENING, *text] if opened else [*text]
    tokens = np.zeros((1, WIDTH), np.int32)
    tokens[0, : len(whole)] = whole
    logits = np.asarray(_logits(small().params["target"], jnp.asarray(tokens)), np.float64)[0, : len(whole) - 1]
    largest = logits.max(-1, keepdims=True)
    table = logits - largest - np.log(np.exp(logits - largest).sum(-1, keepdims=True))
    return table[np.arange(len(whole) - 1), whole[1:]]


def log_likelihood(context: str, continuation: str) -> float:
    """Returns the nats of a continuation behind its context, or behind the opening where that is empty."""
    scores = token_log_probs((context + continuation).encode(), opened=not context)
    return float(scores[-len(continuation.encode()) :].sum())
