"""What tree attention reads and the numbers that shape it, under one name each."""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

WORD = 32
"""Ancestor bits in a word."""


class Inputs(NamedTuple):
    """The arrays of one call.

    Attributes:
      query, key, value: of the block's entries (the nodes of a draft tree), any rotary embedding already in.
      position: of each entry; at least 0.
      valid: False at padding, which nothing sees and which sees nothing.
      ancestors: bit j of entry i is set where entry i sees entry j, itself included; bit j is bit j % 32 of word
        j // 32. Bits at and past T, and of padding, mean nothing.
      keys, values: of the cache's slots, head-major.
      slot_position: position of each slot, in any order; an empty slot's is later than any entry's, so that comparing
        positions hides it.
    """

    query: Float[Array, "B T N H"]
    key: Float[Array, "B T K H"]
    value: Float[Array, "B T K H"]
    position: Int[Array, "B T"]
    valid: Bool[Array, "B T"]
    ancestors: UInt32[Array, "B T W"]
    keys: Float[Array, "B K S H"]
    values: Float[Array, "B K S H"]
    slot_position: Int[Array, "B S"]


@dataclasses.dataclass(frozen=True)
class Options:
    """The numbers of one call, fixed when it is compiled.

    Attributes:
      scale: multiplies the scores.
      window: an entry sees positions later than its own minus this; 0 for no window.
      softcap: scores become cap · tanh(score / cap); 0 for none.
    """

    scale: float
    window: int = 0
    softcap: float = 0.0


def causal_words(width: int) -> UInt32[Array, "T W"]:
    """Returns ancestor words of a block in which each entry sees itself and the entries before it."""
    entry, word = jnp.arange(width)[:, None], jnp.arange(-(-width // WORD))[None]
    bits = jnp.clip(entry + 1 - WORD * word, 0, WORD)
    # A shift by a whole word is undefined.
    ones = jnp.left_shift(jnp.uint32(1), jnp.minimum(bits, WORD - 1).astype(jnp.uint32)) - jnp.uint32(1)
    return jnp.where(bits == WORD, jnp.uint32(2**WORD - 1), ones)


def check(inputs: Inputs, options: Options, *, cached: Any = None) -> None:
    """Refuses arrays that do not belong together.

    Args:
      inputs, options: of the call.
      cached: what type the cache's keys and values must have; the query's where None.

    Raises:
      ValueError: shapes disagree, or an option is out of range.
      TypeError: an array has another type than it must.
    """
    for name in ("query", "keys"):
        if len(found := getattr(inputs, name).shape) != 4:
            raise ValueError(f"{name} must have 4 axes; got {found}")
    batch, width, heads, head_width = inputs.query.shape
    kv_heads, slots = inputs.keys.shape[1:3]
    own, past = (batch, width, kv_heads, head_width), (batch, kv_heads, slots, head_width)
    expected: dict[str, tuple[int, ...]] = {"key": own, "value": own, "keys": past, "values": past}
    expected |= {"position": (batch, width), "valid": (batch, width), "slot_position": (batch, slots)}
    for name, shape in expected.items():
        if (found := getattr(inputs, name).shape) != shape:
            raise ValueError(f"{name} must be {shape} beside a query of {inputs.query.shape}; got {found}")
    if not width or heads % kv_heads:
        raise ValueError(
            f"query heads must be a multiple of the {kv_heads} KV heads, over entries; got {heads}, {width}"
        )
    words = inputs.ancestors.shape
    if len(words) != 3 or words[:2] != (batch, width) or words[2] * WORD < width:
        raise ValueError(f"ancestors must be ({batch}, {width}, words) with a bit an entry; got {words}")
    for name in ("key", "value"):
        _check_type(name, getattr(inputs, name), inputs.query.dtype)
    for name in ("keys", "values"):
        _check_type(name, getattr(inputs, name), cached or inputs.query.dtype)
    for name, dtype in {"position": "int32", "slot_position": "int32", "valid": "bool", "ancestors": "uint32"}.items():
        _check_type(name, getattr(inputs, name), dtype)
    if inputs.query.dtype not in (jnp.float32, jnp.bfloat16):
        raise TypeError(f"query must be float32 or bfloat16; got {inputs.query.dtype}")
    if options.window < 0 or options.softcap < 0:
        raise ValueError(f"window and softcap must be at least 0; got {options.window} and {options.softcap}")


def _check_type(name: str, array: Array, dtype: Any) -> None:
    if array.dtype != jnp.dtype(dtype):
        raise TypeError(f"{name} must be {jnp.dtype(dtype)}; got {array.dtype}")
