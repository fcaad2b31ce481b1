import dataclasses

import jax
import jax.numpy as jnp
import pytest

from eval.chips.ideal import ideal
from jax_smash.chips import CHIPS
from jax_smash.methods import DraftOptions
from jax_smash.models.families.presets import preset
from jax_smash.planning.abstract import AbstractModel, abstract
from jax_smash.planning.shares import shares_of
from jax_smash.planning.topology import host_chip
from jax_smash.planning.weights import weights_of
from jax_smash.planning.work import Part, Sizes, drafts, exchanged, forward, seconds, together
from jax_smash.sharding import MeshShape
from jax_smash.sparse import Quest
from tests.jax_smash.planning.plans import LLAMA_2_13B, plan, small

H100 = CHIPS["h100"]


def named(parts):
    return {part.name: part for part in parts}


def test_the_limit_is_what_takes_longest():
    part = Part("", operations=2 * H100.bf16_peak, read=3 * H100.bandwidth, sent=H100.ring_bandwidth)
    assert part.seconds(H100) == pytest.approx(3)
    assert part.limit(H100) == "memory"
    in_turn = dataclasses.replace(H100, overlaps=False)
    assert part.seconds(in_turn) == pytest.approx(sum(part.times(H100).values()))
    assert part.seconds(in_turn) > 5
    assert (H100.overlaps, host_chip().overlaps) == (True, False)
    assert part.intensity == pytest.approx(2 * H100.ridge / 3)


def test_parts_of_a_name_are_added_up():
    (one, other) = together([Part("a", 1, 2, 3), Part("b", 1), Part("a", 4, 5, 6, 7)])
    assert one == Part("a", 5, 7, 9, 7)
    assert other == Part("b", 1)


@pytest.mark.parametrize(("batch", "ms"), [(1, 8.0), (64, 23.8), (256, 71.9)])
def test_llama_2_13b_decodes_on_an_h100_as_its_bytes_ask(batch, ms):
    # All parameters and a cache of 1,024 slots a row, over the bandwidth.
    made = plan(LLAMA_2_13B, "h100", context=1024, dtype="bfloat16")
    lecture = (made.shares.weights.bytes + batch * made.shares.cache) / H100.bandwidth
    assert 1e3 * lecture == pytest.approx(ms, abs=0.05)
    # A step looks up the embedding, which is a hundredth of the weights, and writes activations.
    speed = made.speed(batch)
    assert speed.step == pytest.approx(lecture, rel=0.02)
    assert speed.throughput == pytest.approx(batch / speed.step)
    assert speed.memory.fits is (batch == 1)
    assert all(part.limit(H100) == "memory" for part in made.step(batch))


def test_intensities_are_those_of_the_formulas():
    made = plan(LLAMA_2_13B, "h100", context=1024, dtype="bfloat16")
    d, f, n = 5120, 13_824, 1024
    for entries, parts in ((1, made.step()), (64, made.step(64)), (n, made.prefill())):
        mlp = 6 * entries * d * f / (4 * entries * d + 4 * entries * f + 6 * d * f)
        assert named(parts)["mlp"].intensity == pytest.approx(mlp)
    # Attention of one entry is no more than an operation a byte, whatever the batch; that of a prompt S/2.
    for batch in (1, 64):
        assert named(made.step(batch))["attention"].intensity == pytest.approx(1, rel=0.01)
    assert named(made.prefill())["attention"].intensity == pytest.approx(n / 2, rel=0.01)


def sizes(method="ar", tree="auto", *, policy=None, **model):
    config = small()
    made = abstract(
        AbstractModel(config, dtype=jnp.float32, policy=policy, **model),
        jax.devices()[0],
        batch=1,
        slots=64,
        chunk=16,
        method=method,
        draft=DraftOptions(tree=tree),
    )
    return made, Sizes(config, MeshShape(), shares_of(made, config), 4, "f32", "f32")


@pytest.mark.parametrize(
    ("method", "tree", "model"),
    [("ar", "auto", {}), ("recycling", "tree-7", {}), ("draft-model", "chain-3", {"drafter": small()})],
)
def test_parts_add_up_to_the_least_that_a_step_does(method, tree, model):
    arguments, given = sizes(method, tree, **model)
    shares = given.shares
    parts = named(forward(given, 1, shares.nodes, 64, logits=shares.nodes, drafting=shares.nodes > 1))
    levels = getattr(arguments.strategy, "levels", 0)
    drafting = drafts(given, 1, nodes=shares.nodes - 1, levels=levels)
    least = ideal("decode", small(), arguments)
    assert sum(x.operations for x in parts.values()) == least.operations
    written = shares.nodes * sum(shares.layer_slot_bytes)
    norm = 4 * small().d_model  # The last one.
    weights = sum(parts[name].read for name in ("projections", "mlp", "head")) - norm
    kept = levels * shares.drafter.cache
    assert weights + sum(x.read for x in drafting) - kept == least.weights
    assert parts["attention"].read - written + kept == least.cache


