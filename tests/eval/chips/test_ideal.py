import jax
import jax.numpy as jnp
import pytest

from eval.chips.ideal import ideal
from jax_smash.chips import CHIPS
from jax_smash.methods import DraftOptions
from jax_smash.plan import step_bytes, tree_bytes
from jax_smash.planning.abstract import AbstractModel, abstract
from jax_smash.sparse import Quest, sparse_step_bytes
from tests.tiny import tiny_config

SIZES = {"batch": 3, "slots": 64, "chunk": 16}


def arguments(config, method="ar", tree="auto", **model):
    made = AbstractModel(config, dtype=jnp.float32, **model)
    return abstract(made, jax.devices()[0], **SIZES, method=method, draft=DraftOptions(tree=tree))


@pytest.mark.parametrize("tied", [True, False])
def test_a_step_reads_weights_and_cache_once(tied):
    config = tiny_config(tied_head=tied, layer_kinds=("full", "full"), window=0)
    given = arguments(config)
    least = ideal("decode", config, given)
    expected = step_bytes(config, given.params["target"], batch=3, slots=64)
    norm = 4 * config.d_model  # The last one.
    assert least.weights + norm == expected.weights
    assert least.cache == expected.cache
    assert least.written == 3 * config.num_layers * 2 * config.num_kv_heads * config.head_width * 4


def test_a_step_under_a_policy_reads_its_budget_and_what_it_chooses_by():
    config, policy = tiny_config(layer_kinds=("full", "full"), window=0), Quest(budget=48, dense_layers=1)
    given = arguments(config, policy=policy)
    least, dense = ideal("decode", config, given), ideal("decode", config, arguments(config))
    expected = sparse_step_bytes(config, given.params["target"], policy, batch=3, slots=64)
    assert (least.cache, least.scorer) == (expected.cache, expected.scorer)
    assert least.cache < dense.cache
    assert 0 < least.scorer < dense.cache - least.cache
    assert least.bytes == dense.bytes - dense.cache + least.cache + least.scorer
    assert sum(least.parts().values()) == least.bytes
    assert least.operations < dense.operations
    # A prompt is read by all that is kept.
    assert ideal("prefill", config, given) == ideal("prefill", config, arguments(config))


def test_operations_are_those_of_products_and_attention():
    config = tiny_config(layer_kinds=("full", "full"), window=0)
    d, f, n, k, h = config.d_model, config.mlp_width, config.num_heads, config.num_kv_heads, config.head_width
    layer = d * (n + 2 * k) * h + n * h * d + 3 * d * f
    for tree, nodes in (("chain-3", 4), ("tree-7", 8)):
        least = ideal("decode", config, arguments(config, "recycling", tree))
        attention = 4 * 3 * nodes * n * h * (64 + nodes) * config.num_layers
        assert least.operations == 2 * 3 * nodes * (config.num_layers * layer + d * config.vocab_size) + attention


def test_a_draft_model_is_read_for_every_level():
    config = tiny_config()
    plain = ideal("decode", config, arguments(config)).weights
    few, many = (
        ideal("decode", config, arguments(config, "draft-model", tree, drafter=config)).weights
        for tree in ("chain-2", "chain-4")
    )
    assert many - few == 2 * (few - plain) / 2
    assert few > plain


@pytest.mark.parametrize(
    ("kind", "forwards"), [("eagle", 2), ("eagle1", 2), ("chimera", 2), ("medusa", 1), ("dflash", 1)]
)
def test_a_drafter_that_fills_all_levels_at_once_is_read_once_and_others_for_each(kind, forwards):
    config, method = tiny_config(), "eagle" if kind == "eagle1" else kind
    plain = ideal("decode", config, arguments(config)).parts()
    given = arguments(config, method, "chain-1", trained=kind)
    few, many = (
        ideal("decode", config, given).parts(),
        ideal("decode", config, arguments(config, method, "chain-2", trained=kind)).parts(),
    )
    # EAGLE joins taps once, of the tokens that were accepted.
    once = tree_bytes(given.params["drafter"]["w_join"]) if kind == "eagle" else 0
    for part, base in (("weights", plain["weights"] + once), ("cache", plain["cache"])):
        assert many[part] - base == forwards * (few[part] - base), part
    assert few["weights"] > plain["weights"]
    assert (few["cache"] > plain["cache"]) is (kind != "medusa")


@pytest.mark.parametrize("kind", ["eagle", "chimera"])
def test_a_hybrid_reads_its_trained_drafter_as_the_drafters_own_method_does(kind):
    config = tiny_config()
    own, hybrid = (
        ideal("decode", config, arguments(config, method, "chain-9", trained=kind)) for method in (kind, "hybrid")
    )
    assert (hybrid.weights, hybrid.cache) == (own.weights, own.cache)


def test_chimera_has_no_forward_below_its_last_head():
    config = tiny_config()
    four, more = (ideal("decode", config, arguments(config, "chimera", tree)) for tree in ("chain-4", "chain-6"))
    assert (more.weights, more.cache) == (four.weights, four.cache)


def test_the_part_of_its_own_cache_that_a_model_drafts_by_is_left_out():
    config = tiny_config(layer_kinds=("full", "full"), window=0)
    plain, drafted = (ideal("decode", config, arguments(config, *x)) for x in ((), ("self-sparse", "chain-2")))
    assert drafted.cache == plain.cache
    assert drafted.weights - plain.weights == pytest.approx(2 * plain.weights, rel=0.01)


def test_a_prompt_needs_the_head_where_the_drafter_learns_from_it():
    config = tiny_config()
    head = 4 * config.vocab_size * config.d_model
    plain, learned = (
        ideal("prefill", config, arguments(config, *method)).weights for method in ((), ("recycling", "chain-2"))
    )
    assert learned - plain == head
    assert ideal("start", config, arguments(config)).weights == head


def test_the_roofline_is_the_longer_of_bytes_and_operations():
    config = tiny_config()
    least, chip = ideal("decode", config, arguments(config)), CHIPS["v5e"]
    assert least.ms(chip, "bf16") == pytest.approx(1e3 * least.bytes / chip.bandwidth)
    prefill = ideal("prefill", config, arguments(config))
    slow = chip.__class__(**{**chip.__dict__, "bf16_peak": 1e9})
    assert prefill.ms(slow, "bf16") == pytest.approx(prefill.operations / 1e6)
