import pytest

from jax_smash import generate
from jax_smash.methods import DraftOptions
from jax_smash.sampling import SamplingOptions
from tests.tiny import tiny_model

PROMPTS = ["the cat sat on the mat. the cat sat", "a b a b a b", "x", "to be or not to be, to be or", "mmmmmmmm", "q w"]
METHODS = ["recycling", "lookup", "suffix", "lookahead"]
TREES = ["off", "chain-1", "chain-4", "recycling-80", "auto"]
GREEDY = SamplingOptions()
SAMPLED = SamplingOptions(temperature=0.8, top_k=20, top_p=0.95)
PENALISED = SamplingOptions(
    temperature=0.7,
    repetition_penalty=1.3,
    presence_penalty=0.4,
    frequency_penalty=0.3,
    logit_bias={40: 2.0},
    min_new_tokens=5,
)


def texts(method, **options):
    made = generate(tiny_model(stop_tokens=(10,)), PROMPTS, method=method, max_new_tokens=24, **options)
    return [c.token_ids for c in made], made


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, PENALISED], ids=["greedy", "sampled", "penalised"])
def test_drafted_text_is_that_of_plain_decoding(method, tree, sampling):
    plain, _ = texts("ar", sampling=sampling, batch_size=3)
    drafted, made = texts(method, sampling=sampling, batch_size=3, draft=DraftOptions(tree=tree))
    assert drafted == plain
    assert all(c.target_forwards <= max(c.new_tokens - 1, 0) for c in made)
    assert tree != "off" or all(c.target_forwards == c.new_tokens - 1 for c in made)


def test_a_tree_saves_forwards():
    _, plain = texts("ar")
    _, made = texts("recycling", draft=DraftOptions(tree="recycling-80"))
    assert sum(c.target_forwards for c in made) < 0.9 * sum(c.target_forwards for c in plain)
