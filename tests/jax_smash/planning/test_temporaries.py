import dataclasses

import pytest

from jax_smash.models.families.presets import preset
from jax_smash.planning.temporaries import word_tiles
from pallas_kernels.tree_attention.tpu import entry_tiles
from tests.jax_smash.planning.plans import plan, small


def short(name, layers):
    """Returns a shape with its first layers."""
    config = preset(name)
    return dataclasses.replace(config, num_layers=layers, layer_kinds=config.layer_kinds[:layers])


@pytest.mark.parametrize(
    ("name", "layers", "device", "mesh", "options", "compiled"),
    [
        ("llama-3.2-1b", 4, "v5e", None, {"batch": 8, "context": 2048}, 338.9),
        ("llama-3.2-1b", 2, "v5e", None, {"batch": 8, "context": 2048, "weights": "int8"}, 793.1),
        ("llama-3.1-8b", 4, "v6e:2x2", "tp=4", {"batch": 8, "context": 2048}, 542.1),
        ("llama-3.1-8b", 2, "v5e:2x2", "fsdp=2,tp=2", {"batch": 8, "context": 2048}, 196.3),
        ("llama-3.1-70b", 2, "v5p:2x2x2", "tp=8", {"batch": 16, "context": 4096}, 655.5),
        # All that a layer makes stays in fast memory.
        ("llama-3.1-8b", 2, "v5e:2x4", "tp=8", {"batch": 16, "context": 4096}, 21.2),
    ],
)
def test_what_prompts_need_is_near_what_compilers_assign(name, layers, device, mesh, options, compiled):
    # By `jax-smash plan --compile`, 10⁶ bytes of temporaries and of what is returned beside the state.
    made = plan(short(name, layers), device, mesh, dtype="bfloat16", **options)
    memory = made.memory()
    total = memory.arguments + 1e6 * compiled
    assert memory.total == pytest.approx(total, rel=0.05)
    # Not only because arguments are most of it.
    assert made.temporaries(options["batch"])["prefill"] == pytest.approx(1e6 * compiled, rel=0.45)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1), (24, 3)])
@pytest.mark.parametrize("width", [16, 80, 128, 512, 1000, 2048])
def test_words_have_a_row_for_each_of_the_kernels_tiles(heads, kv_heads, width):
    sizes = plan(small(num_heads=heads, num_kv_heads=kv_heads)).sizes
    entries, tile = entry_tiles(width, heads // kv_heads)
    assert word_tiles(sizes, width) == entries // tile


def test_longer_pieces_more_rows_and_more_layers_need_more():
    one, rows = (plan(device="v5e", batch=n).temporaries(n) for n in (1, 8))
    deep = plan(small(layer_kinds=("full",) * 4, num_layers=4)).temporaries(1)
    drafted = plan(method="recycling", tree="tree-31").temporaries(1)
    assert one["prefill"] < rows["prefill"]
    assert one["prefill"] < deep["prefill"]
    assert one["decode"] < drafted["decode"]


def test_each_device_of_a_mesh_needs_less():
    whole = plan(device="v5e", batch=4).temporaries(4)
    for mesh in ("tp=2,data=2", "fsdp=2,tp=2", "data=4"):
        part = plan(device="v5e:2x2", mesh=mesh, batch=4).temporaries(4)
        assert part["prefill"] < whole["prefill"]


def test_logits_of_a_tree_are_made_in_pieces_but_on_a_cpu():
    config = small(vocab_size=2**18)
    drafted = {device: plan(config, device, batch=8, method="recycling", tree="tree-31") for device in ("v5e", "cpu")}
    logits = 4 * 8 * 32 * 2**18
    assert drafted["cpu"].temporaries(8)["decode"] >= logits > 2 * drafted["v5e"].temporaries(8)["decode"]
