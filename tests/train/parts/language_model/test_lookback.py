import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jax_smash.cache import Block
from jax_smash.config import ModelConfig, RopeConfig
from jax_smash.models.depth import hidden_without_cache
from train.run.start import first_params

CONFIG = ModelConfig(
    family="qwen2", vocab_size=512, num_layers=2, d_model=256, num_heads=8, num_kv_heads=4, head_width=32, mlp_width=64,
    max_positions=256, layer_kinds=("full",) * 2, rope=RopeConfig(base=1e7), tied_head=True, qkv_bias=True,
)  # fmt: skip
WORDS, TIMES = 20, 3


def share_copied(recall, seed=0):
    """Says how often the likeliest token that is not the current one is what followed the current one before."""
    graphdef, params = first_params(CONFIG, seed, recall=recall)
    rng = np.random.default_rng(seed)
    lists = [np.tile(rng.choice(CONFIG.vocab_size, WORDS, replace=False), TIMES) for _ in range(8)]
    tokens = jnp.asarray(np.stack(lists), jnp.int32)

    @jax.jit
    def logits(params):
        model = nnx.merge(graphdef, params)
        position = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32)[None], tokens.shape)
        seen = jnp.ones(tokens.shape, bool)
        block = Block.causal(seen, seen.astype(jnp.int32))
        return model.unembed(hidden_without_cache(model, model.embed(tokens), position, block))

    other = np.array(logits(params))
    np.put_along_axis(other, np.asarray(tokens)[..., None], -np.inf, axis=-1)
    guesses = other.argmax(-1)[:, WORDS:-1]
    return (guesses == np.asarray(tokens)[:, WORDS + 1 :]).mean()


@pytest.mark.parametrize("seed", [0, 1])
def test_weights_that_look_back_expect_what_came_before(seed):
    assert share_copied(recall=True, seed=seed) > 0.4
    assert share_copied(recall=False, seed=seed) < 0.05


def test_the_same_seed_gives_the_same_weights_and_only_two_layers_differ():
    config = dataclasses.replace(CONFIG, num_layers=3, layer_kinds=("full",) * 3)
    one, two, plain = (first_params(config, 3, recall=recall)[1] for recall in (True, True, False))
    assert jax.tree.all(jax.tree.map(np.array_equal, one, two))
    assert jax.tree.structure(one) == jax.tree.structure(plain)
    same = jax.tree_util.tree_flatten_with_path(jax.tree.map(np.array_equal, one, plain))[0]
    changed = {
        jax.tree_util.keystr(path, simple=True, separator="/").removesuffix("/value") for path, s in same if not s
    }
    assert changed == {"embedding", "layers/0/attention/b_qkv", "layers/0/attention/w_qkv", "layers/0/attention/w_o",
                       "layers/1/attention/w_qkv", "layers/1/attention/w_o"}  # fmt: skip
