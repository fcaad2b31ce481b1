"""The small decoder that says a group's tokens behind its first, from what the base computed for the slot before."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jax_smash.cache import EMPTY, Block, LayerCache
from jax_smash.config import ModelConfig
from jax_smash.models.layers import Layer
from jax_smash.models.rope import rotation
from jax_smash.pytree import pytree
from jax_smash.sharding import constrain
from jax_smash.smash.config import SmashConfig, micro_model


@pytree
class MicroCache:
    """Keys and values of one macro-step. It is made anew for each: nothing of an earlier one is in it.

    All rows read the same number of entries: a row whose group has ended reads on, and nobody listens.

    Attributes:
      keys, values: one array a layer.
      entries: how many slots are filled, from the front.
    """

    keys: tuple[Float[Array, "B K S H"], ...]
    values: tuple[Float[Array, "B K S H"], ...]
    entries: Int[Array, ""]

    def layer(self, layer: int) -> LayerCache:
        """Returns what one layer's attention reads."""
        rows, _, slots, _ = self.keys[layer].shape
        slot = jnp.arange(slots, dtype=jnp.int32)
        position = jnp.broadcast_to(jnp.where(slot < self.entries, slot, EMPTY)[None], (rows, slots))
        return LayerCache(keys=self.keys[layer], values=self.values[layer], position=position)


class MicroDecoder(nnx.Module):
    """Layers of the base's own shape over the tapped vectors of one slot, then the tokens of the next group so far.

    Entries have positions from 0. There is no norm behind the last layer; logits are the base's head's.

    Source: Liu and Zhang 2025, HAMburger, section 3 ("micro-step decoder").
    """

    def __init__(self, base: ModelConfig, config: SmashConfig, *, rngs: nnx.Rngs, dtype: Any):
        self.config = micro_model(base, config.micro_layers)
        self.taps = len(config.tapped_layers)
        self.slots = self.taps + config.micro_steps - 1
        self.layers = nnx.List([Layer(self.config, "full", rngs=rngs, dtype=dtype) for _ in range(config.micro_layers)])

    @property
    def dtype(self) -> Any:
        """What the decoder computes in."""
        return self.layers[0].dtype

    def taught(
        self,
        prefix: Float[Array, "*batch taps D"],
        vectors: Float[Array, "*batch given D"],
        *,
        remat: bool = False,
    ) -> Float[Array, "*batch given D"]:
        """Returns the hidden vector behind each given token: what the token after it is read from.

        Args:
          prefix: tapped vectors of the slot before the group, from `tap_prefix`.
          vectors: of the group's first J − 1 tokens at most; one after another, so what is behind a group's last
            token changes nothing before it.
          remat: keep each layer's input alone, and run the layer again for its gradient.
        """
        entries = jnp.concatenate([prefix, vectors], axis=-2)
        rows = entries.reshape(-1, *entries.shape[-2:]).astype(self.dtype)
        position = jnp.broadcast_to(jnp.arange(rows.shape[1], dtype=jnp.int32)[None], rows.shape[:2])
        angles = rotation(self.config.rope, self.config.head_width, position)
        block = Block.causal(jnp.ones(rows.shape[:2], bool))

        given = vectors.shape[-2]

        def run(graphdef: nnx.GraphDef, asked: int | None, state: Any, x: Array) -> Array:
            layer: Layer = nnx.merge(graphdef, state)
            return layer(x, position, angles, None, block, asked)[0]

        for i, layer in enumerate(self.layers):
            graphdef, state = nnx.split(layer)
            asked = given if i == len(self.layers) - 1 else None
            rows = (jax.checkpoint(run, static_argnums=(0, 1)) if remat else run)(graphdef, asked, state, rows)
        return rows.reshape(vectors.shape).astype(vectors.dtype)

    def init_cache(self, batch: int) -> MicroCache:
        """Makes the empty cache of a macro-step."""
        shape = (batch, self.config.held_kv_heads, self.slots, self.config.head_width)
        empty = tuple(jnp.zeros(shape, self.dtype) for _ in self.layers)
        return MicroCache(keys=empty, values=empty, entries=jnp.zeros((), jnp.int32))

    def read(self, entries: Float[Array, "B T D"], cache: MicroCache) -> tuple[Float[Array, "B D"], MicroCache]:
        """Reads entries behind those in the cache; returns the hidden vector behind the last, and the cache with them.

        The first call of a macro-step reads the tapped vectors and the group's first token at once, so that the
        weights are read no more often than there are micro-steps; each later one a token. Behind the last layer nothing
        but the last entry is read, so that layer gives the others keys and values alone.

        Args:
          entries: vectors; there must be room for them among the taps + J − 1 slots.
          cache: from `init_cache` or an earlier call.
        """
        # As the weights are divided: with whole vectors, these would be gathered.
        x, width = constrain(entries.astype(self.dtype), "rows", None, "embed"), entries.shape[1]
        offset = cache.entries + jnp.arange(width, dtype=jnp.int32)
        position = jnp.broadcast_to(offset[None], entries.shape[:2])
        angles = rotation(self.config.rope, self.config.head_width, position)
        block = Block.causal(jnp.ones(entries.shape[:2], bool))
        keys, values = [], []
        for i, layer in enumerate(self.layers):
            asked = 1 if i == len(self.layers) - 1 else None
            x, (key, value) = layer(x, position, angles, cache.layer(i), block, asked)
            keys.append(_written(cache.keys[i], key, cache.entries))
            values.append(_written(cache.values[i], value, cache.entries))
        filled = MicroCache(keys=tuple(keys), values=tuple(values), entries=cache.entries + width)
        return x[:, -1].astype(entries.dtype), filled


def tap_prefix(
    config: SmashConfig,
    taps: Sequence[Float[Array, "B T D"]] | Mapping[int, Float[Array, "B T D"]],
    hidden: Float[Array, "B T D"],
    num_layers: int,
) -> Float[Array, "B T taps D"]:
    """Returns what the micro-step decoder reads of each entry of a forward of the base.

    Args:
      config: names the tapped layers.
      taps: of the forward, by number: tap i + 1 is the output of layer i.
      hidden: of the forward, after the final norm: it stands for the output of the last layer.
      num_layers: of the base.
    """
    read = [hidden if tap is None else taps[tap] for tap in config.tap_numbers(num_layers)]
    return jnp.stack(read, axis=2)


def _written(
    array: Float[Array, "B K S H"], entries: Float[Array, "B T K H"], slot: Int[Array, ""]
) -> Float[Array, "B K S H"]:
    zero = jnp.zeros((), jnp.int32)
    return jax.lax.dynamic_update_slice(
        array, entries.transpose(0, 2, 1, 3).astype(array.dtype), (zero, zero, slot, zero)
    )
