"""Measuring what a step costs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from jax_smash.cache import EMPTY, Block
from jax_smash.decode.programs import PROGRAMS
from jax_smash.draft.trees.tree import topology, tree_from_ranks
from jax_smash.serve.tuning import half_full, measure_costs, measure_method, run_steps, step_times
from jax_smash.sharding import place
from tests.tiny import tiny_model


def test_a_curve_has_a_time_for_each_size_and_every_call_is_reported():
    calls = []
    curve = measure_costs(
        tiny_model(),
        batch=2,
        slots=64,
        entries=(1, 3),
        repeats=2,
        call_s=1e-3,
        progress=lambda *call: calls.append(call),
    )
    assert (curve.entries, curve.batch, curve.slots, curve.measured) == ((1, 3), 2, 64, True)
    assert all(0 < s < 10 for s in curve.seconds)
    assert calls == [(i, 6) for i in range(1, 7)]


@pytest.mark.parametrize("name", ["lookup", pytest.param("recycling", marks=pytest.mark.slow)])
def test_a_method_s_whole_steps_are_measured_and_every_call_reported(name):
    calls = []
    curve = measure_method(
        tiny_model(),
        name,
        batch=2,
        slots=64,
        entries=(1, 3),
        repeats=1,
        call_s=1e-3,
        progress=lambda *call: calls.append(call),
    )
    assert (curve.entries, curve.batch, curve.slots, curve.measured) == ((1, 3), 2, 64, True)
    assert all(0 < s < 10 for s in curve.seconds)
    assert calls == [(i, 4) for i in range(1, 5)]
    assert name in curve.source


def test_methods_whose_trees_have_no_size_are_not_measured():
    with pytest.raises(ValueError, match="method must be one of recycling, lookup, suffix, hybrid, whose steps can be"):
        measure_method(tiny_model(), "draft-model", batch=1, slots=64, entries=(1, 2))


@pytest.mark.parametrize("tree", [topology([0]), tree_from_ranks([[0], [1], [0, 0]])], ids=["root alone", "tree"])
def test_the_timed_loop_decodes_greedily(tree):
    """What it leaves in the cache is what plain decoding leaves there, so nothing of a step is left out of it."""
    model, steps = tiny_model(), 6
    target = model.definition.bind(model.params["target"])
    cache = run_steps(model.definition, model.params, target.init_cache(1, 32, 4), tree, jnp.int32(steps))
    assert cache.slot_length.tolist() == [steps]

    @jax.jit
    def plain(tokens):
        position = jnp.arange(steps, dtype=jnp.int32)[None]
        block = Block.causal(jnp.ones((1, steps), bool))
        out = target.forward(target.embed(tokens), position, target.init_cache(1, 32, 4), block)
        return out.block_kv, jnp.argmax(target.unembed(out.hidden), axis=-1)

    tokens = np.zeros((1, steps), np.int32)
    for i in range(1, steps):
        tokens[0, i] = plain(tokens)[1][0, i - 1]
    made, _ = plain(tokens)
    assert len(set(tokens[0].tolist())) > 2
    for held, (keys, _) in zip(cache.keys, made, strict=True):
        np.testing.assert_allclose(held[:, :, :steps].transpose(0, 2, 1, 3), keys, atol=1e-4)


def test_each_timed_call_begins_with_a_cache_that_is_half_full(monkeypatch):
    began = []
    program = PROGRAMS.program

    def watched(function, definition, params, cache, tree, count):
        began.append((np.asarray(cache.slot_length).tolist(), int(count)))
        return program(function, definition, params, cache, tree, count)

    monkeypatch.setattr(PROGRAMS, "program", watched)
    step_times(tiny_model(), batch=2, slots=64, entries=(1, 3), repeats=3, call_s=0.05)
    assert len(began) >= 6
    assert {tuple(length) for length, _ in began} == {(32, 32)}
    assert max(count for _, count in began) <= 32


def test_a_step_reads_a_cache_that_is_half_full():
    cache = half_full(tiny_model(), batch=2, slots=8192)
    full, sliding = (np.asarray(p) for p in cache.positions)
    assert cache.slot_length.tolist() == [4096, 4096]
    np.testing.assert_array_equal(full[1, :4096], np.arange(4096))
    assert (full[:, 4096:] == EMPTY).all()
    # The sliding layer has started over: it holds the last positions.
    assert sliding.shape[1] < 4096
    np.testing.assert_array_equal(np.sort(sliding[0]), np.arange(4096 - sliding.shape[1], 4096))
    assert (sliding[0] % sliding.shape[1] == np.arange(sliding.shape[1])).all()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"entries": (2, 4)}, "rise from 1"),
        ({"entries": (1, 65)}, "at most the cache's 64 slots; got 65"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"repeats": 0}, "repeats must be at least 1"),
    ],
)
def test_what_cannot_be_measured_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        measure_costs(tiny_model(), **({"batch": 1, "slots": 64, "entries": (1, 2)} | changes))


def test_a_model_over_several_devices_is_refused():
    model = tiny_model()
    mesh = Mesh(np.asarray(jax.devices()[:2]).reshape(1, 2, 1), ("data", "fsdp", "tp"))
    divided = dataclasses.replace(model, params={"target": place(model.params["target"], mesh)})
    with pytest.raises(ValueError, match="one device"):
        measure_costs(divided, batch=1, slots=64, entries=(1, 2))
