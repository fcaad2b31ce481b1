import pytest

from jax_smash.models.families.presets import preset
from tests.jax_smash.planning.plans import question


@pytest.mark.parametrize("weights", ["plain", "int8"])
@pytest.mark.parametrize(
    ("name", "elements"),
    [
        # Each layer's queries, keys, values and output: all of 2048 · 2048, but Gemma's keys and values of one head.
        # OLMo's norms of queries and keys have an axis of heads too.
        ("olmo-2-1b", 16 * (4 * 2048 * 2048 + 2 * 2048)),
        ("gemma-2b", 18 * 2 * (2048 * 2048 + 2048 * 256)),
    ],
)
def test_the_output_projection_counts_where_kv_heads_are_one_or_as_many_as_query_heads(name, elements, weights):
    target = question(preset(name), weights=weights).shares("auto").target
    assert target["projections"].elements == elements
