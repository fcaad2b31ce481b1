"""Texts sampled inside other programs are those of `generate`, with the probabilities that they were drawn with."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_smash
from jax_smash.automaton import START, regex_automaton
from jax_smash.cache import Block
from jax_smash.decode.rollout import _row_keys, check
from jax_smash.models.rope import reach_of_text, reach_of_turn
from jax_smash.sampling import Constrained, TopK
from jax_smash.sharding import make_mesh, on_mesh, place
from jax_smash.sparse import StreamingLLM, sparsified
from tests.tiny import tiny_config, tiny_model

PROMPTS = [[72, 101, 108], [1, 2, 3, 4, 1, 2, 3, 4], [9]]
LENGTHS = jnp.asarray([len(p) for p in PROMPTS])
NEW = 10


def padded(prompts=PROMPTS):
    width = max(map(len, prompts))
    return jnp.asarray([p + [7] * (width - len(p)) for p in prompts])


def rolled(model, tokens, key, **options):
    run = jax.jit(
        functools.partial(jax_smash.rollout, model.definition, max_new_tokens=NEW),
        static_argnames=("stop_tokens",),
    )
    return run(model.params["target"], tokens, key, **options)


def texts(rollout):
    return [row[:n].tolist() for row, n in zip(np.asarray(rollout.tokens), np.asarray(rollout.length), strict=True)]


def read_again(model, prompts, rollout):
    """Returns the model's own log-probabilities of what was sampled, each text read alone and at once."""
    target = model.definition.bind(model.params["target"])
    rows = []
    for prompt, text in zip(prompts, texts(rollout), strict=True):
        tokens = jnp.asarray([prompt + text])
        position = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        out = target.forward(target.embed(tokens), position, None, Block.causal(jnp.ones_like(tokens, bool)))
        logits = target.unembed(out.hidden)[0, len(prompt) - 1 : -1]
        rows.append(logits)
    return rows


@pytest.mark.slow
def test_greedy_rollouts_are_what_generate_says_of_ragged_prompts():
    model = tiny_model()
    plain = [c.token_ids for c in jax_smash.generate(model, PROMPTS, max_new_tokens=NEW)]
    stop = plain[0][4]
    made = rolled(model, padded(), jax.random.key(0), lengths=LENGTHS, temperature=0.0)
    assert texts(made) == plain
    assert not made.stopped.any()
    stopped = rolled(model, padded(), jax.random.key(0), lengths=LENGTHS, temperature=0.0, stop_tokens=(stop,))
    ends = [text.index(stop) + 1 if stop in text else NEW for text in plain]
    assert texts(stopped) == [text[:end] for text, end in zip(plain, ends, strict=True)]
    np.testing.assert_array_equal(stopped.stopped, [stop in text for text in plain])
    assert not stopped.tokens[~stopped.valid].any()
    assert not stopped.log_probs[~stopped.valid].any()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probabilities_are_those_of_the_distribution_that_was_drawn_from(temperature):
    model = tiny_model(spread=6.0)
    made = rolled(model, padded(), jax.random.key(3), lengths=LENGTHS, temperature=temperature)
    for logits, text, told in zip(read_again(model, PROMPTS, made), texts(made), made.log_probs, strict=True):
        expected = jax.nn.log_softmax(logits / temperature)[jnp.arange(NEW), jnp.asarray(text)]
        np.testing.assert_allclose(told, expected, rtol=2e-5, atol=2e-5)


def test_processors_count_in_the_log_probabilities():
    model, k = tiny_model(spread=6.0), 3
    made = rolled(model, padded(), jax.random.key(3), lengths=LENGTHS, processors=(TopK(k=jnp.full((3,), k)),))
    for logits, text, told in zip(read_again(model, PROMPTS, made), texts(made), made.log_probs, strict=True):
        values, tokens = jax.lax.top_k(logits, k)
        among = tokens == jnp.asarray(text)[:, None]
        assert among.any(1).all()
        expected = jnp.where(among, jax.nn.log_softmax(values), 0.0).sum(1)
        np.testing.assert_allclose(told, expected, rtol=2e-5, atol=2e-5)


