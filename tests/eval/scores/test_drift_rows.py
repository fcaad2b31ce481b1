import numpy as np
import pytest

from eval.exact.rescoring import Rescored
from eval.scores.drift_rows import MOST_NATS, Reread, buckets, row
from eval.scores.smashing import Compression
from jax_smash.decode.groups import Smashed
from jax_smash.serve.turn import Completion


def text(wrong, nats=None, tokens=None, **more):
    wrong = np.asarray(wrong, bool)
    nats = np.where(wrong, 1.0, 0.0) if nats is None else np.asarray(nats, float)
    return Reread(tokens=list(range(len(wrong))) if tokens is None else tokens, wrong=wrong, nats=nats, **more)


def row_of(texts, new_tokens):
    return row("blind", 0.5, texts, Compression(), new_tokens=new_tokens)


@pytest.mark.parametrize(
    ("new_tokens", "ends"),
    [(1, [1]), (32, [32]), (40, [32, 40]), (64, [32, 64]), (512, [32, 64, 128, 256, 512])],
)
def test_positions_fall_in_buckets_that_double_and_hold_each_once(new_tokens, ends):
    found = buckets(new_tokens)
    assert [part.stop for part in found] == ends
    assert [i for part in found for i in part] == list(range(new_tokens))


def test_errors_and_nats_are_shares_of_the_tokens_at_their_positions():
    first = text([True] * 8 + [False] * 24 + [True] * 8, nats=[2.0] * 8 + [0] * 24 + [0.5] * 8)
    second = text([False] * 32 + [True] * 2 + [False] * 6, nats=[0.0] * 32 + [4.0] * 2 + [0] * 6)
    found = row_of([first, second], 40)
    early, late = found["by_position"]
    assert [(b["first"], b["last"], b["texts"], b["tokens"]) for b in (early, late)] == [
        (0, 31, 2, 64),
        (32, 39, 2, 16),
    ]
    assert (early["error"], early["nats_below_best"], early["texts_with_errors"]) == (8 / 64, 16 / 64, 1)
    assert (late["error"], late["nats_below_best"], late["texts_with_errors"]) == (10 / 16, 12 / 16, 2)
    assert (found["error"], found["tokens"]) == (18 / 80, 80)
    assert found["growth"] == ((1 - 0.25) + (0.25 - 0)) / 2


def test_an_interval_is_over_texts_and_not_over_tokens():
    """Of 40 texts, half are wrong throughout: 40 draws say much less than 4,000 would."""
    found = row_of([text([i % 2 == 0] * 32) for i in range(40)], 32)
    assert found["error"] == 0.5
    assert 0.28 < found["low"] < 0.42
    assert 0.58 < found["high"] < 0.72
    assert found["growth"] is None


def test_texts_without_an_error_have_none_and_no_interval():
    found = row_of([text([False] * 40) for _ in range(5)], 40)
    assert (found["error"], found["nats_below_best"], found["growth"], found["texts_with_errors"]) == (0, 0, 0, 0)
    assert (found["low"], found["high"], found["growth_low"]) == (None, None, None)


def test_a_text_that_ends_early_counts_where_it_has_tokens():
    found = row_of([text([True] * 10), text([False] * 40)], 40)
    early, late = found["by_position"]
    assert (early["texts"], early["tokens"], early["error"]) == (2, 42, 10 / 42)
    assert (late["texts"], late["tokens"], late["error"]) == (1, 8, 0)
    assert found["growth"] == 0


def test_a_text_that_goes_in_circles_is_told():
    found = row_of([text([False] * 40, tokens=[1, 2] * 20), text([False] * 40)], 40)
    assert found["distinct_4grams"] == (2 / 37 + 1) / 2


def completion(tokens, **more):
    return Completion(
        prompt="",
        text="",
        token_ids=tokens,
        prompt_tokens=3,
        new_tokens=len(tokens),
        finish_reason="length",
        tokens_per_second=None,
        time_to_first_token_s=0.0,
        **more,
    )


def said(explained, gap):
    size = len(explained)
    return Rescored(
        best=np.zeros(size, np.int32),
        gap=np.asarray(gap, np.float32),
        other_gap=np.zeros(size, np.float32),
        scale=np.ones(size, np.float32),
        explained=np.asarray(explained),
        log_prob=np.zeros(size, np.float32),
        log_prob_scale=np.ones(size, np.float32),
    )


def test_a_near_tie_is_no_error_and_a_huge_distance_is_cut():
    written = completion([5, 6, 7], target_forwards=2, mean_accepted_tokens=1.0)
    found = Reread.of(written, said([True, False, False], [1e-7, 0.5, 99.0]))
    assert found.wrong.tolist() == [False, True, True]
    assert found.nats.tolist() == [0, 0.5, MOST_NATS]


def test_slots_and_forwards_are_summed_over_texts():
    groups = [Smashed(lengths=[1, 0, 0, 1], micro_steps=3), Smashed(lengths=[4, 1, 0, 0], micro_steps=1)]
    made = [
        completion([1] * 6, target_forwards=2, mean_accepted_tokens=2.5, smashed=groups[0]),
        completion([1] * 7, target_forwards=5, mean_accepted_tokens=1.2, smashed=groups[1]),
    ]
    compression = Compression()
    compression.add((3, one.smashed) for one in made)
    texts = [Reread.of(one, said([True] * one.new_tokens, [0.0] * one.new_tokens)) for one in made]
    found = row("blind", 0.5, texts, compression, new_tokens=8)
    assert found["mean_accepted_tokens"] == pytest.approx(11 / 7)
    assert found["output_compression"] == 11 / 7
    bounds = found["output_compression_interval"]
    assert (bounds["low"], bounds["high"]) == (1.2, 2.5)
