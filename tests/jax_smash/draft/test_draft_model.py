import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash import generate
from jax_smash.cache import Block
from jax_smash.methods import DraftOptions
from jax_smash.sampling import SamplingOptions, TopK
from tests.goodness import FALSE_ALARM, TOKENS, goodness
from tests.tiny import tiny_model

PROMPT = "the cat sat"
KEPT, WARMTH, DRAWN = 4, 0.7, 4_000
SAMPLED = SamplingOptions(temperature=WARMTH, top_k=KEPT)
TREES = {"chain": "chain-2", "siblings": "siblings.json"}
LOSSLESS = [("rejection", "chain"), ("rejection", "siblings"), ("k-seq", "siblings")]


@functools.cache
def other_model():
    """A model whose distributions are not the target's, but near enough for some of its tokens to be kept."""
    model = tiny_model()
    noise = np.random.default_rng(3)
    changed = jax.tree.map(
        lambda w: w + jnp.asarray(noise.normal(size=w.shape) * 0.1 * float(w.std()), w.dtype) if w.ndim > 1 else w,
        model.params["target"],
    )
    return dataclasses.replace(model, name="changed", params={"target": changed})


def drawn(verify, tree, seed, *, method="draft-model", sampling=SAMPLED, tokens=TOKENS, count=DRAWN):
    draft = DraftOptions() if method == "ar" else DraftOptions(tree=tree, draft_model=other_model(), verify=verify)
    return generate(
        tiny_model(),
        PROMPT,
        method=method,
        draft=draft,
        sampling=sampling,
        num_samples=count,
        max_new_tokens=tokens,
        seed=seed,
        batch_size=count,
    )


@functools.cache
def joint(make_model):
    """Returns each run of three tokens that a model may draw, with its probability."""
    model = make_model()
    bound, prompt = model.definition.bind(model.params["target"]), model.encode(PROMPT)

    @jax.jit
    def after(tokens):
        batch, length = tokens.shape
        position = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), tokens.shape)
        everything = Block.causal(jnp.ones(tokens.shape, bool))
        out = bound.forward(bound.embed(tokens), position, bound.init_cache(batch, 64, 64), everything)
        top, path = TopK(k=jnp.full((batch,), KEPT, jnp.int32)), jnp.zeros((batch, 1, 0), jnp.int32)
        return jax.nn.softmax(top.apply((), bound.unembed(out.hidden[:, -1:]) / WARMTH, path)[:, 0])

    runs = {(): 1.0}
    for _ in range(TOKENS):
        probability = np.asarray(after(jnp.asarray([[*prompt, *run] for run in runs], jnp.int32)), np.float64)
        runs = {
            (*run, int(token)): p * row[token]
            for (run, p), row in zip(runs.items(), probability, strict=True)
            for token in np.flatnonzero(row)
        }
    return runs


def unlikely(completions, expected):
    """Returns the p-value of the completions' tokens."""
    place = {run: i for i, run in enumerate(expected)}
    counts = np.zeros(len(expected) + 1)
    for completion in completions:
        counts[place.get(tuple(completion.token_ids), len(expected))] += 1
    return goodness(counts, np.array([*expected.values(), 0.0]))


@pytest.fixture
def trees(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "siblings.json").write_text("[[0], [1], [2], [0, 0], [0, 1], [1, 0]]")


@pytest.mark.parametrize(("verify", "tree"), LOSSLESS)
def test_text_checked_by_rejection_follows_the_target(verify, tree, trees):
    completions = drawn(verify, TREES[tree], 0)
    assert unlikely(completions, joint(tiny_model)) > FALSE_ALARM
    assert unlikely(completions, joint(other_model)) < FALSE_ALARM
    # Some drafts were kept and some were not.
    forwards = np.array([c.target_forwards for c in completions])
    assert set(forwards) == {1, 2}
    assert 0.05 < (forwards == 1).mean() < 0.95


def test_greedy_text_is_plain_decodings_however_it_is_checked(trees):
    greedy = {"sampling": [SamplingOptions()], "tokens": 24, "count": 1}
    plain = drawn("", "", 0, method="ar", **greedy)
    drafted = drawn("k-seq", TREES["siblings"], 0, **greedy)
    assert drafted[0].token_ids == plain[0].token_ids
    assert drafted[0].target_forwards < plain[0].target_forwards


@pytest.mark.parametrize("verify", ["rejection", "typical-lossy"])
def test_a_greedy_row_keeps_its_text_beside_rows_that_sample(verify, trees):
    model, choices = tiny_model(), [SamplingOptions(), SAMPLED, SAMPLED]
    draft = DraftOptions(tree=TREES["siblings"], draft_model=other_model(), verify=verify)
    given = {"sampling": choices, "max_new_tokens": 24, "seed": [1, 2, 3]}
    mixed = generate(model, [PROMPT] * 3, method="draft-model", draft=draft, **given)
    plain = generate(model, [PROMPT] * 3, **given)
    assert mixed[0].token_ids == plain[0].token_ids
    alone = generate(
        model, PROMPT, method="draft-model", draft=draft, sampling=SAMPLED, max_new_tokens=24, seed=3, batch_size=1
    )
    assert alone[0].token_ids == mixed[2].token_ids


def test_a_draft_models_own_samples_are_all_kept(trees):
    model = tiny_model()
    draft = DraftOptions(tree="chain-4", draft_model=model, verify="rejection")
    made = generate(model, PROMPT, method="draft-model", draft=draft, sampling=SAMPLED, max_new_tokens=26)[0]
    assert made.new_tokens == 26
    assert made.target_forwards == 5


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        ("recycling", {"verify": "rejection"}, "verify rejection is for drawn tokens"),
        ("draft-model", {"verify": "hope", "draft_model": "int8"}, "verify must be one of coupling, rejection"),
        ("ar", {"verify": "rejection"}, "verify does not go with method ar"),
        (
            "draft-model",
            {"verify": "rejection", "draft_model": "int8", "tree": "gap.json"},
            "node 1 must be child 0 of node 0; it is child 1",
        ),
    ],
)
def test_what_does_not_fit_is_refused(method, options, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gap.json").write_text("[[1]]")
    with pytest.raises(ValueError, match=said):
        generate(tiny_model(), PROMPT, method=method, draft=DraftOptions(**options), max_new_tokens=4)
