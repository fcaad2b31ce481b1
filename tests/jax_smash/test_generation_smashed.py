"""What holds for a text holds within a group: stop strings, grammars, log-probabilities, streaming."""

import dataclasses
import functools

import jax
import pytest

from jax_smash import SamplingOptions, SmashOptions, generate
from jax_smash.loading import grafted
from jax_smash.sharding import make_mesh, place
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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("mode", "lengths", "micro_steps"), [("blind", [8, 1, 0, 0], 9), ("checked", [9, 0, 0, 0], 10)]
)
def test_a_head_that_has_no_permitted_token_leaves_it_to_the_base(mode, lengths, micro_steps):
    """The micro head knows tokens 7 and 9 and the stop token, the grammar letters: but for the end, groups are one.

    Eight micro-steps find nothing to say, the next one the stop token. Where that is to be checked, one more is made.
    """
    model, options = smashed_model(stop_tokens=(10,)), {"max_new_tokens": 12, "slots": 64, "regex": "[a-h]{9}"}
    smash = SmashOptions(mode=mode, micro_head="3", group_length=3)
    said = generate(model, "one", method="hamburger", smash=smash, **options)[0]
    assert said.token_ids == plain(tuple(options.items()))
    assert set(said.text.strip()) <= set("abcdefgh")
    assert (said.finish_reason, said.smashed.lengths) == ("stop_token", lengths)
    assert said.smashed.micro_steps == micro_steps
    assert said.smashed.tokens == said.new_tokens - (mode == "checked")


@functools.cache
def plain(options):
    return generate(smashed_model(stop_tokens=(10,)), "one", **dict(options))[0].token_ids


NARROW = SamplingOptions(logit_bias={97: 60.0, 98: 60.0})
MIXED = [SamplingOptions(), SamplingOptions(temperature=1.0, top_k=50), NARROW, SamplingOptions()]


def many(model, **options):
    """Returns what four rows say, greedy ones and a sampled one."""
    with jax.default_matmul_precision("highest"):
        completions = generate(
            model,
            ["one", "two, two", "three three three", "4"],
            method="hamburger",
            smash=SmashOptions(confidence=0.4, least_rows=1, **options),
            sampling=MIXED,
            max_new_tokens=10,
            seed=[1, 2, 3, 4],
            batch_size=4,
            slots=64,
        )
    return [(c.token_ids, c.finish_reason, c.target_forwards, c.smashed) for c in completions]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "options"),
    [
        ("fsdp=2,tp=2", {"mode": "blind"}),
        ("data=2,tp=2", {"mode": "checked", "micro_head": "200"}),
        ("tp=2", {"mode": "exact", "micro_head": "int8"}),
    ],
)
def test_a_mesh_gives_a_single_device_s_tokens(mesh, options):
    model = smashed_model()
    base = {"target": place(model.params["target"], make_mesh(mesh))}
    divided = grafted(dataclasses.replace(model, params=base, modules=None), model.modules)
    assert {len(leaf.devices()) for leaf in jax.tree.leaves(divided.params)} == {make_mesh(mesh).size}
    alone = many(model, **options)
    assert many(divided, **options) == alone
    assert options["mode"] == "exact" or max(i for *_, s in alone for i, n in enumerate(s.lengths, 1) if n) > 1