def test_a_policy_reads_its_share():
    _, given = sizes(policy=Quest(budget=48, dense_layers=1))
    chosen = dataclasses.replace(given, read=0.5, scorer=100)
    whole, part = (named(forward(x, 2, 1, 64, logits=1, sparse=True)) for x in (given, chosen))
    new = 2 * sum(given.shares.layer_slot_bytes)
    assert part["attention"].read - new == (whole["attention"].read - new) / 2
    assert part["scorer"].read == 200
    assert "scorer" not in whole


def exchanges(mesh, width, *, drafting, batch=4):
    """Returns what a device sends in a step of two layers of Llama-3.2-1B."""
    made = plan(preset("llama-3.2-1b"), "v5e:2x2", mesh, context=1024, dtype="bfloat16", batch=batch)
    config = dataclasses.replace(made.sizes.config, num_layers=2, layer_kinds=("full", "full"))
    return exchanged(dataclasses.replace(made.sizes, config=config), batch, width, logits=width, drafting=drafting)


@pytest.mark.parametrize(
    ("mesh", "width", "drafting", "compiled"),
    [
        ("tp=4", 1, False, 1_661_952),
        ("tp=4", 16, True, 1_978_368),
        ("fsdp=4", 1, False, 3_569_808),
        ("fsdp=2,tp=2", 1, False, 1_743_976),
    ],
)
def test_devices_exchange_what_programs_compiled_for_them_do(mesh, width, drafting, compiled):
    # By `eval.compile` on v5e:2x2, batch 4; drafts also join the likeliest tokens, less than a hundredth.
    assert exchanges(mesh, width, drafting=drafting) == pytest.approx(compiled, rel=0.01)


def test_one_device_sends_nothing():
    made = plan()
    assert "links" not in named(made.step())
    assert seconds(made.step(), made.chip) > 0


def drafter_of_trees(method, **options):
    """Returns the drafter's part of a step with one and with three levels of three nodes in all."""
    made = plan(method=method, tree="chain-3", **options)
    return [named(made.step(nodes=4, levels=levels)).get("drafter") for levels in (1, 3)]


@pytest.mark.parametrize("method", ["draft-model", "eagle", "chimera", "self-sparse"])
def test_each_level_of_a_tree_reads_the_drafter_again(method):
    options = {"draft_model": "int8"} if method == "draft-model" else {}
    flat, deep = drafter_of_trees(method, **options)
    sizes = plan(method=method, tree="chain-3", **options).sizes
    once = sizes.shares.drafter.once.bytes + (sizes.scorer if method == "self-sparse" else 0)
    assert deep.read - once == pytest.approx(3 * (flat.read - once))
    assert deep.operations == flat.operations


@pytest.mark.parametrize(("method", "entries"), [("medusa", 1), ("dflash", 16)])
def test_drafters_of_one_pass_are_read_once_whatever_the_tree(method, entries):
    flat, deep = drafter_of_trees(method)
    assert flat == deep
    assert deep.operations == 2 * entries * plan(method=method, tree="chain-3").shares.drafter.forward.elements


def test_what_looks_up_reads_no_weights():
    assert drafter_of_trees("suffix") == [None, None]


@pytest.mark.parametrize("method", ["chimera", "dflash", "hamburger"])
def test_a_drafter_without_a_head_reads_the_targets(method):
    shares = plan(method=method).shares
    assert shares.drafter.forward.bytes > shares.target["head"].bytes
    assert shares.drafter.held < shares.drafter.forward.bytes + (method == "chimera") * 2**20


def test_hamburger_reads_its_decoder_for_each_token_behind_a_groups_first_and_its_embedder_once():
    made = plan(method="hamburger", acceptance=0.5)
    modules, head = made.question.arguments().params["smasher"], made.shares.target["head"].bytes
    embedder = modules["embedder"]
    decoder, fused = (
        weights_of(x).bytes
        for x in ((modules["micro_decoder"], modules["stop_head"]), [embedder[n] for n in embedder if "place" not in n])
    )
    # Groups have 1 + 1/2 + 1/4 + 1/8 tokens.
    assert named(made.step())["drafter"].read == 0.875 * (decoder + head) + fused
    assert "drafter" not in named(made.step(acceptance=0.0))


def test_a_draft_model_reads_prompts_too_and_looked_up_drafts_cost_them_nothing():
    own, none = (plan(method=m, **x) for m, x in (("draft-model", {"draft_model": small()}), ("suffix", {})))
    prefill = named(own.prefill())
    products = prefill["projections"].operations + prefill["mlp"].operations
    assert prefill["drafter"].operations == products
    assert "drafter" not in named(none.prefill())
