import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash import generate
from jax_smash.cache import Block
from jax_smash.methods import DraftOptions
from jax_smash.sampling import SamplingOptions, TopK
from jax_smash.sparse import StreamingLLM, sparsified
from tests.drafting import other_model
from tests.goodness import FALSE_ALARM, TOKENS, unlikely
from tests.tiny import tiny_model

PROMPT = [5, 17, 2, 9, 30, 11]
KEPT, WARMTH, DRAWN = 4, 0.7, 4_000
SAMPLED = SamplingOptions(temperature=WARMTH, top_k=KEPT)
TREES = {"chain": "chain-2", "siblings": "siblings.json"}
CHOICES = [SamplingOptions(), SAMPLED, SAMPLED]
LOSSLESS = [("rejection", "chain"), ("rejection", "siblings"), ("k-seq", "siblings")]


# A layer is traced once a level of the tree, and again to read; thousands of rows' logits are worked on a node.
SMALL = {"num_layers": 1, "layer_kinds": ("full",), "vocab_size": 32}
TARGET, OTHER = (functools.partial(make, **SMALL) for make in (tiny_model, other_model))


def drafted(verify, tree, prompts=(PROMPT,), **options):
    draft = DraftOptions(tree=TREES[tree], draft_model=OTHER(), verify=verify)
    return generate(TARGET(), prompts, method="draft-model", draft=draft, **options)


@functools.cache
def plain():
    """Returns what plain decoding says where the likeliest token is chosen, beside rows that sample."""
    return generate(TARGET(), [PROMPT] * 3, sampling=CHOICES, max_new_tokens=24, seed=[1, 2, 3])[0]


@functools.cache
def joint(make_model):
    """Returns each run of three tokens that a model may draw, with its probability."""
    model = make_model()
    bound = model.definition.bind(model.params["target"])

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
        probability = np.asarray(after(jnp.asarray([[*PROMPT, *run] for run in runs], jnp.int32)), np.float64)
        runs = {
            (*run, int(token)): p * row[token]
            for (run, p), row in zip(runs.items(), probability, strict=True)
            for token in np.flatnonzero(row)
        }
    return runs


@pytest.fixture
def trees(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "siblings.json").write_text("[[0], [1], [2], [0, 0], [0, 1], [1, 0]]")


@pytest.mark.parametrize(("verify", "tree"), LOSSLESS)
def test_text_checked_by_rejection_follows_the_target(verify, tree, trees):
    completions = drafted(verify, tree, sampling=SAMPLED, num_samples=DRAWN, max_new_tokens=TOKENS, batch_size=1)
    assert unlikely(completions, joint(TARGET)) > FALSE_ALARM
    assert unlikely(completions, joint(OTHER)) < FALSE_ALARM
    # Some drafts were kept and some were not.
    forwards = np.array([c.target_forwards for c in completions])
    assert set(forwards) == {1, 2}
    assert 0.05 < (forwards == 1).mean() < 0.95


def test_greedy_text_is_plain_decodings_however_it_is_checked(trees):
    said = drafted("k-seq", "siblings", max_new_tokens=24)[0]
    assert said.token_ids == plain().token_ids
    assert said.target_forwards < plain().target_forwards


@pytest.mark.slow
@pytest.mark.parametrize("verify", ["rejection", "typical-lossy"])
def test_a_greedy_row_keeps_its_text_beside_rows_that_sample(verify, trees):
    # The fourth prompt is the third again, alone in its batch.
    options = {"sampling": [*CHOICES, SAMPLED], "max_new_tokens": 24, "seed": [1, 2, 3, 3], "batch_size": 3}
    greedy, _, beside, alone = drafted(verify, "siblings", [PROMPT] * 4, **options)
    assert greedy.token_ids == plain().token_ids
    assert alone.token_ids == beside.token_ids


@pytest.mark.slow
def test_a_draft_models_own_samples_are_all_kept(trees):
    draft = DraftOptions(tree="chain-2", draft_model=TARGET(), verify="rejection")
    made = generate(TARGET(), [PROMPT], method="draft-model", draft=draft, sampling=SAMPLED, max_new_tokens=25)[0]
    assert made.new_tokens == 25
    assert made.target_forwards == 8


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
        generate(tiny_model(), "x", method=method, draft=DraftOptions(**options), max_new_tokens=4)


def test_a_draft_model_may_have_a_cache_of_few_slots():
    draft = DraftOptions(tree="chain-2", draft_model=sparsified(OTHER(), StreamingLLM(12)))
    (said,) = generate(TARGET(), [PROMPT], method="draft-model", draft=draft, max_new_tokens=24)
    assert said.token_ids == plain().token_ids
    assert said.drafted.tried[0] > 0


@pytest.mark.parametrize("policy", ["h2o", "dense"])
def test_a_tree_by_the_target_itself_is_kept_whole(policy):
    """Also where each level reads the whole tree: beside a policy that notes what its entries attend to."""
    target = tiny_model(layer_kinds=("full", "full"))
    budget = "" if policy == "dense" else ":budget=100%"
    draft = DraftOptions(tree="tree-8", draft_model=f"sparse:{policy}{budget}")
    prompt = np.random.default_rng(0).integers(97, 110, 20).tolist()
    (said,) = generate(target, [prompt], method="draft-model", draft=draft, max_new_tokens=40)
    assert said.token_ids == generate(target, [prompt], max_new_tokens=40)[0].token_ids
    assert said.drafted.kept == said.drafted.tried
