"""The HAMburger modules that come with `tiny`."""

import functools

import pytest

import jax_smash
from jax_smash import SmashOptions
from jax_smash.tasks import examples

COUNT = 12


@functools.cache
def smashed():
    return jax_smash.load("tiny", modules="auto")


@functools.cache
def questions():
    """Sums to work out and lists to copy, of words and numbers that no generated example of the training has."""
    size = smashed().tokenizer.encode
    return [
        example
        for task in ("arithmetic", "copying")
        for example in examples(task, split="test", count=COUNT, seed=3, length=128, size=lambda text: len(size(text)))
    ]


@functools.cache
def said(method, **options):
    return jax_smash.generate(
        smashed(),
        # A space at a prompt's end belongs to the answer's first word.
        [(example.prompt + example.separator).rstrip(" ") for example in questions()],
        method=method,
        smash=SmashOptions(**options),
        max_new_tokens=96,
        batch_size=2 * COUNT,
        stop="\n",
    )


def right(completions):
    return sum(e.is_correct(c.text) for e, c in zip(questions(), completions, strict=True))


@pytest.mark.slow
def test_by_default_they_say_several_tokens_a_slot_and_are_right_about_as_often_as_their_base():
    plain, smash = said("ar"), said("hamburger", least_rows=1)
    assert right(plain) > COUNT / 2
    assert right(smash) >= right(plain) - 2
    tokens, slots = (sum(getattr(c.smashed, name) for c in smash) for name in ("tokens", "slots"))
    assert tokens / slots > 1.3
    # Trusted in everything, they are often wrong: what they carry is what keeps them right.
    assert right(said("hamburger", token_confidence=0.0, least_rows=1)) < right(plain) - 4


def test_they_carry_settings_and_tell_the_base_that_lies_beside_them():
    modules = smashed().modules
    assert modules.base_fingerprint == smashed().fingerprint != jax_smash.load("tiny").fingerprint
    assert {*modules.options.to_fields()} == {"mode", "confidence", "token_confidence", "micro_steps", "micro_head"}


@pytest.mark.slow
def test_as_drafts_their_text_is_that_of_plain_decoding():
    exact = said("hamburger", mode="exact")
    assert [c.token_ids for c in exact] == [c.token_ids for c in said("ar")]
    assert sum(c.target_forwards for c in exact) < 0.9 * sum(c.target_forwards for c in said("ar"))
