import dataclasses

import jax
import pytest

from eval.chips.figures import UnreadableProgramError, readable
from eval.chips.ideal import ideal
from eval.compile import Settings, measure
from jax_smash.planning.abstract import share_bytes
from jax_smash.sparse import sparse_step_bytes
from tests.model_directory import write_model


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "recycling"}, "name a tree"),
        ({"method": "ar", "tree": "chain-4"}, "tree does not go with method ar"),
        ({"method": "draft-model", "tree": "chain-4"}, "draft_model"),
        ({"method": "lookup", "tree": "chain-4", "draft_model": "int8"}, "draft_model"),
        ({"method": "lookup", "tree": "chain-4", "smash_mode": "blind"}, "smash_mode"),
        ({"method": "nothing"}, "method must be one of"),
        (
            {"method": "eagle", "tree": "chain-4", "drafter": "medusa"},
            "drafter must be one of eagle, eagle1; got medusa",
        ),
        ({"method": "suffix", "tree": "chain-4", "drafter": "eagle"}, "drafter is for a method that is trained; got"),
        ({"method": "hybrid", "tree": "confident-9", "drafter": "dflash"}, "confident-9 needs the drafter's prob"),
        ({"extrapolate": True, "num_layers": 3}, "num_layers"),
        ({"batch_sizes": (2,)}, "tree_sizes"),
        ({"tree_sizes": (0,)}, "tree_sizes"),
        ({"tree_sizes": (2,), "chips": ("cpu",)}, "cpu"),
        ({"kv_budget": "64"}, "kv_budget is for a policy of the cache"),
        ({"sparse": "nothing"}, "a policy must be one of"),
        ({"sparse": "quest", "kv_budget": "40"}, "page_size must divide the budget of 40 slots"),
        ({"sparse": "quest:dense_layers=16", "kv_budget": "48"}, "dense_layers must be fewer than the 16 layers"),
        ({"sparse": "gate", "kv_budget": "96"}, "page_size must divide the budget of 96 slots; got 64"),
        ({"chips": ("v5e",), "tree_sizes": (2,)}, "chip must be"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_compiled(options, message):
    with pytest.raises(ValueError, match=message):
        measure(Settings("llama-3.2-1b", "cpu", **{"num_layers": None, **options}))


class Unknown:
    """A compiled program with an instruction that this jaxlib does not know."""

    def as_text(self):
        raise jax.errors.JaxRuntimeError("INTERNAL: unknown opcode")


def test_a_program_that_cannot_be_read_fails_in_a_line_that_says_what_to_do():
    with pytest.raises(UnreadableProgramError, match=r"decode for tpu7x:2x2x1 .* jaxlib .*: use a newer JAX"):
        readable("decode", Unknown(), "tpu7x:2x2x1")


@pytest.mark.parametrize(("method", "tree"), [("ar", "auto"), ("suffix", "tree-7")])
def test_this_machine_is_compiled_for_without_modelled_times(method, tree):
    options = {"num_layers": 1, "batch_size": 2, "slots": 32, "prefill_chunk": 16, "max_new_tokens": 16}
    report = measure(Settings("llama-100m", "cpu", method=method, tree=tree, **options))
    assert [row["program"] for row in report["rows"]] == ["prefill", "start", "decode"]
    for row in report["rows"]:
        assert row["fits"]
        assert row["body_bytes"] > 0
        assert row["traffic"] > 0.9
        assert {"copies", "ideal_bytes", "temp_mb", "total_mb"} <= {*row}
        assert not {"modelled_ms", "roofline_ms"} & {*row}


@pytest.mark.parametrize("policy", ["gate", "grouped:window=0", "butler"])
def test_a_predictor_of_the_usual_sizes_stands_for_one_that_is_trained(policy):
    dense = Settings("llama-100m", "cpu", slots=256)
    sparse = dataclasses.replace(dense, sparse=policy, kv_budget="128")
    whole, least = (ideal("decode", one.config(), one.arguments()) for one in (dense, sparse))
    held = sparse.arguments()
    params, chosen = held.params["target"], held.state.rows.cache.policy
    step = sparse_step_bytes(sparse.config(), params, chosen, batch=1, slots=sparse.slots)
    assert (least.cache, least.scorer) == (step.cache, step.scorer)
    assert least.weights - whole.weights == step.predictor > 0
    assert share_bytes(held.chosen_by) >= step.scorer > 0


@pytest.mark.parametrize(
    ("shape", "layers"),
    [("gemma-3-1b", (8, 14)), ("olmo-3-7b", (4, 8)), ("smollm3-3b", (4, 8)), ("qwen3-0.6b", (2, 4))],
)
def test_figures_are_continued_from_models_with_whole_repeats_of_layers(shape, layers):
    assert Settings(shape, extrapolate=True).layers() == layers


def test_a_model_of_too_few_layers_to_continue_figures_is_compiled_whole(tmp_path):
    shape = str(write_model(tmp_path))
    with pytest.raises(ValueError, match=r"extrapolate compiles 4 layers, and .* has 2: compile it whole"):
        Settings(shape, "cpu", extrapolate=True).check()


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "layers"), [("gate", [2, 4]), ("grouped:window=0", [4, 8])])
def test_figures_of_a_predictor_are_continued_from_models_with_whole_producers(policy, layers):
    settings = Settings("llama-100m", "cpu", sparse=policy, kv_budget="128", slots=256, extrapolate=True)
    report = measure(dataclasses.replace(settings, prefill_chunk=16, programs=("decode",)))
    assert report["model"]["compiled_layers"] == layers
    (row,) = report["rows"]
    assert row["fits"]
    assert row["traffic"] > 0.9


def test_figures_of_a_policy_are_continued_from_models_with_a_layer_that_chooses():
    options = {"sparse": "quest", "kv_budget": "48", "slots": 96, "prefill_chunk": 16, "programs": ("decode",)}
    report = measure(Settings("llama-100m", "cpu", extrapolate=True, **options))
    assert report["model"]["compiled_layers"] == [3, 5]
    (row,) = report["rows"]
    assert row["fits"]
    assert row["traffic"] > 0.9


def test_a_policy_that_reads_few_tokens_at_once_decides_the_pieces_of_a_prompt():
    streaming = Settings("llama-100m", "cpu", slots=4096, sparse="streaming", kv_budget="256")
    assert streaming.chunk() == streaming.policy.longest_block
    assert streaming.chunk() < Settings("llama-100m", "cpu", slots=4096).chunk()


def test_a_piece_of_a_prompt_is_no_longer_than_the_cache():
    settings = Settings("llama-100m", "v5e:1x1", slots=100)
    assert settings.chunk() == 128 < dataclasses.replace(settings, slots=1024).chunk()
    assert dataclasses.replace(settings, prefill_chunk=512).chunk() == 512
