"""What a TPU does in another way: a step traced for one keeps what a plain step keeps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.cache import Block, SideBySide, Write
from jax_smash.platform import tracing_for
from jax_smash.sharding import make_mesh, on_mesh
from tests.tiny import tiny_model

TOKENS = jnp.asarray([[5, 9, 2, 7], [1, 1, 3, 8]], jnp.int32)
PATH = jnp.asarray([[0, 2], [0, 3]], jnp.int32)
COUNT = jnp.asarray([2, 1], jnp.int32)


def step(model):
    """A forward over a block behind a committed one, with a commit of a path."""

    def run(params, tokens):
        bound = model.definition.bind(params)
        cache = bound.init_cache(tokens.shape[0], 16, block=tokens.shape[1])
        position = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32)[None], tokens.shape)
        block = Block.causal(jnp.ones(tokens.shape, bool))
        made = []
        for path, count in ((None, jnp.full((2,), tokens.shape[1], jnp.int32)), (PATH, COUNT)):
            out = bound.forward(bound.embed(tokens), position, cache, block)
            cache = cache.commit(out.block_kv, Write(position=position, count=count, path=path))
            position = position + tokens.shape[1]
            made.append(isinstance(out.block_kv[0], SideBySide))
        assert len({*made}) == 1
        run.beside = made[0]
        return out.hidden, cache

    return run


@pytest.mark.parametrize("mesh", [None, "tp=2"])
@pytest.mark.parametrize("options", [{}, {"qk_norm": True}, {"qkv_bias": True}])
def test_a_step_traced_for_a_tpu_keeps_what_a_plain_one_keeps(options, mesh):
    model = tiny_model(**options)
    run = step(model)
    hidden, cache = jax.jit(run)(model.params["target"], TOKENS)
    assert not run.beside
    with on_mesh(make_mesh(mesh) if mesh else None), tracing_for("tpu"):
        found, kept = jax.jit(step_for_tpu := step(model))(model.params["target"], TOKENS)
    assert step_for_tpu.beside
    np.testing.assert_allclose(found, hidden, rtol=1e-4, atol=1e-4)
    assert jax.tree.structure(kept) == jax.tree.structure(cache)
    for left, right in zip(jax.tree.leaves(kept), jax.tree.leaves(cache), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-4)
