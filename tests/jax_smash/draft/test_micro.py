"""Groups as drafts, and groups of one: the text is plain decoding's."""

import functools

import numpy as np
import pytest

from jax_smash import SmashOptions, generate
from jax_smash.cache import EMPTY
from jax_smash.methods import make_method
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.session import Session
from tests.smashed import smashed_model

PROMPTS = ["the cat sat on", "a b a b a b", "x", "to be or not to be", "mmmmmmmm", "q w"]
PENALISED = SamplingOptions(
    temperature=0.7,
    repetition_penalty=1.3,
    presence_penalty=0.4,
    frequency_penalty=0.3,
    logit_bias={40: 2.0},
    min_new_tokens=5,
)
SAMPLED = SamplingOptions(temperature=0.8, top_k=20, top_p=0.95)
# Few tokens to choose from, so that the modules are often right by chance.
NARROW = dict.fromkeys((97, 98), 60.0)
CHOICES = [
    SamplingOptions(),
    SAMPLED,
    PENALISED,
    SamplingOptions(logit_bias=NARROW),
    SamplingOptions(logit_bias=NARROW, temperature=1.5, repetition_penalty=1.1),
    SamplingOptions(),
]


def made(method, *, trained=4, **smash):
    return generate(
        smashed_model(stop_tokens=(10,), micro_steps=trained),
        PROMPTS,
        method=method,
        sampling=CHOICES,
        max_new_tokens=24,
        batch_size=6,
        slots=64,
        smash=SmashOptions(**smash),
    )


@functools.cache
def plain():
    return [c.token_ids for c in made("ar")]


def few(*options):
    """Returns cases of which all but the first are slow."""
    return [options[0], *(pytest.param(more, marks=pytest.mark.slow) for more in options[1:])]


@pytest.mark.parametrize(
    "options",
    few(
        {"confidence": 0.3},
        {},
        {"confidence": 1.0},
        {"group_length": 4},
        {"confidence": 0.3, "token_confidence": 1.0},
    ),
)
def test_exact_text_is_that_of_plain_decoding(options):
    completions = made("hamburger", mode="exact", **options)
    assert [c.token_ids for c in completions] == plain()
    assert all(c.smashed is None for c in completions)
    if options == {"group_length": 4}:
        tried, kept = (np.array([getattr(c.drafted, name) for c in completions]) for name in ("tried", "kept"))
        assert (tried[:, 0] == [c.target_forwards for c in completions]).all()
        # Of two tokens that both could say, some drafts are right, at every depth.
        assert (kept[3:5].sum(0) > 0).all()
        assert completions[3].target_forwards < len(completions[3].token_ids) - 1
    if 1.0 in options.values():
        assert not any(sum(c.drafted.tried) for c in completions)


@pytest.mark.slow
@pytest.mark.parametrize("options", few({"confidence": 1.0}, {"trained": 1}, {"micro_steps": 1}))
def test_groups_of_one_token_are_plain_decoding(options):
    completions = made("hamburger", **options)
    assert [c.token_ids for c in completions] == plain()
    assert all(c.smashed.output_compression == 1 for c in completions)
    assert [c.target_forwards for c in completions] == [c.new_tokens - 1 for c in completions]


def test_modules_trained_for_one_token_draft_none():
    model = smashed_model(micro_steps=1)
    method = make_method(model, "hamburger", smash=SmashOptions(mode="exact"))
    assert method.nodes == 1
    assert method.strategy.levels == 0


@pytest.mark.slow
@pytest.mark.parametrize("mode", few("exact", "checked"))
def test_a_chat_goes_on_behind_a_group_that_was_cut(mode):
    """With one token that all may say, every limit cuts a group; what follows is that of plain decoding."""
    model, bias = smashed_model(), SamplingOptions(logit_bias={97: 90.0})
    smash = SmashOptions(mode=mode, group_length=4)
    made = make_method(model, "hamburger", smash=smash)
    session = Session(model, made, slots=64, max_new_tokens=24, sampling=[bias] * 2, seeds=[0, 1])
    held = [0, 0]
    for prompts, limits in (([[5, 6, 7], [8]], [7, 3]), ([[9], [9, 9]], [10, 2]), ([[1], [2]], [3, 9])):
        session.read(prompts, limits=limits)
        while session.run(2):
            pass
        assert session.outputs() == [[97] * n for n in limits]
        held = [n + len(p) + limit for n, p, limit in zip(held, prompts, limits, strict=True)]
        rows = session.state.rows
        assert rows.token_length.tolist() == held
        assert rows.unread.tolist() == [1, 1]
        position = np.asarray(rows.cache.positions[0])
        # All but the pending token is in the cache, at its own place.
        assert [row[row != EMPTY].max() for row in position] == [n - 2 for n in held]
        saved = [n - 1 - slots for n, slots in zip(held, rows.cache.slot_length.tolist(), strict=True)]
        assert saved == [0, 0] if mode == "exact" else min(saved) > 0
