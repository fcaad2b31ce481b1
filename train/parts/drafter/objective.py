"""What drafters' guesses are worth, and the objective of EAGLE-3."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Float32, Int, Shaped

from jax_smash.cache import Block
from jax_smash.models.depth import tapped_without_cache
from jax_smash.models.eagle import Eagle
from jax_smash.models.projection import row_products
from jax_smash.models.transformer import Transformer
from jax_smash.objectives import in_pieces
from jax_smash.pytree import pytree
from train.data.rows import Batch
from train.data.states import StateBatch
from train.parts.drafter.settings import DrafterSettings, Eagle1Settings, EagleSettings
from train.parts.drafter.unrolled import unrolled
from train.parts.language_model.objective import CHUNK
from train.run.step import Objective, Tally

RANKS = 5
"""Places among a drafter's likeliest tokens that are counted."""

Taps = Sequence[Float[Array, "B T D"]] | Mapping[int, Float[Array, "B T D"]]
"""Of the target, by number."""

Structure = Callable[[Any], Any]
"""From a drafter's trained parameters to the drafter."""


@pytree
class Drafted:
    """What a drafter's guesses of tokens were worth, summed over entries; the first axis is that of its steps.

    Attributes:
      loss: cross-entropy against the target's prediction, or against a label, in nats.
      count: entries that the loss counts: those whose token to guess the drafter can say.
      hits: entries whose target token is among the drafter's k likeliest, for k from 1 to `RANKS`.
      tried: entries that were drafted, those whose token the drafter cannot say included.
    """

    loss: Float[Array, "S"]
    count: Float[Array, "S"]
    hits: Float[Array, "S ranks"]
    tried: Float[Array, "S"]


class Vocabulary:
    """The tokens that a drafter can say.

    Args:
      tokens: their ids, in rising order; None for all.
      vocab_size: V of the target.
    """

    def __init__(self, tokens: Int[np.ndarray, "X"] | None, vocab_size: int):
        tokens = np.arange(vocab_size) if tokens is None else tokens
        self.whole = len(tokens) == vocab_size
        self.tokens = tokens.astype(np.int32)
        self.row = np.zeros(vocab_size, np.int32)
        self.row[tokens] = np.arange(len(tokens), dtype=np.int32)
        self.known = np.zeros(vocab_size, bool)
        self.known[tokens] = True


def step_shares(settings: EagleSettings | Eagle1Settings, depths: int | None = None) -> Float32[np.ndarray, "S"]:
    """Returns what each step counts in the loss: those that are told and not trained, 0."""
    steps = np.arange(depths or settings.test_steps, dtype=np.float32)
    return np.power(np.float32(settings.step_decay), steps) * (steps < settings.test_steps)


def eagle_objective(
    target: nnx.GraphDef,
    structure: Structure,
    settings: EagleSettings,
    tokens: Int[np.ndarray, "X"],
    *,
    depths: int | None = None,
    chunk: int,
) -> Objective:
    """Returns the drafter's cross-entropy against the target's predictions, in nats, over rows of replies.

    Equivalent formula: Σ_s decay^s Σ_t w_t · −Σ_x p(x) log q_s(x) over the tokens x that the drafter can say, p the
    target's prediction renormalised over these. Entries whose likeliest token it cannot say count for nothing.

    Source: Li et al. 2025, "EAGLE-3", section 3. Differs: the mean is over the entries of all steps by their weights,
    where the paper adds up the means of the steps.

    Args:
      target: structure of the target.
      structure: makes the drafter.
      settings: of the run.
      tokens: that the drafter can say.
      depths: steps that are told, at least as many as are trained, which is None. Further ones count 0 in the loss.
      chunk: entries whose logits are in memory at once.
    """
    decay = step_shares(settings, depths)
    vocabulary = Vocabulary(tokens, settings.model.vocab_size)

    def objective(params: Any, batch: Batch) -> tuple[Array, Tally]:
        model: Transformer = nnx.merge(target, cast(jax.lax.stop_gradient(params["base"]), settings))
        drafter: Eagle = structure(cast(params["drafter"], settings))
        hidden, taps = read_by_target(model, batch, settings)
        features = drafter.join([taps[i] for i in drafter.config.taps])
        vectors = model.embed(batch.targets)
        made = unrolled(drafter, features, vectors, batch.positions, batch.segments, len(decay))
        aligned, seen = behind(made, batch.segments)
        head = drafter.head
        found = drafted(
            model,
            Guesses(hidden=hidden, made=aligned, seen=seen, weights=batch.weights, likeliest=kept_likeliest(batch)),
            said_by(model, vocabulary) if head is None else lambda x: row_products(x, head[...]),
            vocabulary,
            chunk=chunk,
        )
        return jnp.sum(decay * found.loss), tally(found, decay)

    return objective


