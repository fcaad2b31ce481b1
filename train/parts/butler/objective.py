"""What predictors of attention are trained on: the attention of a frozen base, made again some queries at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Shaped

from jax_smash.cache import Block
from jax_smash.config import ModelConfig
from jax_smash.models.attended import Attended, attended
from jax_smash.models.depth import tapped_without_cache
from jax_smash.models.predictors import Importance, Predictor, PredictorConfig, importance
from jax_smash.models.rope import longest
from jax_smash.models.transformer import Transformer
from jax_smash.shapes import round_up
from train.data.rows import Batch
from train.parts.butler.recall import recall
from train.parts.butler.settings import ROLE, ROUNDED, ButlerSettings
from train.parts.butler.targets import HIDDEN, Lesson, Seen, targets_of
from train.run.step import Objective, Tally

QUERIES = 128
"""Queries of a row whose scores are in memory at once: of one layer, forward and backward."""


class Sums(NamedTuple):
    """Sums over queries of means over heads.

    Attributes:
      loss, count: what is minimised, and what it is to be divided by.
      recall, recent, queries: of the predictor and of the last entries, and what they are to be divided by.
    """

    loss: Array
    count: Array  # type: ignore[assignment]  # In place of a tuple's method.
    recall: Array
    recent: Array
    queries: Array


RECALLED = ("recall", "recent", "queries")
"""Sums to which layers before `recall_layer` bring nothing."""


def butler_objective(
    base: nnx.GraphDef, predictors: Mapping[str, nnx.GraphDef], settings: ButlerSettings, *, with_recall: bool = False
) -> Objective:
    """Returns how far predictors are from a base's attention, over packed rows; gradients reach the predictors alone.

    With the loss `divergence`: Σ p · (log p − log q) nats, p the base's attention of a head to what an entry sees and q
    the softmax of the predicted scores; mean over entries, heads and predicted layers. Its gradient is that of the
    cross-entropy. For pages, p is the highest attention to an entry of a page, made to sum to 1.
    With the loss `logits`: (predicted score − score before the softmax)², mean over what entries see.

    A predictor that looks ahead is compared with the attention of a later entry to what the earlier one sees.
    Scores of all pairs of entries never exist at once: memory is linear in the length of a row.

    Source: "TokenButler: Token Importance Is Predictable", section 3 (`logits`); for pages, SeerAttention-R.
    Differs: pairs that no mask lets meet do not count. The paper's code also fits the scores of later entries.

    Args:
      base: structure of the base.
      predictors: structure of each predictor by name.
      settings: of the run.
      with_recall: also measure `recall` of what the base attends to most, and `recent_recall`, of the last entries.

    The loss is the mean over what all predictors count. Each one's own is measured by its name: `NAME loss`, and so are
    `NAME recall` and `NAME recent_recall`.
    """

    def objective(params: Any, batch: Batch) -> tuple[Array, Tally]:
        model: Transformer = nnx.merge(base, params["base"])
        own = jax.tree.map(lambda x: x.astype(jnp.dtype(settings.dtype)), params[ROLE])
        block = Block.causal(batch.segments > 0, batch.segments)
        inputs, position = model.embed(batch.tokens), batch.positions
        _, taps = tapped_without_cache(model, inputs, position, block, scan=settings.scan)
        heads = attended(model, taps, position, longest(position, block.valid))
        total, count, means = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32), {}
        for name, graphdef in predictors.items():
            module: Predictor = nnx.merge(graphdef, own[name])
            made = module.read(taps, heads, position, block)
            found = attention_loss(heads, made, batch, settings, settings.configs[name], with_recall)
            total, count = total + found.loss, count + found.count
            means[f"{name} loss"] = (found.loss, found.count)
            if with_recall:
                means[f"{name} recall"] = (found.recall, found.queries)
                means[f"{name} recent_recall"] = (found.recent, found.queries)
        return total, Tally(count=count, means=means)

    return objective


def attention_loss(
    heads: Attended,
    made: Importance,
    batch: Batch,
    settings: ButlerSettings,
    config: PredictorConfig,
    with_recall: bool,
) -> Sums:
    """Returns the sums of all predicted layers, divided by their number.

    Args:
      heads: of the base.
      made: by the predictor.
      batch: rows.
      settings: of the run.
      config: of the predictor.
      with_recall: recall is measured too; else it is 0.
    """
    model, first = settings.model, config.first_layer
    windows = [model.window_of(kind) or model.max_positions + settings.length for kind in model.layer_kinds]
    counts = jnp.arange(model.num_layers, dtype=jnp.int32) >= settings.recall_layer
    layers = heads.queries, heads.keys, made.queries, made.keys, jnp.asarray(windows, jnp.int32), counts

    def add(sums: Sums, layer: Any) -> tuple[Sums, None]:
        queries, keys, asked, kept, window, counts = layer
        of_layer = _over_queries(queries, keys, asked, kept, window, batch, settings, config, with_recall)
        of_layer = of_layer._replace(**{n: jnp.where(counts, getattr(of_layer, n), 0.0) for n in RECALLED})
        return Sums(*(a + b for a, b in zip(sums, of_layer, strict=True))), None

    predicted = jax.tree.map(lambda x: x[first:], layers)
    found = jax.lax.scan(add, _no_sums(), predicted)[0]
    return Sums(*(x / (model.num_layers - first) for x in found))


def _over_queries(
    queries: Float[Array, "B T N H"],
    keys: Float[Array, "B T K H"],
    asked: Float[Array, "B T n d"],
    kept: Float[Array, "B S k d"],
    window: Int[Array, ""],
    batch: Batch,
    settings: ButlerSettings,
    config: PredictorConfig,
    with_recall: bool,
) -> Sums:
    """Returns the sums of one layer, a piece of its queries after the other."""
    length, ahead = queries.shape[1], config.look_ahead
    kept = _as_kept(kept, settings.key_bits)
    count = length // settings.query_stride
    step = min(QUERIES, count)
    # Other entries in other rows, by what a row holds.
    begin = jax.lax.rem(batch.tokens.sum(1, dtype=jnp.int32), jnp.int32(settings.query_stride))
    entry = begin[:, None] + jnp.arange(count, dtype=jnp.int32)[None] * settings.query_stride
    # The entry whose attention a query predicts; behind the row there is none.
    later = jnp.minimum(entry + ahead, length - 1)
    own = _at(batch.segments, entry)
    segments = jnp.where((_at(batch.segments, later) == own) & (entry + ahead < length), own, 0)

    def pieces(x: Array) -> Array:
        """Cuts rows into pieces, with zeros behind the last."""
        x = jnp.pad(x, ((0, 0), (0, round_up(count, step) - count)) + ((0, 0),) * (x.ndim - 2))
        return x.reshape(x.shape[0], -1, step, *x.shape[2:]).swapaxes(0, 1)

    @jax.checkpoint
    def add(sums: Sums, piece: Any) -> tuple[Sums, None]:
        query, ask, segment, position, entry = piece
        seen = _seen(entry, position, segment, window, batch, ahead)
        scores = _teacher_scores(query, keys, settings.model)
        lesson = targets_of(config.page_size).lesson(scores, seen)
        told = importance(ask, kept)
        loss, count = _loss(lesson, told.reshape(lesson.logits.shape), settings)
        measured = _recall(lesson, told, seen, settings, config) if with_recall else (jnp.zeros((), jnp.float32),) * 3
        return Sums(*(a + b for a, b in zip(sums, (loss, count, *measured), strict=True))), None

    of_pieces = _at(queries, later), _at(asked, entry), segments, _at(batch.positions, entry), entry
    return jax.lax.scan(add, _no_sums(), tuple(map(pieces, of_pieces)))[0]


def _as_kept(keys: Float[Array, "B S k d"], bits: int) -> Float[Array, "B S k d"]:
    """Returns keys as a cache keeps them. Gradients pass as if it kept them whole."""
    rounded = ROUNDED[bits]
    if rounded is None:
        return keys
    found = rounded(keys)
    back = found.values.astype(jnp.float32) * found.scale.astype(jnp.float32)[..., None]
    return keys + jax.lax.stop_gradient(back.astype(keys.dtype) - keys)


def _at(x: Shaped[Array, "B T ..."], entry: Int[Array, "B Q"]) -> Shaped[Array, "B Q ..."]:
    """Returns some entries of each row."""
    return jax.vmap(lambda row, index: row[index])(x, entry)


def _seen(
    entry: Int[Array, "B Q"],
    position: Int[Array, "B Q"],
    segment: Int[Array, "B Q"],
    window: Int[Array, ""],
    batch: Batch,
    ahead: int,
) -> Seen:
    """Returns which entries some queries see: of their own document and window, and none after themselves."""
    key = jnp.arange(batch.segments.shape[1], dtype=jnp.int32)[None]
    near = (key[None] <= entry[:, :, None]) & (key[None] > entry[:, :, None] + ahead - window)
    visible = near & (batch.segments[:, None] == segment[:, :, None]) & (segment > 0)[:, :, None]
    return Seen(
        entry=entry,
        position=position,
        visible=visible,
        key_position=batch.positions,
        segments=batch.segments,
        query_segments=segment,
    )


def _teacher_scores(
    queries: Float[Array, "B Q N H"], keys: Float[Array, "B T K H"], model: ModelConfig
) -> Float[Array, "B K G Q T"]:
    """Returns a base's attention scores before the softmax."""
    by_head = queries.reshape(*queries.shape[:2], keys.shape[2], -1, queries.shape[3])
    scores = jnp.einsum("BQKGH,BTKH->BKGQT", by_head, keys, preferred_element_type=jnp.float32)
    scores *= jnp.float32(model.query_scale)
    cap = model.attention_softcap
    return cap * jnp.tanh(scores / cap) if cap else scores


