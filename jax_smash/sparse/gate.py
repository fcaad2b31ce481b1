"""A gate over pages of the cache, as a policy."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.cache import Block, Entering, SelectedCache, SelectedLayer, Selection, Write
from jax_smash.cache.store import HEADS, ROWS
from jax_smash.cache.write import pick
from jax_smash.models.predictors import Pool, PredictorConfig, importance
from jax_smash.pytree import pytree
from jax_smash.sharding import on_each_device
from jax_smash.sparse.learned import FIRST, Learned
from jax_smash.sparse.memory import Heard, Memory, Parts


@pytree
class Filling:
    """The page of each row that is not full.

    Attributes:
      pools: its keys so far, of each producer.
      first: position of its first entry; anything where it is empty.
    """

    pools: dict[int, Pool]
    first: Int[Array, "B"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PageGate(Learned):
    """Reads the pages that a gate scores highest, by queries and pooled keys before the rotary embedding.

    score(page) = q · k / √d, a q and a k for each KV head; the last page, which may not be full, is always read.

    Source: Gao et al. 2025, "SeerAttention-R"; pages of 64, a budget or a threshold.
    Differs: the threshold is on the sum of the best pages' probabilities, not on each page's. A page gets its key when
    it is full and none before, as in training.

    Attributes:
      page_size: entries of a page; 1 for the gate's own number, which is the only other one that it takes.
      top_p: pages are read, the best first, until their probabilities reach this sum; 1 reads the whole budget. The
        probabilities are a softmax over full pages. What is always read counts, and is read in any case.
    """

    sinks: int = 4
    page_size: int = 1
    newest_page: bool = dataclasses.field(init=False, default=True)
    top_p: float = 1.0

    form = "gate"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be over 0 and at most 1; got {self.top_p}")

    def sized(self, predictor: PredictorConfig, trained_length: int | None = None) -> "Learned":
        """Returns the policy for a gate of certain sizes.

        Raises:
          ValueError: the predictor is of another form, or its pages are of another size.
        """
        found = super().sized(predictor, trained_length)
        if self.page_size not in (1, predictor.page_size):
            raise ValueError(f"page_size must be the gate's {predictor.page_size}; got {self.page_size}")
        return dataclasses.replace(found, page_size=predictor.page_size)

    @property
    def unit(self) -> int:
        """Slots that share a score."""
        return self.page_size

    @property
    def queries_a_layer(self) -> int:
        """K."""
        return self.sizes.num_kv_heads

    def place_of(self, layer: int) -> int:
        """Returns the producer that serves a layer."""
        return layer // self.sizes.share

    def asking(self, cache: SelectedCache) -> list[int]:
        """Returns the producers that serve a layer whose slots are chosen."""
        return sorted({self.place_of(layer) for layer in self.planned(cache)})

    def empty_keys(self, predictor: Any, cache: SelectedCache) -> dict[int, Parts]:
        """Makes room for a key of each KV head and page."""
        rows, pages = cache.slot_length.shape[0], -(-cache.slots // self.page_size)
        shape = (rows, self.sizes.num_kv_heads, pages, self.sizes.width)
        return {i: (jnp.zeros(shape, predictor.dtype),) for i in self.asking(cache)}

    def empty_beside(self, predictor: Any, cache: SelectedCache, block: int) -> Filling:
        """Makes a page without keys, for each row."""
        rows, config = cache.slot_length.shape[0], self.sizes
        pools = {i: Pool.empty(rows, config.num_kv_heads, config.head_width) for i in self.asking(cache)}
        return Filling(pools=pools, first=jnp.zeros((rows,), jnp.int32))

    def entered(self, predictor: Any, cache: SelectedCache, heard: Heard | None, entering: Entering) -> Heard:
        """Makes a producer's queries, and the keys of the pages that may become full."""
        heard, config, layer = heard or Heard(beside={}), self.sizes, entering.layer
        producer = self.place_of(entering.index)
        if entering.index not in config.starts or producer not in cache.own.keys:
            return heard
        # The layer makes the same product: compiled, both are one.
        heads, _ = layer.attention.heads(
            entering.x if layer.attention_norm is None else layer.attention_norm(entering.x)
        )
        queries, plain = heads[..., :-1, :].reshape(*heads.shape[:2], config.num_heads, -1), heads[..., -1, :]
        position = entering.position
        if config.look_ahead == 0:
            queries, position = entering.asking(queries), entering.asking(position)
        made = predictor.queries_of(producer, queries, position)
        keys = self._page_keys(predictor, producer, cache, plain, entering)
        return Heard(
            queries=heard.queries | {producer: made},
            keys=heard.keys | {producer: (keys,)},
            beside=heard.beside | {producer: plain},
        )

    def _page_keys(
        self, predictor: Any, producer: int, cache: SelectedCache, plain: Float[Array, "B T K H"], entering: Entering
    ) -> Float[Array, "B T K d"]:
        """Returns for each entry that fills a page the key of that page; anything for the others."""
        filling, filled, size = cache.own.beside, cache.slot_length, self.page_size
        slot = filled[:, None] + _depth(entering.block, plain.shape[1])
        page = slot // size - (filled // size)[:, None]
        valid = entering.block.valid[:, -plain.shape[1] :]

        def made() -> Float[Array, "B T K d"]:
            if entering.block.ancestors is None:
                # In a text in order, entries of a page are of all its later ones' past: a group is a page.
                group = jnp.arange((plain.shape[1] - 1) // size + 2, dtype=jnp.int32)
                member = (page[:, None] == group[None, :, None]) & valid[:, None]
                index, carried = page, jnp.broadcast_to(group[None] == 0, member.shape[:2])
            else:
                # In a tree, each node has a past of its own.
                member = entering.block.mask() & (page[:, :, None] == page[:, None])
                index = jnp.broadcast_to(jnp.arange(page.shape[1], dtype=jnp.int32)[None], page.shape)
                carried = page == 0
            pool, first = _pooled(filling, producer, plain, entering.position, member, carried)
            keys = predictor.keys_of(producer, pool, first)
            index = jnp.clip(index, 0, keys.shape[1] - 1)
            return jnp.take_along_axis(keys, index[:, :, None, None], axis=1)

        fills = valid & ((slot + 1) % size == 0)
        nothing = jax.eval_shape(made)
        return jax.lax.cond(fills.any(), made, lambda: jnp.zeros(nothing.shape, nothing.dtype))

    def with_keys(self, own: Memory, record: Heard, write: Write, filled: Int[Array, "B"]) -> dict[int, Parts]:
        """Returns the keys with those of pages that are full now."""
        slot, kept = _path_slots(write, filled)
        full = kept & ((slot + 1) % self.page_size == 0)

        def write_all(held: dict[int, Parts], made: dict[int, Parts], slot: Array, full: Array) -> dict[int, Parts]:
            row = jnp.arange(slot.shape[0], dtype=jnp.int32)[:, None]

            def written(held: Array, made: Array) -> Array:
                page = jnp.where(full, slot // self.page_size, held.shape[2])
                # The advanced indices stand apart, so their axes come first: [B, P, K, d], as the keys are.
                return held.at[row, :, page].set(made.astype(held.dtype), mode="drop")

            return {i: (written(keys, made[i][0]),) for i, (keys,) in held.items()}

        made = {i: record.keys[i] for i in own.keys}
        return on_each_device(
            write_all, (own.keys, HEADS), (made, ("batch", None, "kv_heads")), (slot, ROWS), (full, ROWS)
        )

    def with_beside(self, own: Memory, record: Heard, write: Write, filled: Int[Array, "B"]) -> Filling:
        """Adds the path's entries to the page that is not full, or begins another."""
        slot, kept = _path_slots(write, filled)
        page = (filled + write.count) // self.page_size
        within = kept & (slot // self.page_size == page[:, None])
        goes_on = page == filled // self.page_size
        position = write.position if write.path is None else pick(write.position, write.path)

        def added(old: Pool, plain: Array) -> Pool:
            entries = plain if write.path is None else pick(plain, write.path)
            empty = Pool.empty(*old.highest.shape)
            held = jax.tree.map(lambda a, b: jnp.where(goes_on.reshape(-1, *(1,) * (a.ndim - 1)), a, b), old, empty)
            wide, member = entries.astype(jnp.float32), within[:, :, None, None]
            return Pool(
                highest=jnp.maximum(held.highest, jnp.where(member, wide, -jnp.inf).max(1)),
                lowest=jnp.minimum(held.lowest, jnp.where(member, wide, jnp.inf).min(1)),
                total=held.total + jnp.where(member, wide, 0.0).sum(1),
                count=held.count + within.sum(1, dtype=jnp.int32),
            )

        begun = goes_on & (filled % self.page_size > 0)
        first = jnp.where(within, position, jnp.iinfo(jnp.int32).max).min(1)
        return Filling(
            pools={i: added(pool, record.beside[i]) for i, pool in own.beside.pools.items()},
            first=jnp.where(begun, own.beside.first, first),
        )

    def scores(self, view: SelectedLayer, query: Float[Array, "B N H"]) -> Float[Array, "B K X"]:
        """Returns the score of each full page."""
        (keys,) = view.told.keys
        found: Array = importance(view.told.query[:, None], keys.swapaxes(1, 2))[:, :, 0, 0]
        page = jnp.arange(found.shape[2], dtype=jnp.int32)
        full = page[None] < (view.filled // self.page_size)[:, None]
        return jnp.where(full[:, None], found, -jnp.inf)

    def best(self, view: SelectedLayer, score: Float[Array, "B K X"]) -> Selection:
        """Returns the pages with the highest scores, until they have `top_p` of the probability."""
        if self.top_p < 1:
            score = jnp.where(self._enough(view, score), -jnp.inf, score)
        return super().best(view, score)

    def _enough(self, view: SelectedLayer, score: Float[Array, "B K P"]) -> Bool[Array, "B K P"]:
        """Returns which pages come behind those that have `top_p` of the probability.

        Pages that have no score yet, and are read until they have one, are never among these.
        """
        full, (_, heads, pages) = (score > -jnp.inf) & (score < FIRST), score.shape
        likely = jnp.where(full, jax.nn.softmax(jnp.where(full, score, -1e30), axis=-1), 0.0)
        always = self._always(view.filled, view.plan.limit(view.filled, heads), pages)
        order = jnp.argsort(-jnp.where(always, likely + 1, likely), axis=2)
        in_order = jnp.take_along_axis(likely, order, axis=2)
        enough = jnp.cumsum(in_order, axis=2) - in_order >= self.top_p
        return jnp.take_along_axis(enough, jnp.argsort(order, axis=2), axis=2) & (score < FIRST)

    def key_bytes(self, slots: int, itemsize: int) -> int:
        """Returns the bytes of a key of each KV head and page, which the layers of a producer share."""
        keys = self.sizes.num_kv_heads * self.sizes.width * -(-slots // self.page_size) * itemsize
        return -(-keys // self.sizes.share)


def _depth(block: Block, width: int) -> Int[Array, "B T"]:
    """Returns how many entries of the block stand before each entry in its text."""
    if block.ancestors is None:
        return jnp.cumsum(block.valid[:, -width:], axis=1, dtype=jnp.int32) - 1
    return block.mask().sum(-1, dtype=jnp.int32) - 1


def _path_slots(write: Write, filled: Int[Array, "B"]) -> tuple[Int[Array, "B P"], Bool[Array, "B P"]]:
    """Returns the slot of each entry of the path, and which are committed."""
    entries = write.position if write.path is None else write.path
    place = jnp.arange(entries.shape[1], dtype=jnp.int32)[None]
    return filled[:, None] + place, place < write.count[:, None]


def _pooled(
    filling: Filling,
    producer: int,
    plain: Float[Array, "B T K H"],
    position: Int[Array, "B T"],
    member: Bool[Array, "B G T"],
    carried: Bool[Array, "B G"],
) -> tuple[Float[Array, "B G K X"], Int[Array, "B G"]]:
    """Returns the pooled keys of groups of entries, and the position of the first entry of each.

    Args:
      filling: the page that is not full.
      producer: whose pool of it.
      plain: keys before the rotary embedding.
      position: of each entry.
      member: which entries are of which group.
      carried: which groups go on with the page that is not full.
    """
    pool, wide = filling.pools[producer], plain.astype(jnp.float32)
    of_group, goes_on = member[..., None, None], carried[..., None, None]
    highest = jnp.where(of_group, wide[:, None], -jnp.inf).max(2)
    lowest = jnp.where(of_group, wide[:, None], jnp.inf).min(2)
    total = jnp.where(of_group, wide[:, None], 0.0).sum(2)
    count = member.sum(2, dtype=jnp.int32) + jnp.where(carried, pool.count[:, None], 0)
    highest = jnp.where(goes_on, jnp.maximum(highest, pool.highest[:, None]), highest)
    lowest = jnp.where(goes_on, jnp.minimum(lowest, pool.lowest[:, None]), lowest)
    total = jnp.where(goes_on, total + pool.total[:, None], total)
    mean = total / jnp.maximum(count, 1).astype(jnp.float32)[..., None, None]
    first = jnp.where(member, position[:, None], jnp.iinfo(jnp.int32).max).min(2)
    begun = carried & (pool.count > 0)[:, None]
    return jnp.concatenate([highest, lowest, mean], axis=-1), jnp.where(begun, filling.first[:, None], first)
