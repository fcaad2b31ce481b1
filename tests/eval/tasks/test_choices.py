import dataclasses
import random

import numpy as np
import pytest

import jax_smash
from eval.scores.engine import Engine, Pair
from eval.tasks.choices import Choice, ChoiceSet, log_likelihoods
from tests.eval.reference import log_likelihood, small, token_log_probs

WORDS = ("cat", "dog", "mat", "sun", "wolf", "king", "queen", "ball", "bed", "river", "stone", "bread")


@pytest.fixture(scope="module")
def engine():
    return Engine(small(), batch_size=8)


def drawn(count):
    """Returns questions whose right choice is the one that a plain forward finds likeliest."""
    rng, choices = random.Random(0), []
    for i in range(count):
        context, options = f"The {rng.choice(WORDS)} saw the", tuple(f" {w}" for w in rng.sample(WORDS, 4))
        likelihoods = [log_likelihood(context, option) for option in options]
        choices.append(Choice(f"{i}", (context,) * 4, options, int(np.argmax(likelihoods))))
    return tuple(choices)


@pytest.fixture(scope="module")
def choices():
    return drawn(24)


def test_log_likelihoods_are_those_of_a_plain_forward(engine):
    pairs = [("The cat", " sat."), ("", "The"), ("The cat ", "sat.")]
    found = log_likelihoods(engine, [engine.pair(*pair) for pair in pairs], what="")
    expected = [log_likelihood("The cat", " sat."), log_likelihood("", "The"), log_likelihood("The cat", " sat.")]
    assert [value for value, _ in found] == pytest.approx(expected, abs=1e-3)


def test_greedy_text_is_known_as_such(engine):
    prompt = engine.encode("The cat")
    written = jax_smash.generate(small(), prompt, max_new_tokens=5)[0].token_ids
    other = [*written[:-1], (written[-1] + 1) % 256]
    pairs = [Pair(tokens=prompt + tokens, scored=5) for tokens in (written, other)]
    assert [greedy for _, greedy in log_likelihoods(engine, pairs, what="")] == [True, False]


def test_the_likeliest_choice_is_chosen(engine, choices):
    acc, _ = ChoiceSet(task="t", choices=choices).measure(engine)
    assert (acc.metric, acc.n, acc.score) == ("acc", 24, 1.0)
    assert acc.more == {"truncated": 0, "chance": 0.25}
    values = acc.examples[0]["values"]
    expected = [log_likelihood(a, b) for a, b in zip(choices[0].contexts, choices[0].continuations, strict=True)]
    assert values == pytest.approx(expected, abs=1e-3)


def test_shuffled_answers_fall_to_chance(engine, choices):
    rng = random.Random(1)
    shuffled = tuple(dataclasses.replace(choice, right=rng.randrange(4)) for choice in choices)
    acc, _ = ChoiceSet(task="t", choices=shuffled).measure(engine)
    assert acc.interval.low < 0.25 < acc.interval.high
    assert acc.score < 0.6


def test_the_norm_is_by_characters_of_the_choice(engine):
    short, long = " a", " ü" + "a" * 30
    choice = Choice("0", ("The",) * 2, (short, long), 0)
    acc, norm = ChoiceSet(task="t", choices=(choice,)).measure(engine)
    assert norm.metric == "acc_norm"
    lengths = [1, 31]
    assert norm.examples[0]["values"] == pytest.approx(
        [value / length for value, length in zip(acc.examples[0]["values"], lengths, strict=True)]
    )
    assert acc.examples[0]["chosen"] == 0


def test_partial_scoring_compares_one_continuation_behind_several_contexts(engine):
    contexts = ("Ann called Eve because Ann", "Ann called Eve because Eve")
    choice = Choice("0", contexts, (" was ill.",) * 2, 0)
    (acc,) = ChoiceSet(task="t", choices=(choice,)).measure(engine)
    expected = [log_likelihood(context, " was ill.") for context in contexts]
    assert acc.examples[0]["values"] == pytest.approx(expected, abs=1e-3)
    assert acc.examples[0]["chosen"] == int(np.argmax(expected))


def test_a_context_that_does_not_fit_is_cut_and_counted():
    engine = Engine(small(), batch_size=2, context=24)
    cut, whole = "x" * 40 + "The cat saw the", "The cat saw the"
    choices = tuple(Choice(c, (c,) * 2, (" dog", " mat"), 0) for c in (cut, whole))
    acc, _ = ChoiceSet(task="t", choices=choices).measure(engine)
    assert acc.more["truncated"] == 1
    kept = cut[-(24 - 4) :]
    expected = token_log_probs(f"{kept} dog".encode(), opened=False)[-4:].sum()
    assert acc.examples[0]["values"][0] == pytest.approx(expected, abs=1e-3)


def test_a_choice_that_fills_the_context_is_refused():
    engine = Engine(small(), context=8)
    with pytest.raises(ValueError, match="a continuation of 9 tokens fills the context of 8"):
        log_likelihoods(engine, [engine.pair("a", "b" * 9)], what="")
