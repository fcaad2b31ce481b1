import pytest

pytest.importorskip("lm_eval", reason="the adapter needs the extra lm-eval")

from lm_eval.api.instance import Instance

from eval.scores.lm_eval_adapter import JaxSmashLM
from tests.eval.reference import log_likelihood, small, token_log_probs


@pytest.fixture(scope="module")
def model():
    return JaxSmashLM(small(), batch_size=2)


def requests(kind, *arguments):
    return [Instance(request_type=kind, doc={}, arguments=a, idx=i) for i, a in enumerate(arguments)]


def test_loglikelihood_is_that_of_a_plain_forward(model):
    pairs = [("The cat", " sat"), ("", "The"), ("Once upon a", " time")]
    found = model.loglikelihood(requests("loglikelihood", *pairs))
    assert [value for value, _ in found] == pytest.approx([log_likelihood(*pair) for pair in pairs], abs=1e-3)
    assert all(isinstance(greedy, bool) for _, greedy in found)


def test_rolling_loglikelihood_is_that_of_the_whole_text(model):
    texts = [("The cat sat.",), ("Über",)]
    found = model.loglikelihood_rolling(requests("loglikelihood_rolling", *texts))
    assert found == pytest.approx([token_log_probs(text.encode()).sum() for (text,) in texts], abs=1e-3)


def test_rolling_windows_do_not_overlap():
    text = "The cat sat on the mat and slept."
    found = JaxSmashLM(small(), context=12).loglikelihood_rolling(requests("loglikelihood_rolling", (text,)))
    assert len(text) == 33
    # The last token of each window is what the next one's first is scored behind, as in the harness.
    pieces = [token_log_probs(text[i - 1 : i + 11].encode(), opened=False) for i in (11, 22)]
    expected = sum(piece.sum() for piece in (token_log_probs(text[:11].encode()), *pieces))
    assert found == pytest.approx([expected], abs=1e-3)


def test_generation_ends_before_its_stop_string(model):
    plain = model.generate_until(requests("generate_until", ("The cat sat", {"max_gen_toks": 12})))
    whole = [c.text for c in model.engine.continuations([model.engine.encode("The cat sat")], max_new_tokens=12)]
    assert plain == whole
    stop = whole[0][3:5]
    options = {"until": [stop], "max_gen_toks": 12, "do_sample": False, "temperature": 0.0}
    (cut,) = model.generate_until(requests("generate_until", ("The cat sat", options)))
    assert cut == whole[0][: whole[0].index(stop)]


def test_different_options_keep_the_order_of_the_requests(model):
    asked = [("a", {"max_gen_toks": 3}), ("b", {"max_gen_toks": 9}), ("c", {"max_gen_toks": 3})]
    together = model.generate_until(requests("generate_until", *asked))
    assert together == [model.generate_until(requests("generate_until", one))[0] for one in asked]


def test_sampling_is_refused(model):
    with pytest.raises(ValueError, match="continuations are greedy"):
        model.generate_until(requests("generate_until", ("a", {"do_sample": True, "temperature": 0.7})))


def test_answers_go_into_the_harness_cache(model):
    kept = []

    class Hook:
        def add_partial(self, kind, arguments, answer):
            kept.append((kind, arguments, answer))

    fresh = JaxSmashLM(small(), batch_size=2)
    fresh.set_cache_hook(Hook())
    answers = fresh.loglikelihood(requests("loglikelihood", ("a", "b")))
    assert kept == [("loglikelihood", ("a", "b"), answers[0])]
