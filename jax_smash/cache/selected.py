"""A cache of which a policy chooses, at every step, the slots that are read."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from jax_smash import cpu
from jax_smash.cache.block import Noted
from jax_smash.cache.store import EMPTY, HEADS, ROWS, KVCache, LayerCache
from jax_smash.cache.write import Write, pick
from jax_smash.pytree import pytree, replace, static
from jax_smash.sharding import on_each_device


@dataclasses.dataclass(frozen=True)
class LayerPlan:
    """How one layer reads its cache.

    Attributes:
      slots: C, the slots that a step reads a KV head.
      least: slots that it may always read, however short the text.
      share: of the committed slots that it may read, where that is less than C; None for C whatever the text.
      by_head: what each KV head may read of that, as a share; None for all of it.
      scale, softcap: of the attention scores.
      pays_from: where every row has fewer committed slots, all of them are read.
    """

    slots: int
    least: int
    share: float | None
    by_head: tuple[float, ...] | None
    scale: float
    softcap: float
    pays_from: int = 0

    def limit(self, filled: Int[Array, "B"], kv_heads: int) -> Int[Array, "B K"]:
        """Returns how many slots each KV head may read when so many are committed."""
        limit = jnp.full_like(filled, self.slots).astype(jnp.float32)
        if self.share is not None:
            limit = jnp.ceil(filled.astype(jnp.float32) * jnp.float32(self.share))
        heads = jnp.asarray(self.by_head or (1.0,) * kv_heads, jnp.float32)
        limit = jnp.ceil(limit[:, None] * heads[None])
        return jnp.clip(limit, self.least, self.slots).astype(jnp.int32)


@pytree
class ChosenPages:
    """The pages that a step reads. Page i of Z slots holds slots i · Z to i · Z + Z - 1; Z divides the cache's slots.

    Attributes:
      table: page numbers, in any order but the newest last: a set for each KV head, or one that all of them share.
      counts: how many of each set are read, the first ones; those behind mean nothing.
      filled: how many slots of each set are filled: the first ones, for only the newest page may have empty slots.
      size: slots of a page, Z.
    """

    table: Int[Array, "B Sets P"]
    counts: Int[Array, "B Sets"]
    filled: Int[Array, "B Sets"]
    size: int = static()


@pytree
class Selection:
    """The slots that a step reads.

    Attributes:
      slots: of each KV head, in any order; of pages the newest last.
      valid: which of them are read.
      extra: what the policy wants to know of its choice when the step is committed.
      pages: the same choice as whole pages, page by page; None where single slots were chosen. Its slots that are
        filled and not evicted are read.
    """

    slots: Int[Array, "B K C"]
    valid: Bool[Array, "B K C"]
    extra: Any = None
    pages: ChosenPages | None = None


@pytree
class Note:
    """What one layer notes of a forward, for the policy's channels.

    Attributes:
      selection: the slots that were read; None where a prompt was, by all that is kept, and where the policy remembers
        no choice.
      query: of each entry, rotated, where the policy keeps queries.
      past: probabilities on the selected slots, summed over the query heads of a KV head; None where the policy records
        none.
      own: the same on the block's entries.
      held: the chosen slots themselves, where the forwards behind this one read them too; see `SelectedCache.holds`.
    """

    selection: Selection | None = None
    query: Float[Array, "B T N H"] | None = None
    past: Float[Array, "B T K C"] | None = None
    own: Float[Array, "B T K T"] | None = None
    held: Any = None


@pytree
class Step:
    """What one layer commits.

    Attributes:
      note: of the forward.
      write: which of its entries are kept.
      keys: of all of its entries.
      filled: slots that were committed before.
    """

    note: Note
    write: Write
    keys: Float[Array, "B T K H"]
    filled: Int[Array, "B"]

    def of(self, entries: Any) -> Any:
        """Returns of `[B, T, …]` what belongs to the entries of the path: `[B, P, …]`."""
        return entries if self.write.path is None else pick(entries, self.write.path)

    @property
    def kept(self) -> Bool[Array, "B P"]:
        """Which entries of the path are committed."""
        place = jnp.arange(self.of(self.write.position).shape[1], dtype=jnp.int32)
        return place[None] < self.write.count[:, None]

    def slot(self, slots: int) -> Int[Array, "B P"]:
        """Returns the slot of each entry of the path; `slots`, which is behind the cache, where it is not committed."""
        place = jnp.arange(self.kept.shape[1], dtype=jnp.int32)
        return jnp.where(self.kept, self.filled[:, None] + place[None], slots)


@pytree
class AfterReading:
    """In place of a forward's keys and values: the cache that holds them already, as a prompt read step by step has."""

    cache: Any


