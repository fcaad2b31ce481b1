"""What `pallas_kernels.tree_attention` and `sparse_attention` are given, and where they cannot run."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jax_smash.cache import Block, ChosenPages, LayerCache
from jax_smash.sharding import is_divided, on_each_device, share_of
from pallas_kernels import sparse_attention as sparse
from pallas_kernels.sparse_attention import api
from pallas_kernels.tree_attention import Inputs, Options, causal_words, gpu, tree_attention


def refusal(
    kernel: str,
    query: Float[Array, "B Q N H"],
    key: Float[Array, "B T K H"],
    value: Float[Array, "B T K H"],
    position: Int[Array, "B T"],
    cache: LayerCache | None,
    block: Block,
) -> str | None:
    """Returns why a kernel, `tpu` or `gpu`, cannot run these arrays; None where it can."""
    if cache is None:
        return "there is no cache"
    if cache.sinks is not None:
        return "the cache keeps sinks"
    if cache.over is not None:
        return "the cache is divided by slots"
    if block.segments is not None:
        return "documents are packed in a row"
    if query.shape[1] != key.shape[1]:
        return f"the {query.shape[1]} queries must be as many as the block's {key.shape[1]} keys"
    types = {x.dtype for x in (query, key, value, cache.keys, cache.values)}
    if len(types) > 1 or types - {jnp.dtype("float32"), jnp.dtype("bfloat16")}:
        return f"queries, keys and values must be all float32 or all bfloat16; got {', '.join(map(str, types))}"
    return gpu.unsupported(_inputs(query, key, value, position, cache, block)) if kernel == "gpu" else None


def attend(
    kernel: str,
    query: Float[Array, "B T N H"],
    key: Float[Array, "B T K H"],
    value: Float[Array, "B T K H"],
    position: Int[Array, "B T"],
    cache: LayerCache,
    block: Block,
    *,
    scale: float,
    window: int,
    softcap: float,
    interpret: bool = False,
) -> Float[Array, "B T N H"]:
    """Does what `attention.attend` says by a kernel, each device for its own rows and KV heads."""
    options = Options(scale=scale, window=window, softcap=softcap)

    def attend_part(part: Inputs, _: None) -> Float[Array, "B T N H"]:
        return tree_attention(part, **vars(options), implementation=kernel, interpret=interpret)

    return _by_device(attend_part, _inputs(query, key, value, position, cache, block), None)


def refusal_of_pages(
    kernel: str,
    query: Float[Array, "B Q N H"],
    key: Float[Array, "B T K H"],
    value: Float[Array, "B T K H"],
    position: Int[Array, "B T"],
    cache: LayerCache,
    pages: ChosenPages,
    block: Block,
) -> str | None:
    """Returns why a kernel, `tpu` or `gpu`, cannot run a device's share of arrays and pages; None where it can."""
    new = (query, key, value, position, cache, block)
    if (why := refusal(kernel, *new)) is not None:
        return why
    options = sparse.Options(scale=1.0, page_size=pages.size)
    return api.refusal(kernel, *_of_a_device(_inputs(*new), _pages(pages)), options)


def attend_pages(
    kernel: str,
    query: Float[Array, "B T N H"],
    key: Float[Array, "B T K H"],
    value: Float[Array, "B T K H"],
    position: Int[Array, "B T"],
    cache: LayerCache,
    pages: ChosenPages,
    block: Block,
    *,
    scale: float,
    softcap: float,
    interpret: bool = False,
) -> Float[Array, "B T N H"]:
    """Does what `attention.attend_pages` says by a kernel, each device for its own rows and KV heads."""
    options = sparse.Options(scale=scale, softcap=softcap, page_size=pages.size)

    def attend_part(part: Inputs, chosen: sparse.Pages) -> Float[Array, "B T N H"]:
        return sparse.sparse_attention(part, chosen, **vars(options), implementation=kernel, interpret=interpret)

    inputs = _inputs(query, key, value, position, cache, block)
    return _by_device(attend_part, inputs, _pages(pages))


def _pages(pages: ChosenPages) -> sparse.Pages:
    return sparse.Pages(pages.table, pages.counts, pages.filled)


def _by_device(
    attend_part: Callable[[Inputs, Any], Float[Array, "B T N H"]], inputs: Inputs, chosen: Any
) -> Float[Array, "B T N H"]:
    """Returns what a kernel makes of its inputs and of what is chosen, each device for its own rows and KV heads."""

    def share(query: Array, *others: Any) -> Array:
        *arrays, chosen = others
        return attend_part(_part(query, *arrays), chosen).reshape(query.shape)

    return on_each_device(share, *_divided(inputs, chosen)).reshape(inputs.query.shape)


def _of_a_device(inputs: Inputs, pages: sparse.Pages) -> tuple[Inputs, sparse.Pages]:
    """Returns the shapes of what each device has of them."""
    mesh = jax.sharding.get_abstract_mesh() if is_divided() else None
    *arrays, chosen = (
        jax.tree.map(lambda x, axes=axes: share_of(x, mesh, *axes), argument)
        for argument, axes in _divided(inputs, pages)
    )
    return jax.eval_shape(_part, *arrays), chosen


def _divided(inputs: Inputs, chosen: Any) -> tuple[tuple[Any, tuple[str | None, ...]], ...]:
    """Returns what devices have shares of, with the names of its leading axes: query heads by their KV heads first."""
    query = inputs.query
    heads, slots = ("batch", None, "kv_heads"), ("batch", "kv_heads")
    return (
        (query.reshape(*query.shape[:2], inputs.key.shape[2], -1, query.shape[3]), heads),
        ((inputs.key, inputs.value), heads),
        ((inputs.position, inputs.valid, inputs.ancestors, inputs.slot_position), ("batch",)),
        ((inputs.keys, inputs.values), slots),
        (chosen, slots),
    )


def _part(query: Array, own: tuple[Array, ...], rows: tuple[Array, ...], cached: tuple[Array, ...]) -> Inputs:
    """Returns a device's share of the inputs."""
    by_entry = query.reshape(*query.shape[:2], -1, query.shape[4])
    (key, value), (keys, values), (position, valid, ancestors, slot_position) = own, cached, rows
    return Inputs(by_entry, key, value, position, valid, ancestors, keys, values, slot_position)


def _inputs(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B T K H"],
    value: Float[Array, "B T K H"],
    position: Int[Array, "B T"],
    cache: LayerCache,
    block: Block,
) -> Inputs:
    words = block.ancestors
    if words is None:
        causal = causal_words(key.shape[1])
        words = jnp.broadcast_to(causal, (key.shape[0], *causal.shape))
    return Inputs(query, key, value, position, block.valid, words, cache.keys, cache.values, cache.position)
