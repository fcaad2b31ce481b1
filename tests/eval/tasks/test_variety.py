import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest

from eval.scores.engine import Engine
from eval.tasks.variety import Opening, VarietySet, distinct_share, variety_set
from tests.eval.reference import small

PROMPTS = [f"The {word} sat on the" for word in ("cat", "dog", "old man", "king", "queen of the sea")]


@pytest.fixture(scope="module")
def engine():
    return Engine(small(), batch_size=4)


def openings(prompts):
    return tuple(Opening(name=str(i), text=prompt) for i, prompt in enumerate(prompts))


def measured(model, prompts=PROMPTS, **options):
    new = options.pop("max_new_tokens", 24)
    items = VarietySet(task="variety", openings=openings(prompts), max_new_tokens=new)
    return items.measure(Engine(model, batch_size=4, **options))


@pytest.mark.parametrize(
    ("tokens", "share"),
    [
        (range(9), 1.0),
        ([7] * 9, 1 / 6),
        ([1, 2] * 5, 2 / 7),
        ([1, 2, 3, 4, 1, 2, 3, 4], 4 / 5),
        ([1, 2, 3, 4], 1.0),
        ([1, 2, 3], 0.0),
        ([], 0.0),
    ],
)
def test_the_share_of_distinct_4grams_is_that_counted_by_hand(tokens, share):
    assert distinct_share(list(tokens)) == pytest.approx(share)


def test_a_text_that_goes_in_circles_is_told_from_one_that_does_not():
    # With all weights 0 every logit is the same, and greedy decoding writes token 0 for ever.
    varied, mean = measured(dataclasses.replace(small(), params=jax.tree.map(jnp.zeros_like, small().params)))
    assert (varied.metric, varied.n, varied.score) == ("varied", 5, 0)
    assert (mean.metric, mean.n, mean.score) == ("distinct_4grams", 5, pytest.approx(1 / 21))
    assert {e["new_tokens"] for e in mean.examples} == {24}
    varied, mean = measured(small())
    assert varied.score > 0
    assert mean.score > 0.5


def test_both_figures_are_of_the_same_texts(engine):
    varied, mean = measured(small())
    completions = engine.continuations([engine.encode(prompt) for prompt in PROMPTS], max_new_tokens=24)
    assert [e["continuation"] for e in varied.examples] == [c.text for c in completions]
    assert [e["continuation"] for e in mean.examples] == [c.text for c in completions]
    assert [e["score"] for e in mean.examples] == [distinct_share(c.token_ids) for c in completions]
    assert [e["score"] for e in varied.examples] == [int(e["score"] >= 0.7) for e in mean.examples]
    assert mean.score == pytest.approx(sum(e["score"] for e in mean.examples) / 5)
    assert varied.interval.low <= varied.score <= varied.interval.high
    assert mean.interval.low <= mean.score <= mean.interval.high


def test_a_stop_token_is_left_out_and_a_text_without_a_4gram_counts_as_none(engine):
    written = engine.continuations([engine.encode(prompt) for prompt in PROMPTS], max_new_tokens=24)[0].token_ids
    kept = written.index(written[3])
    varied, mean = measured(dataclasses.replace(small(), stop_tokens=(written[3],)))
    assert mean.examples[0]["new_tokens"] == kept < 4
    assert varied.examples[0]["score"] == mean.examples[0]["score"] == 0
    assert mean.more["too_short"] == sum(e["new_tokens"] < 4 for e in mean.examples)


def test_a_prompt_that_does_not_fit_is_cut_and_counted():
    varied, mean = measured(small(), ["cat " * 30, *PROMPTS[1:]], context=64)
    assert varied.more["truncated"] == mean.more["truncated"] == 1


def test_prompts_come_from_lines(tmp_path):
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in PROMPTS))
    found = variety_set(str(lines), count=2, chat=True, max_new_tokens=None)
    assert [o.text for o in found.openings] == PROMPTS[:2]
    assert (found.chat, found.max_new_tokens) == (True, 128)


@pytest.mark.parametrize(
    ("line", "changes", "message"),
    [
        ('{"text": "a"}', {}, "a.jsonl, line 1: expected a text \"prompt\"; got the fields 'text'"),
        ('{"prompt": " "}', {}, "a.jsonl, line 1: expected a prompt; got ' '"),
        ('{"prompt": "a"}', {"count": 2}, "count must be at most 1, the examples of .*a.jsonl; got 2"),
        ('{"prompt": "a"}', {"max_new_tokens": 3}, "max_new_tokens must be at least 4 for variety; got 3"),
    ],
)
def test_what_cannot_be_continued_is_refused(tmp_path, line, changes, message):
    path = tmp_path / "a.jsonl"
    path.write_text(line)
    with pytest.raises(ValueError, match=message):
        variety_set(str(path), **({"count": None, "chat": False, "max_new_tokens": None} | changes))
