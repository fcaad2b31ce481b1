"""Drawn drafts of a real model: its text follows the model's own distribution."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eval.prompts.shipped_prompts import shipped_prompts
from jax_smash import generate, load
from jax_smash.cache import Block
from jax_smash.methods import DraftOptions
from jax_smash.sampling import SamplingOptions
from tests.goodness import FALSE_ALARM, TOKENS, unlikely
from tests.real_model import needs_smollm2

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.usefixtures("optimised"),
    needs_smollm2,
]

KEPT, WARMTH, TURNS, ROWS, LENGTH = 3, 1.0, 12, 64, 48
NEARSIGHTED = "sparse:recency:budget=16"
"""Drafts by the model itself, which sees a third of the prompt."""


@functools.cache
def target():
    return load("smollm2", dtype=jnp.float32)


@functools.cache
def prompt():
    return shipped_prompts(target(), 1, longest=LENGTH)[0]


@functools.cache
def likeliest():
    """Returns each run of three tokens that the model may draw, with the logits that it is drawn by: [3, kept]."""
    params = target().params["target"]

    @jax.jit
    def after(params, tokens):
        bound = target().definition.bind(params)
        position = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
        everything = Block.causal(jnp.ones(tokens.shape, bool))
        out = bound.forward(bound.embed(tokens), position, bound.init_cache(len(tokens), 64, 64), everything)
        return jax.lax.top_k(bound.unembed(out.hidden[:, -1:])[:, 0], KEPT)

    runs = {(): ()}
    for _ in range(TOKENS):
        logits, tokens = map(np.asarray, after(params, jnp.asarray([[*prompt(), *run] for run in runs], jnp.int32)))
        runs = {
            (*run, int(token)): (*steps, (logits[i], place))
            for i, (run, steps) in enumerate(runs.items())
            for place, token in enumerate(tokens[i])
        }
    return runs


def joint(warmth):
    """Returns the probability of each run at a temperature."""

    def share(logits, place):
        scaled = np.exp((np.asarray(logits, np.float64) - logits[0]) / warmth)
        return scaled[place] / scaled.sum()

    return {run: float(np.prod([share(*step) for step in steps])) for run, steps in likeliest().items()}


def drawn(verify):
    return generate(
        target(),
        [prompt()] * TURNS,
        method="draft-model",
        draft=DraftOptions(tree="chain-2", draft_model=NEARSIGHTED, verify=verify),
        sampling=SamplingOptions(temperature=WARMTH, top_k=KEPT),
        num_samples=ROWS,
        seed=list(range(TURNS)),
        max_new_tokens=TOKENS,
        batch_size=1,
        slots=64,
    )


def test_drafts_checked_by_rejection_follow_the_model():
    completions = drawn("rejection")
    p = unlikely(completions, joint(WARMTH))
    at_once = np.mean([c.target_forwards == 1 for c in completions])
    print(f"p {p:.2g}; {at_once:.1%} of {len(completions)} texts took one forward")
    assert p > FALSE_ALARM
    assert unlikely(completions, joint(2 * WARMTH)) < FALSE_ALARM
    assert 0.05 < at_once < 0.95, "drafts must be good, and sometimes wrong, for the test to say anything"


def test_a_rule_that_keeps_likely_drafts_would_be_found_out():
    """The control of the test above."""
    assert unlikely(drawn("typical-lossy"), joint(WARMTH)) < FALSE_ALARM
