"""HAMburger, checked: the base reads the tokens of a group and their fusions at once and keeps what it agrees with."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jax_smash.cache import Block
from jax_smash.decode.groups import FusedDecoding, kept_of
from jax_smash.decode.state import DecodeState, committed, context, emit, processed_logits, running_rows
from jax_smash.draft.micro import drafted_group
from jax_smash.draft.trees.tree import pack
from jax_smash.protocols import CausalLM, Params
from jax_smash.pytree import replace
from jax_smash.sampling import choose, log_probabilities
from jax_smash.sharding import constrain
from jax_smash.smash.entry import chosen_entry, entry_at
from jax_smash.smash.macro_step import Group
from jax_smash.smash.smasher import Smasher


@dataclasses.dataclass(frozen=True)
class CheckedDecoding(FusedDecoding):
    """The strategy that fuses only the tokens that the base itself would have chosen after the slots that it has.

    Let n be `longest`. One forward reads the n tokens of a group in order, and the n − 1 fusions of their prefixes.
    Each fusion sees the cache and itself. A group of one token needs no fusion.

    The base's choice after a token checks the next token. The fusion of the agreed prefix is committed as one slot. The
    base's choice after the last agreed *token* begins the next group, because that entry has read all tokens unfused.
    The micro-step decoder continues from the entry of the committed *fusion*, which is the kind that it was trained on.

    The text is not that of plain decoding, since the base reads fused slots. The rows share `GroupLimits`.

    Differs from Liu and Zhang 2025, HAMburger, section 3: there nothing checks a group.

    Attributes:
      longest: the most tokens of a group, and the number of tokens that every step reads. The limits that the rows
        share allow no more.
    """

    longest: int = dataclasses.field(kw_only=True)

    def start(self, params: Params, state: DecodeState) -> DecodeState:
        """Emits the token after the prompt."""
        rows = state.rows
        logits = constrain(self._bound(params)[0].unembed(rows.last_hidden), "batch")[:, None]
        choice = self._choice(state, logits, jnp.zeros((*logits.shape[:2], 0), jnp.int32))
        return self._emitted(state, choice, logits, jnp.ones_like(rows.finish))

    def step(self, params: Params, state: DecodeState) -> DecodeState:
        """Proposes a group after the pending token, checks it, and emits the agreed tokens and one more."""
        rows, kept, limits = state.rows, kept_of(state), state.shared.memory["limits"]
        base, smasher = self._bound(params)
        running = running_rows(state)
        with jax.named_scope("draft"):
            group, micro_steps = drafted_group(
                base, smasher, params, context(state), kept.entry, limits=limits, sampled=self.sampled
            )
        steps = self.longest
        group = replace(group, tokens=group.tokens[:, :steps])
        inputs, position, block = group_block(base, smasher, group, rows.token_length - 1)
        with jax.named_scope("verify"):
            out = base.forward(inputs, position, rows.cache, block)
        with jax.named_scope("choose"):
            logits = constrain(base.unembed(out.hidden[:, :steps]), "batch")
            choice = self._choice(state, logits, paths(group))
        valid = block.valid[:, 1:steps]
        agrees = (choice[:, :-1] == group.tokens[:, 1:]) & valid
        agreed = 1 + jnp.cumprod(agrees, axis=1, dtype=jnp.int32).sum(1, dtype=jnp.int32)
        emitted = self._emitted(state, choice, logits, agreed)
        # As many tokens share the slot as were emitted; nothing after a token that ends the text was read.
        count = emitted.rows.output_length - rows.output_length
        place = jnp.where(count > 1, steps + count - 2, 0)
        entry = chosen_entry(running, entry_at(smasher, out.taps, out.hidden, place), kept.entry)
        kept = replace(kept, entry=entry).counted(count, micro_steps, running)
        state = committed(emitted, out.block_kv, position, running.astype(jnp.int32), place[:, None], ran=running)
        return replace(state, rows=state.rows.remembering(smasher=kept))

    def _choice(
        self, state: DecodeState, logits: Float[Array, "B P V"], path: Int[Array, "B P levels"]
    ) -> Int[Array, "B P"]:
        """Returns the base's choice after each token."""
        place = state.rows.token_length[:, None] + jnp.arange(logits.shape[1], dtype=jnp.int32)[None]
        return choose(processed_logits(state, logits, path), state.rows.key, place, sampled=self.sampled)

    def _emitted(
        self, state: DecodeState, token: Int[Array, "B P"], logits: Float[Array, "B P V"], count: Int[Array, "B"]
    ) -> DecodeState:
        chosen = jnp.take_along_axis(logits, token[:, :, None], axis=2)[:, :, 0]
        log_probs = None if self.log_probs is None else log_probabilities(logits, token, self.log_probs)
        return emit(state, token, chosen, count, log_probs=log_probs)


def group_block(
    base: CausalLM, smasher: Smasher, group: Group, first: Int[Array, "B"]
) -> tuple[Float[Array, "B T D"], Int[Array, "B T"], Block]:
    """Returns the entries that check a group: its tokens, then the fusions of its first 2, 3, … tokens.

    Args:
      base: the base, bound to its parameters.
      smasher: the grafted modules, bound to theirs.
      group: up to J tokens per row, of which the first `count` are valid.
      first: position of the first token of each group.

    Returns:
      The vectors of the entries; their positions, where a fusion has that of its last token; and which entry sees
      which: a token sees the tokens before it and itself, a fusion only itself.
    """
    batch, steps = group.tokens.shape
    vectors = base.embed(group.tokens)
    place = jnp.concatenate([jnp.arange(steps, dtype=jnp.int32), jnp.arange(1, steps, dtype=jnp.int32)])[None]
    lengths = jnp.broadcast_to(jnp.arange(2, steps + 1, dtype=jnp.int32)[None], (batch, steps - 1))
    prefixes = jnp.broadcast_to(vectors[:, None], (batch, steps - 1, *vectors.shape[1:]))
    inputs = vectors if steps == 1 else jnp.concatenate([vectors, smasher.fuse(prefixes, lengths)], axis=1)
    entry = jnp.arange(2 * steps - 1, dtype=jnp.int32)
    seen = ((entry[None] <= entry[:, None]) & (entry[None] < steps) & (entry[:, None] < steps)) | (
        entry[None] == entry[:, None]
    )
    words = pack(seen)
    block = Block(
        valid=place < group.count[:, None],
        ancestors=jnp.broadcast_to(words[None], (batch, *words.shape)),
    )
    return inputs, first[:, None] + place, block


def paths(group: Group) -> Int[Array, "B J levels"]:
    """Returns the tokens from the second of a group up to each token (included), padded with −1."""
    steps = group.tokens.shape[1]
    given = jnp.tril(jnp.ones((steps, steps), bool))[None, :, 1:]
    behind = jnp.broadcast_to(group.tokens[:, None, 1:], (group.tokens.shape[0], steps, steps - 1))
    return jnp.where(given, behind, -1)
