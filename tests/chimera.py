"""A Chimera drafter with random weights, and what it proposes written out plainly: NumPy, no cache, no tree."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jax_smash.checkpoints.chimera import ChimeraModules
from jax_smash.loading import Model
from jax_smash.models.chimera import random_chimera
from jax_smash.models.chimera_config import ChimeraConfig
from jax_smash.models.definition import NnxModel
from tests.eagle import vectors_and_rows
from tests.medusa import hidden_states


def random_drafter(model: Model, *, seed: int = 4, **changes) -> ChimeraModules:
    """Returns a drafter whose weights are spread enough for its drafts to vary.

    Args:
      model: the target.
      seed: of its weights.
      changes: fields of its configuration that are not the usual ones.
    """
    config = ChimeraConfig.for_target(model.config, **changes)
    graphdef, params = random_chimera(config, seed)
    rng = np.random.default_rng(seed)
    filled = jax.tree.map(lambda w: w + jnp.asarray(rng.normal(0, 0.3, w.shape), w.dtype), params)
    return ChimeraModules(config=config, definition=NnxModel(graphdef), params=filled)


class PlainChimera:
    """The drafter for one row, written out: for each node all entries are read again.

    Args:
      model: the target.
      drafter: its drafter.
      shift: tokens that the target's hidden states are moved by against the grams; 0 is right.
    """

    def __init__(self, model: Model, drafter: ChimeraModules, shift: int = 0):
        self.config, self.shift = drafter.config, shift
        self._hidden = functools.partial(hidden_states(model.definition), model.params["target"])
        self._embedding, rows = vectors_and_rows(model)
        self._said = np.arange(len(rows)) if drafter.tokens is None else drafter.tokens
        self._rows = rows[self._said]
        self._codes: dict[tuple[int, ...], np.ndarray] = {}
        self.weights = jax.tree.map(lambda w: np.asarray(w, np.float64), nnx.to_pure_dict(drafter.params))

    def tree(self, topology, text: list[int], chosen=None) -> list[int]:
        """Returns the tokens of a tree behind a text, −1 where nothing is proposed.

        Args:
          topology: of the tree.
          text: tokens, the last of which the target has not read.
          chosen: from the logits of all tokens and those behind the text to the values that tokens are ranked by.
        """
        hidden, *_ = self.begin(text)
        token, paths = [text[-1]], {0: []}
        parents, ranks, depths = (np.asarray(x).tolist() for x in (topology.parent, topology.rank, topology.depth))
        for node in range(1, topology.nodes):
            above, head = parents[node], depths[node] - 1
            position = len(text) - 1 + head
            if token[above] < 0 or head >= self.config.decoding_heads or position >= self.config.max_positions:
                token.append(-1)
                continue
            logits = self.logits(hidden, [*text, *paths[above]], head)
            values = logits if chosen is None else chosen(logits, paths[above])
            ranked = np.argsort(-values, kind="stable")
            token.append(int(ranked[ranks[node]]) if np.isfinite(values[ranked[ranks[node]]]) else -1)
            paths[node] = [*paths[above], token[-1]]
        return token

    def begin(self, text: list[int]):
        """Returns what there is to guess from behind a text, the last token of which the target has not read."""
        return np.roll(np.asarray(self._hidden(text), np.float64), -self.shift, axis=0), text, 0

    def guess(self, read):
        """Returns the logits of all tokens behind what there is, and what there is behind a token of them.

        Behind the last head and the last position there are no logits.
        """
        hidden, text, head = read
        known = head < self.config.decoding_heads and len(text) - 1 < self.config.max_positions
        return self.logits(hidden, text, head) if known else None, lambda token: (hidden, [*text, token], head + 1)

    def logits(self, hidden: np.ndarray, text: list[int], head: int) -> np.ndarray:
        """Returns a head's logits of the token behind a text, of which the target has read as many as it has states."""
        full = self.full(hidden, text)
        vector = full + np.concatenate([hidden[-1], full]) @ self.weights["heads"][head]
        logits = np.full(self.config.vocab_size, -np.inf)
        logits[self._said] = self._rows @ vector
        return logits

    def full(self, hidden: np.ndarray, text: list[int]) -> np.ndarray:
        """Returns what the layer makes of the last token of a text."""
        w = self.weights["layer"]
        codes = np.stack([self.code(text[: i + 1]) for i in range(len(text))])
        entries = np.concatenate([hidden, codes])
        place = np.concatenate([np.arange(len(hidden)), np.arange(len(text))])
        x = codes[-1] + self._attended(self._normed(entries, w["attention_norm"]), place)
        gate, up = (self._normed(x, w["mlp_norm"]) @ half for half in w["mlp"]["w_gate_up"])
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w["mlp"]["w_down"]
        return self._normed(x, self.weights["final_norm"])

    def code(self, text: list[int]) -> np.ndarray:
        """Returns the code of the gram that a text ends with."""
        gram = tuple(text[-self.config.gram :])
        if gram not in self._codes:
            self._codes[gram] = self._made(text)
        return self._codes[gram]

    def _made(self, text: list[int]) -> np.ndarray:
        w, gram = self.weights["grams"], self.config.gram
        vectors = [self._embedding[token] for token in text[-gram:]]
        missing = [np.zeros_like(vectors[0]) if self.config.gram_encoder == "mlp" else vectors[0]]
        x = np.concatenate([*missing * (gram - len(vectors)), *vectors])
        if self.config.gram_encoder == "mlp":
            made = x @ w["w_in"]
            return (made / (1 + np.exp(-made))) @ w["w_out"]
        made = x @ w["block"]["w"] + w["block"]["b"]
        return (x + made / (1 + np.exp(-made))) @ w["w_out"]

    def _attended(self, read: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Returns the attention's output of the last entry, which sees all."""
        config, w = self.config, self.weights["layer"]["attention"]
        group, width = config.num_heads // config.num_kv_heads, config.head_width
        heads = (read @ w["w_qkv"]).reshape(len(read), config.num_kv_heads, group + 2, width)
        angle = place[:, None] * config.rope.base ** -(np.arange(0, width, 2) / width)
        cos, sin = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
        first, second = np.split(heads[:, :, :-1], 2, axis=-1)
        turned = np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
        scores = np.einsum("kgh,tkh->kgt", turned[-1, :, :-1], turned[:, :, -1]) * width**-0.5
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return np.einsum("kgt,tkh,kghd->d", weights, heads[:, :, -1], w["w_o"])

    def _normed(self, x: np.ndarray, norm) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + self.config.norm_epsilon) * norm["scale"]
