"""What the compiled programs of decoding with fused slots do not do: copy the cache, reach the host."""

import jax.numpy as jnp
import pytest

from eval.chips.program import Program, copies, host_traffic
from jax_smash import SamplingOptions
from jax_smash.decode.loop import decode
from jax_smash.decode.programs import PROGRAMS
from jax_smash.methods import SmashOptions, make_method
from jax_smash.serve.session import Session
from tests.smashed import smashed_model


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("options", [{"micro_head": "int8"}, {"mode": "checked"}])
def test_no_program_copies_the_cache_or_reaches_the_host(options):
    model = smashed_model()
    made = make_method(model, "hamburger", smash=SmashOptions(**options), sampled=True)
    warm = [SamplingOptions(temperature=0.8)] * 2
    rows = Session(model, made, slots=96, max_new_tokens=48, sampling=warm, seeds=[0, 1])
    compiled = PROGRAMS.program(decode, made.strategy, made.params, rows.state, jnp.asarray(8, jnp.int32))
    everything = list(Program.of(compiled).instructions())
    assert sum(x.opcode == "while" for x in everything) >= 2
    assert not host_traffic(everything)
    assert not copies(everything, {x.shape for x in rows.state.rows.cache.keys})
