"""A base with HAMburger modules on it, and decoding with them written out plainly: no cache, all anew each time."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from jax_smash.cache import Block
from jax_smash.checkpoints.smasher import SmashModules
from jax_smash.loading import Model, grafted
from jax_smash.sampling import choose
from jax_smash.smash.config import SmashConfig
from jax_smash.smash.options import SmashOptions
from jax_smash.smash.smasher import SmasherDef, random_smasher
from tests.tiny import tiny_model

WIDTH = 64
"""Entries that the plain way has room for."""


@functools.cache
def smashed_model(*, stop_tokens: tuple[int, ...] = (), **options) -> Model:
    """Returns the two-layer model with modules of `modules_for`."""
    model = tiny_model(stop_tokens=stop_tokens)
    return grafted(model, modules_for(model, **options))


def modules_for(model: Model, *, micro_steps: int = 4, spread: float = 12.0) -> SmashModules:
    """Returns modules that are spread enough for the lengths of groups to vary."""
    config = SmashConfig.for_base(model.config, micro_layers=1, micro_steps=micro_steps)
    graphdef, params = random_smasher(model.config, config, seed=5)
    params = jax.tree.map(lambda w: w * jnp.float32(spread) if w.ndim > 1 else w, params)
    # Most tokens were never seen; 7 most often, then 9.
    counts = np.zeros(model.config.vocab_size, np.int64)
    counts[[7, 9]] = 100, 50
    return SmashModules(
        config=config,
        definition=SmasherDef(graphdef),
        params=params,
        token_counts=counts,
        options=SmashOptions(token_confidence=0),  # Random modules are sure of nothing.
    )


class Plainly:
    """One row, written out: every entry is read again for every token.

    Args:
      model: with modules on it.
      bias: added to the logits of tokens.
      key: that the row's tokens are drawn with, at temperature 1; None for the likeliest ones.
      noise_at: of which place in the text the noise is, by the place of the group's first token and the token's index
        in the group. Other noise than that of a token's own place is a fault, made on purpose.
      sure: probability that the likeliest further token must have.

    Attributes:
      entries: the slots' vectors, and `positions`, theirs.
      pending: what was said and is in no slot.
      lengths: of the groups that got a slot.
    """

    def __init__(
        self,
        model: Model,
        bias: dict[int, float] | None = None,
        key=None,
        noise_at=lambda first, i: first + i,
        sure: float = 0.0,
    ):
        self.steps = model.modules.config.micro_steps
        self.key, self.noise_at, self.sure = key, noise_at, sure
        self.entries, self.positions, self.pending, self.lengths = [], [], [], []
        self.bias = np.zeros(model.vocab_size, np.float32)
        for token, value in (bias or {}).items():
            self.bias[token] = value
        self._forward, self._micro, self._fuse, embed = _functions(model)
        self._vectors = np.asarray(embed())

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
            self.pending = self.next_group(confidence, min(limit, new - len(said)))
            said += self.pending
        return said

    def next_group(self, confidence: float, limit: int) -> list[int]:
        """Gives the pending group its slot, and returns the next."""
        if self.pending:
            self.lengths.append(len(self.pending))
            self._slot(self.pending)
            self.pending = []
        logits, prefix, hidden = self._last(self.entries, self.positions)
        return self._group(self._chosen(logits, 0), prefix, hidden, confidence, limit)

    def checked(self, new: int, confidence: float, limit: int = 9) -> list[int]:
        """Says tokens as the base chooses them behind slots that hold what it agreed with."""
        logits, prefix, hidden = self._last(self.entries, self.positions)
        said = [self._chosen(logits, 0)]
        while len(said) < new:
            group = self._group(said[-1], prefix, hidden, confidence, limit)
            kept = []
            for i, token in enumerate(group):
                if i and token != said[-1]:
                    break
                kept.append(token)
                vectors = [*self.entries, *(self._vector(t) for t in kept)]
                positions = [*self.positions, *range(self.next_position, self.next_position + len(kept))]
                said.append(self._chosen(self._last(vectors, positions)[0], len(kept)))
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
            scores = np.asarray(logits[0, len(group)])
            if 1 / np.exp(scores - scores.max()).sum() < self.sure:
                break
            group.append(self._chosen(scores + self.bias, len(group)))
        return group

    def _chosen(self, logits: np.ndarray, index: int) -> int:
        """Returns the token at an index behind the slots: index 0 is the first that has none."""
        if self.key is None:
            return int(np.argmax(logits))
        return int(_drawn(logits, self.key, np.int32(self.noise_at(self.next_position, index))))

    def _slot(self, tokens: list[int]) -> None:
        fused = self._fuse(np.stack([self._vector(t) for t in tokens])[None])
        self.positions.append(self.next_position + len(tokens) - 1)
        self.entries.append(np.asarray(fused[0]))

    def _vector(self, token: int) -> np.ndarray:
        return self._vectors[token]

    def _last(self, entries, positions):
        vectors = np.zeros((1, WIDTH, len(entries[0])), np.float32)
        vectors[0, : len(entries)] = entries
        position = np.zeros((1, WIDTH), np.int32)
        position[0, : len(positions)] = positions
        logits, prefix, hidden = self._forward(vectors, position, len(entries))
        return np.asarray(logits) + self.bias, np.asarray(prefix), np.asarray(hidden)


def blind_together(rows: list[Plainly], new: int, confidence: float, share: float) -> list[list[int]]:
    """Says what the modules say of rows that end their groups together: where too few of those that run would go on.

    Args:
      rows: whose prompts are read.
      new: tokens of each.
      confidence: as in `Plainly.blind`.
      share: of the rows that run, those that must go on.
    """
    said: list[list[int]] = [[] for _ in rows]
    while running := [i for i, text in enumerate(said) if len(text) < new]:
        groups = {i: rows[i].next_group(confidence, new - len(said[i])) for i in running}
        made, least = 1, max(1, math.ceil(share * len(running)))
        while sum(len(group) > made for group in groups.values()) >= least:
            made += 1
        for i, group in groups.items():
            rows[i].pending = group[:made]
            said[i] += rows[i].pending
    return said


@jax.jit
def _drawn(logits, key, place):
    return choose(logits[None, None], key[None], place[None, None], sampled=True)[0, 0]


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

    @jax.jit
    def fuse(params, vectors):
        return smasher.bind(params["smasher"]).fuse(vectors, jnp.asarray([vectors.shape[1]], jnp.int32))

    @jax.jit
    def embed(params):
        base = definition.bind(params["target"])
        return base.embed(jnp.arange(base.vocab_size, dtype=jnp.int32)[None])[0]

    return forward, micro, fuse, embed


def _functions(model: Model):
    made = _compiled(model.definition, model.modules.definition)
    return tuple(functools.partial(function, model.params) for function in made)
