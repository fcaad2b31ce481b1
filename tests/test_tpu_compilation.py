"""The decoding programs compile for TPUs that are not at hand, and fit them."""

import importlib.metadata
import importlib.util
import itertools
import re

import pytest

from eval.chips.figures import UnreadableProgramError
from eval.compile import Settings, measure
from jax_smash.methods import METHODS
from jax_smash.quantise import UNIT_ROWS

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="compiling for a TPU needs libtpu"),
    pytest.mark.xdist_group("tpu"),
    pytest.mark.usefixtures("optimised"),
]

CHIPS = ("v5e:1x1", "v6e:1x1", "tpu7x:2x2x1")
QUICK = ("v6e:1x1", "medusa")
"""Of steps with trained drafters, the one that a run by default compiles."""
READS_ALL = (0, 12)
"""The jaxlib from which on the programs of all these chips can be read."""


def measured(*args, **options):
    """Returns a report; skips where this JAX is too old to read the chip's programs. The newest one reads them all."""
    try:
        return measure(Settings(*args, **options))
    except UnreadableProgramError as error:
        if tuple(int(n) for n in importlib.metadata.version("jaxlib").split(".")[:2]) >= READS_ALL:
            raise
        pytest.skip(str(error))


def check(report, *, least=0.99):
    memory = report["chip"]["memory_bytes"]
    for row in report["rows"]:
        assert row["fits"], row
        assert row["total_mb"] * 1e6 < memory, row
        assert row["host_transfers"] == 0, row
        assert row["cache_copies"] == 0, row
        if row["program"] != "start":
            assert row["reused_mb"] * 1e6 >= report["model"]["cache_bytes_a_device"], row
        assert row["traffic"] > least, row  # A step cannot move less than it must.
        assert row["modelled_ms"] > 0.9 * least * row["roofline_ms"] > 0, row


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "chip"),
    [
        ("gemma-2-2b", "v6e:1x1"),
        # The decode step of a Llama is compiled for the other chips below.
        *(pytest.param("llama-3.2-1b", chip, marks=pytest.mark.slow) for chip in CHIPS),
        pytest.param("gemma-2-2b", "v5e:1x1", marks=pytest.mark.slow),
    ],
)
def test_two_layers_compile_and_fit(shape, chip):
    check(measured(shape, chip, num_layers=2, batch_size=2, slots=1024, prefill_chunk=128))


@pytest.mark.slow
def test_two_layers_decode_step_compiles_for_a_chip_newer_than_jaxlib():
    small = {"programs": ("decode",), "num_layers": 2, "batch_size": 2, "slots": 1024}
    check(measured("llama-3.2-1b", "tpu7x:2x2x1", **small))


def test_a_plain_step_reads_weights_and_cache_once_and_a_tree_more():
    small = {"programs": ("decode",), "num_layers": 2, "batch_size": 8, "slots": 1024, "prefill_chunk": 16}
    plain = measured("llama-3.2-1b", "v5e:1x1", **small)
    tree = measured("llama-3.2-1b", "v5e:1x1", method="recycling", tree="recycling-80", **small)
    for report in (plain, tree):
        check(report)
    (row,), (drafted,) = plain["rows"], tree["rows"]
    assert row["traffic"] < 1.02
    # Neither at every call nor at every step.
    assert row["copies"] == []
    assert (row["unknown_loops"], row["uncounted_kernels"], drafted["uncounted_kernels"]) == ([], [], [])
    assert tree["model"]["nodes"] == 80
    # More entries are written, and nothing else is needed in main memory.
    assert 0 < drafted["ideal_bytes"] - row["ideal_bytes"] < 1e6
    assert drafted["body_bytes"] > row["body_bytes"]
    assert drafted["modelled_ms"] > row["modelled_ms"]
    assert row["scheduled_share"] > 0.9
    assert len(drafted["dearest"]) == 10


@pytest.mark.slow
@pytest.mark.parametrize(("chip", "traffic", "time"), [("v5e:1x1", 1.3, 1.11), ("v6e:1x1", 1.08, 1.35)])
def test_a_tree_of_eighty_entries_a_row_moves_little_more_than_weights_and_cache(chip, traffic, time):
    # Whole: what stays in fast memory does not grow in a straight line with the layers.
    options = {"programs": ("decode",), "batch_size": 8, "slots": 1024, "prefill_chunk": 16}
    report = measured("llama-3.2-1b", chip, method="recycling", tree="recycling-80", **options)
    (row,) = report["rows"]
    assert report["model"]["nodes"] == 80
    assert row["traffic"] < traffic
    assert row["modelled_ms"] < time * row["roofline_ms"]
    # No weight, no cache, no logits, no queries, and nothing that the drafter knows.
    assert row["copies"] == []
    assert row["unknown_loops"] == []
    assert row["uncounted_kernels"] == []


