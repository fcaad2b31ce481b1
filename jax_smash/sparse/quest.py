"""Quest: pages whose keys may answer the query, by the least and the greatest of each of their numbers."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jax_smash.attention.formula import key_scores
from jax_smash.cache import SelectedLayer, Selection, Step
from jax_smash.cache.store import HEADS, ROWS
from jax_smash.cache.write import pin
from jax_smash.config import ModelConfig
from jax_smash.pytree import pytree
from jax_smash.sharding import on_each_device
from jax_smash.sparse.selecting import Selecting

LEAST_PAGES = 3
"""Pages that are read however small the budget is."""


@pytree
class PageBounds:
    """The least and the greatest of each number of a page's keys; infinite where the page is empty."""

    low: Float[Array, "B K P H"]
    high: Float[Array, "B K P H"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quest(Selecting):
    """Reads the pages with the highest bound on the score that a key of theirs may have; evicts nothing.

    bound(page) = Σ_h max(q_h · low_h, q_h · high_h)

    Source: Tang et al. 2024, "Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference", section 3; the
    first two layers are dense, and prompts are. Two forms were published: that of the kernels always reads the newest
    page and chooses the others; that of the evaluation script chooses all, by their bounds.
    Differs: the query heads of a KV head share a set, by the greatest of their bounds. The budget does not count the
    new entries, which are always read: in the published script they are part of a page.

    Attributes:
      form: `kernel` or `script`.
    """

    page_size: int = 16
    dense_layers: int = 2
    newest_page: bool = dataclasses.field(init=False, default=True)
    form: str = "kernel"

    def __post_init__(self) -> None:
        if self.form not in ("kernel", "script"):
            raise ValueError(f"form must be kernel or script; got {self.form!r}")
        object.__setattr__(self, "newest_page", self.form == "kernel")
        super().__post_init__()

    @property
    def least(self) -> int:
        """Slots of three pages, or of those that are always read."""
        return max(LEAST_PAGES * self.page_size, super().least)

    def init(self, config: ModelConfig, layer: int, keys: Float[Array, "B K S H"]) -> Any:
        """Begins with empty pages."""
        rows, heads, slots, width = keys.shape
        shape = (rows, heads, -(-slots // self.page_size), width)
        return PageBounds(low=jnp.full(shape, jnp.inf, keys.dtype), high=jnp.full(shape, -jnp.inf, keys.dtype))

    def scorer_bytes(self, config: ModelConfig, slots: int, itemsize: int) -> int:
        """Returns the bytes of the bounds."""
        return 2 * config.held_kv_heads * -(-slots // self.page_size) * config.head_width * itemsize

    def select(self, view: SelectedLayer, query: Float[Array, "B N H"]) -> Selection:
        """Scores pages by their bounds."""
        bounds = view.channels
        rows, heads, _, width = bounds.low.shape
        grouped = query.reshape(rows, heads, -1, width)
        # Σ max(q · low, q · high) as two products: where q is negative, its product with the least is the greater.
        parts = ((jnp.minimum(grouped, 0), bounds.low), (jnp.maximum(grouped, 0), bounds.high))
        low, high = (key_scores(query, edge) for query, edge in parts)
        return self.best(view, (low + high).max(2))

    def committed(self, view: SelectedLayer, step: Step) -> Any:
        """Widens the bounds of the pages that new keys are in."""
        bounds, size = view.channels, self.page_size
        keys = step.of(step.keys).astype(bounds.low.dtype)
        rows, width, heads, _ = keys.shape
        pages = bounds.low.shape[2]
        touched = min(-(-(width - 1) // size) + 1, pages)
        first = jnp.minimum(step.filled // size, pages - touched)
        if width <= size:
            # A few entries: each beside each page that it may be in.
            each = jnp.arange(width, dtype=jnp.int32)[None]
            page = (step.filled[:, None] + each) // size - first[:, None]
            new = page[:, None] == jnp.arange(touched, dtype=jnp.int32)[None, :, None]
            new &= (each < step.write.count[:, None])[:, None]
            found = keys[:, None]
        else:
            # Of each slot of these pages, which of the new entries it holds.
            slot = first[:, None] * size + jnp.arange(touched * size, dtype=jnp.int32)[None]
            entry = (slot - step.filled[:, None]).reshape(rows, touched, size)
            new = (entry >= 0) & (entry < step.write.count[:, None, None])
            at = jnp.clip(entry, 0, width - 1).reshape(rows, -1, 1, 1)
            found = jnp.take_along_axis(keys, at, axis=1).reshape(rows, touched, size, heads, -1)

        def of_pages(empty: float) -> Float[Array, "B touched X K H"]:
            return jnp.where(new[..., None, None], found, jnp.asarray(empty, keys.dtype))

        fresh = PageBounds(low=of_pages(jnp.inf).min(2).swapaxes(1, 2), high=of_pages(-jnp.inf).max(2).swapaxes(1, 2))
        return on_each_device(_widened, (bounds, HEADS), (fresh, HEADS), (first, ROWS))


def _widened(bounds: PageBounds, fresh: PageBounds, first: Int[Array, "B"]) -> PageBounds:
    """Returns bounds that also hold for new keys, of which each row has the bounds by page from a first page on."""
    widen = functools.partial(_widened_by_row, form=lambda array: array)
    for_tpu = functools.partial(_widened_by_row, form=pin)
    return jax.lax.platform_dependent(bounds, fresh, first, tpu=for_tpu, default=widen)


def _widened_by_row(
    bounds: PageBounds, fresh: PageBounds, first: Int[Array, "B"], *, form: Callable[[Array], Array]
) -> PageBounds:
    """Widens a window of pages a row, in one loop, so that no array is written anew. It keeps arrays in a form."""
    zero = jnp.zeros((), jnp.int32)

    def edge(held: Array, new: Array, row: Array, widen: Callable[[Array, Array], Array]) -> Array:
        start, new = (row, zero, first[row], zero), jax.lax.dynamic_index_in_dim(new, row)
        wider = widen(jax.lax.dynamic_slice(held, start, new.shape), new)
        return form(jax.lax.dynamic_update_slice(held, wider, start))

    def widen_row(row: Array, held: PageBounds) -> PageBounds:
        return PageBounds(
            low=edge(held.low, fresh.low, row, jnp.minimum), high=edge(held.high, fresh.high, row, jnp.maximum)
        )

    return jax.lax.fori_loop(zero, jnp.int32(first.shape[0]), widen_row, jax.tree.map(form, bounds))
