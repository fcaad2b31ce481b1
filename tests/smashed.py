"""A base with HAMburger modules on it, and decoding with them written out plainly: no cache, all anew each time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jax_smash.cache import Block
from jax_smash.checkpoints.smasher import SmashModules
from jax_smash.loading import Model, grafted
from jax_smash.smash.config import SmashConfig
from jax_smash.smash.smasher import SmasherDef, random_smasher
from tests.tiny import tiny_model

WIDTH = 64
"""Entries that the plain way has room for."""


@functools.cache
def smashed_model(*, micro_steps: int = 4, spread: float = 12.0, stop_tokens: tuple[int, ...] = ()) -> Model:
    """Returns the two-layer model with modules that are spread enough for the lengths of groups to vary."""
    model = tiny_model(stop_tokens=stop_tokens)
    config = SmashConfig.for_base(model.config, micro_layers=1, micro_steps=micro_steps)
    graphdef, params = random_smasher(model.config, config, seed=5)
    params = jax.tree.map(lambda w: w * jnp.float32(spread) if w.ndim > 1 else w, params)
    # Most tokens were never seen; 7 most often, then 9.
    counts = np.zeros(model.config.vocab_size, np.int64)
    counts[[7, 9]] = 100, 50
    return grafted(
        model, SmashModules(config=config, definition=SmasherDef(graphdef), params=params, token_counts=counts)
    )


class Plainly:
    """One row, greedy, written out: every entry is read again for every token.

    Attributes:
      entries: the slots' vectors, and `positions`, theirs.
      pending: what was said and is in no slot.
      lengths: of the groups that got a slot.
    """

    def __init__(self, model: Model, bias: dict[int, float] | None = None):
        self.base = model.definition.bind(model.params["target"])
        self.smasher = model.modules.definition.bind(model.params["smasher"])
        self.steps = self.smasher.config.micro_steps
        self.entries, self.positions, self.pending, self.lengths = [], [], [], []
        self.bias = np.zeros(model.vocab_size, np.float32)
        for token, value in (bias or {}).items():
            self.bias[token] = value
        self._forward, self._micro = _functions(model)

    @property
    def next_position(self) -> int:
        """Where the next token stands."""
        return self.positions[-1] + 1 if self.positions else 0

    def read(self, tokens: list[int]) -> None:
        """Gives each of the pending tokens, and of these, a slot of its own."""
        for token in self.pending + tokens:
            self._slot([token])
        self.pending = []

    def blind(self, new: int, confidence: float, limit: int = 9) -> list[int]:
        """Says tokens as the modules say them."""
        said: list[int] = []
        while len(said) < new:
            if self.pending:
                self.lengths.append(len(self.pending))
                self._slot(self.pending)
            logits, prefix, hidden = self._last(self.entries, self.positions)
            self.pending = self._group(int(np.argmax(logits)), prefix, hidden, confidence, min(limit, new - len(said)))
            said += self.pending
        return said

    def checked(self, new: int, confidence: float, limit: int = 9) -> list[int]:
        """Says tokens as the base chooses them behind slots that hold what it agreed with."""
        logits, prefix, hidden = self._last(self.entries, self.positions)
        said = [int(np.argmax(logits))]
        while len(said) < new:
            group = self._group(said[-1], prefix, hidden, confidence, limit)
            kept = []
            for i, token in enumerate(group):
                if i and token != said[-1]:
                    break
                kept.append(token)
                vectors = [*self.entries, *(self._vector(t) for t in kept)]
                positions = [*self.positions, *range(self.next_position, self.next_position + len(kept))]
                said.append(int(np.argmax(self._last(vectors, positions)[0])))
                if len(said) == new:
                    break
            self.lengths.append(len(kept))
            self._slot(kept)
            _, prefix, hidden = self._last(self.entries, self.positions)
        self.pending = said[-1:]
        return said

    def _group(self, first: int, prefix, hidden, confidence: float, limit: int) -> list[int]:
        group = [first]
        while len(group) < min(self.steps, limit):
            vectors = np.zeros((1, self.steps, len(hidden)), np.float32)
            vectors[0, : len(group)] = [self._vector(t) for t in group]
            logits, stop = self._micro(prefix[None], hidden[None], vectors)
            if 1 / (1 + np.exp(np.float32(stop[0, len(group) - 1]))) < confidence:
                break
            group.append(int(np.argmax(logits[0, len(group)] + self.bias)))
        return group

    def _slot(self, tokens: list[int]) -> None:
        vectors = jnp.asarray(np.stack([self._vector(t) for t in tokens])[None])
        fused = self.smasher.fuse(vectors, jnp.asarray([len(tokens)], jnp.int32))
        self.positions.append(self.next_position + len(tokens) - 1)
        self.entries.append(np.asarray(fused[0]))

    def _vector(self, token: int) -> np.ndarray:
        return np.asarray(self.base.embed(jnp.asarray([[token]], jnp.int32))[0, 0])

    def _last(self, entries, positions):
        vectors = np.zeros((1, WIDTH, len(entries[0])), np.float32)
        vectors[0, : len(entries)] = entries
        position = np.zeros((1, WIDTH), np.int32)
        position[0, : len(positions)] = positions
        logits, prefix, hidden = self._forward(vectors, position, len(entries))
        return np.asarray(logits) + self.bias, np.asarray(prefix), np.asarray(hidden)


@functools.cache
def _compiled(definition, smasher):
    @jax.jit
    def forward(params, vectors, position, count):
        base, modules = definition.bind(params["target"]), smasher.bind(params["smasher"])
        out = base.forward(vectors, position, None, Block.causal(jnp.arange(WIDTH)[None] < count))
        prefix = modules.prefix(out.taps, out.hidden)[0, count - 1]
        return base.unembed(out.hidden[0, count - 1]), prefix, out.hidden[0, count - 1]

    @jax.jit
    def micro(params, prefix, hidden, vectors):
        base, modules = definition.bind(params["target"]), smasher.bind(params["smasher"])
        spoken = modules.spoken(prefix, hidden, vectors)
        return base.unembed(spoken), modules.stop_logits(spoken)

    return forward, micro


def _functions(model: Model):
    forward, micro = _compiled(model.definition, model.modules.definition)
    return functools.partial(forward, model.params), functools.partial(micro, model.params)
