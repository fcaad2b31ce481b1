"""Drawn tokens of groups, in the modes whose groups share slots: each with the noise of its own place."""

import functools

import pytest

from jax_smash import generate
from jax_smash.methods import SmashOptions
from jax_smash.sampling import SamplingOptions, row_keys
from tests.smashed import Plainly, smashed_model

PROMPTS = [[5, 17, 60, 2], [100, 3]]
NEW, SAMPLES, SEEDS = 18, 2, [4, 9]
CONFIDENCE = 0.45
FEW = {97: 60.0, 98: 60.0, 99: 60.0}
"""So few tokens to choose from that base and modules often draw the same one with the same noise."""
DRAWN = SamplingOptions(temperature=1.0, logit_bias=FEW)


@functools.cache
def said(mode):
    """Returns the completions of two prompts, two samples each."""
    return generate(
        smashed_model(),
        PROMPTS,
        method="hamburger",
        smash=SmashOptions(mode=mode, confidence=CONFIDENCE, least_rows=1),
        sampling=DRAWN,
        num_samples=SAMPLES,
        seed=SEEDS,
        max_new_tokens=NEW,
        slots=64,
    )


def plainly(mode, **faults):
    """Returns the same texts, written out."""
    rows = []
    for prompt, seed in zip(PROMPTS, SEEDS, strict=True):
        for key in row_keys([seed], samples=SAMPLES):
            row = Plainly(smashed_model(), bias=FEW, key=key, **faults)
            row.read(prompt)
            rows.append((getattr(row, mode)(NEW, CONFIDENCE), row))
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["blind", "checked"])
def test_samples_are_those_of_reading_everything_again(mode):
    completions, expected = said(mode), plainly(mode)
    assert [c.token_ids for c in completions] == [text for text, _ in expected]
    assert [c.sample for c in completions] == [0, 1, 0, 1]
    assert len({tuple(c.token_ids) for c in completions}) == 4
    for completion, (_, row) in zip(completions, expected, strict=True):
        groups = [*row.lengths, len(row.pending)] if mode == "blind" else row.lengths
        assert completion.smashed.lengths == [groups.count(n) for n in range(1, 5)]
        assert max(groups) > 1
        # Checked, the last token is in no slot.
        assert completion.smashed.tokens == NEW - (mode == "checked")


@pytest.mark.parametrize("mode", ["blind", "checked"])
@pytest.mark.parametrize(
    "fault", [{"noise_at": lambda first, i: first}, {"noise_at": lambda first, i: first + i + 1}], ids=["first", "next"]
)
def test_noise_of_another_place_would_be_seen(mode, fault):
    """The control: tokens drawn with the noise of their group's first, or of the place behind, give other texts."""
    assert [c.token_ids for c in said(mode)] != [text for text, _ in plainly(mode, **fault)]