def test_a_row_is_the_same_alone_and_beside_others_and_keys_tell_rows_apart():
    model, keys = tiny_model(), jax.random.split(jax.random.key(5), 3)
    together = texts(rolled(model, padded(), keys, lengths=LENGTHS))
    for row, prompt in enumerate(PROMPTS):
        assert texts(rolled(model, jnp.asarray([prompt]), keys[row : row + 1])) == [together[row]]
    same_prompts = texts(rolled(model, padded([PROMPTS[0]] * 3), jax.random.key(5)))
    assert len(set(map(tuple, same_prompts))) == 3
    assert texts(rolled(model, padded([PROMPTS[0]] * 3), jax.random.PRNGKey(5))) == same_prompts


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_keys_of_other_generators_become_keys_of_threefry_that_tell_rows_apart(impl):
    one = jax.random.key(5, impl=impl)
    for keys in (_row_keys(one, 3), _row_keys(jax.random.split(one, 3), 3)):
        assert jax.random.key_impl(keys) == "threefry2x32"
        assert len({*map(tuple, jax.random.key_data(keys).tolist())}) == 3
    # Keys may differ in their last words alone.
    words = jnp.asarray([[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 4, 4]], jnp.uint32)
    keys = _row_keys(jax.random.wrap_key_data(words, impl=impl), 3)
    assert len({*map(tuple, jax.random.key_data(keys).tolist())}) == 3


def test_keys_of_threefry_stay_as_they_are():
    one = jax.random.key(5, impl="threefry2x32")
    split = jax.random.key_data(jax.random.split(one, 3))
    for given in (one, jax.random.key_data(one), jax.random.wrap_key_data(split, impl="threefry2x32")):
        np.testing.assert_array_equal(jax.random.key_data(_row_keys(given, 3)), split)


def test_first_tokens_are_drawn_as_often_as_their_probabilities_say():
    model, rows = tiny_model(), 4000
    run = jax.jit(functools.partial(jax_smash.rollout, model.definition, max_new_tokens=1))
    made = run(model.params["target"], jnp.tile(jnp.asarray([PROMPTS[0]]), (rows, 1)), jax.random.key(1))
    first = made.tokens[:, 0]
    once = read_again(model, PROMPTS[:1], jax.tree.map(lambda x: x[:1], made))[0][0]

    def distance(logits):
        expected = np.asarray(jax.nn.softmax(logits)) * rows
        often = expected > 5
        found = np.bincount(np.asarray(first), minlength=len(expected))
        return ((found - expected)[often] ** 2 / expected[often]).sum() / often.sum()

    assert distance(once) < 2  # Of chi-squared a degree of freedom, of which there are about a hundred.
    assert distance(0.5 * once) > 4  # The control: another temperature is told apart.


def test_other_weights_prompts_keys_and_temperatures_compile_nothing():
    model, calls = tiny_model(), []

    @jax.jit
    def run(params, tokens, lengths, key, temperature):
        calls.append(1)
        return jax_smash.rollout(
            model.definition, params, tokens, key, lengths=lengths, max_new_tokens=NEW, temperature=temperature
        )

    params = model.params["target"]
    first = run(params, padded(), LENGTHS, jax.random.key(0), 1.0)
    others = jax.tree.map(lambda w: -w, params)
    second = run(others, padded() + 1, LENGTHS - jnp.asarray([1, 1, 0]), jax.random.key(1), 0.5)
    assert len(calls) == 1
    assert run._cache_size() == 1
    assert texts(first) != texts(second)


@pytest.mark.slow
def test_a_prompt_is_read_in_pieces(monkeypatch):
    model = tiny_model()
    whole = rolled(model, padded(), jax.random.key(2), lengths=LENGTHS)
    monkeypatch.setattr("jax_smash.decode.rollout.PROMPT_CHUNK", 3)
    assert texts(rolled(model, padded(), jax.random.key(2), lengths=LENGTHS)) == texts(whole)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["data=3", "fsdp=2,tp=2"])
def test_a_mesh_changes_no_text(shape):
    model, mesh = tiny_model(), make_mesh(shape, devices=jax.devices()[: 3 if shape == "data=3" else 4])
    expected = rolled(model, padded(), jax.random.key(4), lengths=LENGTHS)
    with on_mesh(mesh):
        params = place(model.params["target"], mesh)
        run = jax.jit(functools.partial(jax_smash.rollout, model.definition, max_new_tokens=NEW))
        made = run(params, padded(), jax.random.key(4), lengths=LENGTHS)
    assert texts(made) == texts(expected)
    np.testing.assert_allclose(made.log_probs, expected.log_probs, rtol=1e-4, atol=1e-4)


