"""What holds for a text holds within a group: stop strings, grammars, log-probabilities, streaming."""

import functools

import pytest

from jax_smash import SamplingOptions, SmashOptions, generate
from tests.smashed import smashed_model

LETTERS = SamplingOptions(logit_bias=dict.fromkeys(range(97, 117), 60.0))
NEVER = "QX"


@functools.cache
def made(stop=NEVER, streamed=False):
    shown: list[str] = [""] * 3
    tokens: list[int] = []

    def show(number, text):
        shown[number] += text

    completions = generate(
        smashed_model(),
        ["one", "two, two", "three three three"],
        method="hamburger",
        smash=SmashOptions(group_length=4),
        max_new_tokens=24,
        slots=64,
        sampling=LETTERS,
        stop=stop,
        log_probs=2,
        on_text=show if streamed else None,
        on_tokens=tokens.append,
    )
    return completions, shown, tokens


def test_a_group_is_streamed_as_it_is_read_at_once():
    whole, (streamed, shown, tokens) = made()[0], made(streamed=True)
    assert [c.token_ids for c in whole] == [c.token_ids for c in streamed]
    assert shown == [c.text for c in whole]
    assert all(len(text) == 24 and text.isalpha() for text in shown)
    assert sum(tokens) == 72
    assert [c.smashed.lengths for c in whole] == [[0, 0, 0, 6]] * 3


def test_a_stop_string_ends_a_text_within_a_group():
    text = made()[0][0].text
    place = next(i for i in range(4, 22) if i % 4 in (0, 1) and text.find(text[i : i + 2]) == i)
    completion = made(stop=text[place : place + 2])[0][0]
    assert completion.text == text[:place]
    assert completion.finish_reason == "stop_string"
    assert completion.new_tokens == place + 2
    assert completion.smashed.tokens == place + 2


def test_each_token_of_a_group_has_its_log_probability():
    for completion in made()[0]:
        assert [entry.token for entry in completion.log_probs] == completion.token_ids
        for entry in completion.log_probs:
            (_, best), (_, second) = entry.top
            assert entry.log_prob <= best + 1e-6
            assert second <= best <= 0


@pytest.mark.parametrize(("mode", "lengths"), [("blind", [8, 1, 0, 0]), ("checked", [9, 0, 0, 0])])
def test_a_head_that_has_no_permitted_token_leaves_it_to_the_base(mode, lengths):
    """The micro head knows tokens 7 and 9 and the stop token, the grammar letters: but for the end, groups are one."""
    model, options = smashed_model(stop_tokens=(10,)), {"max_new_tokens": 12, "slots": 64, "regex": "[a-h]{9}"}
    smash = SmashOptions(mode=mode, micro_head="3", group_length=3)
    said = generate(model, "one", method="hamburger", smash=smash, **options)[0]
    assert said.token_ids == plain(tuple(options.items()))
    assert set(said.text.strip()) <= set("abcdefgh")
    assert (said.finish_reason, said.smashed.lengths) == ("stop_token", lengths)


@functools.cache
def plain(options):
    return generate(smashed_model(stop_tokens=(10,)), "one", **dict(options))[0].token_ids
