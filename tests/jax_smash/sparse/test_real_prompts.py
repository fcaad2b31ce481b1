"""Policies on real prompts, beside plain programs of their papers' rules: every step, every layer."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eval.prompts.shipped_prompts import shipped_prompts
from jax_smash import generate, load
from jax_smash.cache import Block, SelectedCache, Write, after
from jax_smash.sparse import (
    H2O,
    TOVA,
    Butler,
    GroupedButler,
    Learned,
    LowRankKeys,
    Oracle,
    PageGate,
    Quest,
    Random,
    Recency,
    SnapKV,
    StreamingLLM,
    TokenSelect,
    sparsified,
)
from jax_smash.sparse.memory import joined
from jax_smash.sparse.predictors import load_predictor
from tests.jax_smash.sparse.chosen import choices, chosen_slots
from tests.jax_smash.sparse.masked import Row, StreamedRow
from tests.real_model import needs_smollm2

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.usefixtures("optimised"),
    needs_smollm2,
]

COUNT, LONGEST, ROOM, STEPS = 20, 160, 32, 4
SLOTS = LONGEST + ROOM
NEAR = 1e-5
"""Scores that are nearer to the cut, as a share of the highest, may fall on either side of it."""

SHARES = tuple(tuple(np.linspace(0.5, 1.0, 3).tolist()) for _ in range(30))
"""Of the budget, what each KV head of the model's layers reads."""

POLICIES = {
    "oracle": Oracle(budget=48),
    "recency": Recency(budget=48),
    "random": Random(budget=48),
    "h2o": H2O(budget=48),
    "h2o-grace": H2O(budget=48, grace=16),
    "snapkv": SnapKV(budget=48),
    "snapkv-rolling": SnapKV(budget=48, rolling=True),
    "tova": TOVA(budget=48),
    "quest-kernel": Quest(budget=64),
    "quest-script": Quest(budget=64, form="script"),
    "quest-shares": Quest(budget=96, head_shares=SHARES),
    "tokenselect": TokenSelect(budget=48, sinks=4, window=16),
    "butler": Butler(budget=48),
    "butler-refresh": Butler(budget=48, refresh=3),
    "grouped": GroupedButler(budget=48),
    "grouped-int8": GroupedButler(budget=48, int8=True),
    "grouped-int4": GroupedButler(budget=48, int4=True),
    "grouped-sum": GroupedButler(budget=48, heads="sum"),
    "low-rank": LowRankKeys(budget=48),
    "low-rank-int4": LowRankKeys(budget=48, int4=True),
    "gate": PageGate(budget=128),
    "gate-top-p": PageGate(budget=128, top_p=0.7),
}

LONG = {"oracle": Oracle(budget=128), "quest": Quest(budget=128), "grouped": GroupedButler(budget=128)}
"""Policies of the longer prompts."""

FULL, WRITTEN = 192, 16
"""A budget that holds the shorter prompts and what is written behind them, and is less than their rows' slots."""

PARTIAL = ("quest-shares", "gate-top-p")
"""Policies that leave something out of any budget."""


@functools.cache
def base():
    return load("smollm2", dtype=jnp.float32)


@functools.cache
def predictor(policy):
    """Returns what is shipped for the model; None for a policy without a predictor."""
    return load_predictor(base(), policy) if isinstance(policy, Learned) else None


@functools.cache
def model(policy):
    return sparsified(base(), policy, predictor(policy))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def step(definition, prompt, width, params, cache, token, count):
    """Reads entries and commits the first of them; returns the cache, logits, and what each layer has chosen."""
    bound = definition.bind(params)
    order = jnp.arange(width, dtype=jnp.int32)[None]
    position = cache.slot_length[:, None] + order
    block = Block.causal(order < count[:, None], prompt=prompt)
    out = bound.forward(bound.embed(token), position, cache, block)
    logits = bound.unembed(out.hidden)
    made = cache.commit(out.block_kv, Write(position=position, count=after(count, logits[:, 0, 0])))
    return made, logits, [] if prompt else choices(bound, cache, out.taps, position, block)


def read(sparse, cache, tokens, width, *, prompt=False):
    padded = np.zeros((1, width), np.int32)
    padded[0, : len(tokens)] = tokens
    count = jnp.full(1, len(tokens), jnp.int32)
    return step(sparse.definition, prompt, width, sparse.params["target"], cache, padded, count)


