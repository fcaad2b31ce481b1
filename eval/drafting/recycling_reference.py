"""Token Recycling as its authors' program runs it, in NumPy, on the forward of our model. For comparison, not for use.

One text at a time, greedy. The matrix begins with zeros and stays from text to text; the prompt's logits are not
learned from; every checked node writes the successors of its token, in the order of the nodes.
Source: Luo et al. 2024, "Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token
Recycling", section 3, and the behaviour of the authors' program.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_smash.cache import Block, Write
from jax_smash.draft.trees.templates import published_recycling_tree
from jax_smash.loading import Model
from jax_smash.shapes import bucket

SUCCESSORS = 8
"""Width of the matrix."""


@dataclasses.dataclass(frozen=True)
class Text:
    """Tokens that were emitted, a stop token included, and the decode forwards that they took."""

    tokens: list[int]
    forwards: int


class ReferenceRecycling:
    """The authors' algorithm; its matrix stays from one text to the next.

    Attributes:
      matrix: ids of each token's likeliest successors, `[V, 8]`.
    """

    def __init__(self, model: Model, *, slots: int):
        """Makes the empty matrix and finds out which node of the template sees which.

        Args:
          model: whose forward is used.
          slots: capacity of the cache, for the prompt and all new tokens.
        """
        self.model, self.slots = model, slots
        self.matrix = np.zeros((model.vocab_size, SUCCESSORS), np.int64)
        template = published_recycling_tree()
        self._parent, self._rank = np.asarray(template.parent), np.asarray(template.rank)
        nodes = len(self._parent)
        self._depth = np.zeros(nodes, np.int64)
        sees = np.eye(nodes, dtype=bool)
        for node in range(1, nodes):
            self._depth[node] = self._depth[self._parent[node]] + 1
            sees[node] |= sees[self._parent[node]]
        words = np.zeros((nodes, -(-nodes // 32)), np.uint32)
        for node, other in zip(*np.nonzero(sees), strict=True):
            words[node, other // 32] |= np.uint32(1 << (other % 32))
        self._words = words

    def generate(self, prompt: list[int], max_new_tokens: int) -> Text:
        """Returns the continuation of a prompt, cut behind a stop token or the limit."""
        cache, first = self._read(prompt)
        tokens, forwards = [first], 0
        while len(tokens) < max_new_tokens and tokens[-1] not in self.model.stop_tokens:
            tree = self._tree(tokens[-1])
            likeliest, block_kv, position = self._check(cache, tree, len(prompt) + len(tokens) - 1)
            forwards += 1
            for node, token in enumerate(tree):
                self.matrix[token] = likeliest[node]
            path = self._longest(tree, likeliest[:, 0])
            cache = self._commit(cache, block_kv, position, path)
            for node in path:
                tokens.append(int(likeliest[node, 0]))
                if tokens[-1] in self.model.stop_tokens:
                    break
        return Text(tokens=tokens[:max_new_tokens], forwards=forwards)

    def _tree(self, root: int) -> np.ndarray:
        tree = np.zeros(len(self._parent), np.int64)
        tree[0] = root
        for node in range(1, len(tree)):
            tree[node] = self.matrix[tree[self._parent[node]], self._rank[node]]
        return tree

    def _longest(self, tree: np.ndarray, target: np.ndarray) -> list[int]:
        """Returns the first of the longest paths whose every token is the likeliest one behind its parent."""
        best = [0]
        paths: dict[int, list[int]] = {0: best}
        for node in range(1, len(tree)):
            above = int(self._parent[node])
            if above in paths and tree[node] == target[above]:
                paths[node] = [*paths[above], node]
                best = max(best, paths[node], key=len)
        return best

    def _read(self, prompt: list[int]) -> tuple[Any, int]:
        width = bucket(len(prompt))
        tokens = np.zeros((1, width), np.int32)
        tokens[0, : len(prompt)] = prompt
        valid = np.arange(width)[None] < len(prompt)
        cache = self._model.init_cache(1, self.slots, max(width, len(self._parent)))
        position = jnp.arange(width, dtype=jnp.int32)[None]
        block = Block.causal(jnp.asarray(valid))
        likeliest, block_kv = _forward(
            self.model.definition, self.model.params["target"], jnp.asarray(tokens), position, cache, block
        )
        return self._commit(cache, block_kv, position, list(range(len(prompt)))), int(likeliest[0, len(prompt) - 1, 0])

    def _check(self, cache: Any, tree: np.ndarray, length: int) -> tuple[np.ndarray, Any, Any]:
        """Returns each node's likeliest successors, and what a commit needs. `length` is the root's position."""
        position = jnp.asarray(length + self._depth[None], jnp.int32)
        block = Block(valid=jnp.ones((1, len(tree)), bool), ancestors=jnp.asarray(self._words)[None])
        token = jnp.asarray(tree[None], jnp.int32)
        likeliest, block_kv = _forward(
            self.model.definition, self.model.params["target"], token, position, cache, block
        )
        return np.asarray(likeliest[0]), block_kv, position

    def _commit(self, cache: Any, block_kv: Any, position: Any, path: list[int]) -> Any:
        width = position.shape[1]
        padded = np.zeros((1, width), np.int32)
        padded[0, : len(path)] = path
        return _commit(cache, block_kv, position, jnp.asarray([len(path)], jnp.int32), jnp.asarray(padded))

    @property
    def _model(self) -> Any:
        return self.model.definition.bind(self.model.params["target"])


@functools.partial(jax.jit, static_argnums=0)
def _forward(definition: Any, params: Any, token: Any, position: Any, cache: Any, block: Any) -> Any:
    model = definition.bind(params)
    out = model.forward(model.embed(token), position, cache, block)
    return jax.lax.top_k(model.unembed(out.hidden), SUCCESSORS)[1], out.block_kv


@jax.jit
def _commit(cache: Any, block_kv: Any, position: Any, count: Any, path: Any) -> Any:
    return cache.commit(block_kv, Write(position=position, count=count, path=path))
