"""Plans of small models."""

import functools

from jax_smash.config import ModelConfig
from jax_smash.models.families import from_hf
from jax_smash.planning.planner import Plan
from jax_smash.planning.question import Question
from jax_smash.planning.topology import parse_topology
from jax_smash.sharding import parse_mesh
from tests.tiny import tiny_config

LLAMA_2_13B = from_hf(
    {
        "model_type": "llama",
        "vocab_size": 32_000,
        "hidden_size": 5120,
        "intermediate_size": 13_824,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "num_key_value_heads": 40,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
    }
)


def small(**changes) -> ModelConfig:
    """Returns a two-layer Llama without windows."""
    return tiny_config(**({"layer_kinds": ("full", "full"), "window": 0} | changes))


def question(config: ModelConfig | None = None, device: str = "v5e", mesh: str | None = None, **options) -> Question:
    """Returns a question about a small model, unless another one is given."""
    options = {"context": 64, "dtype": "float32"} | options
    return Question(
        small() if config is None else config,
        parse_topology(device),
        None if mesh is None else parse_mesh(mesh),
        **options,
    )


@functools.cache
def plan(*args, **options) -> Plan:
    """Returns the plan of such a question, each made once."""
    return Plan(question(*args, **options))
