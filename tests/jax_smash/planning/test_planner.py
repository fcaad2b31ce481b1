import jax
import pytest

from jax_smash.draft.trees.sizing import expected_tokens
from jax_smash.draft.trees.templates import named_tree
from jax_smash.methods import METHODS
from jax_smash.models.dflash_config import DFlashConfig
from jax_smash.planning.compiled import compile_plan
from jax_smash.planning.gains import DEEPEST, best, candidates, drafted, group_tokens, stated_rates
from jax_smash.planning.plot import plot_plan
from jax_smash.planning.report import report
from jax_smash.sparse import Quest, Recency, StreamingLLM
from tests.jax_smash.planning.plans import plan, small

BESIDE = {"draft-model": {"draft_model": "int8"}, "self-sparse": {"tree": "chain-2"}}


WITH_WEIGHTS = ("draft-model", "eagle", "medusa", "chimera", "dflash", "hamburger")
"""Methods that hold weights beside the model's."""

FEW = ("suffix", "medusa", "hamburger")
"""Methods of each kind: without a drafter of its own, with one that is read once, with groups."""


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=[] if name in FEW else [pytest.mark.slow]) for name in METHODS]
)
def test_every_method_is_planned(method):
    made = plan(method=method, acceptance=0.6, **BESIDE.get(method, {}))
    told = report(made)
    assert told["memory"]["fits"]
    assert (told["decode"]["tokens_a_step"] > 1) is (told["tree"] not in (None, "off") or method == "hamburger")
    assert told["decode"]["gain"] == pytest.approx(told["decode"]["plain_ms"] / told["decode"]["ms_a_token"], rel=1e-6)
    gains = [x["gain"] for x in told["gains"]]
    # Of a model this small, a micro-step reads more than a forward does: longer groups gain less.
    assert gains == sorted(gains, reverse=method == "hamburger")
    assert (told["memory"]["drafter"] > 0) is (method in WITH_WEIGHTS)


@pytest.mark.parametrize(
    ("device", "mesh", "options"),
    [
        ("cpux4", "data=2,tp=2", {"batch": 4}),
        pytest.param("cpux2", "fsdp=2", {"method": "recycling", "tree": "tree-7"}, marks=pytest.mark.slow),
        pytest.param("cpux2", "tp=2", {"method": "eagle", "tree": "chain-2"}, marks=pytest.mark.slow),
        ("h100x2", "tp=2", {"batch": 3, "weights": "int8"}),
    ],
)
def test_the_compiler_counts_the_same_arguments(device, mesh, options):
    made = plan(device=device, mesh=mesh, **{"batch": 2} | options)
    told = compile_plan(made)
    prefill, decode = told["programs"]
    assert told["compiled_for"] == "cpu"
    assert decode["planned_argument_bytes"] == pytest.approx(decode["argument_bytes"], rel=0.05)
    # A prefill is given no head, unless its logits are learned from.
    assert made.shares.learns_prompt or prefill["argument_bytes"] < decode["argument_bytes"]
    assert min(prefill["temporary_bytes"], decode["temporary_bytes"]) > 0


def test_too_few_virtual_devices_are_refused():
    made = plan(small(mlp_width=64, num_heads=16, num_kv_heads=16), "cpux16")
    assert jax.device_count() < 16
    with pytest.raises(ValueError, match="16 virtual devices; it has"):
        compile_plan(made)


def test_memory_ends_where_a_row_more_does_not_fit():
    made = plan(device="v5e:2x2", mesh="data=2,tp=2", batch=2)
    most = made.most_rows
    assert most % 2 == 0
    assert made.memory(most).fits
    assert not made.memory(most + 2).fits
    batches = [x.batch for x in made.speeds()]
    assert batches == sorted(batches)
    assert [x.memory.fits for x in made.speeds()] == [batch <= most for batch in batches]


def test_the_best_batch_is_the_smallest_of_nearly_the_most_tokens_a_second():
    made = plan()
    best_one = made.best_batch()
    fitting = [x for x in made.speeds() if x.memory.fits]
    most = max(x.throughput for x in fitting)
    assert best_one.throughput > 0.99 * most
    assert all(x.throughput < 0.99 * most for x in fitting if x.batch < best_one.batch)
    limited = made.best_batch(most_seconds=fitting[2].latency)
    assert limited.batch <= fitting[2].batch
    assert made.best_batch(most_seconds=1e-12) is None


def test_a_larger_batch_gets_a_smaller_tree_and_in_the_end_none():
    made = plan(method="recycling", acceptance=0.4)
    nodes = [made.best_tree(batch=batch).nodes for batch in (1, 64, 2**14)]
    assert nodes == sorted(nodes, reverse=True)
    assert nodes[0] > nodes[-1]


