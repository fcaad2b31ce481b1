"""What policies share that choose slots by a trained predictor."""

import abc
import dataclasses
import logging
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_smash.cache import Entering, SelectedCache, SelectedLayer, Selection, Step, Write
from jax_smash.cache.store import HEADS, ROWS
from jax_smash.cache.write import pick, write_entries
from jax_smash.config import ModelConfig
from jax_smash.models.predictors import PredictorConfig
from jax_smash.pytree import replace
from jax_smash.sharding import on_each_device
from jax_smash.sparse.memory import Heard, LastScores, Memory, Parts, Told
from jax_smash.sparse.selecting import Selecting

LOG = logging.getLogger("jax_smash")

FIRST = 1e30
"""Score of slots and pages that came after a choice: they are read before all that have a score."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learned(Selecting):
    """A policy whose scores a trained predictor makes, from residuals of the base and from keys of its own.

    Its keys are made once for each entry, by the forward that reads it, and written when the entry is committed. A
    prompt that is read densely makes keys too. Where entries have scores of their own, a page has that of its best.

    Attributes:
      path: folder of the predictor; empty for the one that is shipped with the base, or given to `sparsified`.
      refresh: steps that the scores of one step serve: entries that came since are read first. 0 for the predictor's
        own number.
      predictor: its sizes, once the policy stands beside a base.
      trained_length: of the texts that the predictor was trained on; 0 where nobody says.
    """

    path: str = ""
    refresh: int = 0
    predictor: PredictorConfig | None = None
    trained_length: int = 0

    form: ClassVar[str]
    """Of the predictor, one of `models.predictors.FORMS`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.refresh < 0:
            raise ValueError(f"refresh must be at least 0; got {self.refresh}")

    def sized(self, predictor: PredictorConfig, trained_length: int | None = None) -> "Learned":
        """Returns the policy for a predictor of certain sizes.

        Raises:
          ValueError: the predictor is of another form.
        """
        if predictor.kind != self.form:
            raise ValueError(f"{type(self).__name__} needs a predictor of the form {self.form}; got {predictor.kind}")
        return dataclasses.replace(
            self,
            predictor=predictor,
            refresh=self.refresh or predictor.refresh,
            dense_layers=max(self.dense_layers, predictor.first_layer),
            trained_length=trained_length or 0,
        )

    @property
    def sizes(self) -> Any:
        """The predictor's configuration.

        Raises:
          ValueError: the policy has none yet.
        """
        if self.predictor is None:
            raise ValueError(f"{type(self).__name__} has no predictor yet; `sparsified` gives it one")
        return self.predictor

    @property
    def remembers(self) -> bool:
        """Commits are told of a choice whose scores serve further steps."""
        return self.refresh > 1

    def check(self, model: Any) -> None:
        """Refuses what `Selecting` refuses, and a model that is not the predictor's base by its sizes.

        Raises:
          ValueError: the model does not go with the policy or its predictor.
        """
        super().check(model)
        if model.config.kv_copies > 1:
            raise ValueError(
                f"a predictor needs a base that holds each KV head once; {model.name} has {model.config.kv_copies} of "
                "each for its mesh"
            )
        if self.predictor is not None:
            self.predictor.check_base(model.config)

    def memory(self, predictor: Any, cache: SelectedCache, block: int) -> Memory:
        """Makes what is kept of rows that have seen nothing.

        Args:
          predictor: bound to its parameters.
          cache: of these rows.
          block: the most entries that one commit writes.
        """
        if 0 < self.trained_length < cache.slots:
            LOG.warning(
                "jax-smash: rows have room for %d entries, and the predictor was trained on texts of %d",
                cache.slots,
                self.trained_length,
            )
        rows = cache.slot_length.shape[0]
        asked = None
        if self.sizes.look_ahead:
            shape = (rows, self.sizes.look_ahead, self.queries_a_layer, self.sizes.width)
            asked = {i: jnp.zeros(shape, predictor.dtype) for i in self.asking(cache)}
        keys = self.empty_keys(predictor, cache)
        return Memory(keys=keys, asked=asked, beside=self.empty_beside(predictor, cache, block))

    def planned(self, cache: SelectedCache) -> list[int]:
        """Returns the layers whose slots are chosen."""
        return [i for i, plan in enumerate(cache.plans) if plan is not None]

    def asking(self, cache: SelectedCache) -> list[int]:
        """Returns the keys of `Memory.asked`."""
        return self.planned(cache)

    @property
    @abc.abstractmethod
    def queries_a_layer(self) -> int:
        """Queries that an entry has in one layer."""

    @abc.abstractmethod
    def empty_keys(self, predictor: Any, cache: SelectedCache) -> dict[int, Parts]:
        """Makes the keys of rows that have seen nothing."""

    def empty_beside(self, predictor: Any, cache: SelectedCache, block: int) -> Any:
        """Makes what else a form keeps."""
        return None

    @abc.abstractmethod
    def entered(self, predictor: Any, cache: SelectedCache, heard: Heard | None, entering: Entering) -> Heard:
        """Returns what the predictor has made, once a layer is entered.

        Args:
          predictor: bound to its parameters.
          cache: that is read.
          heard: what it made before; None before the first layer.
          entering: what enters the layer.
        """

    def recorded(self, predictor: Any, heard: Heard, block_kv: Any, cache: SelectedCache) -> Heard:
        """Returns what the commit is told: of what was made in a forward, what belongs to all its entries.

        Args:
          predictor: bound to its parameters.
          heard: what it made of the residuals.
          block_kv: what the layers made.
          cache: that was read.
        """
        return heard if self.sizes.look_ahead else replace(heard, queries={})

    def told(self, layer: int, own: Memory, heard: Heard) -> Told:
        """Returns what a layer's choice follows from."""
        place = self.place_of(layer)
        query = heard.queries[place] if own.asked is None else own.asked[place]
        return Told(query=query[:, 0], keys=own.keys[place])

    def place_of(self, layer: int) -> int:
        """Returns under which number a layer's queries and keys are kept."""
        return layer

    def remembered(self, own: Memory, record: Heard, write: Write, filled: Int[Array, "B"]) -> Memory:
        """Returns what is kept after a commit: of rejected entries nothing.

        Args:
          own: what was kept before.
          record: of the forward.
          write: which of its entries are kept.
          filled: slots that were committed before.
        """
        if write.path is not None:
            path = write.path
            record = replace(
                record, **{n: jax.tree.map(lambda x: pick(x, path), getattr(record, n)) for n in ("queries", "keys")}
            )
        asked = own.asked
        if asked is not None:
            asked = {i: _last(kept, record.queries[i], write.count) for i, kept in asked.items()}
        keys = self.with_keys(own, record, write, filled)
        return Memory(keys=keys, asked=asked, beside=self.with_beside(own, record, write, filled))

    def with_keys(self, own: Memory, record: Heard, write: Write, filled: Int[Array, "B"]) -> dict[int, Parts]:
        """Returns the keys with those of the path's entries, each in its slot."""
        arrays, structure = jax.tree.flatten(own.keys)
        entries = tuple(part for i in sorted(own.keys) for part in record.keys[i])

        def write_all(arrays: Parts, entries: Parts, filled: Array, count: Array) -> Parts:
            return write_entries(arrays, entries, filled, count, starts=(None,) * len(arrays))

        # Keys lie with the heads whose queries meet them, as the cache's do.
        made = (entries, ("batch", None, "kv_heads"))
        written = on_each_device(write_all, (tuple(arrays), HEADS), made, (filled, ROWS), (write.count, ROWS))
        return jax.tree.unflatten(structure, written)

    def with_beside(self, own: Memory, record: Heard, write: Write, filled: Int[Array, "B"]) -> Any:
        """Returns what else a form keeps, after a commit."""
        return own.beside

    def init(self, config: ModelConfig, layer: int, keys: Float[Array, "B K S H"]) -> Any:
        """Begins without scores, where scores serve several steps."""
        if not self.remembers:
            return None
        rows, heads, slots, _ = keys.shape
        zeros = jnp.zeros((rows,), jnp.int32)
        return LastScores(
            score=jnp.zeros((rows, heads, slots // self.unit + (slots % self.unit > 0)), jnp.float32),
            filled=zeros,
            left=zeros,
        )

    @property
    def unit(self) -> int:
        """Slots that share a score."""
        return 1

    @abc.abstractmethod
    def scores(self, view: SelectedLayer, query: Float[Array, "B N H"]) -> Float[Array, "B K X"]:
        """Returns the score of each slot or page; −∞ where it has none. `query` is the base's own."""

    def select(self, view: SelectedLayer, query: Float[Array, "B N H"]) -> Selection:
        """Scores slots by what the predictor says, or takes the last scores again."""
        if not self.remembers:
            return self.best(view, self.scores(view, query))
        last = view.channels
        due = last.left <= 0
        made = jax.lax.cond(due.any(), lambda: self.scores(view, query), lambda: last.score)
        made = jnp.where(due[:, None, None], made, last.score)
        filled = jnp.where(due, view.filled, last.filled)
        since = jnp.arange(made.shape[2], dtype=jnp.int32)[None] >= (filled // self.unit)[:, None]
        since &= ~due[:, None]
        left = jnp.where(due, self.refresh, last.left) - 1
        found = self.best(view, jnp.where(since[:, None], jnp.float32(FIRST), made))
        return replace(found, extra=LastScores(score=made, filled=filled, left=left))

    def committed(self, view: SelectedLayer, step: Step) -> Any:
        """Keeps the scores of a step, and none behind a prompt."""
        if not self.remembers:
            return view.channels
        changed = step.write.count > 0
        if step.note.selection is None:
            return replace(view.channels, left=jnp.where(changed, 0, view.channels.left))
        return jax.tree.map(
            lambda new, old: jnp.where(changed.reshape(-1, *(1,) * (new.ndim - 1)), new, old),
            step.note.selection.extra,
            view.channels,
        )

    def scorer_bytes(self, config: ModelConfig, slots: int, itemsize: int) -> int:
        """Returns the bytes of the predictor's keys; of those scores that serve several steps, by step."""
        keys = self.key_bytes(slots, itemsize)
        if not self.remembers:
            return keys
        return -(-keys // self.refresh) + 4 * config.held_kv_heads * -(-slots // self.unit)

    @abc.abstractmethod
    def key_bytes(self, slots: int, itemsize: int) -> int:
        """Returns the bytes of one layer's keys of so many slots."""


def committed_slots(view: SelectedLayer) -> Bool[Array, "B S"]:
    """Returns which slots hold an entry."""
    slot = jnp.arange(view.layer.keys.shape[2], dtype=jnp.int32)
    return slot[None] < view.filled[:, None]


def _last(
    kept: Float[Array, "B a n d"], made: Float[Array, "B P n d"], count: Int[Array, "B"]
) -> Float[Array, "B a n d"]:
    """Returns the last entries' queries, of those kept and the first `count` of those made."""
    every = jnp.concatenate([kept, made.astype(kept.dtype)], axis=1)
    place = count[:, None] + jnp.arange(kept.shape[1], dtype=jnp.int32)[None]
    return jnp.take_along_axis(every, place[:, :, None, None], axis=1)
