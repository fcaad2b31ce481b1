"""Rotary position embeddings, with the stretchings of long-context models.

Two of them, `longrope` and `dynamic`, depend on how long the text is. Each row has a *reach*: the positions that its
text is known to take when a turn begins. An entry is rotated for the longer of the reach and the text up to itself:

- `longrope` has two sets of wavelengths, one for texts within the original context and one for longer ones. A row whose
  prompt, or whose prompt and the tokens that it may get, go beyond the original context has the second from its first
  entry on.
- `dynamic` stretches the base by the length, once that is beyond the original context. Entries of a prompt are
  stretched for the whole prompt, an emitted token for the text up to it.

So logits are those of transformers for texts within the original context, and for those that begin beyond it.

Differs: from transformers in a `longrope` text that begins within the original context and may go beyond it. There
transformers uses the first set up to the original context, then reads the text again with the second (Phi-3) or goes on
with the second behind keys of the first (other families). It also lets the longest row of a batch decide for all, and
a `dynamic` model keeps the stretch of an earlier, longer text. Here a row depends on its own text alone.

Source: Su et al. 2021 (RoPE); Peng et al. 2023 (YaRN); Ding et al. 2024 (LongRoPE); the `llama3` rule as released with
Llama 3.1; Peng et al. 2023, sections 3.1 and 3.3 (`dynamic`).
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jax_smash.config import ModelConfig, RopeConfig
from jax_smash.platform import target_platform
from jax_smash.sharding import on_each_device

Angles = tuple[Float[Array, "B T half"], Float[Array, "B T half"]]
"""cos and sin of each pair's angle."""


def frequencies(rope: RopeConfig, head_width: int) -> np.ndarray:
    """Returns radians a position for each rotated pair, float32; those of short texts where the length matters."""
    width = rope.rotated_width(head_width)
    exponent = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    plain = (1.0 / np.power(np.float32(rope.base), exponent)).astype(np.float32)
    if rope.scaling in ("none", "dynamic"):
        return plain
    if rope.scaling == "longrope":
        return plain / np.asarray(rope.short_factors, np.float32)
    stretched = plain / np.float32(rope.factor)
    if rope.scaling == "linear":
        return stretched
    if rope.scaling == "llama3":
        # Rotations over the original context decide: many keep their frequency, few are stretched.
        rotations = rope.original_positions * plain / (2 * np.pi)
        keep = np.clip((rotations - rope.low) / (rope.high - rope.low), 0, 1)
        return (stretched * (1 - keep) + plain * keep).astype(np.float32)
    return _yarn(rope, width, plain, stretched)


