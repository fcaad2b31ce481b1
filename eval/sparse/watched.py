"""A policy that is watched: beside each choice, what a rule makes of it."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jax_smash.cache import Block, Noted, Recorded, SelectedLayer, Selection, Step, Write, after, reaching
from jax_smash.models.rope import longest
from jax_smash.protocols import ModelDef
from jax_smash.pytree import replace
from jax_smash.sparse import Selecting

Rule = Callable[[SelectedLayer, Float[Array, "B N H"], Selection], Any]
"""Makes of a layer, a query and its choice a tree whose every leaf is `[B, …]`. Equal rules must be one object."""


def watched(policy: Selecting, rule: Rule) -> Selecting:
    """Returns a policy that chooses as another does, and notes beside each choice what a rule makes of it.

    Args:
      policy: one that always chooses; with the sizes of its predictor, where it has one.
      rule: of the choices.
    """
    made = object.__new__(_watched_class(type(policy), rule))
    for field in dataclasses.fields(policy):
        object.__setattr__(made, field.name, getattr(policy, field.name))
    return made


@functools.cache
def _watched_class(kind: type[Selecting], rule: Rule) -> Any:
    """Returns a class for each policy and rule: programs are told apart by it."""

    class Watched(kind):  # type: ignore[misc, valid-type]
        remembers = True

        def select(self, view: SelectedLayer, query: Float[Array, "B N H"]) -> Selection:
            chosen = super().select(view, query)
            return replace(chosen, extra=(chosen.extra, rule(view, query, chosen)))

        def committed(self, view: SelectedLayer, step: Step) -> Any:
            note = step.note
            if note.selection is None:
                return super().committed(view, step)
            # Of its choice a policy knows what it would without being watched.
            inner = replace(note.selection, extra=note.selection.extra[0])
            kept = replace(note, selection=inner if super().remembers else None)
            return super().committed(view, replace(step, note=kept))

    return Watched


def watch(
    model_def: ModelDef, params: Any, tokens: Int[Array, "B T"], lengths: Int[Array, "B"], *, prompt: int
) -> tuple[Any, ...]:
    """Returns what a watched policy's rule makes of each step over texts: of each layer that chose a tree `[T', B, …]`.

    A pure function, to be called under `jit` with `model_def` and `prompt` static.

    Args:
      model_def: `sparsified(model, watched(policy, rule)).definition`.
      params: the target's.
      tokens: texts, padded on the right.
      lengths: tokens of each.
      prompt: first entries of each text that are read at once; T' = T − `prompt` steps read the others.
    """
    model = model_def.bind(params)
    batch, width = tokens.shape
    place = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32)[None], tokens.shape)
    valid = place < lengths[:, None]
    cache = reaching(model.init_cache(batch, width, max(prompt, 1)), longest(place, valid))
    if prompt:
        first = Block.causal(valid[:, :prompt], prompt=True)
        out = model.forward(model.embed(tokens[:, :prompt]), place[:, :prompt], cache, first)
        count = after(first.valid.sum(1, dtype=jnp.int32), out.hidden[:, 0, 0])
        cache = cache.commit(out.block_kv, Write(position=place[:, :prompt], count=count))

    def step(cache: Any, entry: tuple[Array, Array, Array]) -> tuple[Any, tuple[Any, ...]]:
        token, position, is_valid = (part[:, None] for part in entry)
        out = model.forward(model.embed(token), position, cache, Block.causal(is_valid))
        count = after(is_valid[:, 0].astype(jnp.int32), out.hidden[:, 0, 0])
        layers = out.block_kv.entries if isinstance(out.block_kv, Recorded) else out.block_kv
        chosen = [made.note.selection for made in layers if isinstance(made, Noted)]
        seen = tuple(one.extra[1] for one in chosen if one is not None)
        return cache.commit(out.block_kv, Write(position=position, count=count)), seen

    entries = tuple(part[:, prompt:].swapaxes(0, 1) for part in (tokens, place, valid))
    return jax.lax.scan(step, cache, entries)[1]
