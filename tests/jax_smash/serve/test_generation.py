import contextlib
import dataclasses
import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash import DraftOptions, SamplingOptions, generate
from jax_smash.cache import Block
from jax_smash.decode.programs import PROGRAMS
from jax_smash.methods import make_method
from jax_smash.serve.request import as_options, as_prompts, as_seeds, as_stops, as_tokens, make_request
from jax_smash.serve.session import Session
from tests.tiny import tiny_model

PROMPTS = ["Once upon a time there was a fox", "Tea?", "The river ran to the old mill", "abc abc abc"]
WARM = SamplingOptions(temperature=1.0, top_k=50, top_p=0.95)
SIZES = {"max_new_tokens": 40, "slots": 96}
"""Of most requests here, that they share their programs."""


@functools.partial(jax.jit, static_argnums=0)
def forward(definition, params, tokens, length):
    """Returns the logits behind each of the first `length` tokens, read all at once."""
    target = definition.bind(params)
    position = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    return target.unembed(target.forward(target.embed(tokens), position, None, Block.causal(position < length)).hidden)


def logits_of(model, tokens: list[int]) -> np.ndarray:
    """Reads tokens without a cache."""
    padded = jnp.asarray([tokens + [0] * (128 - len(tokens))], jnp.int32)
    return np.asarray(forward(model.definition, model.params["target"], padded, jnp.int32(len(tokens))))[
        0, : len(tokens)
    ]


