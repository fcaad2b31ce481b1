"""Drafters and processors changed on purpose: in ways that must change nothing, and in ways that must be found out."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.draft.context import Context, Outcome, Seen
from jax_smash.draft.trees.tree import DraftTree, Topology, all_ancestors, pack, unpack
from jax_smash.methods import Method
from jax_smash.protocols import Drafter, LogitsProcessor, Needs, Params
from jax_smash.pytree import pytree, replace


@dataclasses.dataclass(frozen=True)
class Tampered(abc.ABC):
    """A drafter whose trees are changed on their way to the target.

    Attributes:
      drafter: whose trees they are. It learns as if nothing had been changed, where the change is none in substance.
    """

    drafter: Drafter

    @property
    def needs(self) -> Needs:
        """What the drafter needs."""
        return self.drafter.needs

    def init(self, params: Params, batch: int, slots: int, block: int) -> Any:
        """Makes what the drafter keeps of rows."""
        return self.drafter.init(params, batch, slots, block)

    def read(self, params: Params, own: Any, shared: Any, seen: Seen) -> tuple[Any, Any]:
        """Lets the drafter learn from a piece of the prompt."""
        return self.drafter.read(params, own, shared, seen)

    def propose(
        self, params: Params, own: Any, shared: Any, context: Context, topology: Topology
    ) -> tuple[DraftTree, Any]:
        """Returns the drafter's tree, changed."""
        tree, made = self.drafter.propose(params, own, shared, context, topology)
        return self.change(tree), made

    def learn(self, params: Params, own: Any, shared: Any, made: Any, outcome: Outcome) -> tuple[Any, Any]:
        """Lets the drafter learn from what became of the tree."""
        return self.drafter.learn(params, own, shared, made, self.restore(outcome))

    def follow(self, params: Params, own: Any, shared: Any, seen: Seen, pending: Array) -> tuple[Any, Any]:
        """Lets the drafter learn from what was read without a draft."""
        drafter: Any = self.drafter
        return drafter.follow(params, own, shared, seen, pending)

    @abc.abstractmethod
    def change(self, tree: DraftTree) -> DraftTree:
        """Returns the changed tree."""

    def restore(self, outcome: Outcome) -> Outcome:
        """Returns what would have become of the drafter's own tree."""
        return outcome


