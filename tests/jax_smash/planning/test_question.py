import pytest

from jax_smash.sparse import H2O, Quest, StreamingLLM
from tests.jax_smash.planning.plans import plan, question, small


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "v5e:4x4", "mesh": "tp=4"}, "as many devices as v5e:4x4, which has 16; got 4 in tp=4"),
        (
            {"device": "v5e:2x2", "mesh": "data=4", "batch": 6},
            "batch must be a multiple of 4, the devices over which mesh data=4 ",
        ),
        ({"context": 1000}, "context must be at most the model's 512"),
        ({"prompt": 0}, "prompt must be at least 1; got 0"),
        ({"prompt": 65}, "prompt must be at most the context of 64"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"dtype": "float8"}, "dtype must be one of"),
        ({"weights": "int2"}, "weights must be one of"),
        ({"method": "nothing"}, "method must be one of"),
        ({"tree": "chain-4"}, "tree does not go with method ar"),
        ({"method": "recycling", "tree": "oak"}, "tree must be auto"),
        ({"method": "lookahead", "tree": "chain-4"}, "tree must be auto with method lookahead"),
        ({"method": "self-sparse", "policy": H2O(budget=48)}, "H2O|evict"),
        ({"method": "draft-model"}, "draft_model"),
        ({"draft_model": "int8"}, "draft_model"),
        ({"acceptance": 1.0}, "acceptance must be at least 0 and below 1"),
        ({"policy": Quest(budget=48)}, "dense_layers must be fewer than the 2 layers of target; got 2"),
    ],
)
def test_what_does_not_go_together_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        question(**options)


def test_a_width_that_the_mesh_does_not_divide_is_refused_by_name():
    with pytest.raises(ValueError, match=r"w_down: its axis 'mlp' must be divisible by the mesh's tp=4; got size 50"):
        plan(small(mlp_width=50), "v5e:2x2")


def test_without_a_mesh_the_model_is_divided_over_all_devices():
    assert str(question(device="v5e:2x2").mesh) == "tp=4"


def test_kv_heads_are_held_as_often_as_a_mesh_needs():
    held = question(device="v5e:2x2").held
    assert (held.num_kv_heads, held.kv_copies) == (2, 2)


def test_kv_heads_of_a_draft_model_are_held_as_often_too():
    options = {"device": "v5e:2x2", "method": "draft-model"}
    own, int8 = (question(draft_model=model, **options).shares("chain-2") for model in (small(), "int8"))
    assert own.drafter.cache == int8.drafter.cache > 0


def test_a_prefill_reads_no_more_at_once_than_the_window_of_a_policy():
    assert question(context=64).chunk(1) == 64
    assert question(context=64, policy=StreamingLLM(slots=36)).chunk(1) == 32