def test_a_tree_that_is_named_is_taken():
    made = plan(method="recycling", tree="chain-3")
    assert (made.tree.tree, made.tree.nodes, made.shares.nodes) == ("chain-3", 4, 4)


def test_the_best_tree_gives_most_tokens_a_second():
    trees = plan(method="recycling", acceptance=0.6).trees()
    assert best(trees).seconds_a_token == min(x.seconds_a_token for x in trees)
    tokens = [x.tokens for x in trees]
    assert tokens == sorted(tokens)


def test_a_policy_takes_bytes_of_the_cache_and_gains_by_it():
    config = small(max_positions=2**16)
    dense, sparse = (plan(config, context=2**15, batch=8, policy=p) for p in (None, Quest(budget=64, dense_layers=0)))
    assert sparse.speed().step < dense.speed().step
    assert sparse.gain() > 1 == dense.gain()
    assert sparse.memory().rows > dense.memory().rows


def test_plain_decoding_reads_the_whole_cache_beside_one_that_a_policy_shortens():
    config = small(max_positions=2**13)
    whole, short = (plan(config, context=2**12, batch=8, policy=p) for p in (None, StreamingLLM(slots=64)))
    assert short.plain_step() == whole.plain_step()
    assert short.gain() > 1


def test_drafts_by_streamingllm_read_its_sinks_and_its_window():
    config = small(num_layers=4, layer_kinds=("full",) * 4)
    options = {"context": 512, "method": "self-sparse", "tree": "chain-2"}
    policies = StreamingLLM(slots=64, sinks=3), Recency(budget=64, sinks=3)
    own, same = (plan(config, policy=policy, **options) for policy in policies)
    assert own.sizes.read < 1
    assert own.step() == same.step()


def test_int8_weights_take_less():
    plain, int8 = (plan(weights=weights) for weights in ("plain", "int8"))
    assert int8.memory().weights < 0.35 * plain.memory().weights


def test_a_window_bounds_the_cache():
    whole, sliding = (
        plan(small(layer_kinds=(kind, kind), window=24, max_positions=8192), context=8192)
        for kind in ("full", "sliding")
    )
    assert sliding.memory().cache < whole.memory().cache
    assert sliding.speed().step < whole.speed().step


def test_prompts_take_longer_than_a_step_and_longer_ones_longer():
    short, long = (plan(context=512, prompt=n) for n in (32, 512))
    assert report(long)["time_to_first_token_ms"] > report(short)["time_to_first_token_ms"]


def test_a_node_has_no_more_children_than_it_has_probability():
    for acceptance in (0.0, 0.3, 0.6, 0.95):
        rates = stated_rates(acceptance, 4, 8)
        assert rates[:, 0] == pytest.approx(acceptance)
        assert (rates.sum(1) <= 1 + 1e-6).all()
    assert group_tokens(0.5, 3) == 1.75


def test_no_token_is_counted_that_is_deeper_than_the_drafter_drafts():
    names = [*candidates("medusa", "auto", 0.5, tiled=True)]
    assert [name for name in names if name.startswith("chain")] == ["chain-1", "chain-2", "chain-3", "chain-4"]
    (deep,) = drafted("medusa", "chain-6", 0.5, lambda nodes, levels: 1.0, tiled=True)
    assert (deep.nodes, deep.levels, deep.tokens) == (7, 4, group_tokens(0.5, 5))
    assert {*DEEPEST} == {"medusa", "chimera", "dflash"}
    assert DEEPEST["dflash"] == DFlashConfig.for_target(small()).block_size - 1


@pytest.mark.parametrize("method", ["draft-model", "self-sparse"])
def test_a_chain_emits_no_more_tokens_than_it_has_nodes(method):
    made = plan(method=method, acceptance=0.9, **BESIDE.get(method, {}))
    assert all(x.tokens <= x.nodes for x in made.trees())
    assert made.speed().tokens == made.tree.tokens


@pytest.mark.parametrize("name", ["off", "chain-3", "tree-7", "recycling-80"])
def test_the_nodes_of_a_tree_are_those_that_the_library_drafts(name):
    (paths,), tree = candidates("eagle", name, 0.5, tiled=True).values(), named_tree(name)
    (found,) = drafted("eagle", name, 0.5, lambda nodes, levels: 1.0, tiled=True)
    assert (1 + len(paths), max(map(len, paths), default=0)) == (tree.nodes, int(tree.depth.max()))
    rates = stated_rates(0.5, max(found.levels, 1), int(tree.rank.max()) + 1)
    assert found.tokens == pytest.approx(expected_tokens(rates, tree))


def test_a_plan_is_drawn():
    assert plot_plan(report(plan(method="suffix")), title="small").startswith(b"\x89PNG")