CHIP, CHIPS_OF_FOUR = ("v5p:1x1x1", None), ("v6e:2x2", "tp=4")
MANY, LONG = (32768, 8), (131072, 1)
"""Slots of a row, and rows."""


@pytest.mark.parametrize(
    ("where", "held", "page_size"),
    [
        (CHIP, MANY, 16),
        (CHIPS_OF_FOUR, LONG, 64),
        *(
            pytest.param(where, held, page_size, marks=pytest.mark.slow)
            for where, held, page_size in itertools.product((CHIP, CHIPS_OF_FOUR), (MANY, LONG), (16, 64))
            if (where, held, page_size) not in ((CHIP, MANY, 16), (CHIPS_OF_FOUR, LONG, 64))
        ),
    ],
)
def test_a_sparse_step_moves_little_more_than_weights_budget_and_scorer(where, held, page_size):
    (chip, mesh), (slots, batch) = where, held
    options = {"programs": ("decode",), "num_layers": 2, "prefill_chunk": 16, "slots": slots, "batch_size": batch}
    policy = {"sparse": "quest:dense_layers=0", "kv_budget": "2048", "page_size": page_size}
    report = measured("llama-3.1-8b", chip, mesh=mesh, **options, **policy)
    check(report)
    (row,) = report["rows"]
    head = 128256 * 4096 * 2 // (4 if mesh else 1)
    least = row["ideal_bytes"] - head
    assert row["body_bytes"] + row["held_bytes"] - head < 1.2 * least
    # Neither keys and values nor bounds are copied or gathered: a kernel reads pages where they lie.
    assert [x for x in row["copies"] if x["reason"] != "logits"] == []
    assert (row["unknown_loops"], row["uncounted_kernels"]) == ([], [])
    if mesh:
        # Choosing takes nothing from other devices: embeddings and two products a layer are added up, logits joined.
        assert sum(one["count"] for one in row["collectives"]) == 1 + 2 * 2 + 1
        assert sum(one["megabytes"] for one in row["collectives"]) < 6


@pytest.mark.slow
@pytest.mark.parametrize(("where", "held"), [*itertools.product((CHIP, CHIPS_OF_FOUR), (MANY, LONG))])
def test_a_step_whose_slots_are_chosen_one_by_one_moves_little_more_than_it_must(where, held):
    (chip, mesh), (slots, batch) = where, held
    options = {"programs": ("decode",), "extrapolate": True, "prefill_chunk": 16, "slots": slots, "batch_size": batch}
    report = measured("llama-3.1-8b", chip, mesh=mesh, **options, sparse="low-rank:int4=true", kv_budget="2048")
    check(report)
    (row,) = report["rows"]
    assert row["body_bytes"] + row["held_bytes"] < 1.2 * row["ideal_bytes"]
    assert (row["unknown_loops"], row["uncounted_kernels"]) == ([], [])


@pytest.mark.parametrize(
    ("chip", "mesh", "method", "tree"),
    [
        pytest.param(chip, mesh, method, tree, marks=() if (chip, method) == QUICK else pytest.mark.slow)
        for chip, mesh in (("v6e:1x1", None), ("v5e:2x2", "tp=4"))
        for method, tree in (("eagle", "chain-7"), ("medusa", "chain-4"), ("chimera", "chain-4"), ("dflash", "chain-7"))
    ],
)
def test_a_step_with_a_trained_drafter_moves_little_more_than_the_weights_of_each_forward_and_the_cache(
    chip, mesh, method, tree
):
    options = {"programs": ("decode",), "num_layers": 2, "prefill_chunk": 16, "slots": 4096, "batch_size": 1}
    report = measured("llama-3.1-8b", chip, mesh=mesh, method=method, tree=tree, **options)
    # From forward to forward, a drafter's weights may stay in fast memory: 114 MB on a v5e.
    check(report, least=0.8)
    (row,) = report["rows"]
    assert row["body_bytes"] + row["held_bytes"] < 1.2 * row["ideal_bytes"]
    assert (row["copies"], row["unknown_loops"], row["uncounted_kernels"]) == ([], [], [])


