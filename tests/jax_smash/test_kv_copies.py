"""KV heads that are held several times, so that a mesh divides them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

import jax_smash
from jax_smash.cache import Block
from jax_smash.checkpoints.huggingface import load_params, read_config, save_params
from tests.checkpoints import LLAMA, OLMO2, PHI3, QWEN2, QWEN3, write_checkpoint
from tests.model_directory import write_model

FAMILIES = {"llama": LLAMA, "biases": QWEN2, "norms": QWEN3, "joint norms": OLMO2, "fused tensors": PHI3}
TOKENS = jnp.asarray([[3, 14, 15, 9, 2, 6]], jnp.int32)


def logits(graphdef, params):
    def run(params, tokens):
        model = nnx.merge(graphdef, params)
        position = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32)[None], tokens.shape)
        out = model.forward(model.embed(tokens), position, None, Block.causal(jnp.ones(tokens.shape, bool)))
        return model.unembed(out.hidden)

    return jax.jit(run)(params, TOKENS)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_with_copies_is_the_same_model(tmp_path, family):
    raw = FAMILIES[family] | {"num_attention_heads": 4, "num_key_value_heads": 2}
    written = write_checkpoint(tmp_path / "in", raw)
    config = read_config(tmp_path / "in")[0]
    copied = dataclasses.replace(config, kv_copies=2)
    plain, held = (load_params(tmp_path / "in", config=c, dtype=np.float32) for c in (config, copied))
    np.testing.assert_allclose(logits(*held), logits(*plain), atol=1e-5)
    # Saved again, it is the checkpoint that it was.
    save_params(tmp_path / "out", copied, held[1])
    saved = load_file(tmp_path / "out" / "model.safetensors")
    assert saved.keys() == written.keys()
    for name, tensor in written.items():
        np.testing.assert_array_equal(saved[name], tensor)


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["plain", "int8"])
def test_a_mesh_of_more_devices_than_kv_heads_decodes_the_same_text(tmp_path, weights):
    folder = write_model(tmp_path, num_key_value_heads=2, num_attention_heads=4)
    one, four = (jax_smash.load(folder, mesh=mesh, weights=weights) for mesh in (None, "tp=4"))
    assert four.config.held_kv_heads == 4
    assert four.fingerprint == one.fingerprint
    layer = four.params["target"]["layers"][0]["attention"]["w_qkv"]
    array = jax.tree.leaves(layer)[0]
    assert array.sharding.shard_shape(array.shape)[1] == array.shape[1] // 4
    texts = [
        [c.token_ids for c in jax_smash.generate(model, ["ab", "the cat"], max_new_tokens=8, method="recycling")]
        for model in (one, four)
    ]
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_modules_are_those_of_their_file_where_the_base_holds_copies():
    copied = jax_smash.load("tiny", modules="auto", mesh="tp=8")
    assert copied.config.kv_copies == 2
    plain = jax_smash.load("tiny", modules="auto")
    said = [
        jax_smash.generate(model, "12 + 30 =", method="hamburger", max_new_tokens=8)[0] for model in (copied, plain)
    ]
    assert said[0].token_ids == said[1].token_ids
