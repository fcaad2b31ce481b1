"""What the compiled programs do not do: copy the cache, reach the host, compile again."""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import pytest

from eval.chips.program import Program, copies, host_traffic
from jax_smash import SamplingOptions, generate
from jax_smash.cache import Block, Write
from jax_smash.decode.autoregressive import Autoregressive
from jax_smash.decode.programs import PROGRAMS
from jax_smash.planning.abstract import AbstractModel, abstract
from tests.tiny import tiny_config, tiny_model

ONE_LAYER = {"num_layers": 1, "layer_kinds": ("full",)}


class EarlyWrite(Autoregressive):
    """Plain decoding whose cache write does not wait for the token."""

    def step(self, params, state):
        rows = state.rows
        model = self.target.bind(params["target"])
        position = rows.token_length[:, None] - 1

        block = Block.causal(jnp.ones_like(position, bool))
        out = model.forward(model.embed(rows.pending[:, None]), position, rows.cache, block)
        cache = rows.cache.commit(out.block_kv, Write(position=position, count=jnp.ones_like(rows.finish)))
        emitted = self._emit(state, model.unembed(out.hidden[:, 0]))
        return dataclasses.replace(emitted, rows=emitted.rows.remembering(target=cache))


class Talkative(Autoregressive):
    """Plain decoding that tells the host about every step."""

    def step(self, params, state):
        jax.debug.callback(lambda length: None, state.rows.token_length)
        return super().step(params, state)


def programs(strategy_class=Autoregressive, *, batch=2, sampled=False, names=("decode",)):
    model = AbstractModel(tiny_config(), dtype=jnp.float32)
    arguments = abstract(model, jax.devices()[0], batch=batch, slots=256, chunk=32, sampled=sampled)
    arguments = dataclasses.replace(
        arguments, strategy=strategy_class(target=arguments.strategy.target, sampled=sampled)
    )
    compiled = {name: f.lower(*args).compile() for name, (f, args) in arguments.programs.items() if name in names}
    return arguments, compiled


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize(("batch", "sampled"), [(1, False), (3, True)])
def test_no_program_copies_the_cache_or_reaches_the_host(batch, sampled):
    arguments, compiled = programs(batch=batch, sampled=sampled, names=("prefill", "decode"))
    cache = sum(x.size * 4 for x in (*arguments.state.rows.cache.keys, *arguments.state.rows.cache.values))
    for name, one in compiled.items():
        program = Program.of(one)
        assert not host_traffic(program.instructions()), name
        assert one.memory_analysis().alias_size_in_bytes >= cache, name
    # Some compilers wrap the loop in a call, so the whole program is looked through.
    everything = list(Program.of(compiled["decode"]).instructions())
    assert any(x.opcode == "while" for x in everything)
    assert not copies(everything, arguments.cache_shapes)


@pytest.mark.usefixtures("optimised")
def test_a_write_that_does_not_wait_would_be_seen():
    arguments, compiled = programs(EarlyWrite)
    assert copies(Program.of(compiled["decode"]).instructions(), arguments.cache_shapes)


@pytest.mark.usefixtures("optimised")
def test_a_call_of_the_host_would_be_seen():
    _, compiled = programs(Talkative)
    assert host_traffic(Program.of(compiled["decode"]).instructions())


def test_other_prompts_and_settings_of_a_bucket_compile_nothing():
    model = tiny_model(**ONE_LAYER)
    heard = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration_secs, **_: heard.append(event) if "backend_compile" in event else None
    )
    options = {"max_new_tokens": 20, "sampling": SamplingOptions(temperature=0.9, top_k=9, top_p=0.9)}
    generate(model, ["a first prompt", "two"], **options)
    assert heard
    compiled = PROGRAMS.compiled
    heard.clear()
    options["sampling"] = SamplingOptions(temperature=0.4, top_k=40, top_p=0.5)
    generate(model, ["other text", "and more"], **options, seed=3)
    assert PROGRAMS.compiled == compiled
    assert not heard


@pytest.mark.slow
def test_what_was_forgotten_is_compiled_again_and_maps_no_memory():
    model = tiny_model(**ONE_LAYER)
    first = generate(model, "a first prompt", max_new_tokens=3)[0].text
    compiled = PROGRAMS.compiled
    mappings = pathlib.Path("/proc/self/maps")  # Linux alone has it, and a limit on them.
    before = mappings.exists() and len(mappings.read_bytes().splitlines())
    PROGRAMS.forget()
    assert not before or len(mappings.read_bytes().splitlines()) < before
    assert generate(model, "a first prompt", max_new_tokens=3)[0].text == first
    assert PROGRAMS.compiled > compiled
