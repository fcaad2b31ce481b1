"""HAMburger's micro-step decoder as a drafter, against one guess at a time."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jax_smash.cache import Block
from jax_smash.models.depth import tapped_without_cache
from jax_smash.smash.smasher import random_smasher
from tests.smashers import BASES, base_of
from train.parts.drafter.micro import micro_objective
from train.parts.drafter.rows import random_batch
from train.parts.drafter.settings import MicroSettings
from train.run.optimiser import Optimiser

BASE = "qwen3"
SETTINGS = MicroSettings(
    model=BASES[BASE],
    optimiser=Optimiser(warmup=1),
    batch_size=2,
    length=6,
    steps=8,
    micro_steps=4,
    step_decay=0.5,
    stop_weight=0.3,
)


def read_alone(base, modules, tokens):
    """Returns what the base predicts at each token of one row, its hidden states, and what the decoder reads there."""
    positions = jnp.arange(len(tokens), dtype=jnp.int32)[None]
    block = Block.causal(jnp.ones((1, len(tokens)), bool))
    hidden, taps = tapped_without_cache(base, base.embed(tokens[None]), positions, block)
    return base.unembed(hidden)[0], hidden[0], modules.prefix(tuple(taps), hidden)[0]


@pytest.mark.slow
@pytest.mark.parametrize("said", [None, np.arange(0, BASES[BASE].vocab_size, 2)])
def test_each_guess_is_what_the_decoder_says_behind_the_texts_own_tokens(said):
    target, params = nnx.split(base_of(BASE))
    structure, drawn = random_smasher(SETTINGS.model, SETTINGS.smash, 3)
    base, modules = nnx.merge(target, params), nnx.merge(structure, drawn)
    batch = random_batch(SETTINGS.model.vocab_size, 2, 6)
    loss, told = jax.jit(micro_objective(target, SETTINGS, said))({"base": params, "drafter": drawn}, batch)
    tokens = np.arange(SETTINGS.model.vocab_size) if said is None else said
    read = nnx.jit(lambda decoder, given, cache: decoder.read(given, cache))
    lost, count, stop = np.zeros(3), np.zeros(3), np.zeros(2)
    for row in range(2):
        text = jnp.asarray(batch.tokens[row])
        predicted, hidden, prefix = read_alone(base, modules, text)
        for entry in range(6):
            cache, wide = modules.micro_decoder.init_cache(1), prefix[entry][None]
            before = hidden[entry]
            for step in range(3):
                if (at := entry + step + 1) > 5:
                    break
                vector = base.embed(text[None, at : at + 1])
                given = jnp.concatenate([wide, vector], axis=1) if step == 0 else vector
                made, cache = read(modules.micro_decoder, given, cache)
                weight = float(batch.weights[row, at])
                logits, best = base.unembed(made)[0], int(jnp.argmax(predicted[at]))
                wrong = float(int(tokens[jnp.argmax(logits[tokens])]) != best)
                ends = float(modules.stop_logits(before))
                stop += weight * np.array([np.logaddexp(0, ends) - wrong * ends, 1])
                if best in tokens:
                    expected = jax.nn.softmax(predicted[at][tokens]) @ logits[tokens]
                    lost[step] += weight * float(jax.nn.logsumexp(logits[tokens]) - expected)
                    count[step] += weight
                before = made[0]
    for step in range(3):
        assert tuple(map(float, told.means[f"loss_{step + 1}"])) == pytest.approx((lost[step], count[step]), rel=1e-4)
    assert tuple(map(float, told.means["stop_loss"])) == pytest.approx(tuple(stop), rel=1e-4)
    decay = np.array([1, 0.5, 0.25])
    assert float(loss) == pytest.approx(float(decay @ lost + 0.3 * stop[0]), rel=1e-4)
    assert float(told.count) == pytest.approx(float(decay @ count), rel=1e-5)
    assert (
        "stop_loss"
        not in jax.eval_shape(
            micro_objective(target, SETTINGS.measured(), said), {"base": params, "drafter": drawn}, batch
        )[1].means
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"micro_steps": 1}, "micro_steps must be from 2 to the row's 6; got 1"),
        ({"micro_steps": 7}, "micro_steps must be from 2 to the row's 6; got 7"),
        ({"tapped_layers": [9]}, "tapped_layers must be layers of the base, 0 to 1; got 9"),
        ({"step_decay": 0}, "step_decay must be above 0 and at most 1; got 0"),
        ({"stop_weight": -1}, "stop_weight must be at least 0 and finite; got -1"),
        ({"head_size": -5}, "head_size must be from 0 to the vocabulary's"),
        ({"head_size": 10**9}, "head_size must be from 0 to the vocabulary's"),
        ({"answer_weight": 5.0}, "answer_weight says nothing of a drafter; got 5"),
        ({"circle_weight": 2.0}, "circle_weight says nothing of a drafter; got 2"),
        ({"own_every": 3}, "own_every says nothing of a drafter; got 3"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SETTINGS, **changes)
