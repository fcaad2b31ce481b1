import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_smash
from eval.scores.engine import Engine
from jax_smash.checkpoints.tokenizer import load_tokenizer
from jax_smash.loading import ASSETS
from jax_smash.sparse import Recency, StreamingLLM, sparsified
from tests.eval.reference import OPENING, small, token_log_probs
from tests.tokenizers import small_bpe, small_sentencepiece

TEXTS = ["a", "Tom sat on the mat.", "ab" * 40, "The cat", "x" * 17]


@pytest.fixture(scope="module")
def engine():
    return Engine(small(), batch_size=2)


def with_tokenizer(tokenizer):
    return Engine(dataclasses.replace(small(), tokenizer=tokenizer))


def test_log_probabilities_are_those_of_a_plain_forward_in_the_order_of_the_texts(engine):
    records = engine.log_probs([engine.encode_whole(text) for text in TEXTS])
    for text, record in zip(TEXTS, records, strict=True):
        assert [r.token for r in record] == list(text.encode())
        np.testing.assert_allclose([r.log_prob for r in record], token_log_probs(text.encode()), atol=2e-4)


def test_texts_read_by_decode_steps_score_the_same(engine):
    texts = [engine.encode_whole(text) for text in TEXTS]
    for whole, decoded in zip(engine.log_probs(texts), engine.log_probs(texts, decoded=True), strict=True):
        assert [r.token for r in decoded] == [r.token for r in whole]
        assert [r.top[0][0] for r in decoded] == [r.top[0][0] for r in whole]
        np.testing.assert_allclose([r.log_prob for r in decoded], [r.log_prob for r in whole], atol=2e-4)


@pytest.mark.slow
def test_what_is_scored_behind_a_context_is_read_by_steps_of_the_policy_where_that_is_asked_for():
    texts, scored = [small().encode(text) for text in ("Tom sat on the mat.", "The cat")], [6, 3]
    plain = [record[-n:] for record, n in zip(Engine(small()).log_probs(texts), scored, strict=True)]

    def found(model):
        records = Engine(model, batch_size=2, by_steps=True).log_probs(texts, scored=scored)
        assert [[r.token for r in record] for record in records] == [
            text[-n:] for text, n in zip(texts, scored, strict=True)
        ]
        return [np.array([r.log_prob for r in record]) for record in records]

    for made, expected in zip(found(small()), plain, strict=True):
        np.testing.assert_allclose(made, [r.log_prob for r in expected], atol=2e-4)
    # The longer context is cut for each of its tokens, the shorter one fits.
    for policy in (Recency(budget=8), StreamingLLM(slots=9, sinks=4)):
        cut, whole = found(sparsified(small(), policy))
        assert np.abs(cut - [r.log_prob for r in plain[0]]).max() > 1e-3
        np.testing.assert_allclose(whole, [r.log_prob for r in plain[1]], atol=2e-4)


@pytest.mark.slow
def test_texts_behind_the_same_context_score_as_they_do_alone():
    """The context is read once for all of them that share a batch; one of them is alone in the next."""
    beginnings = ("Tom sat on", "Tom sat on", "The cat and", "Tom sat on", "a")
    texts = [small().encode(a + b) for a, b in zip(beginnings, (" the mat", " a", " Tom", " Ann", "b"), strict=True)]
    scored = [8, 2, 4, 4, 1]
    for model in (small(), sparsified(small(), Recency(budget=8))):
        together = Engine(model, batch_size=3, by_steps=True).log_probs(texts, scored=scored)
        for text, count, found in zip(texts, scored, together, strict=True):
            (alone,) = Engine(model, batch_size=1, by_steps=True).log_probs([text], scored=[count])
            assert [r.token for r in found] == [r.token for r in alone] == text[-count:]
            np.testing.assert_allclose([r.log_prob for r in found], [r.log_prob for r in alone], atol=2e-4)


@pytest.mark.slow
def test_a_cache_that_moves_on_reads_at_once_only_what_it_keeps():
    texts, scored = [small().encode(text) for text in ("Tom sat on the mat.", "The cat")], [6, 3]
    moving = Engine(sparsified(small(), StreamingLLM(slots=9, sinks=4)), batch_size=2, by_steps=True)
    by_steps = moving.log_probs(texts, decoded=True)
    for found, whole, count in zip(moving.log_probs(texts, scored=scored), by_steps, scored, strict=True):
        assert [r.token for r in found] == [r.token for r in whole[-count:]]
        np.testing.assert_allclose([r.log_prob for r in found], [r.log_prob for r in whole[-count:]], atol=2e-4)


