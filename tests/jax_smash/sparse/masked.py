"""A plain model that decodes with forced masks: slow, NumPy, float64."""

import functools

import jax.numpy as jnp
import numpy as np

from jax_smash.models.rope import rotation
from tests.jax_smash.sparse.rules import RULES, LearnedRule, RandomRule, softmax

BOUND = {}
"""Models that were bound before."""

WIDE = {}
"""Weights that were converted before, and their float64 copies."""

ANGLES = 1024
"""Positions whose angles are made at once."""


@functools.cache
def angles(rope, width):
    return [np.asarray(part[0], float) for part in rotation(rope, width, jnp.arange(ANGLES, dtype=jnp.int32)[None])]


class Row:
    """One row of a model, decoded with the masks that its rules force."""

    def __init__(self, model, policy, slots, predictor=None):
        self.config = model.config
        self.model = BOUND.setdefault(id(model), model.definition.bind(model.params["target"]))
        self.policy, config = policy, model.config
        self.embedding = self.wide(self.model.embedding)
        self.rules = [
            None
            if type(policy) not in RULES or layer < policy.dense_layers
            else RULES[type(policy)](policy, layer, config.num_kv_heads, config.query_scale)
            for layer in range(config.num_layers)
        ]
        for rule in self.rules:
            if isinstance(rule, RandomRule):
                rule.slots = slots
            if isinstance(rule, LearnedRule):
                rule.base, rule.predictor, rule.slots = self.model, predictor, slots
        self.residuals = [np.zeros((0, config.d_model))] * (config.num_layers + 1)
        empty = np.zeros((0, config.num_kv_heads, config.head_width))
        self.keys, self.values = [empty] * config.num_layers, [empty] * config.num_layers

    @property
    def length(self):
        return len(self.keys[0])

    def wide(self, weight):
        return WIDE.setdefault(id(weight), (weight, np.asarray(weight[...], np.float64)))[1]

    def norm(self, module, x):
        scaled = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config.norm_epsilon)
        return scaled * self.wide(module.scale)

    def turned(self, x, position):
        cos, sin = (part[position][:, None] for part in angles(self.config.rope, self.config.head_width))
        first, second = np.split(x, 2, axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    def read(self, tokens, depth, seen, path, *, root=0, prompt=False, taken=None):
        """Reads entries and keeps those of a path.

        Args:
          tokens: of each entry.
          depth: of each entry behind the last committed slot.
          seen: [T, T], which entries see which.
          path: the entries that are kept, in order.
          root: the entry whose query chooses.
          prompt: the entries read all that is kept.
          taken: says of a layer, its rule and the slots that it chose which are read; None for these.

        Returns:
          Logits of each entry, and each layer's chosen slots [K, L], None where all are read.
        """
        config, x, chosen, entering = self.config, self.embedding[tokens], [], []
        heads, size = config.num_kv_heads, config.head_width
        position, length = self.length + np.asarray(depth), self.length
        for i, layer in enumerate(self.model.layers):
            entering.append(x)
            made = self.projected(layer, x)
            query = self.turned(made[:, :, :-2].reshape(len(tokens), -1, size), position)
            key, value = self.turned(made[:, :, -2], position), made[:, :, -1]
            rule = self.rules[i]
            if isinstance(rule, LearnedRule):
                rule.taps = [
                    np.concatenate([kept, entering[j][[root]]]) if j < len(entering) else kept
                    for j, kept in enumerate(self.residuals)
                ]
            past = np.ones((heads, length), bool) if rule is None else rule.alive
            choice = None if rule is None or prompt else rule.choose(query[root], self.keys[i])
            chosen.append(choice)
            if choice is not None and taken is not None:
                choice = taken(i, rule, choice)
            visible = past if choice is None else choice
            visible = np.broadcast_to(visible[:, None], (heads, len(tokens), length))
            visible = np.concatenate([visible, np.broadcast_to(seen, (heads, *seen.shape))], axis=2)
            keys = np.concatenate([self.keys[i], key])
            scores = np.einsum("TKGH,LKH->KGTL", query.reshape(len(tokens), heads, -1, size), keys)
            weights = softmax(scores * config.query_scale, visible[:, None])
            mixed = np.einsum("KGTL,LKH->TKGH", weights, np.concatenate([self.values[i], value]))
            x = self.behind(layer, x, mixed)
            self.keys[i] = np.concatenate([self.keys[i], key[path]])
            self.values[i] = np.concatenate([self.values[i], value[path]])
            if rule is not None and len(path):
                kept = [*range(length), *(length + np.asarray(path))]
                rows = weights.reshape(-1, *weights.shape[2:]).swapaxes(0, 1)[path][:, :, kept]
                rule.commit(choice, rows, query[path], self.keys[i], prompt)
        self.residuals = [
            np.concatenate([kept, made[path]]) for kept, made in zip(self.residuals, [*entering, x], strict=True)
        ]
        return self.logits(x), chosen

    def projected(self, layer, x):
        """Returns a layer's queries, keys and values, none rotated: [T, K, G + 2, H]."""
        made = self.norm(layer.attention_norm, x) @ self.wide(layer.attention.w_qkv)
        return made.reshape(len(x), self.config.num_kv_heads, -1, self.config.head_width)

    def behind(self, layer, x, mixed):
        """Returns what a layer makes of its input and of what its heads have mixed."""
        x = x + mixed.reshape(len(x), -1) @ self.wide(layer.attention.w_o).reshape(-1, self.config.d_model)
        gate, up = self.norm(layer.mlp_norm, x) @ self.wide(layer.mlp.w_gate_up)
        return x + (gate / (1 + np.exp(-gate)) * up) @ self.wide(layer.mlp.w_down)

    def logits(self, x):
        head = self.embedding if self.model.head is None else self.wide(self.model.head)
        return self.norm(self.model.final_norm, x) @ head.T


class StreamedRow(Row):
    """One row as StreamingLLM reads it: keys are kept as they are made, and all rotated anew for their places."""

    def step(self, token):
        """Reads an entry and returns its logits; of more than `slots` entries the oldest behind the sinks leaves."""
        x = self.embedding[[token]]
        for i, layer in enumerate(self.model.layers):
            made = self.projected(layer, x)
            kept = (np.concatenate([self.keys[i], made[:, :, -2]]), np.concatenate([self.values[i], made[:, :, -1]]))
            if len(kept[0]) > self.policy.slots:
                kept = [np.delete(x, self.policy.sinks, axis=0) for x in kept]
            self.keys[i], self.values[i] = kept
            last = len(self.keys[i]) - 1
            query = self.turned(made[:, :, :-2].reshape(1, -1, made.shape[-1]), [last])[0]
            keys = self.turned(self.keys[i], np.arange(last + 1))
            scores = np.einsum("KGH,LKH->KGL", query.reshape(len(made[0]), -1, made.shape[-1]), keys)
            weights = softmax(scores * self.config.query_scale, np.ones(last + 1, bool))
            x = self.behind(layer, x, np.einsum("KGL,LKH->KGH", weights, self.values[i]))
        return self.logits(x)
