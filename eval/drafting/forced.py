"""What a drafter makes of each depth of a chain that is forced along a text, beside its cache, as in decoding."""

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jax_smash.cache import Block, KVCache, Write
from jax_smash.draft.chimera import ChimeraDrafter
from jax_smash.draft.context import Seen
from jax_smash.draft.dflash import DFlashDrafter, DFlashRows
from jax_smash.draft.eagle import EagleDrafter, EagleRows
from jax_smash.draft.medusa import MedusaDrafter, MedusaRows
from jax_smash.draft.micro import Micro
from jax_smash.draft.trees.tree import pack
from jax_smash.models.grams import grams_of
from jax_smash.models.short_head import saying
from jax_smash.protocols import Drafter, Params
from jax_smash.pytree import pytree
from jax_smash.smash.entry import Entry, last_entry
from jax_smash.smash.micro_head import micro_logits


class Forced(Protocol):
    """A drafter whose chain takes the text's tokens in place of those that it guesses itself.

    Depth d (from 0) guesses the token behind the first d tokens that follow the pending one. So every depth is judged
    behind the same text, whatever the depths before it guessed.
    """

    @property
    def depths(self) -> int | None:
        """Depths that the drafter has; None for as many as are asked for."""
        ...

    def begin(self, params: Params, batch: int, slots: int) -> Any:
        """Makes what is kept of rows that have seen nothing."""
        ...

    def read(self, params: Params, own: Any, seen: Seen) -> Any:
        """Reads tokens that the target has read."""
        ...

    def chain(self, params: Params, own: Any, ahead: Int[Array, "B depths"], root: Int[Array, "B"]) -> Array:
        """Returns what rows of tokens are multiplied with, of each depth: `[B, depths, D]`.

        Args:
          params: of every module that decodes.
          own: what is kept of rows whose target has read all tokens before `root`.
          ahead: the pending token, and those of the text behind it.
          root: position of the pending token.
        """
        ...

    def logits(self, params: Params, made: Float[Array, "B depths D"]) -> Float[Array, "B depths V"]:
        """Returns the logits of each depth; minus infinity for a token that the drafter cannot say."""
        ...


@dataclasses.dataclass(frozen=True)
class _Read:
    """What the drafter keeps itself, it keeps as in decoding."""

    drafter: Any

    def begin(self, params: Params, batch: int, slots: int) -> Any:
        return self.drafter.init(params, batch, slots, 1)

    def read(self, params: Params, own: Any, seen: Seen) -> Any:
        return self.drafter.read(params, own, None, seen)[0]

    def _model(self, params: Params) -> Any:
        return self.drafter.model.bind(params["drafter"])

    def _target(self, params: Params) -> Any:
        return self.drafter.target.bind(params["target"])

    def _said_by(self, params: Params) -> Any:
        return saying(self.drafter.target, params)


@dataclasses.dataclass(frozen=True)
class ForcedMedusa(_Read):
    """Medusa's heads, which know nothing of the tokens behind the last that the target has read."""

    depths: int

    def chain(self, params: Params, own: MedusaRows, ahead: Int[Array, "B depths"], root: Int[Array, "B"]) -> Array:
        """Returns the heads' vectors."""
        return jnp.moveaxis(self._model(params).vectors(own.last[:, None])[:, :, 0], 0, 1)[:, : ahead.shape[1]]

    def logits(self, params: Params, made: Float[Array, "B depths D"]) -> Float[Array, "B depths V"]:
        """Returns those of each head's own rows, or of the target's."""
        by_head = jnp.moveaxis(jnp.pad(made, ((0, 0), (0, self.depths - made.shape[1]), (0, 0))), 1, 0)
        logits = self._model(params).unembed(by_head[:, :, None], self._said_by(params))
        return jnp.moveaxis(logits[:, :, 0], 0, 1)[:, : made.shape[1]]