def test_logits_that_are_no_numbers_are_refused():
    broken = jax.tree.map(lambda w: jnp.full_like(w, jnp.nan) if w.ndim > 1 else w, small().params["target"])
    engine = Engine(dataclasses.replace(small(), params={"target": broken}), batch_size=2)
    with pytest.raises(ValueError, match="the logits of two-layer are not numbers"):
        engine.log_probs([[1, 2, 3]], decoded=True)


def test_a_text_scores_the_same_in_any_batch(engine):
    alone = engine.log_probs([engine.encode(TEXTS[1])])[0]
    among = Engine(small(), batch_size=5).log_probs([engine.encode(text) for text in TEXTS])[1]
    np.testing.assert_allclose([r.log_prob for r in alone], [r.log_prob for r in among], atol=2e-4)


def test_continuations_come_in_the_order_of_the_prompts(engine):
    prompts = [engine.encode(text) for text in ("The cat", "a", "Tom sat on")]
    expected = [jax_smash.generate(small(), p, max_new_tokens=6)[0].text for p in prompts]
    assert [c.text for c in engine.continuations(prompts, max_new_tokens=6)] == expected
    assert len(set(expected)) > 1


def test_a_text_too_long_keeps_its_beginning_and_its_end(engine):
    tokens = engine.encode("abcdefgh")
    assert engine.fit(tokens, 4) == [*b"efgh"]
    assert engine.fit(tokens, 8) is tokens
    begun = with_tokenizer(load_tokenizer(ASSETS / "tiny"))
    tokens = begun.encode("The cat sat on the mat.")
    assert begun.fit(tokens, 3) == [*begun.beginning, *tokens[-2:]] != tokens[-3:]


def test_only_what_has_nothing_before_it_is_put_behind_the_opening(engine):
    assert (engine.beginning, engine.opening) == ([], [OPENING])
    assert engine.encode_whole("ab") == engine.pair("", "ab").tokens == [OPENING, *b"ab"]
    assert engine.encode("ab") == engine.pair("a", "b").tokens == engine.prompt("ab ") == [*b"ab"]
    assert engine.encode("") == [OPENING]


def test_a_context_without_room_is_refused(engine):
    with pytest.raises(ValueError, match="must have room for a prompt; it has 0 left"):
        engine.fit(engine.encode("abc"), 0)


def test_the_space_before_a_continuation_is_scored_with_it(engine):
    assert engine.pair("ab ", "cd").scored == engine.pair("ab", " cd").scored == 3
    assert engine.pair("", "cd").scored == 2


@pytest.mark.parametrize("tokenizer", [small_bpe, small_sentencepiece])
def test_a_pair_is_tokenised_as_one_text_and_split_where_the_continuation_begins(tokenizer):
    found = with_tokenizer(tokenizer())
    pair = found.pair("The cat saw the", " ball under the bed.")
    assert pair.tokens == found.encode("The cat saw the ball under the bed.")
    assert found.model.tokenizer.decode(pair.tokens[-pair.scored :]).strip() == "ball under the bed."


def test_a_token_across_the_border_is_scored():
    found = with_tokenizer(small_bpe())
    joined = found.encode("the cat")
    decode = found.model.tokenizer.decode
    assert [decode([token]) for token in joined] == ["t", "he", " cat"]
    pair = found.pair("th", "e cat")
    assert pair.tokens == joined
    assert decode(pair.tokens[-pair.scored :]) == "he cat"


def test_a_tokenizer_with_a_beginning_of_its_own_gets_no_second_one():
    tokenizer = load_tokenizer(ASSETS / "tiny")
    found = with_tokenizer(tokenizer)
    assert found.encode("a b") == tokenizer("a b")["input_ids"]
    assert found.beginning == [tokenizer.bos_token_id]


@pytest.mark.parametrize("context", [1, 513])
def test_a_context_that_the_model_does_not_have_is_refused(context):
    with pytest.raises(ValueError, match=f"from 2 to the model's 512; got {context}"):
        Engine(small(), context=context)


def test_an_unknown_method_is_named_with_the_known_ones():
    with pytest.raises(ValueError, match=r"method must be one of ar.*; got 'magic'"):
        Engine(small(), method="magic")


def test_a_model_without_a_tokenizer_is_refused():
    with pytest.raises(ValueError, match="no tokenizer"):
        with_tokenizer(None)