def apart(rule, ours, theirs):
    """Returns how far from the cut, as a share of the highest score, the slots are that one side alone has chosen."""
    size, far = rule.policy.page_size, 0.0
    for (pages, cut), a, b in zip(rule.ranked, ours, theirs, strict=True):
        scores = pages[np.unique(np.flatnonzero(a != b) // size)]
        if len(scores):
            scale = np.abs(pages[np.isfinite(pages)]).max()
            far = max(far, float((np.abs(scores - cut) / scale).max()))
    return far


def rounded_keys(cache, layer, length):
    """Returns a layer's kept keys of the first row as whole numbers `[L, K, d]`, and their scales."""
    kept = joined(cache.own.keys[layer])
    return np.asarray(kept.values[0, :length], float), np.asarray(kept.scale[0, :length, :, None], float)


def compared(policy, rule=None, off=0, *, count=COUNT, longest=LONGEST, steps=STEPS):
    """Decodes from each prompt. One that is read step by step is compared from its first entry on.

    Args:
      policy: of the sparse model.
      rule: of the reference; None for the same.
      off: added to the rounded keys that the reference is shown.
      count, longest: of the prompts.
      steps: behind each.

    Yields for each step the largest difference of a logit as a share of the largest, how far from the cut differing
    slots are, and the number of layers in which slots differ.
    """
    sparse, slots = model(policy), longest + ROOM
    bound = sparse.definition.bind(sparse.params["target"])
    for prompt in shipped_prompts(base(), count, longest=longest):
        row = Row(base(), bound.policy if rule is None else rule, slots, predictor(policy))
        cache, logits, _ = read(sparse, bound.init_cache(1, slots, longest), prompt, longest, prompt=True)
        whole, order = logits[0, len(prompt) - 1], np.arange(len(prompt))
        if policy.stepwise:
            cache, tokens = bound.init_cache(1, slots, longest), prompt
        else:
            row.read(prompt, order, np.tril(np.ones((len(prompt),) * 2, bool)), order, prompt=True)
            tokens = [int(whole.argmax())]
        for number in range(len(tokens) - 1 + steps):
            token = tokens[number] if number < len(tokens) else int(logits[0, -1].argmax())
            if getattr(policy, "int8", False) or getattr(policy, "int4", False):
                for plain in filter(None, row.rules):
                    values, scales = rounded_keys(cache, plain.layer, row.length)
                    plain.kept = values + off, scales
            cache, logits, chosen = read(sparse, cache, [token], 1)
            if policy.stepwise and number == len(prompt) - 1:
                assert np.abs(logits[0, 0] - whole).max() <= NEAR * np.abs(whole).max()
            masks = [None if made is None else chosen_slots(made, 0, row.length) for made in chosen]
            far = []

            def taken(layer, rule, theirs, masks=masks, far=far):
                if (masks[layer] != theirs).any():
                    far.append(apart(rule, masks[layer], theirs))
                return masks[layer]

            expected, _ = row.read([token], [0], np.ones((1, 1), bool), [0], taken=taken)
            yield np.abs(logits[0] - expected).max() / np.abs(expected).max(), max(far, default=0.0), len(far)


def check(name, steps):
    logits, far, layers = np.asarray(list(steps)).T
    print(f"{name}: {len(logits)} steps, logits {logits.max():.1e}, {int(layers.sum())} near the cut")
    assert logits.max() <= NEAR
    assert far.max() <= NEAR


@pytest.mark.parametrize("name", POLICIES)
def test_slots_and_logits_are_those_of_the_papers_rule_on_real_prompts(name):
    check(name, compared(POLICIES[name]))


def test_slots_and_logits_of_a_prompt_that_is_read_step_by_step():
    check("stepwise", compared(Oracle(budget=24, prompt="stepwise"), count=3, longest=48))


@pytest.mark.parametrize("name", LONG)
def test_slots_and_logits_behind_a_long_prompt(name):
    check(f"{name}, long", compared(LONG[name], count=1, longest=768, steps=16))


def test_a_window_moves_as_streaming_llm_has_it():
    policy, steps = StreamingLLM(slots=36, sinks=4), 8
    streaming, far = model(policy), []
    bound = streaming.definition.bind(streaming.params["target"])
    for prompt in shipped_prompts(base(), 3, longest=48):
        row, cache = StreamedRow(base(), policy, SLOTS), bound.init_cache(1, SLOTS, policy.longest_block)
        for first in range(0, len(prompt), policy.longest_block):
            piece = prompt[first : first + policy.longest_block]
            cache, logits, _ = read(streaming, cache, piece, policy.longest_block, prompt=True)
        expected = [row.step(token) for token in prompt][-1]
        logits = logits[:, len(piece) - 1]
        for _ in range(steps):
            far.append(np.abs(logits - expected).max() / np.abs(expected).max())
            token = int(logits.argmax())
            cache, logits, _ = read(streaming, cache, [token], 1)
            logits, expected = logits[:, 0], row.step(token)
        assert row.length == policy.slots
    assert max(far) <= NEAR


@pytest.mark.parametrize("name", [*(name for name in POLICIES if name not in PARTIAL), "streaming"])
def test_a_budget_that_holds_the_text_gives_dense_decoding(name):
    """By the rule of `eval.exactness`: every token lies within rounding of the best of a plain forward."""
    slots = FULL + ROOM
    policy = StreamingLLM(slots=FULL) if name == "streaming" else dataclasses.replace(POLICIES[name], budget=FULL)
    prompts = shipped_prompts(base(), 3, longest=LONGEST)
    sparse, dense = model(policy), base().definition.bind(base().params["target"])
    cache = sparse.definition.bind(sparse.params["target"]).init_cache(1, slots, 1)
    assert isinstance(cache, SelectedCache) or cache.sinks is not None
    for prompt, made in zip(prompts, generate(sparse, prompts, max_new_tokens=WRITTEN, slots=slots), strict=True):
        text = jnp.asarray([prompt + made.token_ids[:-1]], jnp.int32)
        order = jnp.arange(text.shape[1], dtype=jnp.int32)[None]
        hidden = dense.forward(dense.embed(text), order, None, Block.causal(order >= 0)).hidden
        logits = np.asarray(dense.unembed(hidden[0, len(prompt) - 1 :]))
        lost = logits.max(1) - logits[np.arange(len(logits)), made.token_ids]
        assert (lost <= NEAR * np.abs(logits).max(1)).all()


def test_another_policys_rule_would_be_found_out():
    """The control of the test above."""
    _, far, _ = np.asarray(list(compared(TOVA(budget=48), H2O(budget=48)))).T
    assert far.max() > 100 * NEAR


@pytest.mark.parametrize("name", ["grouped-int8", "grouped-int4"])
def test_keys_of_another_rounding_would_be_found_out(name):
    """A control of the test above: keys that are one step too high."""
    with pytest.raises(AssertionError, match="a nearest number"):
        next(compared(POLICIES[name], off=1))