@dataclasses.dataclass(frozen=True)
class ForcedEagle(_Read):
    """EAGLE's layer: behind the first, each entry has the feature that the drafter made of the entry before it."""

    depths: int | None = None

    def chain(self, params: Params, own: EagleRows, ahead: Int[Array, "B depths"], root: Int[Array, "B"]) -> Array:
        """Returns what the head reads of each entry."""
        model, count = self._model(params), ahead.shape[1]
        vectors = self._target(params).embed(ahead)
        position = root[:, None] - 1 + jnp.arange(count, dtype=jnp.int32)[None]
        block = Block.causal(jnp.ones(ahead.shape, bool))
        feature = jnp.zeros((*ahead.shape, own.last.shape[1]), own.last.dtype).at[:, 0].set(own.last)

        def step(feature: Array, depth: Int[Array, ""]) -> tuple[Array, Array]:
            # Entries behind this one are not seen, so what stands there does not matter yet.
            out = model.forward(vectors, feature, position, own.cache, block)
            made, fed = (jax.lax.dynamic_index_in_dim(x, depth, 1, keepdims=False) for x in (out.hidden, out.feature))
            return feature.at[:, depth + 1].set(fed, mode="drop"), made

        _, made = jax.lax.scan(step, feature, jnp.arange(count, dtype=jnp.int32))
        return jnp.moveaxis(made, 0, 1)

    def logits(self, params: Params, made: Float[Array, "B depths D"]) -> Float[Array, "B depths V"]:
        """Returns those of the drafter's head, or of the target's."""
        return self._model(params).logits(made, self._said_by(params))


@dataclasses.dataclass(frozen=True)
class ForcedChimera(_Read):
    """Chimera: a head a depth, which reads what the layer makes of the gram that ends there."""

    depths: int

    def chain(self, params: Params, own: Any, ahead: Int[Array, "B depths"], root: Int[Array, "B"]) -> Array:
        """Returns the heads' vectors."""
        model = self._model(params)
        position = root[:, None] + jnp.arange(ahead.shape[1], dtype=jnp.int32)[None]
        block = Block.causal(jnp.ones(ahead.shape, bool))
        codes = self._codes(params, own, ahead, position, block)
        return heads_of(model, own.last, model.forward(codes, position, own.cache, block).hidden)

    def logits(self, params: Params, made: Float[Array, "B depths D"]) -> Float[Array, "B depths V"]:
        """Returns those of the target's rows."""
        return self._said_by(params).unembed(made)

    def _codes(self, params: Params, own: Any, ahead: Array, position: Array, block: Block) -> Array:
        """Returns the code of each entry of the chain."""
        return self._model(params).codes(grams_of(own.recent, ahead), self._target(params))


@pytree
class TextRows:
    """What is kept of each row for a Chimera drafter that encodes texts.

    Attributes:
      cache: of its layer, as in `ChimeraRows`.
      encoder: the encoder's own, with an entry for each token that the target has read.
      last: as in `ChimeraRows`.
    """

    cache: KVCache
    encoder: KVCache
    last: Float[Array, "B D"]


@dataclasses.dataclass(frozen=True)
class ForcedTextChimera(ForcedChimera):
    """Chimera with a layer over all of the text in place of grams, with which no method drafts."""

    def begin(self, params: Params, batch: int, slots: int) -> TextRows:
        """Makes both caches."""
        model = self._model(params)
        last = jnp.zeros((batch, model.config.d_model), model.dtype)
        encoder = model.init_text_cache(batch, slots, 1)
        return TextRows(cache=model.init_cache(batch, slots, 1), encoder=encoder, last=last)

    def read(self, params: Params, own: TextRows, seen: Seen) -> TextRows:
        """Reads one token: its code and the target's state of it."""
        model, block = self._model(params), Block.causal(seen.valid)
        code, made = model.text_codes(seen.token, seen.position, own.encoder, block, self._target(params))
        entries = jnp.concatenate([seen.hidden.astype(code.dtype), code], axis=1)
        position, valid = (jnp.concatenate([x, x], axis=1) for x in (seen.position, seen.valid))
        out = model.forward(entries, position, own.cache, Block.causal(valid))
        last = jnp.where(seen.valid, seen.hidden[:, 0].astype(own.last.dtype), own.last)
        return TextRows(
            cache=own.cache.commit(out.block_kv, Write(position=position, count=2 * seen.count)),
            encoder=own.encoder.commit(made, Write(position=seen.position, count=seen.count)),
            last=last,
        )

    def _codes(self, params: Params, own: Any, ahead: Array, position: Array, block: Block) -> Array:
        return self._model(params).text_codes(ahead, position, own.encoder, block, self._target(params))[0]


