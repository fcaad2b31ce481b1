"""A DFlash drafter with random weights, and what it proposes written out plainly: NumPy, no cache, no tree."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jax_smash.checkpoints.dflash import DFlashModules
from jax_smash.loading import Model
from jax_smash.models.definition import NnxModel
from jax_smash.models.dflash import random_dflash
from jax_smash.models.dflash_config import DFlashConfig
from tests.eagle import taps_of_text, vectors_and_rows

SIZES = {"num_layers": 2, "taps": (1, 2), "block_size": 4}
"""Of a drafter that tests can afford."""


def random_drafter(model: Model, *, spread: float = 12.0, seed: int = 4, **changes) -> DFlashModules:
    """Returns a small drafter whose weights are spread enough for its drafts to vary, with norms that are told apart.

    Args:
      model: the target.
      spread: factor of its matrices.
      seed: of its weights.
      changes: fields of its configuration that are not those of `SIZES`.
    """
    config = DFlashConfig.for_target(model.config, **(SIZES | changes))
    structure, params = random_dflash(config, seed)
    rng = np.random.default_rng(seed)

    def filled(w):
        return w * jnp.float32(spread) if w.ndim > 1 else w + jnp.asarray(rng.normal(0, 0.3, w.shape), w.dtype)

    return DFlashModules(config=config, definition=NnxModel(structure), params=jax.tree.map(filled, params))


class PlainDFlash:
    """The drafter for one row, written out: the whole context and the whole block go through all layers each time.

    A `longrope` has the factors of long texts.

    Args:
      model: the target.
      drafter: its drafter.
      shift: tokens that the context is moved by; 0 is right.
    """

    def __init__(self, model: Model, drafter: DFlashModules, shift: int = 0):
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
        ranked = []
        for place, logits in enumerate(self.logits(text)):
            values = logits if chosen is None else chosen(logits, [-1] * place)
            within = len(text) + place < self.config.max_positions
            order = np.argsort(-values, kind="stable")
            ranked.append([int(t) if within and np.isfinite(values[t]) else -1 for t in order])
        token = [text[-1]]
        parents, ranks, depths = (np.asarray(x).tolist() for x in (topology.parent, topology.rank, topology.depth))
        for node in range(1, topology.nodes):
            drafted = depths[node] < self.config.block_size and token[parents[node]] >= 0
            token.append(ranked[depths[node] - 1][ranks[node]] if drafted else -1)
        return token

    def logits(self, text: list[int]) -> np.ndarray:
        """Returns the logits of each masked token behind a text, whose last token the target has not read."""
        taps = self._taps(text)
        joined = np.concatenate([np.asarray(taps[i], np.float64) for i in self.config.taps], axis=-1)
        return self.filled(joined, text[-1]) @ self._rows.T

    def filled(self, joined: np.ndarray, pending: int) -> np.ndarray:
        """Returns what is made of the masked entries behind a token, from the joined taps of all tokens before it."""
        w, config = self.weights, self.config
        feature = self._normed(joined @ w["w_join"], w["context_norm"])
        feature = np.roll(feature, -self.shift, axis=0)
        mask = w["mask"] if config.mask_token is None else self._embedding[config.mask_token]
        x = np.stack([self._embedding[pending], *[mask] * (config.block_size - 1)])
        for layer in range(config.num_layers):
            own = w["layers"][layer]
            x = x + self._attended(feature, self._normed(x, own["attention_norm"]), own["attention"])
            gate, up = (self._normed(x, own["mlp_norm"]) @ half for half in own["mlp"]["w_gate_up"])
            x = x + (gate / (1 + np.exp(-gate)) * up) @ own["mlp"]["w_down"]
        return self._normed(x, w["final_norm"])[1:]

    def _attended(self, context: np.ndarray, block: np.ndarray, w) -> np.ndarray:
        """Returns the attention's output of the block's entries, which see the context and each other."""
        config, read = self.config, np.concatenate([context, block])
        group, width = config.num_heads // config.num_kv_heads, config.head_width
        heads = (read @ w["w_qkv"]).reshape(len(read), config.num_kv_heads, group + 2, width)
        queries, keys = self._normed(heads[:, :, :-2], w["q_norm"]), self._normed(heads[:, :, -2:-1], w["k_norm"])
        place = np.arange(len(read))
        stretch = np.asarray(config.rope.long_factors if config.rope.scaling == "longrope" else 1.0)
        angle = place[:, None] * config.rope.base ** -(np.arange(0, width, 2) / width) / stretch
        cos, sin = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
        first, second = np.split(np.concatenate([queries, keys], axis=2), 2, axis=-1)
        turned = np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
        scores = np.einsum("qkgh,tkh->kgqt", turned[len(context) :, :, :-1], turned[:, :, -1]) * width**-0.5
        if config.window:
            scores = np.where(place[None] > place[len(context) :, None] - config.window, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return np.einsum("kgqt,tkh,kghd->qd", weights, heads[:, :, -1], w["w_o"])

    def _normed(self, x: np.ndarray, norm) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + self.config.norm_epsilon) * norm["scale"]
