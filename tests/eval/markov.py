"""A model whose next token depends on the last one alone, so that what a drafter makes of it can be worked by hand."""

import dataclasses

import jax
import jax.numpy as jnp

from jax_smash.loading import Model
from jax_smash.protocols import Forward
from jax_smash.pytree import pytree, replace


@pytree
class Nothing:
    """A cache that holds nothing but a count."""

    slot_length: jax.Array

    @property
    def slots(self) -> int:
        """There is always room."""
        return 2**20

    def commit(self, block_kv, write):
        """Counts."""
        return replace(self, slot_length=self.slot_length + write.count)


@dataclasses.dataclass(frozen=True)
class Markov:
    """logits = table[token]."""

    params: dict

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.params["table"].shape[0]

    def embed(self, tokens):
        """Returns a token's row."""
        return self.params["table"][tokens]

    def forward(self, inputs, position, cache, block, policy=None):
        """Reads nothing but the inputs."""
        empty = jnp.zeros((*inputs.shape[:2], 1, 1), jnp.float32)
        return Forward(hidden=inputs, taps=(inputs,), block_kv=((empty, empty),))

    def unembed(self, hidden):
        """Returns the row."""
        return hidden

    def init_cache(self, batch, slots, block):
        """Makes the count."""
        return Nothing(slot_length=jnp.zeros((batch,), jnp.int32))


@dataclasses.dataclass(frozen=True)
class MarkovDef:
    """The model without its table."""

    def bind(self, params):
        """Returns it with its table."""
        return Markov(params)


class Letters:
    """A tokenizer of one letter a token; what is no letter has none."""

    chat_template = None
    eos_token_id = None

    def __call__(self, text):
        return {"input_ids": [ord(c) - ord("a") for c in text if c.isalpha()]}

    def decode(self, tokens, skip_special_tokens=True):
        """Returns the letters."""
        return "".join(chr(ord("a") + t) for t in tokens)

    def get_vocab(self):
        """Returns the letters' ids."""
        return {c: i for i, c in enumerate("abcdefghijkl")}


def markov_model(following: list[list[int]], *, stop_tokens: tuple[int, ...] = ()) -> Model:
    """Returns a model of as many letters as there are lists; a list names what follows its letter, likeliest first."""
    size = len(following)
    table = jnp.zeros((size, size), jnp.float32)
    for token, ranks in enumerate(following):
        for rank, after in enumerate(ranks):
            table = table.at[token, after].set(float(size - rank))
    return Model(
        name="markov",
        definition=MarkovDef(),
        params={"target": {"table": table}},
        tokenizer=Letters(),
        stop_tokens=stop_tokens,
    )


def ring(size: int, **options) -> Model:
    """Returns a model that says the letters in order, and the first after the last."""
    return markov_model([[(i + 1) % size] for i in range(size)], **options)
