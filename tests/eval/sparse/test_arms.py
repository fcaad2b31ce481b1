"""Equal bytes against numbers worked by hand: two layers of two KV heads, 8 wide, float32, 100 slots."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eval.scores.engine import Engine
from eval.sparse.arms import beside, policy_of, read_policy, settled
from eval.sparse.asked import Drawn, read_task
from jax_smash.sparse import TOVA, StreamingLLM, sparsified
from tests.predictors import modules_of, sizes_of
from tests.tiny import tiny_model

SLOT = 2 * 2 * 8 * 4  # Keys and values of a layer's two KV heads.
DENSE = 2 * 100 * SLOT


def arm(text, share, *, page_size=None, length=100, **options):
    model = tiny_model(layer_kinds=("full", "full"), window=0)
    policy = read_policy(text, protocol="dense", page_size=page_size)
    abstract = jax.eval_shape(lambda: model.params["target"])
    return settled(text, policy, model.config, abstract, share=share, length=length, **options)


@pytest.mark.parametrize(
    ("text", "share", "slots", "scorer"),
    [
        ("oracle", 0.25, 25, 0),  # Its own scoring would be half of all bytes.
        ("recency", 0.25, 25, 0),
        ("h2o", 0.25, 17, 2 * 2 * 100 * 5),  # (6400 − 2000) / 256 slots are left beside sums and marks.
        ("quest:dense_layers=0", 0.5, 24, 2 * 2 * 2 * 25 * 8 * 4),  # Bounds of 25 pages; 25 slots hold 6 pages.
        ("tokenselect:sinks=2:window=4", 0.75, 25, 2 * 2 * 100 * 8 * 4),
        ("streaming", 0.25, 25, 0),
    ],
)
def test_what_is_chosen_by_is_paid_for_in_slots(text, share, slots, scorer):
    found = arm(text, share, page_size=4 if text.startswith("quest") else None)
    assert found.dense == DENSE
    assert (found.slots, found.scorer) == (slots, scorer)
    assert found.cache == 2 * slots * SLOT
    assert found.share <= share
    assert found.unmet is None


def test_a_cache_of_a_fixed_size_has_its_share_of_what_a_row_holds_when_an_answer_begins():
    # A policy that chooses reads half of 60 entries there; half of the row's 100 slots would be more.
    assert arm("streaming", 0.5, held=60).slots == 30
    assert arm("recency", 0.5, held=60).slots == arm("recency", 0.5).slots == 50


def test_answers_of_ruler_begin_behind_their_prompts():
    model = tiny_model(max_positions=2048)
    engine = Engine(model, batch_size=1)
    drawn = Drawn(
        size=lambda text: len(model.encode(text)),
        count=2,
        length=64,
        ruler_length=1500,
        new_tokens=None,
        seed=0,
    )
    task = read_task("ruler_vt", drawn)
    made = task.sets(0.5)
    sizes = [len(engine.prompt(example.text)) for example in made.examples]
    assert task.written
    assert task.prompt(engine) == round(sum(sizes) / 2) <= task.length(engine) - made.new_tokens


def test_one_page_more_would_be_more_than_the_budget():
    found = arm("quest:dense_layers=0", 0.5, page_size=4)
    assert (found.cache + found.scorer + 2 * 4 * SLOT) / DENSE > 0.5


def test_layers_that_are_read_whole_are_paid_for():
    found = arm("recency:dense_layers=1", 0.6)
    assert found.cache == (100 + 20) * SLOT
    assert found.slots == 20


@pytest.mark.parametrize(
    ("text", "share", "reason"),
    [
        ("tokenselect:sinks=2:window=4", 0.5, "with 6 slots it reads 56.0%, 50.0% to choose by and 6.0%"),
        ("quest", 0.5, "with 48 slots it reads"),
        ("tokenselect", 0.5, "it always reads 640 slots, more than 50 of 100"),
        ("streaming", 0.04, "its 4 sinks and an entry are more than 4 slots"),
    ],
)
def test_a_budget_that_cannot_be_met_is_told_and_not_raised(text, share, reason):
    found = arm(text, share)
    assert found.policy is None
    assert reason in found.unmet


def test_of_equal_slots_the_scorer_is_told_but_not_paid_for():
    found = arm("h2o", 0.25, equal="slots")
    assert found.slots == 25
    assert found.share > 0.25


@pytest.mark.parametrize("text", ["oracle", "quest", "h2o:grace=16", "streaming", "tokenselect", "snapkv"])
def test_the_whole_budget_is_the_whole_cache(text):
    found = arm(text, 1.0)
    assert (found.slots, found.cache, found.scorer, found.dense) == (100, DENSE, 0, DENSE)


def test_a_trained_predictor_pays_for_its_keys_but_not_for_its_weights():
    model = tiny_model(layer_kinds=("full", "full"), window=0)
    policy = read_policy("butler", protocol="stepwise", page_size=None)
    sizes = sizes_of(model.config, "per_head", attach=0, width=2)
    sparse = sparsified(model, policy.sized(sizes), modules_of(sizes))
    assert policy_of(sparse).stepwise
    params = sparse.params["target"]
    found = settled("butler", policy_of(sparse), model.config, params, share=0.9, length=100)
    # A key of 2 numbers for each of 4 query heads in both layers, and keys and values of 8 of the small attention.
    assert found.scorer == (2 * 4 * 2 + 2 * 8) * 4 * 100
    assert found.slots == (0.9 * DENSE - found.scorer) // (2 * SLOT)
    assert found.predictor > 0
    assert policy_of(beside(sparse, found.policy)).budget == found.policy.budget


def test_what_options_say_for_all_policies_is_refused_in_one():
    with pytest.raises(ValueError, match="'h2o:budget=12' must not say budget"):
        read_policy("h2o:budget=12", protocol="dense", page_size=None)
    with pytest.raises(ValueError, match="a policy must be one of"):
        read_policy("guess", protocol="dense", page_size=None)


@pytest.mark.parametrize(("share", "length"), [(0.25, 100), (0.33, 999), (0.5, 4096)])
def test_shorter_texts_read_their_share_to_the_slot(share, length):
    found = arm("recency", share, length=length)
    (plan,) = set(found.policy.plans(tiny_model(layer_kinds=("full", "full"), window=0).config, length))
    filled = np.arange(40, length + 1)
    expected = np.maximum(-(-filled * found.slots // length), found.policy.least)
    assert plan.limit(jnp.asarray(filled, jnp.int32), 1)[:, 0].tolist() == expected.tolist()


def test_a_fixed_budget_is_the_same_of_shorter_texts_and_counts_as_many_bytes():
    share, fixed = (arm("recency", 0.25, fixed=fixed) for fixed in (False, True))
    assert (fixed.slots, fixed.cache, fixed.share) == (share.slots, share.cache, share.share)
    for found, expected in ((share, 10), (fixed, 25)):
        (plan,) = set(found.policy.plans(tiny_model(layer_kinds=("full", "full"), window=0).config, 100))
        assert plan.limit(jnp.asarray([40], jnp.int32), 1)[0, 0] == expected


def test_a_long_text_reads_no_slot_more_than_its_share():
    for share in (0.1, 0.25, 0.3333):
        found = arm("recency", share, length=131_072)
        (plan,) = set(found.policy.plans(tiny_model(layer_kinds=("full", "full"), window=0).config, 131_072))
        assert plan.limit(jnp.asarray([131_072], jnp.int32), 1)[0, 0] == found.slots


@pytest.mark.parametrize("text", ["snapkv:observers=512", "recency:window=600", "h2o:grace=700"])
def test_settings_are_not_judged_by_a_budget_that_is_still_to_be_settled(text):
    policy = read_policy(text, protocol="dense", page_size=None)
    assert policy.budget == 1.0
    name, _, value = text.partition(":")[2].partition("=")
    assert getattr(policy, name) == int(value)


def test_policies_that_choose_no_slots_alone_ignore_the_page_size():
    assert read_policy("streaming", protocol="dense", page_size=8) == StreamingLLM(slots=5)
    assert read_policy("tova", protocol="stepwise", page_size=8) == TOVA(budget=1.0, page_size=8, prompt="stepwise")
