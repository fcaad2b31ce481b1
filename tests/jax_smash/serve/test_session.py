import dataclasses

import jax
import pytest

from jax_smash.methods import DraftOptions, make_method
from jax_smash.sampling import SamplingOptions, Temperature
from jax_smash.serve.session import Session
from jax_smash.sharding import make_mesh, place
from jax_smash.smash.options import SmashOptions
from tests.smashed import smashed_model
from tests.tiny import tiny_model


def test_samples_of_a_prompt_share_its_reading():
    model = tiny_model()
    method = make_method(model, "ar", sampled=True)
    warm = [SamplingOptions(temperature=1.0)] * 2
    session = Session(model, method, slots=64, max_new_tokens=8, sampling=warm, seeds=[0, 1], samples=3)
    # Until the prompts are read there is one row each, so a prompt cannot be read more than once.
    assert session.state.rows.token_length.shape == (2,)
    session.read([[10, 20, 30, 40], [50, 60]])
    # The prompt and the first new token.
    assert session.state.rows.token_length.tolist() == [5, 5, 5, 3, 3, 3]
    session.run(100)
    texts = [tuple(text) for text in session.outputs()]
    assert len({*texts}) == len(texts) == 6


PLAIN_AND_DRAFTING = [("ar", DraftOptions()), ("lookup", DraftOptions(tree="chain-2"))]
TWO_ROWS = {"slots": 64, "max_new_tokens": 4, "seeds": [0, 1]}


@pytest.mark.parametrize(("name", "draft"), PLAIN_AND_DRAFTING)
def test_a_row_that_samples_is_refused_where_the_method_adds_no_noise(name, draft):
    model, sampling = tiny_model(), [SamplingOptions(), SamplingOptions(temperature=0.7)]
    with pytest.raises(ValueError, match=rf"row 1 has temperature 0\.7, but method {name} was .* with sampled=True"):
        Session(model, make_method(model, name, draft=draft), sampling=sampling, **TWO_ROWS)


@pytest.mark.parametrize(("name", "draft"), PLAIN_AND_DRAFTING)
def test_greedy_rows_of_a_method_that_samples_get_a_temperature_of_0(name, draft):
    model = tiny_model()
    method = make_method(model, name, draft=draft, sampled=True)
    session = Session(model, method, sampling=[SamplingOptions()] * 2, **TWO_ROWS)
    warmth = [p.temperature.tolist() for p in session.state.shared.processors if isinstance(p, Temperature)]
    assert warmth == [[0.0, 0.0]]


@pytest.mark.parametrize(("name", "draft"), PLAIN_AND_DRAFTING)
def test_records_that_the_method_does_not_make_are_refused(name, draft):
    model, rows = tiny_model(), TWO_ROWS | {"sampling": [SamplingOptions()] * 2}
    with pytest.raises(ValueError, match=rf"log_probs is 2, but method {name} was made with log_probs=None"):
        Session(model, make_method(model, name, draft=draft), log_probs=2, **rows)
    with pytest.raises(ValueError, match=r"log_probs is 2, but method .* was made with log_probs=1"):
        Session(model, make_method(model, name, draft=draft, log_probs=1), log_probs=2, **rows)
    Session(model, make_method(model, name, draft=draft, log_probs=1), **rows)


@pytest.mark.parametrize(
    ("prompts", "limits", "said"),
    [
        ([[1, 2]], None, "there must be one of prompts for each of 2 rows; got 1"),
        ([[1], [2]], [4], "there must be one of limits for each of 2 rows; got 1"),
        ([[1], [2]], [8, 9], "the limit of row 1 must be from 0 to 8 tokens; got 9"),
        ([[1], [2, -1]], None, r"row 1: tokens must be from 0 to \d+; got -1"),
        ([[99_999], [2]], None, r"row 0: tokens must be from 0 to \d+; got 99999"),
    ],
)
def test_a_turn_that_is_not_of_these_rows_is_refused_and_changes_nothing(prompts, limits, said):
    model = tiny_model()
    session = Session(
        model, make_method(model, "ar"), slots=64, max_new_tokens=8, sampling=[SamplingOptions()] * 2, seeds=[0, 1]
    )
    session.read([[1, 2, 3], [4]], limits=[8, 0])
    before = session.outputs()
    with pytest.raises(ValueError, match=said):
        session.read(prompts, limits=limits)
    assert session.outputs() == before
    assert session.state.rows.token_length.tolist() == [4, 1]


