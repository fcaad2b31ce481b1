"""Emitted text read again by one plain forward: was each token the one to choose?"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from jax_smash.cache import Block, reaching
from jax_smash.protocols import LogitsProcessor, ModelDef, Params
from jax_smash.pytree import pytree, replace
from jax_smash.sampling import MinP, TopK, TopP, gumbel_noise, log_probabilities, process

LEAST_LOGIT = -1e29
"""Below it a logit is a ban, not a magnitude."""


@pytree
class Text:
    """Emitted text and what it is compared with.

    Attributes:
      tokens: prompt and output, padded on the right.
      prompt_length: tokens of the prompt, at least 1.
      output: the emitted tokens.
      output_length: how many.
      other: what another decoder emitted in their place; anything where it emitted nothing.
      reach: positions that a rotary embedding reckoned with while it was decoded; None where none follows the length.
    """

    tokens: Int[Array, "B T"]
    prompt_length: Int[Array, "B"]
    output: Int[Array, "B O"]
    output_length: Int[Array, "B"]
    other: Int[Array, "B O"]
    reach: Int[Array, "B"] | None = None


@pytree
class Rescored:
    """What the forward says of each emitted token. A score is a processed logit plus, in sampling, its place's noise.

    Attributes:
      best: the token of the largest score that truncation keeps.
      gap: from the token's score up to the best one's; negative where the token itself is cut off.
      other_gap: from the other token's score up to the emitted one's.
      scale: largest magnitude of a processed logit, truncation and what is banned left out; what gaps are measured by.
      explained: whether rounding within the tolerance may have chosen the token.
      log_prob: the token's log-probability under the model's own logits, in nats.
      log_prob_scale: largest magnitude of those logits.
    """

    best: Int[Array, "*batch O"]
    gap: Float[Array, "*batch O"]
    other_gap: Float[Array, "*batch O"]
    scale: Float[Array, "*batch O"]
    explained: Bool[Array, "*batch O"]
    log_prob: Float[Array, "*batch O"]
    log_prob_scale: Float[Array, "*batch O"]


@functools.partial(jax.jit, static_argnums=0, static_argnames="sampled")
def rescore(
    target: ModelDef,
    params: Params,
    processors: tuple[LogitsProcessor, ...],
    text: Text,
    key: Key[Array, "B"],
    tolerance: Float[Array, ""],
    *,
    sampled: bool,
) -> Rescored:
    """Returns what one forward over whole texts says of their tokens; entries past a row's output hold garbage.

    Hidden states come from the forward alone, without a cache, and processors read the text one token after another:
    nothing here knows of trees, nodes or paths.

    Args:
      target: the model.
      params: its parameters under `target`.
      processors: of these rows.
      text: what was emitted.
      key: of each row.
      tolerance: share of `scale` that rounding may move a logit by.
      sampled: some row samples.
    """
    model = target.bind(params["target"])
    batch, width = text.tokens.shape
    place = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), text.tokens.shape)
    valid = place < (text.prompt_length + text.output_length)[:, None]
    nothing = model.init_cache(batch, width, width)
    if text.reach is not None:
        nothing = reaching(nothing, text.reach)
    hidden = model.forward(model.embed(text.tokens), place, nothing, Block.causal(valid)).hidden
    prompt = place < text.prompt_length[:, None]
    memories = tuple(p.observe_prompt(p.init(batch, model.vocab_size), text.tokens, prompt) for p in processors)

    def read(memories: tuple, i: Int[Array, ""]) -> tuple[tuple, Rescored]:
        before = jnp.minimum(text.prompt_length - 1 + i, width - 1)
        logits = model.unembed(jnp.take_along_axis(hidden, before[:, None, None], axis=1))
        token, other = text.output[:, i], text.other[:, i]
        noise = gumbel_noise(key, (text.prompt_length + i)[:, None], logits.shape[-1]) if sampled else None
        said = _judge(processors, memories, logits, noise, token, other, tolerance)
        running = i < text.output_length
        return tuple(p.advance(m, token, running) for p, m in zip(processors, memories, strict=True)), said

    said = jax.lax.scan(read, memories, jnp.arange(text.output.shape[1], dtype=jnp.int32))[1]
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), said)


def _judge(
    processors: tuple[LogitsProcessor, ...],
    memories: tuple,
    logits: Float[Array, "B 1 V"],
    noise: Float[Array, "B 1 V"] | None,
    token: Int[Array, "B"],
    other: Int[Array, "B"],
    tolerance: Float[Array, ""],
) -> Rescored:
    path = jnp.zeros((*logits.shape[:2], 0), jnp.int32)
    shaped = logits.astype(jnp.float32)
    cuts = tuple(p for p in processors if isinstance(p, TopK | TopP | MinP))
    shaping = [(p, memory) for p, memory in zip(processors, memories, strict=True) if not any(p is cut for cut in cuts)]
    shaped = process([p for p, _ in shaping], [memory for _, memory in shaping], shaped, path)
    scale = jnp.where(shaped > LEAST_LOGIT, jnp.abs(shaped), 0).max(-1)[:, 0]
    room = tolerance * scale
    score = (shaped if noise is None else shaped + noise)[:, 0]
    shaped = shaped[:, 0]
    kept = _kept(cuts, shaped)
    best = jnp.argmax(jnp.where(kept, score, -jnp.inf), axis=1).astype(jnp.int32)
    # Rounding moves the edges of truncation too: what may lie inside, and what surely does.
    inside, surely = _kept(_loosened(cuts, 2 * room), shaped), _kept(_loosened(cuts, -2 * room), shaped)
    low = jnp.where(inside, shaped, jnp.inf).min(1) - 2 * room
    high = jnp.where(surely, -jnp.inf, shaped).max(1) + 2 * room
    rival = jnp.where(surely & (shaped >= high[:, None]), score, -jnp.inf).max(1)
    possible = (_at(shaped, token) >= low) & (_at(shaped, token) > -jnp.inf)
    own = _at(score, token)
    raw = logits[:, 0].astype(jnp.float32)
    return Rescored(
        best=best,
        gap=_at(score, best) - own,
        other_gap=own - _at(score, other),
        scale=scale,
        explained=possible & (own + room >= rival),
        log_prob=log_probabilities(raw, token, 0)[0],
        log_prob_scale=jnp.abs(raw).max(1),
    )


def _kept(cuts: tuple[LogitsProcessor, ...], shaped: Float[Array, "B V"]) -> Bool[Array, "B V"]:
    """Marks what truncation keeps."""
    logits = shaped[:, None]
    for cut in cuts:
        logits = cut.apply((), logits, jnp.zeros((*logits.shape[:2], 0), jnp.int32))
    return logits[:, 0] > -jnp.inf


def _loosened(cuts: tuple[LogitsProcessor, ...], by: Float[Array, "B"]) -> tuple[LogitsProcessor, ...]:
    """Returns truncation as far out as it may be where logits are off by as much, in nats; negative: as far in.

    Of top-k, whose edge is a logit, the caller moves the edge itself.
    """
    least = jnp.finfo(jnp.float32).tiny
    moved: list[LogitsProcessor] = []
    for cut in cuts:
        if isinstance(cut, TopP):
            cut = replace(cut, p=jnp.clip(cut.p + by, least, 1))
        elif isinstance(cut, MinP):
            cut = replace(cut, p=jnp.clip(cut.p * jnp.exp(-by), 0, 1))
        moved.append(cut)
    return tuple(moved)


def _at(values: Float[Array, "B V"], token: Int[Array, "B"]) -> Float[Array, "B"]:
    return jnp.take_along_axis(values, token[:, None], axis=1)[:, 0]
