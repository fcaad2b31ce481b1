import dataclasses

import numpy as np
import pytest

from eval.exact.conditions import Condition, request_for
from eval.exact.decoded import Decoded, decode_all
from eval.exact.divergence import Rescorer, divergences, summary
from eval.exact.rescoring import Rescored
from jax_smash.config import RopeConfig
from jax_smash.methods import make_method
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.session import TokenLogProb
from tests.tiny import tiny_model

NEW = 12
PROMPTS = [[40, 41, 42, 43, 44], [50, 51, 52], [60, 61, 60, 61]]
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def model():
    return tiny_model(num_layers=1, layer_kinds=("sliding",), window=8, stop_tokens=(10,))


def decoded_under(model, request):
    method = make_method(model, "ar", sampled=any(o.sampled for o in request.sampling), log_probs=2)
    return decode_all(model, method, request, batch_size=2, max_new_tokens=NEW, log_probs=2)


@pytest.fixture(scope="module", params=[("none", "greedy"), ("all", "sampled")], ids="-".join)
def run(request, model):
    condition = Condition(2, *request.param)
    asked = request_for(condition, model, PROMPTS, max_new_tokens=NEW, seed=3, stop=("qz",), regex="[ -~]+")
    decoded = decoded_under(model, asked)
    return asked, decoded, Rescorer(model, asked, dtype="float32", max_new_tokens=NEW)


def test_plain_decoding_is_explained_token_for_token(run):
    _, decoded, rescorer = run
    said = rescorer.rescore(decoded, decoded)
    assert [len(row.gap) for row in said] == [len(d.tokens) for d in decoded]
    found = summary(decoded, decoded, said, tolerance=TOLERANCE)
    assert found["tokens"] > 2 * NEW
    assert found["distinct_tokens"] > 4
    counts = ("divergences", "unexplained", "log_probs_differing", "finish_differing")
    assert {name: found[name] for name in counts} == dict.fromkeys(counts, 0)
    assert found["worst_gap"] < TOLERANCE
    assert 0 < found["worst_log_prob_error"] < TOLERANCE


@pytest.mark.parametrize("scaling", ["dynamic", "longrope"])
def test_a_rotary_embedding_that_follows_the_length_is_that_of_decoding(scaling):
    factors = {"short_factors": (1.0,) * 4, "long_factors": (1.0, *(4.0,) * 3)} if scaling == "longrope" else {}
    rope = RopeConfig(scaling=scaling, factor=4.0, original_positions=8, **factors)
    model = tiny_model(num_layers=2, rope=rope, stop_tokens=())
    asked = request_for(Condition(2, "none", "greedy"), model, PROMPTS, max_new_tokens=NEW, seed=3)
    decoded = decoded_under(model, asked)
    said = Rescorer(model, asked, dtype="float32", max_new_tokens=NEW).rescore(decoded, decoded)
    found = summary(decoded, decoded, said, tolerance=TOLERANCE)
    assert found["tokens"] == 3 * NEW
    assert found["unexplained"] == found["log_probs_differing"] == 0
    assert 0 < found["worst_log_prob_error"] < TOLERANCE


def test_a_wrong_token_is_named_with_its_place_and_gap(run):
    _, decoded, rescorer = run
    wrong = [dataclasses.replace(d, tokens=list(d.tokens)) for d in decoded]
    wrong[2].tokens[5] = 33 + (wrong[2].tokens[5] - 32) % 90
    said = rescorer.rescore(wrong, decoded)
    (found,) = divergences(wrong, decoded, said)
    assert (found.prompt, found.position) == (2, 5)
    assert (found.token, found.plain) == (wrong[2].tokens[5], decoded[2].tokens[5])
    assert not found.near_tie
    assert found.gap < -TOLERANCE
    assert said[2].best[5] == decoded[2].tokens[5]
    assert said[2].explained[:5].all()


def test_a_text_is_read_once_and_another_in_its_place_again(run, model):
    asked, decoded, _ = run
    rescorer, told = Rescorer(model, asked, dtype="float32", max_new_tokens=NEW), []
    first = rescorer.rescore(decoded, decoded, lambda: told.append(1))
    rescorer.model = None  # What is known needs none.
    again = rescorer.rescore(decoded[:2], decoded, lambda: told.append(1))
    assert len(told) == 5
    for one, other in zip(first[:2], again, strict=True):
        np.testing.assert_array_equal(one.gap, other.gap)
    wrong = dataclasses.replace(decoded[0], tokens=[*decoded[0].tokens[:-1], 99])
    for texts, others in (([wrong], decoded), (decoded[:1], [wrong])):
        with pytest.raises(AttributeError):
            rescorer.rescore(texts, others)


def test_a_wrong_log_probability_is_counted(run):
    _, decoded, rescorer = run
    said = rescorer.rescore(decoded, decoded)
    record = decoded[1].log_probs
    off = [*record[:3], dataclasses.replace(record[3], log_prob=record[3].log_prob - 0.01), *record[4:]]
    wrong = [decoded[0], dataclasses.replace(decoded[1], log_probs=off), decoded[2]]
    found = summary(wrong, decoded, said, tolerance=TOLERANCE)
    assert (found["divergences"], found["log_probs_differing"]) == (0, 1)