def cast(params: Any, settings: DrafterSettings) -> Any:
    """Returns parameters in the dtype that the run computes in."""
    return jax.tree.map(lambda x: x.astype(jnp.dtype(settings.dtype)), params)


def read_by_target(
    model: Transformer, batch: Batch | StateBatch, settings: DrafterSettings
) -> tuple[Float[Array, "B T D"], Taps]:
    """Returns the target's hidden vectors and taps by number, through which no gradient passes.

    Of a batch that holds them nothing is computed, and taps are those that the settings name.
    """
    if isinstance(batch, StateBatch):
        return jax.tree.map(lambda x: x.astype(jnp.dtype(settings.dtype)), (batch.hidden, batch.taps))
    block = Block.causal(batch.segments > 0, batch.segments)
    read = tapped_without_cache(model, model.embed(batch.tokens), batch.positions, block, scan=settings.scan)
    return jax.lax.stop_gradient(read)


def kept_likeliest(batch: Batch | StateBatch) -> Int[Array, "B T"] | None:
    """Returns the tokens that the target predicts where a batch holds them."""
    found: Any = batch.likeliest if isinstance(batch, StateBatch) else None
    return found


def behind(
    made: Float[Array, "S B T D"], segments: Int[Array, "B T"], gap: int = 1
) -> tuple[Float[Array, "B T S D"], Bool[Array, "B T S"]]:
    """Returns what guesses the token that the target predicts at an entry, and whether it is there.

    Args:
      made: step s of entry i guesses what the target predicts at entry i + s + gap.
      segments: both entries must be of one.
      gap: of the first step.
    """
    aligned, seen = [], []
    for step, x in enumerate(made):
        places = min(step + gap, segments.shape[1])
        aligned.append(jnp.pad(x, ((0, 0), (places, 0), (0, 0)))[:, : x.shape[1]])
        before = jnp.pad(segments, ((0, 0), (places, 0)))[:, : x.shape[1]]
        seen.append((before == segments) & (segments > 0))
    return jnp.stack(aligned, axis=2), jnp.stack(seen, axis=2)


@pytree
class Guesses:
    """What is guessed at each entry of the target.

    Attributes:
      hidden: the target's, after its final norm.
      made, seen: what guesses, and whether it is there, as `behind` returns them.
      weights: what each entry counts.
      labels: the token to guess, of which one that the drafter cannot say counts for nothing; None where the target's
        prediction is to be met.
      likeliest: the token that the target predicts; None where it is to be computed.
    """

    hidden: Float[Array, "B T D"]
    made: Float[Array, "B T S D"]
    seen: Bool[Array, "B T S"]
    weights: Float[Array, "B T"]
    labels: Int[Array, "B T"] | None = None
    likeliest: Int[Array, "B T"] | None = None


def drafted(
    model: Transformer,
    guesses: Guesses,
    unembed: Callable[[Float[Array, "B C S D"]], Float[Array, "B C S X"]],
    vocabulary: Vocabulary,
    *,
    chunk: int,
) -> Drafted:
    """Returns what guesses are worth. Logits exist for about `chunk` entries of the target at a time.

    Args:
      model: the target.
      guesses: of all entries.
      unembed: logits of the tokens that the drafter can say.
      vocabulary: these tokens.
      chunk: entries at once, at least one of each row.
    """
    return drafted_and_right(model, guesses, unembed, vocabulary, chunk=chunk)[0]