def _loss(lesson: Lesson, told: Float[Array, "B K G Q S"], settings: ButlerSettings) -> tuple[Array, Array]:
    """Returns the sum of the loss, mean over heads, and of what it counts."""
    seen = lesson.seen[:, None, None]
    if settings.loss == "logits":
        squares = jnp.square(jnp.where(seen, told - lesson.logits, 0.0))
        return squares.mean((1, 2)).sum(), lesson.seen.sum().astype(jnp.float32)
    of_base = jax.nn.log_softmax(lesson.logits, axis=-1)
    predicted = jax.nn.log_softmax(jnp.where(seen, told, HIDDEN), axis=-1)
    lost = jnp.where(seen, jnp.exp(of_base) * (of_base - predicted), 0.0).sum(-1).mean((1, 2))
    return (lost * lesson.counted).sum(), lesson.counted.sum()


def _recall(
    lesson: Lesson, told: Float[Array, "B k G Q S"], seen: Seen, settings: ButlerSettings, config: PredictorConfig
) -> tuple[Array, Array, Array]:
    """Returns sums over queries: recall, recall of the last entries or pages, and their number."""
    candidates = targets_of(config.page_size).candidates(lesson, seen)
    # What the heads of a key agree on: the logarithm of the sum of their probabilities, which does not vanish.
    likely = jax.nn.log_softmax(jnp.where(lesson.seen[:, None, None], told, HIDDEN), axis=-1)
    truth, scores = lesson.logits, jax.nn.logsumexp(likely, axis=2, keepdims=True)
    if told.shape[1] != truth.shape[1]:  # A key for each query head, which has a set of its own.
        truth = truth.reshape(truth.shape[0], told.shape[1], 1, *truth.shape[3:])
    late = jnp.arange(truth.shape[-1], dtype=jnp.float32)[None, None, None, None]
    recent = jnp.broadcast_to(late, (truth.shape[0], 1, 1, *truth.shape[3:]))
    share = settings.recall_share
    (found, any_), (control, _) = (recall(truth, x, candidates, share) for x in (scores, recent))
    counted = any_ * (seen.position >= settings.recall_from).astype(jnp.float32) * lesson.counted
    return (found * counted).sum(), (control * counted).sum(), counted.sum()


def _no_sums() -> Sums:
    return Sums(*(jnp.zeros((), jnp.float32) for _ in Sums._fields))
