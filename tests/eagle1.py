"""An EAGLE-1 drafter with random weights, and what it proposes written out plainly: NumPy, no cache, no tree."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jax_smash.checkpoints.eagle1 import Eagle1Modules
from jax_smash.loading import Model
from jax_smash.models.definition import NnxModel
from jax_smash.models.eagle1 import Eagle1Config, random_eagle1
from tests.eagle import PlainEagle
from tests.medusa import hidden_states


def random_drafter1(model: Model, *, spread: float = 12.0, seed: int = 4, **changes) -> Eagle1Modules:
    """Returns a drafter whose weights are spread enough for its drafts to vary, with a norm and biases that count.

    Args:
      model: the target.
      spread: factor of its matrices.
      seed: of its weights.
      changes: fields of its configuration that are not the usual ones.
    """
    config = Eagle1Config.for_target(model.config, **changes)
    graphdef, params = random_eagle1(config, seed)
    rng = np.random.default_rng(seed)

    def filled(path, w):
        matrix = w.ndim > 1 and "b_" not in jax.tree_util.keystr(path)
        return w * jnp.float32(spread) if matrix else w + jnp.asarray(rng.normal(0, 0.3, w.shape), w.dtype)

    return Eagle1Modules(
        config=config,
        definition=NnxModel(graphdef),
        params=jax.tree_util.tree_map_with_path(filled, params),
    )


class PlainEagle1(PlainEagle):
    """The drafter for one row, written out: for each node all entries are read again.

    Args:
      model: the target.
      drafter: its drafter.
      shift: tokens that a feature is moved by against the token that it is paired with; 0 is right.
    """

    def __init__(self, model: Model, drafter: Eagle1Modules, shift: int = 0):
        super().__init__(model, drafter, shift)
        self._hidden = functools.partial(hidden_states(model.definition), model.params["target"])

    def _committed(self, text: list[int]) -> list[tuple[np.ndarray, int]]:
        features, read = np.asarray(self._hidden(text), np.float64), len(text) - 1
        return [(features[(i + self.shift) % read], text[i + 1]) for i in range(read)]

    def _last(self, entries) -> tuple[np.ndarray, np.ndarray]:
        w = self.weights
        pairs = np.concatenate(
            [self._embedding[[token for _, token in entries]], np.stack([feature for feature, _ in entries])], axis=-1
        )
        read = pairs @ w["w_join"] + w.get("b_join", 0.0)
        x = read[-1] + self._attended(read)
        gate, up = (self._normed(x, w["mlp_norm"]) @ half for half in w["mlp"]["w_gate_up"])
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w["mlp"]["w_down"]
        return x, self._rows @ x
