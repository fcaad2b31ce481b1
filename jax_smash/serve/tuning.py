"""Measures what a decode step costs by the entries that its forward reads."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jax_smash.cache import EMPTY, KVCache, Write, after
from jax_smash.costs.curve import CostCurve, check_entries
from jax_smash.costs.repeats import settled, spread
from jax_smash.decode.loop import decode
from jax_smash.decode.programs import PROGRAMS
from jax_smash.decode.speculative import Speculative
from jax_smash.draft.trees.acceptance import prior_rates
from jax_smash.draft.trees.sizing import best_tree
from jax_smash.draft.trees.tree import Topology, grow
from jax_smash.loading import Model
from jax_smash.methods import REACH, DraftOptions, make_method
from jax_smash.plan import prefill_chunk, shard_bytes
from jax_smash.protocols import ModelDef, Params
from jax_smash.pytree import replace
from jax_smash.quantise import activation_dtype
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.session import Session
from jax_smash.shapes import bucket
from jax_smash.sharding import mesh_of

LEVELS, RANKS = 6, 8
"""Of the trees that are measured."""

TRIAL_STEPS = 3
"""Steps that tell about how long one takes."""


def measure_costs(
    model: Model,
    *,
    batch: int,
    slots: int,
    entries: Sequence[int],
    repeats: int = 7,
    call_s: float = 0.1,
    progress: Callable[[int, int], None] | None = None,
) -> CostCurve:
    """Measures the time of a decode step at several sizes, interleaved, on this device: see `step_times`.

    Args:
      model, batch, slots, entries, call_s, progress: as of `step_times`.
      repeats: timed calls of each size, put together as of `costs.repeats.settled`.

    Raises:
      ValueError: as of `step_times`.
    """
    times = step_times(
        model, batch=batch, slots=slots, entries=entries, repeats=repeats, call_s=call_s, progress=progress
    )
    return CostCurve(
        entries=tuple(entries),
        seconds=settled(times),
        batch=batch,
        slots=slots,
        source=f"measured by jax-smash tune, {slots} slots",
        spread=spread(times),
    )


def step_times(
    model: Model,
    *,
    batch: int,
    slots: int,
    entries: Sequence[int],
    repeats: int = 7,
    call_s: float = 0.1,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[float]]:
    """Times decode steps of several sizes, interleaved, on this device.

    A step is what drafted decoding does without the drafter: embedding, forward over a half-full cache with a tree's
    ancestor bits, logits and argmax of every entry, commit of one entry. Many run in one call of a compiled loop.

    Args:
      model: the model, on one device.
      batch: rows.
      slots: capacity of the cache a row.
      entries: sizes, rising from 1.
      repeats: timed calls of each size.
      call_s: seconds that a call takes, about, where its steps are short.
      progress: called with the calls done and the calls to do.

    Returns:
      Seconds a step, a list a size with an entry a repeat.

    Raises:
      ValueError: a number is out of range, the largest size exceeds the cache, or the model is divided over devices.
    """
    _check(model, batch=batch, slots=slots, entries=entries, repeats=repeats)
    filled = half_full(model, batch=batch, slots=slots)

    def timed(tree: Topology, steps: int) -> float:
        # Each call begins with the same cache, which a step makes longer by one slot.
        steps = min(steps, slots - slots // 2)
        count, cache = jnp.asarray(steps, jnp.int32), jax.tree.map(jnp.copy, filled)
        program = PROGRAMS.program(run_steps, model.definition, model.params, cache, tree, count)
        jax.block_until_ready((cache, count))
        began = time.perf_counter()
        jax.block_until_ready(program(model.params, cache, tree, count))
        return (time.perf_counter() - began) / steps

    rates = prior_rates(LEVELS, RANKS)
    runs = [functools.partial(timed, best_tree(rates, m - 1)) for m in entries]
    return _timed(runs, repeats=repeats, call_s=call_s, progress=progress)


def measure_method(
    model: Model,
    name: str,
    *,
    batch: int,
    slots: int,
    entries: Sequence[int],
    sampled: bool = False,
    repeats: int = 7,
    call_s: float = 0.1,
    progress: Callable[[int, int], None] | None = None,
) -> CostCurve:
    """Measures the time of a whole step of a drafting method at several sizes: what `measure_costs` leaves out too.

    That is proposing, checking and learning, also where nothing is drafted. Rows decode without a stop token, behind
    random prompts that fill half of the cache.

    Args:
      model, batch, slots, entries, repeats, call_s, progress: as in `measure_costs`.
      name: of `methods.REACH`.
      sampled: rows sample, at temperature 1; False where they take the likeliest token.

    Raises:
      ValueError: as `measure_costs` says, or the method is another one.
    """
    if name not in REACH:
        raise ValueError(f"method must be one of {', '.join(REACH)}, whose steps can be measured; got {name!r}")
    _check(model, batch=batch, slots=slots, entries=entries, repeats=repeats)
    reach, held = REACH[name], slots // 2
    method = make_method(model, name, sampled=sampled, draft=DraftOptions(tree="off"), batch=batch, slots=slots)
    # As wide as an automatic ladder has it, which every budget's writes are padded to.
    assert isinstance(method.strategy, Speculative)
    strategy = dataclasses.replace(method.strategy, levels=reach.levels)
    method = dataclasses.replace(method, strategy=strategy)
    session = Session(
        dataclasses.replace(model, stop_tokens=()),
        method,
        slots=slots,
        max_new_tokens=slots - held,
        sampling=[SamplingOptions(temperature=float(sampled))] * batch,
        seeds=range(batch),
    )
    words = np.random.default_rng(0).integers(0, model.vocab_size, (batch, held))
    session.read(words.tolist())
    # As many steps as no row can end in.
    most = max(1, (slots - held - 1) // (reach.levels + 1))

    def timed(tree: Topology, steps: int) -> float:
        memory = session.state.shared.memory
        memory = memory | {"trees": replace(memory["trees"], ladder=(tree,))}
        state = replace(session.state, shared=replace(session.state.shared, memory=memory))
        # Donated: the next call begins where this one does.
        state, count = jax.tree.map(jnp.copy, state), jnp.asarray(min(steps, most), jnp.int32)
        program = PROGRAMS.program(decode, strategy, method.params, state, count)
        jax.block_until_ready((state, count))
        began = time.perf_counter()
        rows = jax.block_until_ready(program(method.params, state, count)).rows
        return (time.perf_counter() - began) / int(rows.forwards.max())

    runs = [functools.partial(timed, reach.tree(m - 1)) for m in entries]
    times = _timed(runs, repeats=repeats, call_s=call_s, progress=progress)
    return CostCurve(
        entries=tuple(entries),
        seconds=settled(times),
        batch=batch,
        slots=slots,
        source=f"measured by jax-smash tune with {name}{', sampling' if sampled else ''}, {slots} slots",
        spread=spread(times),
    )


def _timed(
    runs: Sequence[Callable[[int], float]],
    *,
    repeats: int,
    call_s: float,
    progress: Callable[[int, int], None] | None,
) -> list[list[float]]:
    """Returns the seconds a step of each run and repeat; a run is given the steps to make, and runs are interleaved."""
    done = 0

    def timed(run: Callable[[int], float], steps: int) -> float:
        nonlocal done
        took = run(steps)
        done += 1
        if progress is not None:
            progress(done, len(runs) * (repeats + 1))
        return took

    steps = [max(TRIAL_STEPS, math.ceil(call_s / timed(run, TRIAL_STEPS))) for run in runs]
    times: list[list[float]] = [[] for _ in runs]
    for repeat in range(repeats):
        # Forth and back, so that a machine that gets slower does so for all sizes alike.
        for i in range(len(runs)) if repeat % 2 == 0 else reversed(range(len(runs))):
            times[i].append(timed(runs[i], steps[i]))
    return times


def _check(model: Model, *, batch: int, slots: int, entries: Sequence[int], repeats: int) -> None:
    check_entries(entries)
    for name, value in (("batch", batch), ("repeats", repeats)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1; got {value}")
    if entries[-1] > slots:
        raise ValueError(f"entries must be at most the cache's {slots} slots; got {entries[-1]}")
    if mesh_of(model.params) is not None:
        raise ValueError("a model to measure must lie on one device; got one divided over several")


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def run_steps(target: ModelDef, params: Params, cache: Any, tree: Topology, steps: Int[Array, ""]) -> Any:
    """Runs decode steps that read a tree and commit its root. Donates the cache, and returns it."""
    model = target.bind(params["target"])

    def body(carry: tuple[Any, Array, Array]) -> tuple[Any, Array, Array]:
        cache, token, done = carry
        drafted = grow(tree, token)
        position = cache.slot_length[:, None] + drafted.depth
        out = model.forward(model.embed(drafted.token), position, cache, drafted.block)
        # What the next step reads depends on all logits of this one, so that none are left out.
        token = jnp.argmax(model.unembed(out.hidden), axis=-1).astype(jnp.int32)
        path = jnp.zeros((token.shape[0], tree.levels + 1), jnp.int32)
        count = after(jnp.ones_like(token[:, 0]), token[:, 0])
        cache = cache.commit(out.block_kv, Write(position=position, count=count, path=path))
        return cache, token, done + 1

    tokens = jnp.zeros((cache.slot_length.shape[0], tree.nodes), jnp.int32)
    return jax.lax.while_loop(lambda carry: carry[2] < steps, body, (cache, tokens, jnp.zeros_like(steps)))[0]


def half_full(model: Model, *, batch: int, slots: int) -> Any:
    """Makes a cache that holds half of what it can, without content; of a model that is not ours, an empty one."""
    # As large as a session makes it, which commits whole chunks of a prompt too.
    dtype = activation_dtype(model.params["target"])
    held = shard_bytes(model.params)
    block = min(prefill_chunk(model.config, batch=batch, slots=slots, dtype=dtype, held=held), bucket(slots))
    made = jax.jit(lambda params: model.definition.bind(params).init_cache(batch, slots, block))
    cache = made(model.params["target"])
    if not isinstance(cache, KVCache):
        return cache
    held = slots // 2

    def positions(empty: Int[Array, "B S"]) -> Int[Array, "B S"]:
        capacity = empty.shape[1]
        # The last position below `held` that falls on each slot.
        slot = jnp.arange(capacity, dtype=jnp.int32)
        last = held - 1 - (held - 1 - slot) % capacity
        return jnp.broadcast_to(jnp.where(last >= 0, last, EMPTY), empty.shape)

    return replace(
        cache,
        positions=tuple(map(positions, cache.positions)),
        slot_length=jnp.full_like(cache.slot_length, held),
    )
