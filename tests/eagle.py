"""An EAGLE-3 drafter with random weights, and what it proposes written out plainly: NumPy, no cache, no tree."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jax_smash.cache import Block
from jax_smash.checkpoints.eagle import EagleModules
from jax_smash.draft.trees.best_first import FIRST
from jax_smash.loading import Model
from jax_smash.models.definition import NnxModel
from jax_smash.models.eagle import random_eagle
from jax_smash.models.eagle_config import EagleConfig

WIDTH = 128
"""Tokens that the plain target has room for."""


def random_drafter(model: Model, *, tokens=None, spread: float = 12.0, seed: int = 4, **changes) -> EagleModules:
    """Returns a drafter whose weights are spread enough for its drafts to vary, with norms that are told apart.

    Args:
      model: the target.
      tokens: that it can say; None for all.
      spread: factor of its matrices.
      seed: of its weights.
      changes: fields of its configuration that are not the usual ones.
    """
    if tokens is not None:
        changes["head_size"] = len(tokens)
    config = EagleConfig.for_target(model.config, **changes)
    graphdef, params = random_eagle(config, seed, tokens=tokens)
    rng = np.random.default_rng(seed)

    def filled(w):
        if w.ndim > 1:
            return w * jnp.float32(spread)
        if jnp.issubdtype(w.dtype, jnp.integer):
            return w
        return w + jnp.asarray(rng.normal(0, 0.3, w.shape), w.dtype)

    return EagleModules(config=config, definition=NnxModel(graphdef), params=jax.tree.map(filled, params))


def vectors_and_rows(model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Returns a target's vectors of its tokens and the rows of its head, which may be the same."""
    target = model.params["target"]
    vectors = np.asarray(target["embedding"][...], np.float64)
    return vectors, np.asarray(target["head"][...], np.float64) if "head" in target else vectors


class PlainEagle:
    """The drafter for one row, written out: for each node all entries are read again.

    Args:
      model: the target.
      drafter: its drafter.
      shift: tokens that a feature is moved by against the token that it is paired with; 0 is right.
    """

    def __init__(self, model: Model, drafter: EagleModules, shift: int = 0):
        self.config, self.shift = drafter.config, shift
        self._taps = functools.partial(taps_of_text(model.definition), model.params["target"])
        self._embedding, self._rows = vectors_and_rows(model)
        self.weights = jax.tree.map(lambda w: np.asarray(w, np.float64), nnx.to_pure_dict(drafter.params))

    def tree(self, topology, text: list[int], chosen=None) -> list[int]:
        """Returns the tokens of a tree behind a text, −1 where nothing is proposed.

        Args:
          topology: of the tree.
          text: tokens, the last of which the target has not read.
          chosen: from the logits of all tokens and those behind the text to the values that tokens are ranked by.
        """
        entries = self._committed(text)
        token, behind, made = [text[-1]], {0: entries}, {}
        parents, ranks = (np.asarray(x).tolist() for x in (topology.parent, topology.rank))
        for node in range(1, topology.nodes):
            above, rank = parents[node], ranks[node]
            if token[above] < 0:
                token.append(-1)
                continue
            if above not in made:
                made[above] = self._last(behind[above])
            feature, logits = made[above]
            values = logits if chosen is None else chosen(logits, self._path(parents, token, above))
            ranked = np.argsort(-values, kind="stable")
            position = len(behind[above]) - 1
            known = np.isfinite(values[ranked[rank]]) and position < self.config.max_positions
            token.append(int(ranked[rank]) if known else -1)
            behind[node] = [*behind[above], (feature, token[-1])]
        return token

    def begin(self, text: list[int]):
        """Returns what there is to guess from behind a text, the last token of which the target has not read."""
        return self._committed(text)

    def guess(self, entries):
        """Returns the logits of all tokens behind what there is, and what there is behind a token of them.

        Behind the last position there are no logits.
        """
        feature, logits = self._last(entries)
        known = len(entries) - 1 < self.config.max_positions
        return logits if known else None, lambda token: [*entries, (feature, token)]

    def _committed(self, text: list[int]) -> list[tuple[np.ndarray, int]]:
        """Returns a feature and the token behind it, for each token that the target has read."""
        w, joined = self.weights, []
        for i, tap in enumerate(np.asarray(self._taps(text)[j], np.float64) for j in self.config.taps):
            joined.append(self._normed(tap, w["tap_norms"][i]) if self.config.tap_norms else tap)
        features = np.concatenate(joined, axis=-1) @ w["w_join"]
        read = len(text) - 1
        return [(features[(i + self.shift) % read], text[i + 1]) for i in range(read)]

    def _last(self, entries) -> tuple[np.ndarray, np.ndarray]:
        """Returns what is made of the last entry, and the logits of all tokens."""
        w, config = self.weights, self.config
        feature = np.stack([feature for feature, _ in entries])
        vector = self._embedding[[token for _, token in entries]]
        normed = self._normed(feature, w["feature_norm"])
        read = np.concatenate([self._normed(vector, w["vector_norm"]), normed], axis=-1)
        x = (normed if config.residual_normed else feature)[-1] + self._attended(read)
        gate, up = (self._normed(x, w["mlp_norm"]) @ half for half in w["mlp"]["w_gate_up"])
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w["mlp"]["w_down"]
        hidden = self._normed(x, w["final_norm"])
        logits = np.full(config.vocab_size, -np.inf)
        tokens = w["tokens"].astype(int) if "tokens" in w else np.arange(config.vocab_size)
        logits[tokens] = (w["head"] if config.own_rows else self._rows[tokens]) @ hidden
        return hidden if config.feeds_normed else x, logits

    def _attended(self, read: np.ndarray) -> np.ndarray:
        """Returns the attention's output of the last entry."""
        config, w = self.config, self.weights["attention"]
        group, width = config.num_heads // config.num_kv_heads, config.head_width
        heads = (read @ w["w_qkv"]).reshape(len(read), config.num_kv_heads, group + 2, width) + w.get("b_qkv", 0.0)
        angle = np.arange(len(read))[:, None] * config.rope.base ** -(np.arange(0, width, 2) / width)
        cos, sin = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
        first, second = np.split(heads[:, :, :-1], 2, axis=-1)
        turned = np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
        scores = np.einsum("kgh,tkh->kgt", turned[-1, :, :-1], turned[:, :, -1]) * width**-0.5
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return np.einsum("kgt,tkh,kghd->d", weights, heads[:, :, -1], w["w_o"])

    def _normed(self, x: np.ndarray, norm) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + self.config.norm_epsilon) * norm["scale"]

    @staticmethod
    def _path(parents, token, node) -> list[int]:
        path = []
        while node:
            path.insert(0, token[node])
            node = parents[node]
        return path