def _yarn(rope: RopeConfig, width: int, plain: np.ndarray, stretched: np.ndarray) -> np.ndarray:
    def pair_with(rotations: float) -> float:
        wavelength = rope.original_positions / (rotations * 2 * math.pi)
        return width * math.log(wavelength) / (2 * math.log(rope.base))

    first, last = pair_with(rope.high), pair_with(rope.low)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    if first == last:
        last += 0.001
    ramp = np.clip((np.arange(width // 2, dtype=np.float32) - first) / (last - first), 0, 1)
    return (stretched * ramp + plain * (1 - ramp)).astype(np.float32)


def rotations(
    config: ModelConfig, position: Int[Array, "B T"], reach: Int[Array, "B"] | None, *, endless: bool = False
) -> list[Angles | None]:
    """Returns the angles of every layer, None for a layer without a rotary embedding.

    Args:
      config: of the model.
      position: of each entry.
      reach, endless: as of `rotation`.
    """
    angles = {
        kind: rotation(config.rope_of(kind), config.head_width, position, reach, endless=endless)
        for kind in config.kinds
    }
    return [angles[kind] if on else None for kind, on in zip(config.layer_kinds, config.rotated, strict=True)]


def rotation(
    rope: RopeConfig,
    head_width: int,
    position: Int[Array, "B T"],
    reach: Int[Array, "B"] | None = None,
    *,
    endless: bool = False,
) -> Angles:
    """Returns cos and sin of every rotated pair's angle at each position, float32.

    Args:
      rope: the rotary embedding.
      head_width: H.
      position: of each entry.
      reach: positions of the row's text, where it is known to be longer than up to an entry.
      endless: the text may be of any length. Angles of late positions are then as exact as those of early ones; they
        differ from the others' by rounding.
    """
    turns: Any = frequencies(rope, head_width)[None, None]
    if rope.follows_length:
        length = position + 1 if reach is None else jnp.maximum(position + 1, reach[:, None])
        turns = _turns_by_length(rope, turns, length)
    angle = _wrapped(position, turns) if endless else position.astype(jnp.float32)[..., None] * turns
    return jnp.cos(angle) * rope.attention_factor, jnp.sin(angle) * rope.attention_factor


def _wrapped(position: Int[Array, "B T"], turns: Float[np.ndarray, "1 1 half"]) -> Float[Array, "B T half"]:
    """Returns angles without whole turns, in units of 2⁻³² of a turn: what two of them differ by is exact."""
    unit = 2 * np.pi / 2.0**32
    steps = np.round(turns.astype(np.float64) / unit).astype(np.uint32)
    counted = position.astype(jnp.uint32)[..., None] * steps
    return jax.lax.bitcast_convert_type(counted, jnp.int32).astype(jnp.float32) * jnp.float32(unit)


def _turns_by_length(
    rope: RopeConfig, within: Float[np.ndarray, "1 1 half"], length: Int[Array, "B T"]
) -> Float[Array, "B T half"]:
    """Returns radians a position for each pair in texts of some lengths, from those of short ones."""
    if rope.scaling == "longrope":
        beyond = within * (np.asarray(rope.short_factors, np.float32) / np.asarray(rope.long_factors, np.float32))
        return jnp.where((length > rope.original_positions)[..., None], beyond, within)
    width = 2 * within.shape[-1]
    share = jnp.maximum(length, rope.original_positions).astype(jnp.float32) / rope.original_positions
    # The base grows by stretch ** (width / (width - 2)), and pair i has the base's power of -2 i / width.
    stretch = rope.factor * share - (rope.factor - 1)
    power = -np.arange(0, width, 2, dtype=np.float32) / np.float32(width - 2)
    return jnp.asarray(within) * stretch[..., None] ** power[None, None]


def longest(position: Int[Array, "B T"], valid: Bool[Array, "B T"]) -> Int[Array, "B"]:
    """Returns the reach of texts that are read whole: positions up to each row's last entry, padding left out."""
    return jnp.max(jnp.where(valid, position, -1), axis=1) + 1


def reach_of_turn(config: ModelConfig, *, held: int, before: int, prompt: int, new: int) -> int:
    """Returns the reach of a row in a turn; 0 where the model's rotary embedding does not depend on the length.

    Args:
      config: of the model.
      held: positions that the row has taken.
      before: its reach up to now.
      prompt: tokens that the turn begins with.
      new: tokens that it may emit.

    Raises:
      ValueError: entries that the row holds are rotated for a text within the original context, and the turn may go
        beyond it.
    """
    if not config.follows_length:
        return 0
    read, end = held + prompt, held + prompt + new
    original = _longrope_context(config)
    if original is None or end <= original:
        return read
    if held and before <= original:
        raise ValueError(
            f"the row was begun with the longrope factors of texts up to {original} positions; {end} positions "
            f"({held} taken, {prompt} prompt, {new} new) need the whole text read anew"
        )
    return max(read, original + 1)


def reach_of_text(config: ModelConfig, *, prompt: Int[Array, "B"], new: int) -> Int[Array, "B"] | None:
    """Returns what `reach_of_turn` says of fresh rows, traced; None where the rotary embedding needs no reach.

    Args:
      config: of the model.
      prompt: tokens that each row begins with.
      new: tokens that it may emit.
    """
    if not config.follows_length:
        return None
    original = _longrope_context(config)
    return (
        prompt if original is None else jnp.where(prompt + new <= original, prompt, jnp.maximum(prompt, original + 1))
    )


def _longrope_context(config: ModelConfig) -> int | None:
    """Returns the positions up to which `longrope` has its short factors; None where no layer has it."""
    ropes = [config.rope_of(kind) for kind in config.kinds]
    return min((rope.original_positions for rope in ropes if rope.scaling == "longrope"), default=None)


def rotate(
    x: Float[Array, "B T *heads H"], angles: Angles, *, late_rounding: bool = False
) -> Float[Array, "B T *heads H"]:
    """Turns each pair (i, i + half) of the rotated front of every head by its angle.

    Args:
      x: queries or keys.
      angles: from `rotation`.
      late_rounding: multiply in float32 and round the result, not cos and sin.
    """
    cos, sin = (a.reshape(*a.shape[:2], *(1,) * (x.ndim - 3), -1) for a in _rounded(angles, x, late_rounding))
    width = 2 * cos.shape[-1]
    first, second = jnp.split(x[..., :width].astype(cos.dtype), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
    return turned if width == x.shape[-1] else jnp.concatenate([turned, x[..., width:]], axis=-1)


def rotate_beside(
    x: Float[Array, "B T K X H"], value: Float[Array, "B T K H"], angles: Angles, *, late_rounding: bool = False
) -> tuple[Float[Array, "B T K X H"], Float[Array, "B T K H"]]:
    """Turns the queries and keys of an entry as `rotate` does, and returns them and its values.

    A TPU turns them where they lie, in one row with the values.
    """
    if target_platform() != "tpu":
        return rotate(x, angles, late_rounding=late_rounding), value
    heads = jnp.concatenate([x, value[..., None, :]], axis=-2)
    rounded = _rounded(angles, x, late_rounding)
    # Left to itself, XLA would fetch the ends of a row from the devices beside.
    turned = on_each_device(_turned_in_rows, (heads, ("batch", None, "kv_heads")), (rounded, ("batch",)))
    turned = turned.astype(x.dtype)
    return turned[..., :-1, :], turned[..., -1, :]


def _rounded(angles: Angles, x: Float[Array, "B T *heads H"], late_rounding: bool) -> Angles:
    """Returns cos and sin in what they are multiplied in."""
    cos, sin = angles
    computed = jnp.dtype(jnp.float32) if late_rounding else x.dtype
    return cos.astype(computed), sin.astype(computed)


def _turned_in_rows(heads: Float[Array, "B T K X H"], angles: Angles) -> Float[Array, "B T K X H"]:
    """Turns all heads but the last of each KV head, without cutting an entry's row into heads.

    A head's half is no whole number of a TPU's lanes, and heads are no rows: each pair's other half comes from the
    whole row, moved by half a head.
    """
    (batch, width, kv_heads, count, head_width), (cos, sin) = heads.shape, angles
    half, lanes = cos.shape[-1], kv_heads * count * head_width
    row = heads.reshape(batch, width, lanes).astype(cos.dtype)
    moved = jnp.pad(row, ((0, 0), (0, 0), (half, half)))
    is_first = jnp.arange(lanes, dtype=jnp.int32) % head_width < half
    other = jnp.where(is_first[None, None], moved[:, :, 2 * half :], moved[:, :, :lanes])

    def spread(of_pairs: Array, beyond: float) -> Float[Array, "B T lanes"]:
        """Returns the factor of every lane; of those that are not turned, another."""
        short = [(0, 0), (0, 0), (0, head_width - 2 * half)]
        by_head = jnp.pad(of_pairs, short, constant_values=beyond)[:, :, None]
        by_head = jnp.broadcast_to(by_head, (batch, width, count - 1, head_width))
        by_head = jnp.pad(by_head, [(0, 0), (0, 0), (0, 1), (0, 0)], constant_values=beyond)[:, :, None]
        return jnp.broadcast_to(by_head, (batch, width, kv_heads, count, head_width)).reshape(batch, width, lanes)

    cos, sin = jnp.concatenate([cos, cos], axis=-1), jnp.concatenate([-sin, sin], axis=-1)
    return (row * spread(cos, 1.0) + other * spread(sin, 0.0)).reshape(heads.shape)