@dataclasses.dataclass(frozen=True)
class Padded(Tampered):
    """Hangs nodes below the root that are marked invalid, each with the token likeliest to be accepted there.

    Attributes:
      extra: how many; 32 make the packed ancestors a word longer.
    """

    extra: int = 32

    def change(self, tree: DraftTree) -> DraftTree:
        """Returns the tree with the extra nodes behind its own."""
        batch, nodes = tree.token.shape
        place = jnp.arange(nodes, nodes + self.extra, dtype=jnp.int32)
        seen = (jnp.arange(nodes + self.extra, dtype=jnp.int32)[None] == place[:, None]).at[:, 0].set(True)
        bits = jnp.broadcast_to(pack(seen), (batch, self.extra, -(-(nodes + self.extra) // 32)))
        words = ((0, 0), (0, 0), (0, bits.shape[2] - tree.ancestors.shape[2]))

        def behind(values: Array, filling: Array) -> Array:
            return jnp.concatenate([values, jnp.broadcast_to(filling, (batch, self.extra))], axis=1)

        return replace(
            tree,
            token=behind(tree.token, tree.token[:, min(1, nodes - 1)][:, None]),
            parent=behind(tree.parent, jnp.zeros((1, 1), jnp.int32)),
            depth=behind(tree.depth, jnp.ones((1, 1), jnp.int32)),
            valid=behind(tree.valid, jnp.zeros((1, 1), bool)),
            ancestors=jnp.concatenate([jnp.pad(tree.ancestors, words), bits], axis=1),
            rank=None if tree.rank is None else behind(tree.rank, jnp.full((1, 1), -1, jnp.int32)),
            proposal=None if tree.proposal is None else jnp.pad(tree.proposal, ((0, 0), (0, self.extra), (0, 0))),
        )

    def restore(self, outcome: Outcome) -> Outcome:
        """Returns the outcome without the extra nodes."""
        nodes = outcome.tree.token.shape[1] - self.extra
        cut = _of_nodes(outcome, lambda x: x[:, :nodes])
        return replace(cut, tree=replace(cut.tree, ancestors=cut.tree.ancestors[:, :, : -(-nodes // 32)]))


@dataclasses.dataclass(frozen=True)
class Reordered(Tampered):
    """Swaps siblings that stand side by side, the first at an odd place."""

    def change(self, tree: DraftTree) -> DraftTree:
        """Returns the tree with siblings swapped."""
        order = _swapped(tree)
        return _renamed(jax.tree.map(lambda x: _picked(x, order), tree), order)

    def restore(self, outcome: Outcome) -> Outcome:
        """Returns the outcome with siblings swapped back: the same swap again."""
        order = _swapped(outcome.tree)
        back = _of_nodes(outcome, lambda x: _picked(x, order))
        path = jnp.take_along_axis(order, outcome.accepted.path, axis=1)
        return replace(back, tree=_renamed(back.tree, order), accepted=replace(outcome.accepted, path=path))


@dataclasses.dataclass(frozen=True)
class FirstChildren(Tampered):
    """Keeps each node's first child alone: a tree of top-k 1, which is a chain."""

    def change(self, tree: DraftTree) -> DraftTree:
        """Returns the tree with all but first children marked invalid."""
        node = jnp.arange(tree.token.shape[1], dtype=jnp.int32)
        siblings = tree.parent[:, :, None] == tree.parent[:, None]
        elder = siblings & tree.valid[:, None] & (node[None, :] < node[:, None])[None] & (node > 0)[None, None]
        first = (~elder.any(-1)).at[:, 0].set(True)
        return replace(tree, valid=tree.valid & all_ancestors(first, tree.ancestors))


@dataclasses.dataclass(frozen=True)
class FlippedBit(Tampered):
    """Flips one ancestor bit; by default the first drafted node, the likeliest one, is blind to the pending token.

    Attributes:
      node: whose bit.
      ancestor: node that it stands for.
    """

    node: int = 1
    ancestor: int = 0

    def change(self, tree: DraftTree) -> DraftTree:
        """Returns the tree with the bit flipped."""
        bit = jnp.uint32(1 << self.ancestor % 32)
        word = self.ancestor // 32
        return replace(
            tree, ancestors=tree.ancestors.at[:, self.node, word].set(tree.ancestors[:, self.node, word] ^ bit)
        )


@pytree
class SkippedAtNodes:
    """A processor that is left out at drafted nodes, and applied only where the committed text ends.

    Attributes:
      processor: which.
    """

    processor: LogitsProcessor

    def init(self, batch: int, vocab_size: int) -> Any:
        """Makes the processor's state."""
        return self.processor.init(batch, vocab_size)

    def observe_prompt(self, state: Any, tokens: Int[Array, "B T"], valid: Bool[Array, "B T"]) -> Any:
        """Lets the processor read prompt tokens."""
        return self.processor.observe_prompt(state, tokens, valid)

    def advance(self, state: Any, token: Int[Array, "B"], running: Bool[Array, "B"]) -> Any:
        """Lets the processor read an emitted token."""
        return self.processor.advance(state, token, running)

    def apply(self, state: Any, logits: Float[Array, "B M V"], path: Int[Array, "B M P"]) -> Float[Array, "B M V"]:
        """Returns the changed logits at roots, the others as they are."""
        drafted = (path >= 0).any(-1, keepdims=True)
        return jnp.where(drafted, logits, self.processor.apply(state, logits, path))


def tampered(method: Method, change: Callable[[Drafter], Drafter]) -> Method:
    """Returns a drafting method with its drafter changed."""
    strategy: Any = method.strategy
    return dataclasses.replace(method, strategy=dataclasses.replace(strategy, drafter=change(strategy.drafter)))


def _swapped(tree: DraftTree) -> Int[Array, "B M"]:
    """Returns, for each place, the node to stand there.

    Parents still come first, and doing it twice changes nothing.
    """
    node = jnp.arange(tree.token.shape[1], dtype=jnp.int32)[None]
    same = jnp.pad(tree.parent[:, :-1] == tree.parent[:, 1:], ((0, 0), (0, 1)))
    with_next = same & (node % 2 == 1)
    with_last = jnp.pad(with_next[:, :-1], ((0, 0), (1, 0)))
    return node + with_next.astype(jnp.int32) - with_last.astype(jnp.int32)


def _renamed(tree: DraftTree, order: Int[Array, "B M"]) -> DraftTree:
    """Returns a tree whose nodes stand in a new order with parents and bits that name the new places."""
    nodes = tree.token.shape[1]
    columns = jnp.broadcast_to(order[:, None], (*order.shape, nodes))
    seen = jnp.take_along_axis(unpack(tree.ancestors, nodes), columns, axis=2)
    return replace(tree, parent=jnp.take_along_axis(order, tree.parent, axis=1), ancestors=pack(seen))


def _of_nodes(outcome: Outcome, change: Callable[[Array], Array]) -> Outcome:
    """Returns the outcome with every array of one entry a node changed."""
    names = ("tree", "target", "likeliest", "hidden", "taps")
    return replace(outcome, **{name: jax.tree.map(change, getattr(outcome, name)) for name in names})


def _picked(values: Array, order: Int[Array, "B M"]) -> Array:
    return jnp.take_along_axis(values, order.reshape(*order.shape, *[1] * (values.ndim - 2)), axis=1)