def test_no_gradient_flows_through_a_rollout():
    model = tiny_model()

    def total(params):
        return jax_smash.rollout(
            model.definition, params, padded(), jax.random.key(0), lengths=LENGTHS, max_new_tokens=4
        ).log_probs.sum()

    gradients = jax.jit(jax.grad(total))(model.params["target"])
    assert not any(jnp.any(g) for g in jax.tree.leaves(gradients))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"tokens": jnp.zeros((2, 3))}, TypeError, "tokens must be integers; got float32"),
        ({"tokens": jnp.zeros((3,), int)}, ValueError, r"tokens must have 2 axes and some rows; got shape \(3,\)"),
        ({"lengths": jnp.ones(3, int)}, ValueError, "lengths must be one for each of 2 prompts; got 3"),
        ({"max_new_tokens": 0}, ValueError, "max_new_tokens must be at least 1; got 0"),
        ({"key": jnp.zeros((2,))}, TypeError, "key must be made by jax.random.key or .*; got float32"),
        ({"key": jax.random.split(jax.random.key(0), 3)}, ValueError, "one for each of 2 rows; got shape"),
    ],
)
def test_what_does_not_belong_together_is_named(changes, error, message):
    given = {"tokens": jnp.ones((2, 3), int), "lengths": None, "max_new_tokens": 4, "key": jax.random.key(0)} | changes
    with pytest.raises(error, match=message):
        check(given["tokens"], given["lengths"], given["max_new_tokens"], given["key"])


def test_the_reach_of_a_rope_that_follows_the_length_is_that_of_generate():
    from jax_smash.config import RopeConfig

    lengths = [1, 20, 24, 30]
    for rope in (
        RopeConfig(scaling="longrope", original_positions=24, short_factors=(1.0,) * 4, long_factors=(9.0,) * 4),
        RopeConfig(scaling="dynamic", original_positions=24, factor=4.0),
    ):
        config = tiny_config(rope=rope, rope_sliding=rope)
        assert config.follows_length
        made = reach_of_text(config, prompt=jnp.asarray(lengths, jnp.int32), new=4)
        assert made.tolist() == [reach_of_turn(config, held=0, before=0, prompt=n, new=4) for n in lengths]
    assert reach_of_text(tiny_config(), prompt=jnp.asarray(lengths, jnp.int32), new=4) is None


@pytest.mark.slow
def test_at_temperature_0_the_likeliest_of_what_processors_allow_is_taken():
    model = dataclasses.replace(tiny_model(), stop_tokens=(257,))
    automaton = regex_automaton("[a-z]+", model.token_bytes, stop_tokens=model.stop_tokens)
    start = jnp.full((3,), START, jnp.int32)
    made = rolled(
        model,
        padded(),
        jax.random.key(0),
        lengths=LENGTHS,
        temperature=0.0,
        processors=(Constrained(automaton=automaton, start=start),),
        stop_tokens=model.stop_tokens,
    )
    plain = jax_smash.generate(model, PROMPTS, max_new_tokens=NEW, regex="[a-z]+")
    assert texts(made) == [c.token_ids for c in plain]
    assert np.isfinite(np.asarray(made.log_probs)).all()


@pytest.mark.slow
def test_a_model_that_reads_few_tokens_at_once_gets_prompts_in_pieces():
    model = sparsified(tiny_model(), StreamingLLM(32))
    prompt = [list(range(1, 61))]
    plain = jax_smash.generate(model, prompt, max_new_tokens=NEW)
    made = rolled(model, padded(prompt), jax.random.key(0), temperature=0.0)
    assert texts(made) == [c.token_ids for c in plain]


def test_a_row_ends_where_the_context_is_full():
    model = tiny_model(max_positions=12)
    prompts = [[1, 2, 3], [1, 2, 3, 4, 5, 6, 7, 8, 9]]
    made = rolled(model, padded(prompts), jax.random.key(0), lengths=jnp.asarray([3, 9]), temperature=0.0)
    assert made.length.tolist() == [min(NEW, 9), 3]
    assert not made.stopped.any()
    # Padding takes no room.
    wide = jnp.pad(padded(prompts), ((0, 0), (0, 20)))
    again = rolled(model, wide, jax.random.key(0), lengths=jnp.asarray([3, 9]), temperature=0.0)
    assert texts(again) == texts(made)
    with pytest.raises(ValueError, match="prompts of 12 tokens leave no room in the model's context of 12"):
        rolled(model, jnp.ones((1, 12), jnp.int32), jax.random.key(0))
