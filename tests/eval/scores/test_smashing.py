"""Options and figures of HAMburger in measuring programs."""

import dataclasses

import pytest

from eval.scores.smashing import Compression, smash_options, with_caps
from jax_smash.decode.groups import Smashed


@dataclasses.dataclass
class Given:
    smash_mode: str = "checked"
    confidence: float = 0.9
    unrelated: int = 3


def test_options_come_from_the_fields_that_a_program_has():
    options = smash_options(Given(), group_length=2)
    assert (options.mode, options.confidence, options.group_length, options.micro_head) == ("checked", 0.9, 2, None)


def test_compression_of_output_and_of_the_whole_cache():
    tally = Compression()
    assert tally.figures() == {}
    # 4 + 2 · 3 tokens in 6 slots behind 10 of the prompt; the second text has a slot a token and is left out.
    tally.add([(10, Smashed(lengths=[4, 0, 2], micro_steps=5)), (7, None)])
    assert tally.figures() == {
        "output_compression": 10 / 6,
        "cache_compression": 20 / 16,
        "micro_steps_a_slot": 5 / 6,
    }


def test_compression_of_two_sets_of_texts_is_that_of_all_texts():
    first, second, both = Compression(), Compression(), Compression()
    texts = [(10, Smashed(lengths=[4, 0, 2], micro_steps=5)), (3, Smashed(lengths=[0, 7, 0], micro_steps=7))]
    first.add(texts[:1])
    second.add(texts[1:])
    both.add(texts)
    assert first + second == both
    assert (first + second).figures()["output_compression"] == 24 / 13


def test_the_cap_by_a_measured_micro_step():
    plain = {"ms_per_step": 10.0, "speedup": 1.0, "mean_accepted_tokens": 1.0}
    forced = [
        {"group_length": n, "ms_per_step": 11.0 + 4 * (n - 1), "speedup": 0.9, "mean_accepted_tokens": float(n)}
        | {"output_compression": float(n)}
        for n in (1, 2, 4)
    ]
    first, *rest = with_caps([plain, *forced])
    assert first == plain
    assert rest[0]["micro_step_cost"] == pytest.approx(0.4)
    assert [row["cap"] for row in rest] == pytest.approx([1.0, 2 / 1.4, 4 / 2.2])
    assert rest[2]["share_of_cap"] == pytest.approx(0.9 / (4 / 2.2))
    assert with_caps([plain, forced[0]]) == [plain, forced[0]]


def row(tokens, speedup, **more):
    """A row whose time a step is what its speed-up says, a plain one taking 10 ms."""
    own = {"mean_accepted_tokens": tokens, "speedup": speedup, "ms_per_step": 10 * tokens / speedup}
    return own | {"output_compression": tokens} | more


@pytest.mark.parametrize(
    ("own", "cost"),
    [
        (row(2.5, 1.0), 0.25),  # The longest groups show what later micro-steps cost, of which there are most.
        (row(2.5, 2.0), 1 / 6),  # Its own are cheaper still: 2.5 tokens take 1.25 plain steps.
        (row(2.5, 2.6), 0.0),  # Faster than with micro-steps for nothing: chance, and the cap is what it reached.
    ],
)
def test_nothing_lies_above_its_cap(own, cost):
    """The first micro-step costs 0.9 of a plain step, later ones 0.25; groups of one are faster by chance."""
    plain = {"ms_per_step": 10.0, "speedup": 1.0, "mean_accepted_tokens": 1.0}
    forced = [row(float(n), n / steps, group_length=n) for n, steps in ((1, 0.99), (2, 1.9), (3, 2.15), (4, 2.4))]
    rows = with_caps([plain, *forced, own])[1:]
    assert [one["micro_step_cost"] for one in rows] == pytest.approx([cost] * 5)
    assert all(one["share_of_cap"] <= 1 for one in rows)
    assert rows[3]["share_of_cap"] < 0.8
    for one in rows:
        r = one["mean_accepted_tokens"]
        assert one["cap"] == pytest.approx(max(r / (1 + (r - 1) * cost), one["speedup"]))