@functools.cache
def taps_of_text(definition):
    @jax.jit
    def taps(params, tokens, count):
        bound = definition.bind(params)
        position = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
        block = Block.causal(position < count)
        return bound.forward(bound.embed(tokens), position, None, block).taps

    def of_text(params, text):
        tokens = np.zeros((1, WIDTH), np.int32)
        tokens[0, : len(text)] = text
        return [np.asarray(tap)[0, : len(text) - 1] for tap in taps(params, tokens, np.int32(len(text)))]

    return of_text


def plain_confident(plain, sizes, text: list[int], chosen=None) -> set[tuple[int, ...]]:
    """Returns the paths of tokens from the root to each node of a tree that grows by confidence, one path at a time.

    Args:
      plain: the drafter, a `PlainEagle` or another that begins and guesses as it does.
      sizes: of the tree, a `Confident`.
      text: tokens, the last of which the target has not read.
      chosen: as of `PlainEagle.tree`.
    """
    seen, kept = {}, []
    level, behind = [()], {(): plain.begin(text)}
    for depth in range(sizes.levels):
        found = {}
        for path in level:
            logits, with_token = plain.guess(behind[path])
            if logits is None:
                continue
            values = logits if chosen is None else chosen(logits, list(path))
            likely = np.exp(values - values.max())
            for token in np.argsort(-values, kind="stable")[: sizes.width].tolist():
                if np.isfinite(values[token]):
                    product = seen.get(path, 1.0) * likely[token] / likely.sum()
                    if product >= sizes.least:
                        found[*path, token] = product
                        behind[*path, token] = with_token(token)
        if depth == 0 and max(found.values(), default=0.0) < FIRST * sizes.least:
            break
        if sizes.chain:
            # Of the greedy chain, the likeliest child of the last node.
            ours = [path for path in found if path[:-1] == tuple(kept)]
            kept += [max(ours, key=found.__getitem__)[-1]] if ours else []
        greedy = tuple(kept) if len(kept) == depth + 1 else None
        level = sorted(found, key=lambda path: (path == greedy, found[path]), reverse=True)[: sizes.width]
        seen |= found
    chain = {tuple(kept[:n]) for n in range(1, len(kept) + 1)}
    return set(sorted(seen, key=lambda path: (path in chain, seen[path]), reverse=True)[: sizes.nodes])
