"""Policies on real prompts, beside plain programs of their papers' rules: every step, every layer."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eval.prompts.shipped_prompts import shipped_prompts
from jax_smash import load
from jax_smash.cache import Block, Write, after
from jax_smash.sparse import (
    H2O,
    TOVA,
    Butler,
    GroupedButler,
    Learned,
    Oracle,
    PageGate,
    Quest,
    Random,
    Recency,
    SnapKV,
    TokenSelect,
    sparsified,
)
from jax_smash.sparse.predictors import load_predictor
from tests.jax_smash.sparse.chosen import choices, chosen_slots
from tests.jax_smash.sparse.masked import Row
from tests.real_model import needs_smollm2

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.usefixtures("optimised"),
    needs_smollm2,
]

COUNT, LONGEST, SLOTS, STEPS = 20, 160, 192, 4
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
    "grouped": GroupedButler(budget=48),
    "grouped-int8": GroupedButler(budget=48, int8=True),
    "gate": PageGate(budget=128),
}


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


def int8_keys(cache, layer, length):
    """Returns a layer's kept keys of the first row: `[L, K, d]` in a byte a number, and their scales."""
    values, scales = (np.asarray(part[0, :, :length], float).swapaxes(0, 1) for part in cache.own.keys[layer])
    return values, scales


def compared(policy, rule=None, off=0):
    """Decodes from each prompt.

    Args:
      policy: of the sparse model.
      rule: of the reference; None for the same.
      off: added to the int8 keys that the reference is shown.

    Yields for each step the largest difference of a logit as a share of the largest, how far from the cut differing
    slots are, and the number of layers in which slots differ.
    """
    sparse = model(policy)
    bound = sparse.definition.bind(sparse.params["target"])
    for prompt in shipped_prompts(base(), COUNT, longest=LONGEST):
        row = Row(base(), bound.policy if rule is None else rule, SLOTS, predictor(policy))
        cache, logits, _ = read(sparse, bound.init_cache(1, SLOTS, LONGEST), prompt, LONGEST, prompt=True)
        order = np.arange(len(prompt))
        row.read(prompt, order, np.tril(np.ones((len(prompt),) * 2, bool)), order, prompt=True)
        token = int(logits[0, len(prompt) - 1].argmax())
        for _ in range(STEPS):
            if getattr(policy, "int8", False):
                for plain in filter(None, row.rules):
                    values, scales = int8_keys(cache, plain.layer, row.length)
                    plain.kept = values + off, scales
            cache, logits, chosen = read(sparse, cache, [token], 1)
            masks = [None if made is None else chosen_slots(made, 0, row.length) for made in chosen]
            far = []

            def taken(layer, rule, theirs, masks=masks, far=far):
                if (masks[layer] != theirs).any():
                    far.append(apart(rule, masks[layer], theirs))
                return masks[layer]

            expected, _ = row.read([token], [0], np.ones((1, 1), bool), [0], taken=taken)
            yield np.abs(logits[0] - expected).max() / np.abs(expected).max(), max(far, default=0.0), len(far)
            token = int(logits[0, -1].argmax())


@pytest.mark.parametrize("name", POLICIES)
def test_slots_and_logits_are_those_of_the_papers_rule_on_real_prompts(name):
    logits, far, layers = np.asarray(list(compared(POLICIES[name]))).T
    print(f"{name}: {len(logits)} steps, logits {logits.max():.1e}, {int(layers.sum())} near the cut")
    assert logits.max() <= NEAR
    assert far.max() <= NEAR


def test_another_policys_rule_would_be_found_out():
    """The control of the test above."""
    _, far, _ = np.asarray(list(compared(TOVA(budget=48), H2O(budget=48)))).T
    assert far.max() > 100 * NEAR


def test_int8_keys_of_another_rounding_would_be_found_out():
    """A control of the test above: keys that are one step too high."""
    with pytest.raises(AssertionError, match="a nearest number"):
        next(compared(POLICIES["grouped-int8"], off=1))