@pytest.mark.slow
@pytest.mark.parametrize("chip", ["v5e:1x1", "v6e:1x1"])
def test_a_sampled_tree_takes_little_longer_than_a_greedy_one(chip):
    options = {"programs": ("decode",), "batch_size": 8, "slots": 1024, "prefill_chunk": 16}
    options |= {"method": "recycling", "tree": "recycling-80"}
    (greedy,) = measured("llama-3.2-1b", chip, **options)["rows"]
    (sampled,) = measured("llama-3.2-1b", chip, sampled=True, **options)["rows"]
    assert sampled["modelled_ms"] < 1.1 * greedy["modelled_ms"]
    assert sampled["copies"] == []


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("ar", "recycling")])
def test_every_methods_programs_compile(method):
    tree = {"lookahead": "auto", "hamburger": "auto", "draft-model": "chain-3", "self-sparse": "chain-3"}.get(
        method, "tree-15"
    )
    small = {"num_layers": 2, "batch_size": 2, "slots": 512, "prefill_chunk": 16}
    beside = {"draft_model": "int8"} if method == "draft-model" else {}
    report = measured("llama-3.2-1b", "v5e:1x1", method=method, tree=tree, **small, **beside)
    assert [row["program"] for row in report["rows"]] == ["prefill", "start", "decode"]
    assert all(row["fits"] and row["host_transfers"] == 0 for row in report["rows"])


@pytest.mark.slow
def test_two_and_four_layers_tell_of_sixteen():
    options = {"programs": ("decode",), "batch_size": 8, "slots": 1024, "prefill_chunk": 16}
    (told,) = measured("llama-3.2-1b", "v5e:1x1", extrapolate=True, **options)["rows"]
    (whole,) = measured("llama-3.2-1b", "v5e:1x1", **options)["rows"]
    assert told["ideal_bytes"] == whole["ideal_bytes"]
    for name in ("body_bytes", "modelled_ms", "argument_mb"):
        assert told[name] == pytest.approx(whole[name], rel=0.05), name


@pytest.mark.slow
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize(("shape", "batch"), [("llama-3.2-1b", 8), ("llama-3.1-8b", 1)])
def test_whole_shapes_compile_and_fit(chip, shape, batch):
    if chip == "v5e:1x1" and shape == "llama-3.1-8b":
        pytest.skip("16 GB of weights and a cache are more than the chip's 16 GiB leave room for")
    check(measured(shape, chip, batch_size=batch, slots=2048, prefill_chunk=256))


@pytest.mark.parametrize(
    ("mesh", "weights"),
    [("tp=4", "plain"), pytest.param("fsdp=2,tp=2", "plain", marks=pytest.mark.slow), ("fsdp=2,tp=2", "int8")],
)
def test_a_decode_step_over_several_devices_moves_entries_and_no_weights(mesh, weights):
    batch, layers = 2, 2
    report = measured(
        "llama-3.2-1b",
        "v5e:2x2",
        programs=("decode",),
        num_layers=layers,
        batch_size=batch,
        slots=256,
        prefill_chunk=16,
        weights=weights,
        mesh=mesh,
    )
    check(report)
    (row,) = report["rows"]
    # A weight could be gathered once for all steps, too. Now and then the compiler lets devices meet before they begin.
    assert all(one["megabytes"] < 1e-4 for one in row["collectives_outside_loop"]), row
    found = {(one["kind"], one["shape"]): one for one in row["collectives"]}
    smallest = 2048 * 2048 / 4 * (2 if weights == "plain" else 1)  # A device's share of w_o.
    for (kind, shape), one in found.items():
        size = 1e6 * one["megabytes"] / one["count"]
        if kind in ("all-reduce", "reduce-scatter") and size > 1000:
            # Of entries: those of every row, and those that int8 products are filled up with.
            assert int(re.search(r"\[(\d+)", shape)[1]) in (batch, UNIT_ROWS), one
        else:
            assert size < smallest, one
    assert sum(one["megabytes"] for one in found.values()) < 6, found
    if mesh == "tp=4":
        # The embedding and two products a layer are added up; logits are put together.
        assert found.pop(("all-reduce", f"bf16[{batch},1,2048]"))["count"] == 2 * layers + 1
        ((kind, shape),) = found
        assert (kind, found[kind, shape]["count"]) == ("all-gather", 1)
        assert shape.startswith("f32[")
        assert 1e6 * found[kind, shape]["megabytes"] == pytest.approx(4 * batch * 128256)
    weight_bytes = report["model"]["weight_bytes"]
    assert weight_bytes / 4 <= report["model"]["weight_bytes_a_device"] < 0.26 * weight_bytes
