"""Attention as a formula in XLA's operations: what runs where no kernel does."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash import cpu
from jax_smash.cache import EMPTY, Block, LayerCache
from jax_smash.pytree import replace

MASKED = -1e30
"""Score of what a query may not see: finite, so that a query that sees nothing stays free of NaN."""

FEW_SCORES = 40
"""Scores a KV head up to which they are made, and values mixed by them, without a matrix product."""

SCORES_AT_ONCE = 4 << 20
"""Scores that are in memory at once, 16 MiB of them: a longer cache is read in tiles."""

LEAST_TILE = 256
"""Slots of a tile at least."""

QUERIES_AT_ONCE = 64
"""Queries whose scores are in memory at once where there is no cache, as in training."""


def attend(
    query: Float[Array, "B Q N H"],
    key: Float[Array, "B T K H"],
    value: Float[Array, "B T K H"],
    position: Int[Array, "B T"],
    cache: LayerCache | None,
    block: Block,
    *,
    scale: float,
    window: int,
    softcap: float,
    far_query: Float[Array, "B Q N H"] | None = None,
) -> Float[Array, "B Q N H"]:
    """Does what `attention.attend` says by XLA's own operations."""
    batch, width, heads, head_width = query.shape
    kv_heads = key.shape[2]

    def by_kv_head(query: Float[Array, "B Q N H"]) -> Float[Array, "B Q K G H"]:
        return query.reshape(batch, width, kv_heads, heads // kv_heads, head_width)

    def capped(scores: Array) -> Array:
        scores = scores.astype(jnp.float32) * scale
        return softcap * jnp.tanh(scores / softcap) if softcap else scores

    asking = position[:, -width:]
    seen = block.mask()[:, -width:]
    if window:
        seen &= position[:, None, :] > asking[:, :, None] - window
    if cache is None:
        out = _attend_without_past(by_kv_head(query), key, value, seen, capped)
        return out.reshape(batch, width, heads, head_width)

    def rows_of(query: Float[Array, "B Q N H"]) -> Float[Array, "B K R H"]:
        """Returns a KV head's queries side by side, token by token: R = T · G rows."""
        return by_kv_head(query).transpose(0, 2, 1, 3, 4).reshape(batch, kv_heads, -1, head_width)

    query = rows_of(query)
    own = _hide(capped(_own_scores(query, key)), seen)
    if cache.sinks is not None:
        # The sinks are attended to as entries of the block are, by queries of their own.
        assert far_query is not None
        sinks, cache = cache.front(), cache.behind()
        visible = sinks.position[:, None, :] <= asking[:, :, None]
        far = _hide(capped(key_scores(rows_of(far_query), sinks.keys)), visible)
        own = jnp.concatenate([own, far], axis=-1)
        value = jnp.concatenate([value, sinks.values.transpose(0, 2, 1, 3)], axis=1)

    def past_scores(slots: LayerCache) -> Float[Array, "B K R S"]:
        # An empty slot's position is after every query's, so one comparison hides empty slots too.
        visible = slots.position[:, None, :] <= asking[:, :, None]
        if window:
            visible &= slots.position[:, None, :] > asking[:, :, None] - window
        return _hide(capped(key_scores(query, slots.keys)), visible)

    tile = _tile(query.shape, cache.position.shape[1])
    if tile is None:
        parts = _parts_at_once(own, value, past_scores(cache), cache)
    else:
        parts = _parts_in_tiles(own, value, past_scores, cache, tile)
    _, total, mixed = parts if cache.over is None else _merged(parts, cache.over)
    out = mixed / total
    out = out.astype(value.dtype).reshape(batch, kv_heads, width, -1, head_width)
    return out.transpose(0, 2, 1, 3, 4).reshape(batch, width, heads, head_width)


Softmax = tuple[Float[Array, "B K R 1"], Float[Array, "B K R 1"], Float[Array, "B K R H"]]
"""Of a softmax over some keys the highest score, the sum of the weights, and the sum of the values by these weights,
which are e^(score − highest)."""


def _parts_at_once(
    own: Float[Array, "B K R T"], value: Float[Array, "B T K H"], past: Float[Array, "B K R S"], cache: LayerCache
) -> Softmax:
    """Returns the softmax over both sides' scores."""
    peak = jnp.maximum(past.max(-1, keepdims=True), own.max(-1, keepdims=True))
    past, own = jnp.exp(past - peak), _counted_once(jnp.exp(own - peak), cache)
    total = past.sum(-1, keepdims=True) + own.sum(-1, keepdims=True)
    return peak, total, _mix(past, cache.values) + _own_mix(own, value)


def _counted_once(own: Float[Array, "B K R T"], cache: LayerCache) -> Float[Array, "B K R T"]:
    """Returns the weights of the block's entries, which all devices have: of a divided cache, on the first alone."""
    return own if cache.over is None else own * (jax.lax.axis_index(cache.over) == 0).astype(own.dtype)


def _merged(parts: Softmax, over: str) -> Softmax:
    """Returns the softmax over the keys of all devices of a mesh axis, from that over each one's.

    Equivalent formula: m = max mᵢ, Σ e^(mᵢ − m) · totalᵢ, Σ e^(mᵢ − m) · mixedᵢ.
    """
    peak, total, mixed = parts
    highest = jax.lax.pmax(peak, over)
    fade = jnp.exp(peak - highest)
    return highest, *jax.lax.psum((fade * total, fade * mixed), over)


def _parts_in_tiles(
    own: Float[Array, "B K R T"],
    value: Float[Array, "B T K H"],
    past_scores: Callable[[LayerCache], Float[Array, "B K R S"]],
    cache: LayerCache,
    tile: int,
) -> Softmax:
    """Does the same a tile of slots at a time, up to the last that is filled in any row.

    Source: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax".
    """
    slots = cache.position.shape[1]

    def absorb(i: Int[Array, ""], softmax: Softmax) -> Softmax:
        peak, total, mixed = softmax
        start = jnp.minimum(i * tile, slots - tile)
        piece = cache.piece(start, tile)
        # A last tile that would end behind the cache begins before its place: what the one before had is hidden.
        fresh = start + jnp.arange(tile, dtype=jnp.int32) >= i * tile
        scores = past_scores(replace(piece, position=jnp.where(fresh[None], piece.position, jnp.int32(EMPTY))))
        highest = jnp.maximum(peak, scores.max(-1, keepdims=True))
        fade, weights = jnp.exp(peak - highest), jnp.exp(scores - highest)
        total = fade * total + weights.sum(-1, keepdims=True)
        return highest, total, fade * mixed + _mix(weights, piece.values)

    peak = own.max(-1, keepdims=True)
    weights = _counted_once(jnp.exp(own - peak), cache)
    softmax = (peak, weights.sum(-1, keepdims=True), _own_mix(weights, value))
    filled = jnp.where(cache.position < EMPTY, jnp.arange(1, slots + 1, dtype=jnp.int32)[None], 0).max()
    parts: Softmax = jax.lax.fori_loop(jnp.int32(0), (filled + tile - 1) // tile, absorb, softmax)
    return parts


def _tile(query: tuple[int, ...], slots: int) -> int | None:
    """Returns the slots of a tile, a power of two; None where the whole cache's scores may be in memory at once."""
    batch, kv_heads, rows, _ = query
    most = max(SCORES_AT_ONCE // (batch * kv_heads * rows), LEAST_TILE)
    return None if slots <= most else 1 << (most.bit_length() - 1)


def _hide(scores: Float[Array, "B K R X"], seen: Bool[Array, "B T X"]) -> Float[Array, "B K R X"]:
    """Masks the scores of what a row's token may not see."""
    batch, heads, _, keys = scores.shape
    by_token = scores.reshape(batch, heads, seen.shape[1], -1, keys)
    return jnp.where(seen[:, None, :, None], by_token, MASKED).reshape(scores.shape)


def key_scores(query: Float[Array, "B K R H"], keys: Float[Array, "B K S H"]) -> Float[Array, "B K R S"]:
    """Returns the products of each KV head's queries with its keys, float32."""
    if _are_few(query.shape[2], keys.shape[2]):
        return _few_scores(query, keys)

    def at_once(query: Array, keys: Array) -> Array:
        return jnp.einsum("BKRH,BKSH->BKRS", query, keys, preferred_element_type=jnp.float32)

    if not cpu.has_few_queries(query):
        return at_once(query, keys)
    return jax.lax.platform_dependent(query, keys, cpu=cpu.scores_of_few, default=at_once)


def _mix(weights: Float[Array, "B K R S"], values: Float[Array, "B K S H"]) -> Float[Array, "B K R H"]:
    """Returns the cache's values weighted for each row, float32."""
    if _are_few(*weights.shape[2:]):
        return _few_mixed(weights, values)
    return jnp.einsum("BKRS,BKSH->BKRH", weights.astype(values.dtype), values, preferred_element_type=jnp.float32)


def _own_scores(query: Float[Array, "B K R H"], key: Float[Array, "B T K H"]) -> Float[Array, "B K R T"]:
    """Returns each row's product with the block's keys, float32."""
    if _are_few(query.shape[2], key.shape[1]):
        return _few_scores(query, key.transpose(0, 2, 1, 3))
    return jnp.einsum("BKRH,BTKH->BKRT", query, key, preferred_element_type=jnp.float32)


def _own_mix(weights: Float[Array, "B K R T"], value: Float[Array, "B T K H"]) -> Float[Array, "B K R H"]:
    """Returns the block's values weighted for each row, float32."""
    if _are_few(*weights.shape[2:]):
        return _few_mixed(weights, value.transpose(0, 2, 1, 3))
    return jnp.einsum("BKRT,BTKH->BKRH", weights.astype(value.dtype), value, preferred_element_type=jnp.float32)


def _are_few(rows: int, keys: int) -> bool:
    """Whether the products of a KV head are made without a library's call, which would cost more than they do."""
    return keys == 1 or rows * keys <= FEW_SCORES


def _few_scores(query: Float[Array, "B K R H"], keys: Float[Array, "B K S H"]) -> Float[Array, "B K R S"]:
    return (query.astype(jnp.float32)[:, :, :, None] * keys.astype(jnp.float32)[:, :, None]).sum(-1)


def _few_mixed(weights: Float[Array, "B K R S"], values: Float[Array, "B K S H"]) -> Float[Array, "B K R H"]:
    return (weights[..., None] * values.astype(jnp.float32)[:, :, None]).sum(-2)


def _attend_without_past(
    query: Float[Array, "B Q K G H"],
    key: Float[Array, "B T K H"],
    value: Float[Array, "B T K H"],
    seen: Bool[Array, "B Q T"],
    capped: Callable[[Array], Array],
) -> Float[Array, "B Q K G H"]:
    """Attends within a block, some queries at a time.

    A block's entries see no later ones, so a piece of queries meets only the keys up to its end. The backward pass
    makes each piece's scores again: what a training step keeps and moves is linear in T.
    """
    query, key, value = query.transpose(0, 2, 3, 1, 4), key.transpose(0, 2, 1, 3), value.transpose(0, 2, 1, 3)

    @jax.checkpoint
    def attend_piece(query: Array, key: Array, value: Array, seen: Array) -> Array:
        scores = capped(jnp.einsum("BKGTH,BKUH->BKGTU", query, key, preferred_element_type=jnp.float32))
        weights = jax.nn.softmax(jnp.where(seen[:, None, None], scores, MASKED), axis=-1).astype(value.dtype)
        return jnp.einsum("BKGTU,BKUH->BKGTH", weights, value)

    pieces, before = [], key.shape[2] - query.shape[3]
    for start in range(0, query.shape[3], QUERIES_AT_ONCE):
        end = min(start + QUERIES_AT_ONCE, query.shape[3])
        to = before + end
        pieces.append(
            attend_piece(query[:, :, :, start:end], key[:, :, :to], value[:, :, :to], seen[:, start:end, :to])
        )
    return jnp.concatenate(pieces, axis=3).transpose(0, 3, 1, 2, 4)
