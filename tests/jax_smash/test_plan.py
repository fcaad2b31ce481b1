import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jax_smash.models.families.presets import preset
from jax_smash.models.transformer import abstract_params
from jax_smash.plan import forward_bytes, prefill_chunk, shard_bytes, step_bytes
from jax_smash.sharding import make_mesh
from tests.tiny import tiny_config


def test_a_step_reads_every_weight_once_and_the_slots_that_a_layer_has():
    config = tiny_config(window=8)
    params = abstract_params(config)[1]
    weights = sum(x.size for x in jax.tree.leaves(params)) * 4
    found = step_bytes(config, params, batch=3, slots=32)
    # Keys and values in float32: 32 slots of one layer and the window's 8 of the other, of three rows.
    assert found.cache == 3 * (32 + 8) * 2 * config.num_kv_heads * config.head_width * 4
    untied = 0 if config.tied_head else config.vocab_size * config.d_model * 4
    assert found.weights == weights - untied
    assert found.total == found.weights + found.cache


@pytest.mark.parametrize("budget", [2**20, 2**26, 2**30, 2**40])
@pytest.mark.parametrize(("batch", "slots"), [(1, 512), (8, 4096)])
def test_a_chunk_is_the_largest_that_memory_allows(budget, batch, slots):
    config = preset("llama-3.1-8b")
    width = prefill_chunk(config, batch=batch, slots=slots, budget=budget)
    assert width in [2**n for n in range(4, 12)]
    needed = [forward_bytes(config, batch=batch, width=w, slots=slots, itemsize=4) for w in (width, 2 * width)]
    assert width == 16 or needed[0] <= budget
    assert width == 2048 or needed[1] > budget


def test_a_model_that_does_not_tell_its_sizes_is_read_in_pieces_all_the_same():
    assert prefill_chunk(None, batch=8, slots=4096) == 256


def test_a_chunk_goes_by_the_memory_a_device_has_not_by_what_is_free(monkeypatch):
    """What other programs, or an earlier session, take at the moment would change the width, and what is compiled."""

    class Device:
        def __init__(self, in_use):
            self.in_use = in_use

        def memory_stats(self):
            return {"bytes_limit": 2**33, "bytes_in_use": self.in_use}

    config, widths = preset("llama-3.1-8b"), []
    for in_use in (0, 2**31, 2**32, 2**33 - 1):
        monkeypatch.setattr(jax, "local_devices", lambda in_use=in_use: [Device(in_use)])
        widths.append(prefill_chunk(config, batch=8, slots=4096, held=2**31))
    assert set(widths) == {prefill_chunk(config, batch=8, slots=4096, budget=(2**33 - 2**31) // 4)}
    assert prefill_chunk(config, batch=8, slots=4096, held=2**33) == 16


def test_weights_are_counted_where_they_lie():
    whole = jnp.zeros((8, 16), jnp.float32)
    divided = jax.device_put(whole, NamedSharding(make_mesh("tp=4"), PartitionSpec("tp")))
    assert shard_bytes({"a": whole, "b": jnp.zeros((3,), jnp.int8)}) == 512 + 3
    assert shard_bytes({"a": divided}) == 128


def test_an_array_that_comes_twice_is_held_once():
    one, other = jnp.zeros(8), jnp.zeros(4)
    assert shard_bytes({"target": one, "drafter": {"rows": one, "w": other}}) == 4 * (8 + 4)