def drafted_and_right(
    model: Transformer,
    guesses: Guesses,
    unembed: Callable[[Float[Array, "B C S D"]], Float[Array, "B C S X"]],
    vocabulary: Vocabulary,
    *,
    chunk: int,
) -> tuple[Drafted, Bool[Array, "B T S"]]:
    """Returns what `drafted` does, and which guesses are right: those whose likeliest token is the target's.

    Args:
      model, guesses, unembed, vocabulary, chunk: as of `drafted`.
    """
    say = said_by(model, vocabulary)

    def of_piece(piece: Guesses, best: Int[Array, "B C"]) -> tuple[Drafted, Bool[Array, "B C S"]]:
        known = jnp.asarray(vocabulary.known)
        logits = unembed(piece.made)

        def logit_of(token: Int[Array, "B C"]) -> Float[Array, "B C S 1"]:
            row = jnp.asarray(vocabulary.row)[token][..., None, None]
            return jnp.take_along_axis(logits, jnp.broadcast_to(row, (*logits.shape[:3], 1)), axis=-1)

        if piece.labels is None:
            target_logits = jax.lax.stop_gradient(say(piece.hidden[:, :, None])[:, :, 0].astype(jnp.float32))
            expected = jnp.einsum("BTX,BTSX->BTS", jax.nn.softmax(target_logits, axis=-1), logits)
        else:
            expected = logit_of(piece.labels)[..., 0]
        loss = jax.nn.logsumexp(logits, axis=-1) - expected
        tried = piece.weights[..., None] * piece.seen.astype(jnp.float32)
        counted = tried * known[best if piece.labels is None else piece.labels][..., None].astype(jnp.float32)
        rank = jnp.sum(logits > logit_of(best), axis=-1, dtype=jnp.int32)
        within = rank[..., None] < jnp.arange(1, RANKS + 1, dtype=jnp.int32)[None, None, None]
        within &= known[best][..., None, None]
        hits = within.astype(jnp.float32) * tried[..., None]
        loss, count, hits, tried = (jnp.sum(x, axis=(0, 1)) for x in (loss * counted, counted, hits, tried))
        return Drafted(loss=loss, count=count, hits=hits, tried=tried), within[..., 0]

    @jax.checkpoint
    def add(sums: Drafted, piece: tuple[Guesses, Int[Array, "B C"]]) -> tuple[Drafted, Bool[Array, "B C S"]]:
        found, right = of_piece(*piece)
        return jax.tree.map(jnp.add, sums, found), right

    pieces = jax.tree.map(lambda x: in_pieces(x, chunk), guesses)
    steps = jnp.zeros(guesses.made.shape[2], jnp.float32)
    nothing = Drafted(loss=steps, count=steps, hits=jnp.zeros((len(steps), RANKS), jnp.float32), tried=steps)
    best = likeliest_tokens(model, pieces.hidden) if pieces.likeliest is None else pieces.likeliest
    found, right = jax.lax.scan(add, nothing, (pieces, best))
    return found, joined(right, guesses.made.shape[1])


def likeliest_tokens(model: Transformer, pieces: Float[Array, "pieces B C D"]) -> Int[Array, "pieces B C"]:
    """Returns the tokens that the target predicts. Logits exist for a piece at a time.

    It stands outside of losses that are checkpointed, which would make them twice.
    """
    return jax.lax.map(lambda hidden: jnp.argmax(model.unembed(hidden), axis=-1), jax.lax.stop_gradient(pieces))


def said_by(model: Transformer, vocabulary: Vocabulary) -> Callable[[Float[Array, "B C S D"]], Float[Array, "B C S X"]]:
    """Returns what makes the logits of the tokens that a drafter says by the target's head."""
    rows = None if vocabulary.whole else model.rows_of(jnp.asarray(vocabulary.tokens))

    def unembed(vectors: Float[Array, "B C S D"]) -> Float[Array, "B C S X"]:
        flat = vectors.reshape(len(vectors), -1, vectors.shape[-1])
        logits = model.unembed(flat) if rows is None else model.logits_of(flat, rows)
        return logits.reshape(*vectors.shape[:3], -1)

    return unembed


def tally(found: Drafted, shares: Float[np.ndarray, "S"]) -> Tally:
    """Returns what the loss counts, and what is told beside it: loss and accuracies of each depth, from 1."""
    means: dict[str, tuple[Array, Array]] = {}
    for step in range(len(shares)):
        means[f"loss_{step + 1}"] = (found.loss[step], found.count[step])
        for rank in range(RANKS):
            means[f"top{rank + 1}_{step + 1}"] = (found.hits[step, rank], found.tried[step])
    return Tally(count=jnp.sum(shares * found.count), means=means)


def joined(pieces: Shaped[Array, "pieces B C ..."], length: int) -> Shaped[Array, "B T ..."]:
    """Returns the rows that `in_pieces` cut."""
    x = pieces.swapaxes(0, 1)
    return x.reshape(len(x), -1, *x.shape[3:])[:, :length]


CHUNK_OF_DRAFTER = CHUNK // 8
"""Entries of the target at once: the drafter makes logits of several steps for each."""
