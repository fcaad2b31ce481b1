import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.models.projection import row_products
from tests.tiny import tiny_model
from train.parts.drafter.objective import RANKS, Guesses, Vocabulary, behind, drafted, said_by, tally

STEPS = 2


def setting(seed):
    """Returns a target, hidden vectors of its and of a drafter, segments, weights, and a head of some tokens."""
    model, rng = tiny_model(), np.random.default_rng(seed)
    target = model.definition.bind(model.params["target"])
    rows, length, d = 2, 6, model.config.d_model
    hidden = rng.normal(size=(rows, length, d)).astype(np.float32)
    made = rng.normal(size=(STEPS, rows, length, d)).astype(np.float32)
    segments = np.array([[1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 0, 0]], np.int32)
    weights = rng.integers(0, 2, (rows, length)).astype(np.float32)
    tokens = np.sort(rng.choice(model.vocab_size, 40, replace=False))
    return target, hidden, made, segments, weights, rng.normal(size=(40, d)).astype(np.float32), tokens


def worth(target, hidden, made, seen, weights, head, vocabulary, *, chunk, labels=None):
    """Returns what `drafted` makes of arrays."""
    given = Guesses(hidden=jnp.asarray(hidden), made=made, seen=seen, weights=jnp.asarray(weights), labels=labels)
    return drafted(target, given, lambda x: row_products(x, jnp.asarray(head)), vocabulary, chunk=chunk)


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


@pytest.mark.parametrize("seed", range(3))
def test_a_guess_is_compared_with_what_the_target_says_of_the_tokens_that_the_drafter_knows(seed):
    target, hidden, made, segments, weights, head, tokens = setting(seed)
    aligned, seen = behind(jnp.asarray(made), jnp.asarray(segments))
    vocabulary = Vocabulary(tokens, target.vocab_size)
    found = worth(target, hidden, aligned, seen, weights, head, vocabulary, chunk=4)
    logits = np.asarray(target.unembed(jnp.asarray(hidden)), np.float64)
    loss, count, tried = np.zeros((3, STEPS))
    hits = np.zeros((STEPS, RANKS))
    for step, row, entry in np.ndindex(STEPS, *segments.shape):
        place = entry + step + 1  # What the target predicts there is guessed.
        if place >= 6 or segments[row, place] != segments[row, entry] or segments[row, entry] == 0:
            continue
        tried[step] += weights[row, place]
        best = logits[row, place].argmax()
        if best not in tokens or not weights[row, place]:
            continue
        guess = head.astype(np.float64) @ made[step, row, entry]
        count[step] += 1
        loss[step] -= softmax(logits[row, place, tokens]) @ np.log(softmax(guess))
        ranked = tokens[np.argsort(-guess)]
        hits[step] += [best in ranked[: rank + 1] for rank in range(RANKS)]
    np.testing.assert_allclose(found.loss, loss, rtol=1e-4)
    np.testing.assert_array_equal(found.count, count)
    np.testing.assert_array_equal(found.tried, tried)
    np.testing.assert_array_equal(found.hits, hits)


def test_what_is_told_are_shares_of_the_entries_that_were_drafted():
    target, hidden, made, segments, weights, head, tokens = setting(0)
    aligned, seen = behind(jnp.asarray(made), jnp.asarray(segments))
    found = worth(target, hidden, aligned, seen, weights, head, Vocabulary(tokens, target.vocab_size), chunk=99)
    told = tally(found, np.array([1.0, 0.5], np.float32))
    np.testing.assert_allclose(told.count, found.count[0] + 0.5 * found.count[1])
    hits, tried = told.means["top2_1"]
    assert (hits, tried) == (found.hits[0, 1], found.tried[0])


def test_with_labels_the_loss_is_the_cross_entropy_of_these_tokens():
    target, hidden, made, segments, weights, _, _ = setting(1)
    aligned, seen = behind(jnp.asarray(made), jnp.asarray(segments))
    rng = np.random.default_rng(5)
    head = rng.normal(size=(target.vocab_size, hidden.shape[-1])).astype(np.float32)
    labels = rng.integers(0, target.vocab_size, segments.shape).astype(np.int32)
    whole = Vocabulary(np.arange(target.vocab_size), target.vocab_size)
    found = worth(target, hidden, aligned, seen, weights, head, whole, chunk=5, labels=jnp.asarray(labels))
    loss = np.zeros(STEPS)
    for step, row, place in np.ndindex(STEPS, *segments.shape):
        entry = place - step - 1
        if entry >= 0 and segments[row, entry] == segments[row, place] > 0 and weights[row, place]:
            guess = softmax(head.astype(np.float64) @ made[step, row, entry])
            loss[step] -= np.log(guess[labels[row, place]])
    np.testing.assert_allclose(found.loss, loss, rtol=1e-4)
    np.testing.assert_array_equal(found.count, found.tried)


def test_a_label_that_the_drafter_cannot_say_counts_for_nothing_whatever_the_target_says():
    target, hidden, made, segments, weights, head, tokens = setting(2)
    aligned, seen = behind(jnp.asarray(made), jnp.asarray(segments))
    vocabulary = Vocabulary(tokens, target.vocab_size)
    labels = np.random.default_rng(6).integers(0, target.vocab_size, segments.shape).astype(np.int32)
    labels[0, 1], labels[1, 1] = tokens[3], np.setdiff1d(np.arange(target.vocab_size), tokens)[0]

    def of(weights, labels=labels):
        given = jnp.asarray(labels)
        return worth(target, hidden, aligned, seen, weights, head, vocabulary, chunk=5, labels=given)

    every = np.ones_like(weights)
    known = np.isin(labels, tokens)
    assert 0 < known.sum() < known.size
    found, alone = of(every), of(every * known)
    np.testing.assert_allclose(found.loss, alone.loss, rtol=1e-6)
    np.testing.assert_array_equal(found.count, alone.count)
    np.testing.assert_array_equal(alone.count, alone.tried)
    assert (found.count < found.tried).all()
    # Hits are of the target's own tokens, whatever the labels are.
    np.testing.assert_array_equal(found.hits, of(every, labels[::-1].copy()).hits)


@pytest.mark.parametrize("changes", [{}, {"tied_head": True}, {"logits_divisor": 3.0, "final_softcap": 2.0}])
def test_tokens_are_said_by_the_targets_head(changes):
    model = tiny_model(**changes)
    target = model.definition.bind(model.params["target"])
    vectors = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 4, model.config.d_model)), jnp.float32)
    whole = said_by(target, Vocabulary(None, model.vocab_size))(vectors)
    assert whole.shape == (2, 3, 4, model.vocab_size)
    np.testing.assert_allclose(whole[1, 2, 3], target.unembed(vectors[1, 2, 3]), rtol=1e-5, atol=1e-5)
    some = np.asarray([0, 7, 8, 200])
    said = said_by(target, Vocabulary(some, model.vocab_size))(vectors)
    np.testing.assert_allclose(said, whole[..., some], rtol=1e-5, atol=1e-5)
