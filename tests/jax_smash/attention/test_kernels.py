import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.attention import attend, formula, kernels
from jax_smash.cache import EMPTY, Block, LayerCache
from jax_smash.draft.trees.tree import pack
from jax_smash.planning.topology import devices
from jax_smash.platform import tracing_for
from jax_smash.pytree import replace
from jax_smash.sharding import make_mesh, on_mesh

B, T, K, G, H, S = 2, 5, 2, 2, 64, 40
OPTIONS = {"scale": 0.3, "window": 0, "softcap": 0.0}


def arrays(*, tree, width=T, dtype=jnp.float32):
    """Returns what a forward over ragged rows gives to `attend`, with one entry that is padding."""
    rng = np.random.default_rng(0)
    query, key, value = (jnp.asarray(rng.normal(size=(B, width, heads, H)), dtype) for heads in (K * G, K, K))
    filled = jnp.array([S - 1, 3], jnp.int32)[:, None]
    slot = jnp.broadcast_to(jnp.arange(S, dtype=jnp.int32)[None], (B, S))
    cache = LayerCache(
        keys=jnp.asarray(rng.normal(size=(B, K, S, H)), dtype),
        values=jnp.asarray(rng.normal(size=(B, K, S, H)), dtype),
        position=jnp.where(slot < filled, slot, EMPTY),
    )
    block = Block.causal(jnp.ones((B, width), bool).at[1, -1].set(width == 1))
    depth = jnp.arange(width, dtype=jnp.int32)
    if tree:
        # Every entry but the first is a child of the first.
        seen = jnp.eye(width, dtype=bool).at[:, 0].set(True)
        block = replace(block, ancestors=jnp.broadcast_to(pack(seen), (B, *pack(seen).shape)))
        depth = jnp.minimum(depth, 1)
    return query, key, value, filled + depth[None], cache, block


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("width", [1, T])
@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (6, 2.0)])
def test_the_kernel_attends_as_the_formula_says(tree, width, window, softcap):
    given = arrays(tree=tree, width=width)
    options = OPTIONS | {"window": window, "softcap": softcap}
    assert kernels.refusal("tpu", *given) is None
    by_kernel = functools.partial(kernels.attend, "tpu", **options, interpret=True)
    expected = jax.jit(functools.partial(formula.attend, **options))(*given)
    valid = given[-1].valid[:, :, None, None]
    np.testing.assert_allclose(
        jnp.where(valid, jax.jit(by_kernel)(*given), 0), jnp.where(valid, expected, 0), atol=2e-5
    )


def test_each_device_attends_for_its_own_heads():
    mesh, given = make_mesh("tp=2"), arrays(tree=True)
    by_kernel = jax.jit(functools.partial(kernels.attend, "tpu", **OPTIONS, interpret=True))
    with on_mesh(mesh):
        divided = by_kernel(*given)
    np.testing.assert_array_equal(divided, by_kernel(*given))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"cache": None}, "there is no cache"),
        ({"segments": True}, "documents are packed in a row"),
        ({"asked": 1}, "the 1 queries must be as many as the block's 5 keys"),
        ({"query": jnp.bfloat16}, "must be all float32 or all bfloat16; got "),
    ],
)
def test_what_the_kernel_cannot_run_is_said(change, why):
    query, key, value, position, cache, block = arrays(tree=True)
    if "cache" in change:
        cache = None
    if "segments" in change:
        block = replace(block, segments=jnp.zeros((B, T), jnp.int32))
    query = query[:, -change.get("asked", T) :].astype(change.get("query", query.dtype))
    with pytest.raises(ValueError, match=f"attention by the tpu kernel cannot run: .*{why}"):
        attend(query, key, value, position, cache, block, scale=0.3, implementation="tpu")


def test_a_kernel_of_another_platform_is_refused():
    with pytest.raises(ValueError, match=r"attention by the tpu kernel cannot run: programs are made for .* cpu"):
        attend(*arrays(tree=True), scale=0.3, implementation="tpu")
    with pytest.raises(ValueError, match="attention by the gpu kernel cannot run: the GPU kernel needs bfloat16"):
        attend(*arrays(tree=True), scale=0.3, implementation="gpu")
    with pytest.raises(ValueError, match="implementation must be one of xla, tpu, gpu; got 'cuda'"):
        attend(*arrays(tree=True), scale=0.3, implementation="cuda")


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="compiling for a TPU needs libtpu")
@pytest.mark.xdist_group("tpu")
@pytest.mark.parametrize("implementation", [None, "xla"])
def test_a_tpu_runs_the_kernel(implementation):
    sharding = jax.sharding.SingleDeviceSharding(devices("v5e:1x1")[0])
    given = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), arrays(tree=True, dtype=jnp.bfloat16)
    )
    run = jax.jit(functools.partial(attend, scale=0.3, implementation=implementation))
    with tracing_for("tpu"):
        text = run.lower(*given).compile().as_text()
    assert ("tpu_custom_call" in text) == (implementation is None)