def plain_greedy(model, prompt: list[int], count: int) -> list[int]:
    """Decodes without a cache: a forward over everything for each token."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(logits_of(model, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_is_that_of_a_forward_over_everything(prompt):
    model = tiny_model()
    completion = generate(model, prompt, **SIZES)[0]
    assert completion.token_ids == plain_greedy(model, model.encode(prompt), 40)
    assert completion.finish_reason == "length"
    assert completion.new_tokens == 40
    assert completion.target_forwards == 39
    assert completion.mean_accepted_tokens == 1.0


@pytest.mark.parametrize(
    ("sampling", "batch_size"),
    [
        pytest.param(SamplingOptions(), 4, id="greedy-4"),
        pytest.param(WARM, 3, id="sampled-3"),
        pytest.param(SamplingOptions(), 3, id="greedy-3", marks=pytest.mark.slow),
        pytest.param(WARM, 4, id="sampled-4", marks=pytest.mark.slow),
    ],
)
def test_a_row_is_the_same_alone_in_a_batch_and_streamed(sampling, batch_size):
    """The last batch of three is filled up with rows that sit out."""
    model, request = tiny_model(), SIZES | {"sampling": sampling, "seed": 7}
    together = generate(model, PROMPTS, batch_size=batch_size, **request)
    pieces = {}
    streamed = generate(
        model,
        PROMPTS,
        batch_size=batch_size,
        steps=3,
        on_text=lambda i, text: pieces.setdefault(i, []).append(text),
        **request,
    )
    for i, prompt in enumerate(PROMPTS):
        alone = generate(model, prompt, **request)[0]
        assert alone.token_ids == together[i].token_ids == streamed[i].token_ids
        assert "".join(pieces.get(i, [])) == streamed[i].text == alone.text


@pytest.mark.parametrize("skip", [0, 1, 3, 4, 7, 8])
def test_completions_that_are_skipped_leave_the_others_as_they_are(skip):
    model, request = tiny_model(), {"sampling": WARM, "num_samples": 2, "batch_size": 3, "max_new_tokens": 40}
    texts = [(c.prompt, c.sample, c.token_ids) for c in generate(model, PROMPTS, **request)]
    streamed, ended = {}, []
    rest = generate(
        model,
        PROMPTS,
        skip=skip,
        on_text=lambda i, text: streamed.update({i: streamed.get(i, "") + text}),
        on_completion=ended.append,
        **request,
    )
    assert [(c.prompt, c.sample, c.token_ids) for c in rest] == texts[skip:]
    assert ended == rest
    assert streamed == {skip + i: c.text for i, c in enumerate(rest) if c.text}


@pytest.mark.parametrize("skip", [-1, 9])
def test_more_completions_than_there_are_cannot_be_skipped(skip):
    with pytest.raises(ValueError, match=f"skip must be from 0 to 8, the number of completions; got {skip}"):
        generate(tiny_model(), PROMPTS, num_samples=2, skip=skip)


def test_sampling_varies_with_the_seed_and_the_sample_and_with_nothing_else():
    model, request = tiny_model(), SIZES | {"sampling": WARM}
    first, second = (generate(model, "fox", seed=s, **request)[0] for s in (1, 2))
    assert first.token_ids != second.token_ids
    samples = generate(model, ["fox", "hen"], seed=1, num_samples=3, **request)
    assert [c.sample for c in samples] == [0, 1, 2, 0, 1, 2]
    assert samples[0].token_ids == first.token_ids
    assert len({tuple(c.token_ids) for c in samples}) == 6


def test_each_prompt_may_have_its_own_options_and_seed():
    model = tiny_model()
    options = [SamplingOptions(), WARM, SamplingOptions(repetition_penalty=2.0)]
    mixed = generate(model, PROMPTS[:3], sampling=options, seed=[1, 2, 3], **SIZES)
    for prompt, option, seed, completion in zip(PROMPTS, options, (1, 2, 3), mixed, strict=False):
        alone = generate(model, prompt, sampling=option, seed=seed, **SIZES)[0]
        assert completion.token_ids == alone.token_ids


def test_a_prompt_read_in_chunks_is_a_prompt_read_at_once(monkeypatch):
    model = tiny_model()
    prompt = "the long winter " * 3
    whole = generate(model, prompt, **SIZES)[0]
    monkeypatch.setattr("jax_smash.serve.session.prefill_chunk", lambda *a, **k: 16)
    assert generate(model, prompt, **SIZES)[0].token_ids == whole.token_ids


def test_a_chat_goes_on_without_reading_again():
    model = tiny_model()
    strategy = make_method(model, "ar")

    def session(batch):
        return Session(
            model,
            strategy,
            slots=192,
            max_new_tokens=16,
            sampling=[SamplingOptions()] * batch,
            seeds=[0] * batch,
        )

    chat = session(2)
    first, second = [[65, 66, 67], [70, 71]], [[72, 73, 74, 75], [76]]
    chat.read(first)
    while chat.run(5):
        pass
    said = chat.outputs()
    chat.read(second)
    while chat.run(64):
        pass
    fresh = session(2)
    fresh.read([a + b + c for a, b, c in zip(first, said, second, strict=True)])
    while fresh.run(64):
        pass
    assert chat.outputs() == fresh.outputs()


def test_a_turn_that_does_not_fit_is_refused_and_changes_nothing():
    model = tiny_model()
    chat = Session(
        model,
        make_method(model, "ar"),
        sampling=[SamplingOptions()],
        seeds=[0],
        **SIZES,
    )
    chat.read([[65] * 10])
    while chat.run(64):
        pass
    said = chat.outputs()
    with pytest.raises(ValueError, match=r"needs \d+ slots .* the cache has 96"):
        chat.read([[66] * 60])
    assert chat.outputs() == said


def test_a_stop_token_ends_a_row_and_is_counted_but_not_shown():
    model = tiny_model()
    free = generate(model, PROMPTS[0], **SIZES)[0]
    stop = free.token_ids[10]
    at = free.token_ids.index(stop)
    stopped = generate(tiny_model(stop_tokens=(stop,)), PROMPTS[0], **SIZES)[0]
    assert stopped.token_ids == free.token_ids[: at + 1]
    assert stopped.finish_reason == "stop_token"
    assert stopped.new_tokens == at + 1
    assert stopped.target_forwards == at


def test_recorded_log_probabilities_are_the_models_own():
    model = tiny_model()
    completion = generate(model, "fox and hen", max_new_tokens=6, log_probs=3, prompt_log_probs=2)[0]
    tokens = model.encode("fox and hen")
    everything = tokens + completion.token_ids
    logits = logits_of(model, everything).astype(np.float64)
    expected = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
    expected -= logits.max(-1, keepdims=True)
    records = completion.prompt_log_probs + completion.log_probs
    assert [r.token for r in records] == everything[1:]
    for i, record in enumerate(records):
        assert record.log_prob == pytest.approx(expected[i, record.token], abs=1e-4)
        assert len(record.top) == (2 if i < len(tokens) - 1 else 3)
        assert record.top[0][0] == int(expected[i].argmax())
        assert record.top[0][1] == pytest.approx(expected[i].max(), abs=1e-4)


def test_a_second_call_in_the_bucket_compiles_nothing():
    model = tiny_model()
    generate(model, "a first prompt", sampling=WARM, **SIZES)
    compiled = PROGRAMS.compiled
    other = SamplingOptions(temperature=0.3, top_k=7, top_p=0.5)
    generate(model, "another prompt", max_new_tokens=38, slots=96, sampling=other, seed=5)
    assert PROGRAMS.compiled == compiled


def test_batches_of_three_and_of_four_prompts_share_their_programs():
    """The last of four rows sits out."""
    model = tiny_model()
    four = generate(model, PROMPTS, sampling=WARM, seed=7, **SIZES)
    compiled = PROGRAMS.compiled
    three = generate(model, PROMPTS[:3], sampling=WARM, seed=7, **SIZES)
    assert PROGRAMS.compiled == compiled
    assert [c.token_ids for c in three] == [c.token_ids for c in four[:3]]


def test_rows_that_sit_out_say_nothing_and_are_counted_by_nobody():
    pieces, counted, completed = [], [], []
    completions = generate(
        tiny_model(),
        PROMPTS[:3],
        num_samples=2,
        on_text=lambda i, text: pieces.append(i),
        on_tokens=counted.append,
        on_completion=completed.append,
        **SIZES,
    )
    assert completed == completions
    assert len(completions) == 6
    assert set(pieces) <= set(range(6))
    assert sum(counted) == sum(c.new_tokens for c in completions)


def test_no_two_caches_are_alive_at_once(monkeypatch):
    alive, most = weakref.WeakSet(), []

    class Watched(Session):
        def __init__(self, *args, **options):
            most.append(len(alive))
            super().__init__(*args, **options)
            alive.add(self)

    monkeypatch.setattr("jax_smash.serve.generation.Session", Watched)
    gc.disable()  # Only what nothing refers to any more is gone at once.
    try:
        generate(tiny_model(), PROMPTS, batch_size=2, **SIZES)
    finally:
        gc.enable()
    assert most == [0, 0]


@pytest.mark.parametrize(
    "prompts",
    [
        np.asarray([[65, 66, 67], [68, 69, 70]]),
        jnp.asarray([[65, 66, 67], [68, 69, 70]], jnp.uint8),
        [np.asarray([65, 66, 67], np.uint16), jnp.asarray([68, 69, 70])],
        [[np.int64(65), 66, jnp.int32(67)], (68, 69, 70)],
    ],
)
def test_arrays_and_their_integers_are_prompts_like_lists(prompts):
    expected = generate(tiny_model(), [[65, 66, 67], [68, 69, 70]], max_new_tokens=8, slots=96)
    completions = generate(tiny_model(), prompts, max_new_tokens=8, slots=96)
    assert [c.token_ids for c in completions] == [c.token_ids for c in expected]


def test_a_flat_array_is_one_prompt():
    for prompt in (np.asarray([65, 66, 67]), jnp.asarray([65, 66, 67]), [np.int32(65), 66, 67]):
        assert as_tokens(as_prompts(prompt)[0]) == [65, 66, 67]
        assert len(as_prompts(prompt)) == 1


def test_a_bias_outside_the_vocabulary_is_refused_before_anything_is_decoded():
    sampling, made = [SamplingOptions(), SamplingOptions(logit_bias={99_999: 1.0})], []
    with pytest.raises(ValueError, match="must be below the vocabulary's 259; got 99999"):
        generate(tiny_model(), ["a", "b"], sampling=sampling, batch_size=1, on_completion=made.append, max_new_tokens=2)
    assert not made


@pytest.mark.parametrize("seed", [3, np.int64(3), np.uint8(3), jnp.int32(3), np.asarray(3), [3, 3], np.asarray([3, 3])])
def test_integers_of_every_kind_are_seeds(seed):
    assert as_seeds(seed, 2) == [3, 3]
    assert all(type(s) is int for s in as_seeds(seed, 2))


@pytest.mark.parametrize(
    ("prompts", "options", "error", "message"),
    [
        ([[1, 2.5]], {}, TypeError, r"prompt 0, entry 1: a token must be a whole number; got 2\.5"),
        ([1.0, 2.0], {}, TypeError, r"prompt 0, entry 0: a token must be a whole number; got 1\.0"),
        ([[True]], {}, TypeError, "prompt 0, entry 0: a token must be a whole number; got True"),
        ([[1, "x"]], {}, TypeError, "prompt 0, entry 1: a token must be a whole number; got 'x'"),
        (np.asarray([1.0, 2.0]), {}, TypeError, r"prompt 0 must be tokens \(integers\); got an array of float64"),
        (["x", jnp.asarray([True])], {}, TypeError, "prompt 1 must be tokens .*; got an array of bool"),
        (np.zeros((2, 2, 2), int), {}, TypeError, r"tokens \[T\] or \[B, T\]; got shape \[2, 2, 2\]"),
        ([np.zeros((2, 2), int)], {}, TypeError, r"prompt 0 must be tokens \[T\]; got an array of shape \[2, 2\]"),
        (np.asarray(5), {}, TypeError, r"tokens \[T\] or \[B, T\]; got shape \[\]"),
        (5, {}, TypeError, "prompts must be texts, tokens or lists of chat messages; got 5"),
        (b"Once", {}, TypeError, "prompts must be texts, tokens or lists of chat messages; got b'Once'"),
        ([b"Once"], {}, TypeError, "prompt 0 must be text, tokens or chat messages; got b'Once'"),
        (["a", "b\ud800"], {}, ValueError, "prompt 1: text is not Unicode: '.ud800' at 1 stands alone"),
        ({"role": "user"}, {}, TypeError, "prompts must be texts, tokens or lists of chat messages; got"),
        ([None], {}, TypeError, "prompt 0 must be text, tokens or chat messages; got None"),
        (np.asarray([1, -2]), {}, ValueError, r"prompt 0 has tokens outside 0 … \d+: -2"),
        ([[1], np.asarray([9999])], {}, ValueError, r"prompt 1 has tokens outside 0 … \d+: 9999"),
        (np.zeros((0, 4), int), {}, ValueError, "at least one prompt"),
        ("x", {"seed": 1.5}, TypeError, r"seed must be a whole number; got 1\.5"),
        ("x", {"seed": True}, TypeError, "seed must be a whole number; got True"),
        ("x", {"seed": np.asarray([0.5])}, TypeError, r"seed must be a whole number; got 0\.5, an array of float64"),
        ("x", {"seed": "1"}, TypeError, "seed must be a whole number; got '1'"),
        ("x", {"seed": jax.random.key(0)}, TypeError, "seed must be a whole number; got"),
        ([[{"role": "user"}]], {}, ValueError, "prompt 0: message 0 must have a text 'content'; got none"),
        ([[{"content": "x"}]], {}, ValueError, "prompt 0: message 0 must have a text 'role'; got none"),
        (
            ["x", [{"role": "user", "content": [{"type": "text"}]}]],
            {},
            ValueError,
            "prompt 1: message 0 must have a te",
        ),
        ("x", {"seed": -1}, ValueError, "seed must be from 0 to 4294967295; got -1"),
        ("x", {"seed": np.int64(2**32)}, ValueError, "seed must be from 0 to 4294967295; got 4294967296"),
    ],
)
def test_what_is_no_prompt_and_no_seed_is_refused_by_name(prompts, options, error, message):
    request = {"max_new_tokens": 4, "sampling": SamplingOptions(), "seed": 0, "chat": False, "slots": None}
    with pytest.raises(error, match=message):
        make_request(tiny_model(), prompts, stop=(), json_schema=None, regex=None, **request | options)


def test_no_stop_may_be_none():
    request = {"max_new_tokens": 4, "sampling": SamplingOptions(), "seed": 0, "chat": False, "slots": None}
    made = make_request(tiny_model(), [1, 2], stop=None, json_schema=None, regex=None, **request)
    assert (made.stop, made.stops) == ((), None)


def test_options_and_stops_of_another_type_are_refused_by_name():
    with pytest.raises(TypeError, match="sampling must be SamplingOptions; got 'temperature'"):
        as_options({"temperature": 0.7}, 1)
    with pytest.raises(TypeError, match="stop must be strings; got 5"):
        as_stops(["a", 5])


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([], {}, "at least one prompt"),
        ("", {}, "prompt 0 is empty"),
        (["x", []], {}, "prompt 1 is empty"),
        ([[1, 9999]], {}, r"prompt 0 has tokens outside 0 … \d+"),
        ("x", {"max_new_tokens": 0}, "max_new_tokens must be at least 1; got 0"),
        ("x", {"max_new_tokens": 600}, "more than the model's context of 512"),
        ("x" * 40, {"slots": 32}, "more than the cache of 32"),
        ("x", {"num_samples": 0}, "num_samples must be at least 1; got 0"),
        ("x", {"batch_size": 0}, "batch_size must be at least 1; got 0"),
        ("x", {"steps": -1}, "steps must be at least 1; got -1"),
        ("x", {"steps": 0}, "steps must be at least 1; got 0"),
        ("x", {"log_probs": -1}, "log_probs must be at least 0; got -1"),
        ("x", {"prompt_log_probs": -1}, "prompt_log_probs must be at least 0; got -1"),
        ("x", {"log_probs": 9999}, r"^log_probs must be at most the \d+ tokens of the vocabulary; got 9999"),
        (
            "x",
            {"prompt_log_probs": 9999},
            r"prompt_log_probs must be at most the \d+ tokens of the vocabulary; got 9999",
        ),
        ("x", {"method": "magic"}, "method must be one of .*; got 'magic'"),
        ("x", {"stop": ["a", ""]}, "stop strings must be at least one, and none empty"),
        ("x", {"regex": "a", "json_schema": "{}"}, "exclude each other"),
        ("x", {"seed": [1, 2]}, r"one a prompt \(1\); got 2"),
    ],
)
def test_a_bad_request_is_refused_by_name(prompts, options, message):
    with pytest.raises(ValueError, match=message):
        generate(tiny_model(), prompts, **options)


def test_weights_that_are_not_numbers_are_reported():
    model = tiny_model()
    broken = jax.tree.map(lambda w: w * jnp.float32(jnp.nan), model.params["target"])
    with pytest.raises(ValueError, match="logits are not numbers in row 0"):
        generate(dataclasses.replace(model, params={"target": broken}), "fox", **SIZES)


OPTIONS = (
    {"top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"repetition_penalty": 1.3},
    {"presence_penalty": 0.5, "frequency_penalty": -0.5},
    {"logit_bias": {7: 3.0, 9: -100}},
    {"min_new_tokens": 4},
)


@pytest.mark.parametrize("method", ["ar", "recycling"])
def test_a_new_option_a_new_length_and_new_weights_compile_nothing(method):
    model, request = tiny_model(), {"method": method, "max_new_tokens": 6, "draft": DraftOptions(tree="chain-3")}
    request = request if method != "ar" else request | {"draft": DraftOptions()}
    other = dataclasses.replace(model, params=jax.tree.map(lambda w: w * 1.01, model.params))
    for warm in (0, 0.7):
        # Everything that runs beside the programs is compiled now, too: a second call of the same sizes.
        for seed in range(2):
            generate(model, "some text", sampling=SamplingOptions(temperature=warm, top_k=3), seed=seed, **request)
        generate(model, "some text", sampling=SamplingOptions(temperature=warm, repetition_penalty=1.1), **request)
        with counted() as compiled:
            for option in OPTIONS:
                generate(model, "some text", sampling=SamplingOptions(**{"temperature": warm} | option), **request)
            generate(model, "text", sampling=SamplingOptions(temperature=warm), **request)
            generate(other, "some text", sampling=SamplingOptions(temperature=warm), **request)
        assert compiled == []


@pytest.mark.slow
def test_a_program_that_is_compiled_would_be_counted():
    """The control."""
    model = tiny_model()
    with counted() as compiled:
        generate(model, "some text", max_new_tokens=6, slots=80)
    assert compiled


@contextlib.contextmanager
def counted():
    """Yields a list that grows by one for everything that XLA compiles."""
    compiled = []

    def heard(event, seconds, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(heard)
    try:
        yield compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(heard)
