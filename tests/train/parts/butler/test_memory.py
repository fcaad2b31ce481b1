"""What a step of training takes, beside the base's own forward over the same rows."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jax_smash import load
from jax_smash.cache import Block
from jax_smash.models.depth import hidden_without_cache
from jax_smash.sharding import make_mesh
from tests.real_model import needs_smollm2
from train.parts.butler.part import Butler
from train.parts.butler.settings import ButlerSettings
from train.run.settings import load_kind
from train.run.step import first_state, make_step

CONFIG = Path(__file__).parents[4] / "train" / "configs" / "smollm2-butler.json"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.usefixtures("optimised"), needs_smollm2]


def held(lowered):
    """Returns the bytes of a program's arguments, temporaries and results; donated arguments count once."""
    memory = lowered.compile().memory_analysis()
    parts = {name: getattr(memory, f"{name}_size_in_bytes") for name in ("argument", "temp", "output", "alias")}
    print({name: f"{size / 1e6:.0f} MB" for name, size in parts.items()})
    return parts["argument"] + parts["temp"] + parts["output"] - parts["alias"]


def test_a_step_takes_less_than_twice_the_memory_of_the_base_s_forward():
    """At the shape and the batch of the recipe for SmolLM2; a forward ends in logits. Nothing is run."""
    settings = load_kind(ButlerSettings, CONFIG, model=load("smollm2", dtype=jnp.bfloat16).config)
    part = Butler(settings)
    structure, _ = part.graphdefs
    trained, frozen = part.shapes()
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), part.random_batch())

    def forward(frozen, batch):
        base = nnx.merge(structure, frozen["base"])
        block = Block.causal(batch.segments > 0, batch.segments)
        return base.unembed(hidden_without_cache(base, base.embed(batch.tokens), batch.positions, block))

    optimiser = part.optimiser()
    state = jax.eval_shape(lambda params: first_state(params, optimiser), trained)
    step = make_step(part.objective(), optimiser, make_mesh("data=1"))
    assert held(step.lower(state, batch, frozen)) < 2 * held(jax.jit(forward).lower(frozen, batch))