@pytree
class Recorded:
    """What a forward makes of its entries, and what a predictor has made of them.

    Attributes:
      entries: keys and values of each layer, as without a predictor.
      record: for what the policy keeps; every leaf is `[B, T, …]`.
    """

    entries: Any
    record: Any


@pytree
class SelectedLayer:
    """One layer's view of the cache, of which attention reads the slots that the policy chooses.

    Attributes:
      layer: the committed entries.
      filled: number of committed slots; those behind are empty.
      alive: False at slots that were evicted, which are never read again; None where the policy evicts nothing.
      channels: what the policy keeps of the layer.
      policy: chooses the slots: a `protocols.SelectingPolicy`.
      plan: how many.
      told: in a forward, what a predictor says of the layer; None without one.
      holds: as in `SelectedCache`.
    """

    layer: LayerCache
    filled: Int[Array, "B"]
    alive: Bool[Array, "B K S"] | None
    channels: Any
    told: Any = None
    policy: Any = static()
    plan: LayerPlan = static()
    holds: bool = static(default=False)

    sinks = None
    """Sinks are slots like others."""

    def positions(self) -> Int[Array, "B K S"]:
        """Returns each KV head's slot positions, `EMPTY` at those that it has evicted."""
        position = jnp.broadcast_to(self.layer.position[:, None], self.layer.keys.shape[:3])
        return position if self.alive is None else jnp.where(self.alive, position, jnp.int32(EMPTY))


@pytree
class SelectedCache:
    """Keys and values of every layer, and what a policy keeps beside them to choose the slots of a step.

    Attributes:
      cache: the keys and values.
      alive: of each layer, as in `SelectedLayer`.
      channels: of each layer, what its policy keeps; every leaf is `[B, …]`.
      own: what a predictor keeps of the rows, all layers together; None without one.
      policy: chooses the slots.
      plans: of each layer; None where it reads everything.
      holds: a forward notes the slots that it has chosen, for others to read (`cache.held`).
    """

    cache: KVCache
    alive: tuple[Bool[Array, "B K S"] | None, ...]
    channels: tuple[Any, ...]
    own: Any = None
    policy: Any = static()
    plans: tuple[LayerPlan | None, ...] = static()
    holds: bool = static(default=False)

    sinks = None
    """Sinks are slots like others."""

    @property
    def slot_length(self) -> Int[Array, "B"]:
        """Entries committed so far, evicted ones too."""
        return self.cache.slot_length

    @property
    def reach(self) -> Int[Array, "B"] | None:
        """As in `KVCache`."""
        return self.cache.reach

    @property
    def slots(self) -> int:
        """Capacity in slots."""
        return self.cache.slots

    def placed(self, put: Callable[..., Any]) -> "SelectedCache":
        """Returns the cache with every array where a mesh holds it; see `decode.state.lay_out`.

        What has a multiple of the KV heads along its second axis is divided there as the keys are: what a policy keeps
        of each KV head, a predictor of each query head, or SnapKV of each observer. Everything else lies with the rows.
        """
        heads = self.cache.keys[0].shape[1]

        def put_node(node: Any) -> Any:
            if isinstance(node, KVCache):  # The keys and values, or those of a predictor's own attention.
                return jax.tree.map(lambda leaf: put(leaf, *KVCache.axes(leaf.shape)), node)
            return put(node, *(HEADS if node.ndim > 2 and node.shape[1] % heads == 0 else ROWS))

        return jax.tree.map(put_node, self, is_leaf=lambda x: isinstance(x, KVCache))

    def layer(self, layer: int) -> LayerCache | SelectedLayer:
        """Returns what one layer's attention reads, or chooses from."""
        plan, view = self.plans[layer], self.cache.layer(layer)
        if plan is None:
            return view
        return SelectedLayer(
            layer=view,
            filled=self.slot_length,
            alive=self.alive[layer],
            channels=self.channels[layer],
            policy=self.policy,
            plan=plan,
            holds=self.holds,
        )

    def commit(self, block_kv: Any, write: Write) -> "SelectedCache":
        """Writes entries behind what each row holds, and lets the policy learn from them and from no others."""
        if isinstance(block_kv, AfterReading):
            return block_kv.cache
        own = self.own
        if isinstance(block_kv, Recorded):
            own = self.policy.remembered(own, block_kv.record, write, self.slot_length)
            block_kv = block_kv.entries
        entries = tuple(made.entries if isinstance(made, Noted) else made for made in block_kv)
        cache = self.cache.commit(entries, write)
        alive, channels = list(self.alive), list(self.channels)
        for i, made in enumerate(block_kv):
            before = self.layer(i)
            if not isinstance(before, SelectedLayer):
                continue
            keys, _ = made
            step = Step(note=made.note, write=write, keys=keys, filled=before.filled)
            alive[i] = _alive_after(before, step)
            after = replace(before, layer=cache.layer(i), filled=cache.slot_length, alive=alive[i])
            channels[i] = self.policy.committed(after, step)
        return replace(self, cache=cache, alive=tuple(alive), channels=tuple(channels), own=own)


