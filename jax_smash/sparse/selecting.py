"""What policies that choose slots share: budgets, what is always read, and the choice of the best."""

import abc
import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from jax_smash import cpu
from jax_smash.cache import ChosenPages, LayerPlan, SelectedCache, SelectedLayer, Selection, Step
from jax_smash.cache.store import HEADS
from jax_smash.config import ModelConfig
from jax_smash.sharding import on_each_device

TILE = 16
"""Slots of which a page must be a multiple to be read as a whole: rows of a tile of bfloat16."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selecting(abc.ABC):
    """A policy that reads a budget of slots at a step, a set a KV head, chosen by scores.

    The cache holds all entries, so memory is that of dense decoding, but a step reads at most the budget of slots, and
    the new entries. A text that fits the budget is read whole, but by KV heads that have a share of it. Layers with a
    sliding window are read whole too. Where a mesh holds copies of KV heads, each copy chooses for itself.

    Attributes:
      budget: slots that a step reads a KV head; or, as a float, a share of the committed slots.
      sinks: first entries of a text that are always read.
      window: last entries that are always read.
      page_size: consecutive slots that are chosen together.
      newest_page: of pages, the last is always read.
      dense_layers: first layers that read everything.
      prompt: `dense` reads prompts by all that is kept; `stepwise` reads them as what is decoded.
      head_shares: for each layer and KV head, what it may read of the budget, as a share; None gives each all of it.
      pays_from: slots from which choosing pays: while every row of a batch has fewer, a step reads all of them, as
        without a policy. So a row's text may then depend on the longest beside it. `sparse.pays_from` finds it.

    Raises:
      ValueError: a number is out of range, or what is always read exceeds the budget.
    """

    budget: int | float = 512
    sinks: int = 0
    window: int = 0
    page_size: int = 1
    newest_page: bool = True
    dense_layers: int = 0
    prompt: str = "dense"
    head_shares: tuple[tuple[float, ...], ...] | None = None
    pays_from: int = 0

    endless = False
    """The cache has a slot for every entry."""

    longest_block = None
    """A forward may read any number of entries."""

    evicts = False
    """A slot may be chosen again."""

    records = False
    """Forwards note no probabilities."""

    keeps_queries = False
    """Forwards note no queries."""

    def __post_init__(self) -> None:
        for name, least in {"sinks": 0, "window": 0, "page_size": 1, "dense_layers": 0, "pays_from": 0}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}; got {getattr(self, name)}")
        if self.prompt not in ("dense", "stepwise"):
            raise ValueError(f"prompt must be dense or stepwise; got {self.prompt!r}")
        if isinstance(self.budget, float):
            if not 0 < self.budget <= 1:
                raise ValueError(f"budget must be over 0 and at most 1 as a share of the text; got {self.budget}")
        elif self.budget < 1:
            raise ValueError(f"budget must be at least 1 slot; got {self.budget}")
        elif self.budget % self.page_size:
            raise ValueError(f"page_size must divide the budget of {self.budget} slots; got {self.page_size}")
        elif self.budget < self.least:
            raise ValueError(
                f"budget must be at least the {self.least} slots that are always read "
                f"(sinks {self.sinks}, window {self.window}, page_size {self.page_size}); got {self.budget}"
            )
        if self.pays_from and self.remembers:
            raise ValueError(
                f"pays_from must be 0 for {type(self).__name__}, which must know of every choice; got {self.pays_from}"
            )
        if self.head_shares is not None and not all(0 < s <= 1 for layer in self.head_shares for s in layer):
            raise ValueError(f"head_shares must be over 0 and at most 1; got {self.head_shares}")

    @property
    def least(self) -> int:
        """Slots that are read however small a share of the text the budget is; at least 1, and whole pages."""
        size = self.page_size
        pages = math.ceil(self.sinks / size) + (math.ceil((self.window - 1) / size) + 1 if self.window else 0)
        if size > 1 and self.newest_page and not self.window:
            pages += 1
        return max(pages, 1) * size

    @property
    def remembers(self) -> bool:
        """Commits are told which slots were chosen."""
        return self.evicts or self.records

    @property
    def stepwise(self) -> bool:
        """Prompts are read as what is decoded is."""
        return self.prompt == "stepwise"

    def check(self, model: Any) -> None:
        """Refuses a model or a budget that do not go together.

        Raises:
          ValueError: the model is not of this package, its context is less than the budget, it has no more layers than
            are dense, or `head_shares` are not those of its heads.
        """
        config = model.config
        if config is None:
            raise ValueError(f"{model.name} must be a model of this package: {type(self).__name__} needs its cache")
        if isinstance(self.budget, int) and self.budget > config.max_positions:
            raise ValueError(
                f"budget must be at most the {config.max_positions} slots that a cache of {model.name} may have; "
                f"got {self.budget}"
            )
        if self.dense_layers >= config.num_layers:
            raise ValueError(
                f"dense_layers must be fewer than the {config.num_layers} layers of {model.name}; "
                f"got {self.dense_layers}"
            )
        if self.head_shares is not None:
            shape = tuple(len(layer) for layer in self.head_shares)
            if shape != (config.num_kv_heads,) * config.num_layers:
                raise ValueError(
                    f"head_shares must have {config.num_layers} layers of {config.num_kv_heads} KV heads; "
                    f"got layers of {', '.join(map(str, shape)) or 'none'}"
                )

    def slots_of(self, slots: int) -> int:
        """Returns C, the slots that a step reads a KV head, of a cache with so many."""
        wanted = self.budget if isinstance(self.budget, int) else math.ceil(self.budget * slots)
        return max(math.ceil(wanted / self.page_size) * self.page_size, self.least)

    def plans(self, config: ModelConfig, slots: int) -> tuple[LayerPlan | None, ...]:
        """Returns how each layer reads a cache of so many slots; None where it reads all of them."""
        count = self.slots_of(slots)

        def plan(layer: int, kind: str) -> LayerPlan | None:
            if layer < self.dense_layers or kind != "full" or max(self.least, self.pays_from) >= slots:
                return None
            shares = self.head_shares[layer] if self.head_shares is not None else ()
            if count >= slots and all(share == 1 for share in shares):
                return None
            return LayerPlan(
                slots=min(count, slots // self.page_size * self.page_size),
                least=self.least,
                share=self.budget if isinstance(self.budget, float) else None,
                by_head=None if self.head_shares is None else _held(self.head_shares[layer], config),
                scale=config.query_scale,
                softcap=config.attention_softcap,
                pays_from=self.pays_from,
            )

        return tuple(plan(layer, kind) for layer, kind in enumerate(config.layer_kinds))

    def init_cache(self, model: Any, batch: int, slots: int, block: int) -> Any:
        """Makes an empty cache; where every layer reads all of it, the model's own."""
        cache, plans = model.init_cache(batch, slots, block), self.plans(model.config, slots)
        if not any(plans):
            return cache
        views = [(layer, cache.layer(layer).keys) for layer in range(len(plans))]
        return SelectedCache(
            cache=cache,
            alive=tuple(
                jnp.ones(keys.shape[:3], bool) if plans[layer] and self.evicts else None for layer, keys in views
            ),
            channels=tuple(self.init(model.config, layer, keys) if plans[layer] else None for layer, keys in views),
            policy=self,
            plans=plans,
        )

    def init(self, config: ModelConfig, layer: int, keys: Float[Array, "B K S H"]) -> Any:
        """Makes the channels of a layer whose cache is empty."""
        return None

    @abc.abstractmethod
    def select(self, view: SelectedLayer, query: Float[Array, "B N H"]) -> Selection:
        """Returns the slots that a forward reads; see `protocols.SelectingPolicy`."""

    def committed(self, view: SelectedLayer, step: Step) -> Any:
        """Returns the layer's channels after a step; see `protocols.SelectingPolicy`."""
        return view.channels

    def scorer_bytes(self, config: ModelConfig, slots: int, itemsize: int) -> int:
        """Returns how many bytes a row a step reads to choose the slots of one layer.

        Args:
          config: the model's sizes.
          slots: that the row holds.
          itemsize: bytes of a number of a key.
        """
        return 0

    def beside_bytes(self, slots: int, itemsize: int) -> int:
        """Returns how many bytes a row a step reads to choose beside `scorer_bytes`, all layers together."""
        return 0

    def last(self, limit: Int[Array, "B K"]) -> Int[Array, "B K"]:
        """Returns how many of the last entries are always read, of a KV head that may read so many slots."""
        return jnp.full_like(limit, self.window)

    def best(self, view: SelectedLayer, score: Float[Array, "B _ X"]) -> Selection:
        """Returns the slots with the highest scores, behind those that are always read.

        Args:
          view: the layer.
          score: of each slot, or of each page; −∞ is never chosen. Of equal ones the first is taken. Of each KV head,
            or of one for all, which then share a set.
        """
        rows, heads, slots, _ = view.layer.keys.shape
        size, limit = self.page_size, view.plan.limit(view.filled, heads)
        if view.alive is not None or view.plan.by_head is not None:
            score = jnp.broadcast_to(score, (rows, heads, score.shape[2]))
        sets = score.shape[1]
        there, rank = _readable(view), jnp.where(jnp.isfinite(score), score, -jnp.inf)
        if size > 1 and score.shape[2] == slots:
            rank = _by_page(jnp.where(there, rank, -jnp.inf), size, -jnp.inf).max(-1)
        held = there if size == 1 else _by_page(there, size, False).any(-1)
        rank = jnp.where(held, rank, -jnp.inf)
        rank = jnp.where(held & self._always(view.filled, limit[:, :sets], rank.shape[2]), jnp.inf, rank)
        # A device has all scores of its rows and heads: left to itself, XLA would gather them to sort them.
        highest = functools.partial(_highest, most=min(view.plan.slots // size, rank.shape[2]))
        found, valid = on_each_device(highest, (rank, HEADS), (limit[:, :sets] // size, HEADS))
        if size > 1:
            return _whole_pages(view, found, valid, size)
        shape = (rows, heads, found.shape[2])
        return Selection(slots=jnp.broadcast_to(found, shape), valid=jnp.broadcast_to(valid, shape))

    def _always(self, filled: Int[Array, "B"], limit: Int[Array, "B Sets"], pages: int) -> Bool[Array, "B Sets P"]:
        """Returns which pages have a slot that is always read; a page may be a slot."""
        size, end = self.page_size, filled[:, None]
        first = jnp.arange(pages, dtype=jnp.int32)[None, None] * size
        latest = end - self.last(limit)
        if size > 1 and self.newest_page:
            latest = jnp.minimum(latest, (end - 1) // size * size)
        # A page ends where the next one begins, also if all behind the last entry is empty.
        return (first < self.sinks) | ((first + size > latest[:, :, None]) & (latest < end)[:, :, None])


def _highest(
    rank: Float[Array, "B Sets P"], count: Int[Array, "B Sets"], *, most: int
) -> tuple[Int[Array, "B Sets C"], Bool[Array, "B Sets C"]]:
    """Returns the places of the `count` highest numbers, and which of `most` places are meant: the first ones.

    −∞ is never meant, and of equal numbers the first is.
    """

    def by_sorting(rank: Array, count: Array) -> tuple[Array, Array]:
        value, found = jax.lax.top_k(rank, most)
        return found, (value > -jnp.inf) & (jnp.arange(most, dtype=jnp.int32)[None, None] < count[..., None])

    if rank.shape[2] < cpu.MANY:
        return by_sorting(rank, count)
    by_threshold = functools.partial(cpu.highest_places, most=most)
    return jax.lax.platform_dependent(rank, count, cpu=by_threshold, default=by_sorting)


def _readable(view: SelectedLayer) -> Bool[Array, "B _ S"]:
    """Returns which slots may be read: of all KV heads, or of each where they evict."""
    slot = jnp.arange(view.layer.keys.shape[2], dtype=jnp.int32)[None, None]
    filled = slot < view.filled[:, None, None]
    return filled if view.alive is None else filled & view.alive


def _by_page(of_slots: Shaped[Array, "B _ S"], size: int, fill: Any) -> Shaped[Array, "B _ P Z"]:
    """Returns what is known of slots page by page, the last page filled up."""
    short = -of_slots.shape[2] % size
    padded = jnp.pad(of_slots, ((0, 0), (0, 0), (0, short)), constant_values=fill)
    return padded.reshape(*of_slots.shape[:2], -1, size)


def _whole_pages(
    view: SelectedLayer, found: Int[Array, "B Sets P"], valid: Bool[Array, "B Sets P"], size: int
) -> Selection:
    """Returns a choice of pages, and of the slots in them."""
    rows, heads, slots, _ = view.layer.keys.shape
    count = valid.sum(2, dtype=jnp.int32)[:, :, None]
    # The newest page changes places with the last that is read.
    newest = (view.filled[:, None, None] - 1) // size
    last = jnp.arange(found.shape[2], dtype=jnp.int32)[None, None] == count - 1
    here = (found == newest) & valid
    found = jnp.where(here, jnp.where(last, found, 0).sum(2, keepdims=True), found)
    found = jnp.where(last & here.any(2, keepdims=True), newest, found)
    empty = jnp.where(here.any(2), (newest[:, :, 0] + 1) * size - view.filled[:, None], 0)
    within = jnp.arange(size, dtype=jnp.int32)[None, None, None]
    chosen = (found[..., None] * size + within).reshape(rows, found.shape[1], -1)
    chosen = jnp.broadcast_to(chosen, (rows, heads, chosen.shape[2]))
    kept = jnp.minimum(chosen, slots - 1)
    readable = jnp.take_along_axis(_readable(view), kept, axis=2) & (chosen < slots)
    # Smaller pages, and those that end behind the cache, are gathered slot by slot.
    whole = size % TILE == 0 and slots % size == 0
    pages = ChosenPages(table=found, counts=count[:, :, 0], filled=count[:, :, 0] * size - empty, size=size)
    return Selection(slots=kept, valid=jnp.repeat(valid, size, axis=2) & readable, pages=pages if whole else None)


def _held(shares: tuple[float, ...], config: ModelConfig) -> tuple[float, ...]:
    """Returns the shares of the KV heads that are held: some models hold each several times, side by side."""
    return tuple(share for share in shares for _ in range(config.kv_copies))