@pytest.mark.parametrize("cut", [{"top_k": 4}, {"top_p": 0.3}, {"min_p": 0.4}], ids=lambda cut: next(iter(cut)))
def test_a_token_that_truncation_forbids_is_explained_only_where_rounding_moves_the_edge(model, cut):
    free, held = SamplingOptions(temperature=1.0), SamplingOptions(temperature=1.0, **cut)
    condition = Condition(2, "none", "sampled")
    asked = dataclasses.replace(
        request_for(condition, model, PROMPTS, max_new_tokens=NEW, seed=3), sampling=[free] * len(PROMPTS)
    )
    decoded = decoded_under(model, asked)
    asked = dataclasses.replace(asked, sampling=[held] * len(PROMPTS))
    exact = Rescorer(model, asked, dtype="float32", max_new_tokens=NEW)
    assert any(not row.explained.all() for row in exact.rescore(decoded, decoded))
    rough = Rescorer(model, asked, dtype="float32", max_new_tokens=NEW)
    rough.tolerance = 2.0
    assert all(row.explained.all() for row in rough.rescore(decoded, decoded))


def test_a_token_at_the_edge_of_truncation_must_be_chosen_where_it_is_best(model):
    """With k = 1 the kept token is itself the edge: what else is emitted is wrong, however close the edge."""
    asked = request_for(Condition(2, "none", "sampled"), model, PROMPTS, max_new_tokens=NEW, seed=3)
    greedy = dataclasses.replace(asked, sampling=[SamplingOptions(temperature=1.0, top_k=1)] * len(PROMPTS))
    decoded = decoded_under(model, greedy)
    other = decoded_under(model, asked)
    rescorer = Rescorer(model, greedy, dtype="float32", max_new_tokens=NEW)
    assert all(row.explained.all() for row in rescorer.rescore(decoded, other))
    said = rescorer.rescore(other, decoded)
    assert all(d.near_tie is False for d in divergences(other, decoded, said))
    assert divergences(other, decoded, said)


def text(tokens, finish="length", forwards=1, log_probs=None):
    return Decoded(tokens=list(tokens), finish=finish, forwards=forwards, log_probs=log_probs)


def judged(tokens, *, explained=True, gap=0.0):
    n = len(tokens)
    return Rescored(
        best=np.asarray(tokens),
        gap=np.full(n, gap),
        other_gap=np.full(n, -gap),
        scale=np.full(n, 2.0),
        explained=np.full(n, explained),
        log_prob=np.zeros(n),
        log_prob_scale=np.ones(n),
    )


def test_a_text_that_ends_early_is_a_divergence_that_rounding_does_not_explain():
    (found,) = divergences([text([1, 2])], [text([1, 2, 3])], [judged([1, 2])])
    assert dataclasses.astuple(found) == (0, 2, -1, 3, None, False)


def test_a_near_tie_is_told_from_an_error():
    texts, plain = [text([1, 5]), text([2, 6])], [text([1, 4]), text([2, 7])]
    said = [judged([1, 5], gap=1e-6), judged([2, 6], explained=False, gap=0.5)]
    found = summary(texts, plain, said, tolerance=TOLERANCE)
    assert (found["divergences"], found["beyond_near_ties"], found["unexplained"]) == (2, 1, 2)
    assert [d["gap"] for d in found["listed"]] == [-5e-7, -0.25]
    assert found["worst_gap"] == 0.25


def test_another_reason_to_end_is_counted_where_the_tokens_are_equal():
    texts = [text([1, 2], "stop_string", 1), text([3], "stop_token", 2)]
    plain = [text([1, 2], "length", 1), text([4], "length", 2)]
    found = summary(texts, plain, [judged([1, 2]), judged([3])], tolerance=TOLERANCE)
    assert found["finish_differing"] == 1
    assert found["finish"] == {"stop_string": 1, "stop_token": 1}
    assert found["mean_accepted_tokens"] == pytest.approx((3 - 2) / 3)


def test_log_probabilities_behind_a_divergence_are_not_compared():
    ours = [TokenLogProb(1, -1.0, ()), TokenLogProb(2, -9.0, ())]
    theirs = [TokenLogProb(1, -1.0, ()), TokenLogProb(3, -2.0, ())]
    said = dataclasses.replace(judged([1, 2]), log_prob=np.asarray([-1.0, -9.0]))
    found = summary([text([1, 2], log_probs=ours)], [text([1, 3], log_probs=theirs)], [said], tolerance=TOLERANCE)
    assert (found["divergences"], found["log_probs_differing"], found["worst_log_prob_error"]) == (1, 0, 0)


def test_log_probabilities_that_are_no_numbers_differ():
    ours = [TokenLogProb(1, float("nan"), ()), TokenLogProb(2, -1.5, ((2, -1.5), (3, float("nan"))))]
    theirs = [TokenLogProb(1, -1.0, ()), TokenLogProb(2, -1.0, ((2, -1.0), (3, -2.0)))]
    ours.append(TokenLogProb(4, -1.25, ()))
    theirs.append(TokenLogProb(4, -1.0, ()))
    said = dataclasses.replace(judged([1, 2, 4]), log_prob=np.full(3, -1.0))
    found = summary([text([1, 2, 4], log_probs=ours)], [text([1, 2, 4], log_probs=theirs)], [said], tolerance=TOLERANCE)
    assert (found["log_probs_differing"], found["worst_log_prob_error"]) == (3, 0.25)


def test_tokens_that_are_banned_in_both_do_not_differ():
    record = [TokenLogProb(1, -1.0, ((1, -1.0), (2, -float("inf"))))]
    said = dataclasses.replace(judged([1]), log_prob=np.full(1, -1.0))
    found = summary([text([1], log_probs=record)], [text([1], log_probs=record)], [said], tolerance=TOLERANCE)
    assert (found["log_probs_differing"], found["worst_log_prob_error"]) == (0, 0)