def test_a_turn_past_the_models_context_is_refused_though_the_cache_has_room():
    model = tiny_model(max_positions=32)
    request = {"slots": 64, "max_new_tokens": 8, "sampling": [SamplingOptions()], "seeds": [0]}
    session = Session(model, make_method(model, "ar"), **request)
    session.read([[1] * 24])
    session.run(8)
    with pytest.raises(
        ValueError, match=r"row 0 needs 33 positions \(31 taken, 2 prompt, 1 new\); the model's context"
    ):
        session.read([[5]], limits=[1])
    assert session.state.rows.token_length.tolist() == [32]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ar", "hamburger"])
def test_records_of_a_later_turns_prompt_are_its_tokens_alone(method):
    model = smashed_model()
    options = {"slots": 64, "max_new_tokens": 8, "sampling": [SamplingOptions()], "seeds": [0], "prompt_log_probs": 0}
    smash = SmashOptions(mode="blind", group_length=3) if method == "hamburger" else SmashOptions()
    session = Session(model, make_method(model, method, smash=smash), **options)
    session.read([[1, 2, 3]], limits=[5])
    session.run(8)
    assert [entry.token for entry in session.prompt_log_probs[0]] == [2, 3]
    session.read([[4, 5, 6]])
    assert [entry.token for entry in session.prompt_log_probs[0]] == [4, 5, 6]


@pytest.mark.parametrize(("mesh", "divided"), [(None, 1), ("data=2", 2), ("tp=2", 2)])
def test_rows_that_a_device_cannot_hold_are_refused_with_the_numbers(monkeypatch, mesh, divided):
    model = tiny_model(num_kv_heads=2, num_heads=4) if mesh is None else on(mesh)
    method = make_method(model, "ar", batch=4)

    def session(slots):
        return Session(model, method, slots=slots, max_new_tokens=8, sampling=[SamplingOptions()] * 4, seeds=range(4))

    cache = 4 * 65536 * 2 * model.config.num_layers * model.config.num_kv_heads * model.config.head_width * 4
    monkeypatch.setattr("jax_smash.plan.device_bytes", lambda device=None: cache // divided // 2)
    session(slots=1024)
    with pytest.raises(MemoryError, match=r"4 rows of 65536 slots take [\d.]+ GB beside weights of [\d.]+ GB; the dev"):
        session(slots=65536)


def test_while_samples_of_a_prompt_are_made_its_own_rows_are_there_too(monkeypatch):
    model = tiny_model(layer_kinds=("full", "full"))
    method = make_method(model, "ar", batch=4)
    row = 65536 * 2 * model.config.num_layers * model.config.num_kv_heads * model.config.head_width * 4
    given = {"slots": 65536, "max_new_tokens": 8, "sampling": [SamplingOptions()], "seeds": [0]}
    monkeypatch.setattr("jax_smash.plan.device_bytes", lambda device=None: int(row * 4.7))
    Session(model, method, samples=3, **given)
    with pytest.raises(MemoryError, match="5 rows of 65536 slots take"):
        Session(model, method, samples=4, **given)


def test_a_drafters_weights_count_beside_the_targets(monkeypatch):
    model, held = tiny_model(), {}
    for name, options in (("ar", DraftOptions()), ("medusa", DraftOptions(drafter="random", tree="chain-2"))):
        method = make_method(model, name, draft=options)
        monkeypatch.setattr("jax_smash.serve.session.check_memory", lambda name=name, **told: held.update({name: told}))
        Session(model, method, slots=64, max_new_tokens=8, sampling=[SamplingOptions()], seeds=[0])
    weights = sum(x.nbytes for x in jax.tree.leaves(method.params["drafter"]))
    assert weights > 0
    assert held["medusa"]["held"] - held["ar"]["held"] == weights


def on(mesh):
    """Returns a model whose weights lie on a mesh."""
    model = tiny_model(num_kv_heads=2, num_heads=4)
    return dataclasses.replace(model, params=place(model.params, make_mesh(mesh)))