def heads_of(model: Any, last: Float[Array, "B D"], full: Float[Array, "B depths D"]) -> Float[Array, "B depths D"]:
    """Returns what Chimera's heads make of the layer's states of a chain, each depth its own head's."""
    made = [model.vectors(last[:, None], full[:, h : h + 1], h) for h in range(full.shape[1])]
    return jnp.concatenate(made, axis=1)


@dataclasses.dataclass(frozen=True)
class ForcedDFlash(_Read):
    """DFlash: a masked entry a depth, none of which knows the tokens of the others."""

    depths: int

    def chain(self, params: Params, own: DFlashRows, ahead: Int[Array, "B depths"], root: Int[Array, "B"]) -> Array:
        """Returns what the layers make of the masked entries."""
        model = self._model(params)
        vectors = model.masked(ahead[:, :1], self._target(params))[:, 0]
        batch, length = vectors.shape[:2]
        position = root[:, None] + jnp.arange(length, dtype=jnp.int32)[None]
        everything = jnp.ones((batch, length, length), bool)
        block = Block(valid=everything[:, 0], ancestors=pack(everything))
        return model.filled(vectors, position, own.cache, block)[:, 1 : 1 + ahead.shape[1]]

    def logits(self, params: Params, made: Float[Array, "B depths D"]) -> Float[Array, "B depths V"]:
        """Returns those of the target's rows."""
        return self._said_by(params).unembed(made)


@dataclasses.dataclass(frozen=True)
class ForcedMicro(_Read):
    """HAMburger's micro-step decoder, which reads the tokens before each depth; its stop head ends nothing."""

    depths: int

    def read(self, params: Params, own: Entry, seen: Seen) -> Entry:
        """Keeps the last token's entry."""
        smasher = self.drafter.smasher.bind(params["smasher"])
        return last_entry(smasher, own, seen.valid, seen.taps, seen.hidden)

    def chain(self, params: Params, own: Entry, ahead: Int[Array, "B depths"], root: Int[Array, "B"]) -> Array:
        """Returns what the decoder makes of each token behind the entry that the pending one was read from."""
        smasher = self.drafter.smasher.bind(params["smasher"])
        return smasher.micro_decoder.taught(own.prefix, self._target(params).embed(ahead))

    def logits(self, params: Params, made: Float[Array, "B depths D"]) -> Float[Array, "B depths V"]:
        """Returns those of the micro head, or of the target's."""
        logits = micro_logits(self._target(params), params, made.reshape(-1, made.shape[-1]))
        return logits.reshape(*made.shape[:2], -1)


def forced(drafter: Drafter, config: Any) -> Forced:
    """Returns a method's drafter with its chain forced.

    Args:
      drafter: of the method.
      config: of its modules.

    Raises:
      TypeError: it is of no kind that is trained.
    """
    if isinstance(drafter, MedusaDrafter):
        return ForcedMedusa(drafter, config.num_heads)
    if isinstance(drafter, EagleDrafter):
        return ForcedEagle(drafter)
    if isinstance(drafter, ChimeraDrafter):
        kind = ForcedTextChimera if config.encodes_text else ForcedChimera
        return kind(drafter, config.decoding_heads)
    if isinstance(drafter, DFlashDrafter):
        return ForcedDFlash(drafter, config.block_size - 1)
    if isinstance(drafter, Micro):
        return ForcedMicro(drafter, config.micro_steps - 1)
    raise TypeError(f"chains of trained drafters alone can be forced; got {type(drafter).__name__}")
