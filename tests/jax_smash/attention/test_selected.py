"""Policies that go by probabilities, which no kernel returns: XLA's operations attend to what they choose."""

import functools

import jax.numpy as jnp
import pytest

from jax_smash import DraftOptions, generate
from jax_smash.attention import dispatch, pages
from jax_smash.cache import Block, Earlier
from jax_smash.decode.programs import PROGRAMS
from jax_smash.platform import tracing_for
from jax_smash.sparse import H2O, TOVA, sparsified
from tests.tiny import tiny_model

PROMPTS = [list(b"a text longer than is kept of it"), list(b"short")]
POLICIES = [H2O(budget=12, dense_layers=1), TOVA(budget=16, page_size=16)]


def base():
    return tiny_model(layer_kinds=("full", "full"))


@pytest.fixture
def calls(monkeypatch):
    """Has programs for a TPU run on this machine, their kernels interpreted, and keeps the names of those called."""
    made = []

    def interpreted(arrays, xla, by_kernel, refusal, implementation, otherwise=None):
        assert implementation is None
        if refusal("tpu", *arrays) is not None:
            return xla(*arrays)
        made.append(by_kernel.func.__name__)
        return functools.partial(by_kernel, "tpu", interpret=True)(*arrays)

    for module in (dispatch, pages):
        monkeypatch.setattr(module, "by_platform", interpreted)
    PROGRAMS.forget()
    with tracing_for("tpu"):
        yield made
    PROGRAMS.forget()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "options"),
    [(POLICIES[0], {"method": "lookup", "draft": DraftOptions(tree="chain-2")}), (POLICIES[1], {})],
)
def test_text_beside_kernels_is_that_without_them(policy, options, request):
    def texts(model):
        return [one.token_ids for one in generate(model, PROMPTS, max_new_tokens=12, batch_size=2, **options)]

    model = sparsified(base(), policy)
    expected = texts(model)
    assert expected != texts(base()), "what is left out must matter"
    calls = request.getfixturevalue("calls")
    assert texts(model) == expected
    assert set(calls) == {"attend"}, "kernels must read prompts and layers that choose nothing"


def block_behind_one_entry():
    entries = tuple((jnp.zeros((1, 1, 2, 8)),) * 2 for _ in range(2))
    earlier = Earlier(block_kv=entries, position=jnp.zeros((1, 1), jnp.int32))
    return Block(valid=jnp.ones((1, 2), bool), ancestors=jnp.full((1, 1, 1), 3, jnp.uint32), earlier=earlier)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_block_of_several_forwards_is_refused_where_its_probabilities_must_be_known(policy):
    model = sparsified(base(), policy)
    bound = model.definition.bind(model.params["target"])
    cache, token = bound.init_cache(1, 64, 2), jnp.zeros((1, 1), jnp.int32)
    with pytest.raises(ValueError, match="must read a block in one forward; got earlier entries"):
        bound.forward(bound.embed(token), token + 1, cache, block_behind_one_entry())
    assert not bound.continued_blocks
