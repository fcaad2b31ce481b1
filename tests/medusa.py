"""Medusa's heads with random weights, and what they propose written out plainly: NumPy, no tree."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jax_smash.cache import Block
from jax_smash.checkpoints.medusa import MedusaModules
from jax_smash.loading import Model
from jax_smash.models.definition import NnxModel
from jax_smash.models.medusa import MedusaConfig, random_medusa
from tests.eagle import WIDTH, vectors_and_rows


def random_heads(model: Model, *, seed: int = 4, **changes) -> MedusaModules:
    """Returns heads whose weights are spread enough for their guesses to vary.

    Args:
      model: the target.
      seed: of their weights.
      changes: fields of their configuration that are not the usual ones.
    """
    config = MedusaConfig(model.config.vocab_size, model.config.d_model, **changes)
    graphdef, params = random_medusa(config, seed)
    rng = np.random.default_rng(seed)
    filled = jax.tree.map(lambda w: w + jnp.asarray(rng.normal(0, 0.3, w.shape), w.dtype), params)
    return MedusaModules(config=config, definition=NnxModel(graphdef), params=filled)


class PlainMedusa:
    """The heads for one row, written out.

    Args:
      model: the target.
      drafter: its heads.
      shift: tokens that the state is moved by; 0 is right.
    """

    def __init__(self, model: Model, drafter: MedusaModules, shift: int = 0):
        self.config, self.shift = drafter.config, shift
        self._hidden = functools.partial(hidden_states(model.definition), model.params["target"])
        _, self._rows = vectors_and_rows(model)
        self.weights = jax.tree.map(lambda w: np.asarray(w, np.float64), nnx.to_pure_dict(drafter.params))["heads"]

    def logits(self, hidden: np.ndarray, head: int) -> np.ndarray:
        """Returns a head's logits of all tokens behind a state."""
        weights = self.weights[head]
        for block in range(self.config.blocks):
            made = hidden @ weights["blocks"][block]["w"] + weights["blocks"][block]["b"]
            hidden = hidden + made / (1 + np.exp(-made))
        return (weights["head"] if self.config.own_rows else self._rows) @ hidden

    def tree(self, topology, text: list[int], chosen=None) -> list[int]:
        """Returns the tokens of a tree behind a text, −1 where nothing is proposed.

        Args:
          topology: of the tree.
          text: tokens, the last of which the target has not read.
          chosen: from the logits of all tokens and those behind the text to the values that tokens are ranked by.
        """
        states = self._hidden(text)
        hidden = np.asarray(states[(len(text) - 2 + self.shift) % len(states)], np.float64)
        ranked = []
        for head in range(self.config.num_heads):
            logits = self.logits(hidden, head)
            values = logits if chosen is None else chosen(logits, [-1] * head)
            ranked.append([int(t) if np.isfinite(values[t]) else -1 for t in np.argsort(-values, kind="stable")])
        token = [text[-1]]
        parents, ranks, depths = (np.asarray(x).tolist() for x in (topology.parent, topology.rank, topology.depth))
        for node in range(1, topology.nodes):
            drafted = depths[node] <= self.config.num_heads and token[parents[node]] >= 0
            token.append(ranked[depths[node] - 1][ranks[node]] if drafted else -1)
        return token


@functools.cache
def hidden_states(definition):
    """Returns a function from a target's parameters and a text to its hidden states of all tokens but the last."""

    @jax.jit
    def hidden(params, tokens, count):
        bound = definition.bind(params)
        position = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
        return bound.forward(bound.embed(tokens), position, None, Block.causal(position < count)).hidden

    def of_text(params, text):
        tokens = np.zeros((1, WIDTH), np.int32)
        tokens[0, : len(text)] = text
        return np.asarray(hidden(params, tokens, np.int32(len(text))))[0, : len(text) - 1]

    return of_text