def _alive_after(view: SelectedLayer, step: Step) -> Bool[Array, "B K S"] | None:
    """Returns what is left: the slots that were read, and those of new entries."""
    chosen = step.note.selection
    if view.alive is None or chosen is None:
        return view.alive
    nothing = jnp.zeros_like(view.alive)

    def marked(read: Array, slots: Array, valid: Array) -> Array:
        row, head = (jnp.arange(n, dtype=jnp.int32) for n in read.shape[:2])
        return read.at[row[:, None, None], head[None, :, None], slots].max(valid)

    read = on_each_device(marked, (nothing, HEADS), (chosen.slots, HEADS), (chosen.valid, HEADS))
    new = jnp.arange(nothing.shape[2], dtype=jnp.int32)[None, None] >= step.filled[:, None, None]
    return jnp.where((step.write.count > 0)[:, None, None], view.alive & (read | new), view.alive)


def take_pages(array: Shaped[Array, "B K S *entry"], pages: ChosenPages) -> Shaped[Array, "B K C *entry"]:
    """Returns the entries of the pages of each KV head, page by page; behind the count, those of any page.

    Args:
      array: of each KV head.
      pages: a set for each KV head, or one for all.

    Raises:
      ValueError: there are sets for another number of KV heads.
    """
    heads, sets = array.shape[1], pages.table.shape[1]
    if sets not in (1, heads):
        raise ValueError(f"pages must be of {heads} KV heads, as the array, or of 1; got {sets}")

    def at_once(by_page: Array, table: Array) -> Array:
        index = table.reshape(*table.shape, *(1,) * (by_page.ndim - 3))
        return jnp.take_along_axis(by_page, index, axis=2, mode="promise_in_bounds")

    def take(array: Array, table: Array) -> Array:
        rows, heads, slots, *entry = array.shape
        by_page = array.reshape(rows, heads, slots // pages.size, pages.size, *entry)
        if entry and table.shape[1] == heads and cpu.are_few_sets(table, by_page):
            found = jax.lax.platform_dependent(by_page, table, cpu=cpu.pages_in_halves, default=at_once)
        else:
            found = at_once(by_page, table)
        return found.reshape(rows, found.shape[1], -1, *entry)

    return on_each_device(take, (array, HEADS), (pages.table, HEADS))


def take_slots(array: Shaped[Array, "B K S H"], slots: Int[Array, "B K C"]) -> Shaped[Array, "B K C H"]:
    """Returns the entries of each KV head's slots."""
    # A whole entry at a time: over all axes at once, every number would have an index of its own.
    take = jax.vmap(jax.vmap(lambda rows, index: rows.at[index].get(mode="promise_in_bounds")))
    return on_each_device(take, (array, HEADS), (slots, HEADS))
