"""Decodes a model that is not one of jax_smash's own: a recurrent one, written in plain JAX.

It offers what `CausalLM` asks for (`embed`, `forward`, `unembed`, `init_cache`) and a cache with one write, `commit`.
That is enough for `generate`, for batches, for sampling, for streaming, and for drafting chains: a recurrence reads a
chain in one forward as it reads a prompt. Draft trees that branch are refused, for here every entry sees all before it;
a model whose entries see exactly what `block` says has `tree_blocks = True`. A recurrent one steps each entry from its
parent (`block.parents()`) and commits the steps that were kept.

    python docs/examples/another_model.py
"""

import dataclasses

import jax
import jax.numpy as jnp

import jax_smash
from jax_smash.pytree import pytree, replace

VOCABULARY, WIDTH = 256, 64


@pytree
class Memory:
    """The recurrent state of each row; it stands where a transformer has keys and values."""

    state: jax.Array  # [B, D]
    slot_length: jax.Array  # [B]

    def commit(self, block_kv, write):
        """Steps the state over the entries of the block that are kept."""
        entries, count = block_kv[0][0], write.count
        if write.path is not None:
            entries = jnp.take_along_axis(entries, write.path[:, :, None], axis=1)

        def step(state, x):
            entry, written = x
            return jnp.where(written[:, None], 0.9 * state + entry, state), None

        written = jnp.arange(entries.shape[1])[None] < count[:, None]
        state, _ = jax.lax.scan(step, self.state, (entries.swapaxes(0, 1), written.T))
        return replace(self, state=state, slot_length=self.slot_length + count)


@dataclasses.dataclass(frozen=True)
class Recurrent:
    """state = 0.9 · state + x; logits = tanh(state) · Wᵀ."""

    params: dict

    vocab_size = VOCABULARY
    tree_blocks = False

    def embed(self, tokens):
        return self.params["embedding"][tokens]

    def forward(self, inputs, position, cache, block, policy=None):
        def step(state, x):
            entry, valid = x
            state = jnp.where(valid[:, None], 0.9 * state + entry, state)
            return state, state

        _, states = jax.lax.scan(step, cache.state, (inputs.swapaxes(0, 1), block.valid.T))
        hidden = jnp.tanh(states.swapaxes(0, 1))
        return jax_smash.Forward(hidden=hidden, taps=(inputs, hidden), block_kv=((inputs, inputs),))

    def unembed(self, hidden):
        return hidden @ self.params["head"].T

    def init_cache(self, batch, slots, block):
        return Memory(state=jnp.zeros((batch, WIDTH)), slot_length=jnp.zeros((batch,), jnp.int32))


@dataclasses.dataclass(frozen=True)
class RecurrentDef:
    """The model without its parameters; a strategy holds this."""

    def bind(self, params):
        return Recurrent(params)


def make() -> jax_smash.Model:
    """Returns a randomly initialised model, ready for `generate`."""
    first, second = jax.random.split(jax.random.key(0))
    params = {
        "embedding": jax.random.normal(first, (VOCABULARY, WIDTH)),
        "head": jax.random.normal(second, (VOCABULARY, WIDTH)),
    }
    return jax_smash.Model(name="recurrent", definition=RecurrentDef(), params={"target": params})


if __name__ == "__main__":
    prompts, chain = [[72, 101, 108], [1, 2, 3, 4]], jax_smash.DraftOptions(tree="chain-4")
    for completion in jax_smash.generate(make(), prompts, max_new_tokens=12):
        print(completion.token_ids)
    for completion in jax_smash.generate(make(), prompts, max_new_tokens=12, method="suffix", draft=chain):
        print(completion.token_ids, completion.target_forwards, "forwards")
