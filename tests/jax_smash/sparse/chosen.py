"""What a policy chooses in each layer of a forward, and which slots those are."""

import numpy as np

from jax_smash.cache import Entering, Listening, SelectedLayer
from jax_smash.models.rope import rotate, rotation


def choices(bound, cache, taps, position, block):
    """Returns what each layer chooses for the first entry's residual; None where it reads everything.

    Args:
      bound: a sparse model with its parameters.
      cache: before the forward.
      taps: residuals that enter the layers of the forward.
      position: of its entries.
      block: which entries see which.
    """
    config, found = bound.config, []
    reading = cache if bound.predictor is None else Listening(cache, bound.predictor)
    for i, module in enumerate(bound.layers):
        if isinstance(reading, Listening):
            reading = reading.entered(Entering(i, module, taps[i], position, block))
        view, x = reading.layer(i), taps[i][:, 0]
        if not isinstance(view, SelectedLayer):
            found.append(None)
            continue
        heads = module.attention_norm(x) @ module.attention.w_qkv[...]
        query = heads.reshape(len(x), 1, config.num_kv_heads, -1, config.head_width)[:, :, :, :-2]
        turn = rotation(config.rope, config.head_width, position[:, :1])
        query = rotate(query.reshape(len(x), 1, config.num_heads, -1), turn)
        found.append(bound.policy.select(view, query[:, 0]))
    return found


def chosen_slots(selection, row, length):
    """Returns a layer's choice of a row of so many slots as a mask [K, L]."""
    taken = np.asarray(selection.slots[row]), np.asarray(selection.valid[row])
    mask = np.zeros((len(taken[0]), max(length, 1 + int(taken[0].max()))), bool)
    for head, (slots, valid) in enumerate(zip(*taken, strict=True)):
        assert len(set(slots[valid])) == valid.sum(), "a slot must be read once"
        mask[head, slots[valid]] = True
    assert not mask[:, length:].any(), "an empty slot must not be read"
    return mask[:, :length]
