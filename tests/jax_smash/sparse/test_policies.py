"""All policies beside plain programs of their papers' rules: slots, logits, and what rejected nodes change."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash import DraftOptions, generate
from jax_smash.cache import Block, LayerCache, SelectedCache, SelectedLayer, Write, after
from jax_smash.config import RopeConfig
from jax_smash.decode.loop import decode
from jax_smash.decode.programs import PROGRAMS
from jax_smash.methods import make_method
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.session import Session
from jax_smash.sharding import make_mesh, place
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
    TokenSelect,
    sparsified,
)
from tests.jax_smash.sparse.chosen import choices, chosen_slots
from tests.jax_smash.sparse.masked import Row
from tests.predictors import modules_of, sizes_of
from tests.tiny import tiny_model

SLOTS, CHUNK, NODES, STEPS = 64, 16, 5, 8
PROMPTS = [list(b"a text longer than is kept"), list(b"short"), list(b"neither of these two")]


def model():
    return tiny_model(layer_kinds=("full", "full"))


def learned(policy, **changes):
    """Returns a policy beside a predictor of small sizes with some changed."""
    return policy.sized(sizes_of(model().config, policy.form, **changes))


CASES = {
    "recency": Recency(budget=12),
    "random": Random(budget=12, seed=3),
    "oracle": Oracle(budget=12),
    "oracle-pages": Oracle(budget=12, page_size=4, window=2),
    "oracle-whole-pages": Oracle(budget=16, page_size=16, sinks=0, newest_page=False),
    "oracle-share": Oracle(budget=0.5),
    "h2o": H2O(budget=12),
    "h2o-grace": H2O(budget=12, recent=0.0, grace=3, decay=0.9, dense_layers=1),
    "h2o-share": H2O(budget=0.5),
    "tova": TOVA(budget=12),
    "tova-pages": TOVA(budget=12, page_size=4, sinks=2),
    "snapkv": SnapKV(budget=12, observers=6, pool=3),
    "snapkv-rolling": SnapKV(budget=12, observers=6, pool=3, rolling=True, pooling="max"),
    "quest-kernel": Quest(budget=16, page_size=4, dense_layers=0),
    "quest-script": Quest(budget=16, page_size=4, dense_layers=1, form="script"),
    "tokenselect": TokenSelect(budget=12, sinks=2, window=4, cosine=0.5),
    "butler": learned(Butler(budget=12), attach=0),
    "butler-ahead": learned(Butler(budget=12, page_size=2), attach=1, look_ahead=2),
    "grouped": learned(GroupedButler(budget=12, window=2)),
    "grouped-int8": learned(GroupedButler(budget=12, window=0, int8=True, refresh=3, heads="sum"), every=1),
    "grouped-int4": learned(GroupedButler(budget=12, window=2, int4=True)),
    "low-rank": learned(LowRankKeys(budget=12, window=2)),
    "low-rank-int4": learned(LowRankKeys(budget=12, window=0, int4=True, refresh=3, heads="max")),
    "gate": learned(PageGate(budget=16)),
    "gate-ahead": learned(PageGate(budget=16, sinks=0, refresh=2), share=1, look_ahead=1),
}
STEPWISE = ("oracle", "h2o-grace", "tova-pages", "snapkv-rolling", "quest-kernel", "butler", "gate-ahead")
EVICTING = [name for name, policy in CASES.items() if policy.evicts]


def sparse_model(policy, base=None):
    predictor = modules_of(policy.predictor) if isinstance(policy, Learned) else None
    return sparsified(base or model(), policy, predictor)


@functools.cache
def bound(policy):
    sparse = sparse_model(policy)
    return sparse.definition.bind(sparse.params["target"])


@functools.partial(jax.jit, static_argnums=(0, 1))
def step(policy, prompt, cache, token, position, valid, ancestors, path, count):
    """Reads entries and commits a path; returns the cache, the logits, and the slots of each layer that chose."""
    block = Block.causal(valid, prompt=True) if prompt else Block(valid=valid, ancestors=ancestors)
    out = bound(policy).forward(bound(policy).embed(token), position, cache, block)
    logits = bound(policy).unembed(out.hidden)
    write = Write(position=position, count=after(count, logits[:, 0, 0]), path=None if prompt else path)
    made = cache.commit(out.block_kv, write)
    if prompt:
        return made, logits, []
    # What was chosen is not in the record of every policy; so it is chosen again.
    return made, logits, choices(bound(policy), cache, out.taps, position, block)


def tree(rng, nodes=NODES):
    """Draws a tree: parents, depths, which nodes see which, and a path from the root."""
    parent = [-1, *(int(rng.integers(0, i)) for i in range(1, nodes))]
    seen = np.eye(nodes, dtype=bool)
    for i in range(1, nodes):
        seen[i] |= seen[parent[i]]
    path = np.flatnonzero(seen[rng.integers(0, nodes)])
    return seen.sum(1) - 1, seen, path


def packed(seen):
    return (seen * (1 << np.arange(seen.shape[-1]))).sum(-1, dtype=np.uint32)[..., None]


def near(logits, reference):
    return np.abs(np.asarray(logits, np.float64) - reference).max() <= 1e-5 * np.abs(reference).max()


def read_prompts(policy, cache, rows):
    """Reads ragged prompts in two pieces, into a cache and into reference rows; returns whether all logits agree."""
    agrees = True
    for start in range(0, 2 * CHUNK, CHUNK):
        pieces = [prompt[start : start + CHUNK] for prompt in PROMPTS]
        token, valid = np.zeros((3, CHUNK), np.int32), np.zeros((3, CHUNK), bool)
        for row, piece in enumerate(pieces):
            token[row, : len(piece)], valid[row, : len(piece)] = piece, True
        length = np.asarray(cache.slot_length)[:, None]
        position = length + np.arange(CHUNK, dtype=np.int32)[None]
        nothing = np.zeros((3, CHUNK, 1), np.uint32), np.zeros((3, CHUNK), np.int32)
        cache, logits, _ = step(policy, True, cache, token, position, valid, *nothing, valid.sum(1, dtype=np.int32))
        for row, (reference, piece) in enumerate(zip(rows, pieces, strict=True)):
            if policy.stepwise:
                expected = [reference.read([t], [0], np.ones((1, 1), bool), [0])[0][0] for t in piece]
            elif piece:
                order = np.arange(len(piece))
                seen = np.tril(np.ones((len(piece),) * 2, bool))
                expected = reference.read(piece, order, seen, order, prompt=True)[0]
            if piece:
                agrees &= near(logits[row, : len(piece)], np.asarray(expected))
    return cache, agrees


def begun(policy, rule=None):
    """Returns a cache and reference rows behind the prompts.

    Args:
      policy: of the cache.
      rule: of the rows; None for the same.
    """
    rows = [Row(model(), rule or policy, SLOTS) for _ in PROMPTS]
    cache, agrees = read_prompts(policy, bound(policy).init_cache(3, SLOTS, CHUNK), rows)
    assert agrees
    return cache, rows


def decoded(policy, cache, rows):
    """Decodes trees with random paths; yields for each step whether slots and logits are the reference's."""
    rng = np.random.default_rng(0)
    for i in range(STEPS):
        nodes = [1, NODES, 3, NODES][i % 4]
        token = rng.integers(0, 250, (3, NODES)).astype(np.int32)
        depth, seen = np.zeros((3, NODES), np.int32), np.zeros((3, NODES, NODES), bool)
        path, count = np.zeros((3, NODES), np.int32), np.zeros(3, np.int32)
        valid = np.broadcast_to(np.arange(NODES) < nodes, (3, NODES))
        for row in range(3):
            depth[row, :nodes], seen[row, :nodes, :nodes], kept = tree(rng, nodes)
            count[row] = 0 if (row, i) == (1, 3) else len(kept)  # A row that does not run.
            path[row, : len(kept)] = kept
        position = np.asarray(cache.slot_length)[:, None] + depth
        cache, logits, chosen = step(policy, False, cache, token, position, valid, packed(seen), path, count)
        for row, reference in enumerate(rows):
            if not count[row]:
                continue
            length, own = reference.length, (slice(nodes), slice(nodes))
            expected, masks = reference.read(
                token[row, :nodes], depth[row, :nodes], seen[row][own], path[row, : count[row]]
            )
            same = [
                (chosen_slots(selection, row, length) == mask).all()
                for selection, mask in zip(chosen, masks, strict=True)
                if mask is not None
            ]
            yield cache, all(same), near(logits[row, :nodes], expected), [m for m in masks if m is not None]


@pytest.mark.parametrize("prompt", ["dense", "stepwise"])
@pytest.mark.parametrize("name", CASES)
def test_slots_and_logits_are_those_of_the_papers_rule_under_trees_in_a_ragged_batch(name, prompt):
    if prompt == "stepwise" and name not in STEPWISE:
        pytest.skip("one case of each kind is enough")
    policy = dataclasses.replace(CASES[name], prompt=prompt)
    cache, rows = begun(policy)
    sparse = 0
    for _, slots, logits, masks in decoded(policy, cache, rows):
        assert slots
        assert logits
        sparse += not np.asarray([m.all() for m in masks]).all()
    assert sparse > STEPS, "most steps must leave something out for the test to say anything"


def test_another_policys_rule_would_be_found_out():
    """The control of the test above."""
    cache, rows = begun(TOVA(budget=12), H2O(budget=12))
    found = list(decoded(TOVA(budget=12), cache, rows))
    assert not all(slots for _, slots, _, _ in found)
    assert not all(logits for _, _, logits, _ in found)


@pytest.mark.parametrize("name", CASES)
def test_rejected_nodes_change_nothing_that_a_policy_keeps(name):
    policy = CASES[name]
    caches, (cache, _) = [], begun(policy)
    for seed in (0, 1):
        rng, kept = np.random.default_rng(5), np.random.default_rng(seed)
        token = rng.integers(0, 250, (3, NODES)).astype(np.int32)
        token[:, 2:] = kept.integers(0, 250, (3, NODES - 2))  # These hang on the root, and are rejected.
        seen = np.eye(NODES, dtype=bool)
        seen[:, 0] = True
        depth = np.asarray([0, 1, 1, 1, 1], np.int32)
        position = np.asarray(cache.slot_length)[:, None] + depth[None]
        path = np.broadcast_to(np.asarray([0, 1, 0, 0, 0], np.int32), (3, NODES))
        every = np.broadcast_to(packed(seen)[None], (3, NODES, 1))
        valid, count = np.ones((3, NODES), bool), np.asarray([2, 1, 0], np.int32)
        caches.append(step(policy, False, cache, token, position, valid, every, path, count)[0])
    assert isinstance(caches[0], SelectedCache)
    for a, b in zip(*map(jax.tree.leaves, caches), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", EVICTING)
def test_evicted_slots_never_return(name):
    policy = CASES[name]
    cache, rows = begun(policy)
    gone = [np.zeros(a.shape, bool) for a in cache.alive if a is not None]
    lost = 0
    for after_step, _, _, _ in decoded(policy, cache, rows):
        now = [~np.asarray(a) for a in after_step.alive if a is not None]
        for before, dead in zip(gone, now, strict=True):
            assert (dead | ~before).all()
        gone, lost = now, sum(int(dead.sum()) for dead in now)
    assert lost


@pytest.mark.parametrize("name", CASES)
def test_a_text_that_fits_the_budget_is_that_of_the_whole_cache(name):
    """The cache has more slots than the budget, so slots are chosen and gathered: all of them."""
    policy = dataclasses.replace(CASES[name], budget=48)
    if isinstance(policy, H2O):
        policy = dataclasses.replace(policy, recent=0.5)
    cache, dense = begun(policy, Recency(budget=SLOTS))
    assert isinstance(cache, SelectedCache)
    rng = np.random.default_rng(1)
    for _ in range(3):
        token = rng.integers(0, 250, (3, NODES)).astype(np.int32)
        depth = np.arange(NODES, dtype=np.int32)
        seen = np.tril(np.ones((NODES, NODES), bool))
        position = np.asarray(cache.slot_length)[:, None] + depth[None]
        every, path = np.broadcast_to(packed(seen)[None], (3, NODES, 1)), np.broadcast_to(depth, (3, NODES))
        arguments = (token, position, np.ones((3, NODES), bool), every, path, np.full(3, 3, np.int32))
        cache, logits, _ = step(policy, False, cache, *arguments)
        for row, reference in enumerate(dense):
            expected, _ = reference.read(token[row], depth, seen, path[row, :3])
            assert near(logits[row], expected)


@pytest.mark.parametrize("name", ["h2o", "quest-kernel", "tokenselect", "gate-ahead"])
def test_text_under_a_policy_does_not_depend_on_the_rows_beside(name):
    sparse = sparse_model(CASES[name])
    together = generate(sparse, PROMPTS, max_new_tokens=24, slots=SLOTS)
    alone = generate(sparse, [PROMPTS[0]], max_new_tokens=24, slots=SLOTS)
    assert together[0].token_ids == alone[0].token_ids
    assert all(len(set(done.token_ids)) > 3 for done in together)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "tree"),
    [
        ("quest:budget=24:page_size=4:dense_layers=0", "tree-7"),
        ("tova:budget=12", "chain-3"),
        # It reads at most 28 tokens at once, fewer than a prompt's pieces have.
        ("streaming:slots=32,sinks=4", "chain-3"),
    ],
)
def test_a_model_that_drafts_for_itself_with_a_part_of_its_cache_says_what_it_says_alone(name, tree):
    draft = DraftOptions(draft_model=f"sparse:{name}", tree=tree)
    done = generate(model(), PROMPTS, method="draft-model", draft=draft, max_new_tokens=24, slots=SLOTS)
    alone = generate(model(), PROMPTS, max_new_tokens=24, slots=SLOTS)
    assert [c.token_ids for c in done] == [c.token_ids for c in alone]
    kept = sum(c.drafted.kept[0] for c in done) / sum(c.drafted.tried[0] for c in done)
    assert 0.1 < kept < 1, "drafts must be good, and sometimes wrong, for the test to say anything"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["quest-kernel", "h2o", "butler", "gate"])
def test_a_mesh_gives_a_single_devices_tokens(name):
    mesh = make_mesh("fsdp=2,tp=2")
    divided = dataclasses.replace(model(), params={"target": place(model().params["target"], mesh)})
    texts = [
        [done.token_ids for done in generate(sparse_model(CASES[name], whole), PROMPTS, max_new_tokens=16, slots=SLOTS)]
        for whole in (model(), divided)
    ]
    assert texts[0] == texts[1]


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("name", ["quest-kernel", "quest-from", "h2o", "tokenselect", "butler"])
def test_no_step_copies_keys_or_values(name):
    cases = CASES | {"quest-from": dataclasses.replace(CASES["quest-kernel"], pays_from=1024)}
    sparse = sparse_model(cases[name], tiny_model(layer_kinds=("full", "full"), max_positions=2048))
    method = make_method(sparse, "ar", slots=2048)
    options = {"slots": 2048, "max_new_tokens": 64, "sampling": [SamplingOptions()], "seeds": [0]}
    session = Session(sparse, method, **options)
    steps = jnp.asarray(8, jnp.int32)
    program = PROGRAMS.program(decode, method.strategy, method.params, session.state, steps).as_text()
    arrays = "f32[1,2,2048,8]"
    assert arrays in program
    assert not re.search(r"= \S+\[1,\d,2048,\d\]\S* copy\(", program)  # A predictor's keys are as long.


def test_a_full_budget_takes_the_models_own_cache():
    assert not isinstance(bound(Oracle(budget=SLOTS)).init_cache(1, SLOTS, 8), SelectedCache)
    tokens = [done.token_ids for done in generate(sparsified(model(), Oracle(budget=1.0)), PROMPTS, max_new_tokens=8)]
    assert tokens == [done.token_ids for done in generate(model(), PROMPTS, max_new_tokens=8)]


def test_a_head_reads_its_own_share_of_the_budget():
    policy = Oracle(budget=16, sinks=2, head_shares=((1.0, 0.25), (0.5, 0.5)))
    cache, _ = begun_with_shares(policy)
    view = cache.layer(0)
    query = jnp.ones((3, model().config.num_heads, model().config.head_width))
    counts = np.asarray(policy.select(view, query).valid.sum(-1))
    assert counts[0].tolist() == [16, 4]
    assert counts[1].tolist() == [5, 4]
    assert np.asarray(policy.select(cache.layer(1), query).valid.sum(-1))[0].tolist() == [8, 8]


def test_a_heads_share_is_the_same_however_large_the_cache_is():
    """The whole cache would be read by all heads where the budget is all of its slots."""
    policy = Recency(budget=SLOTS, sinks=2, head_shares=((1.0, 0.25),) * 2)
    plans = [policy.plans(model().config, slots) for slots in (SLOTS, 2 * SLOTS)]
    filled = jnp.asarray([40], jnp.int32)
    limits = [plan.limit(filled, 2).tolist() for found in plans for plan in found]
    assert limits == [[[SLOTS, SLOTS // 4]]] * 4
    # A cache with no room for what is always read has nothing to choose.
    assert policy.plans(model().config, 2) == (None, None)


@pytest.mark.parametrize("slots", [64, 128])
def test_random_slots_do_not_depend_on_the_room_of_the_cache(slots):
    def score(slots):
        keys = jnp.zeros((1, 2, slots, 4))
        cache = LayerCache(keys=keys, values=keys, position=jnp.zeros((1, slots), jnp.int32))
        policy = Random(budget=16)
        plan = policy.plans(model().config, slots)[0]
        channels, filled = policy.init(model().config, 1, keys), jnp.asarray([40], jnp.int32)
        view = SelectedLayer(layer=cache, filled=filled, alive=None, channels=channels, policy=policy, plan=plan)
        return policy.select(view, jnp.zeros((1, 4, 8)))

    chosen = [{*np.asarray(score(n).slots[0, head]).tolist()} for n in (slots, 96) for head in (0, 1)]
    assert chosen[:2] == chosen[2:]
    assert chosen[0] != chosen[1]


def test_a_text_without_a_cache_is_rotated_for_its_length():
    """Where the rotary embedding depends on how long a text is."""
    rope = RopeConfig(scaling="dynamic", factor=4.0, original_positions=8)
    base = tiny_model(layer_kinds=("full", "full"), rope=rope, rope_sliding=rope)
    sparse = sparsified(base, Recency(budget=23, prompt="stepwise"))
    tokens = jnp.arange(24, dtype=jnp.int32)[None]

    def read(made):
        bound = made.definition.bind(made.params["target"])
        everything = Block.causal(jnp.ones(tokens.shape, bool))
        return bound.forward(bound.embed(tokens), jnp.arange(24, dtype=jnp.int32)[None], None, everything).hidden

    np.testing.assert_allclose(read(sparse), read(base), atol=1e-4)


def begun_with_shares(policy):
    cache = bound(policy).init_cache(3, SLOTS, CHUNK)
    rows = [Row(model(), dataclasses.replace(policy, head_shares=None), SLOTS) for _ in PROMPTS]
    return read_prompts(policy, cache, rows)


REFUSED = [
    (lambda: H2O(budget=0), "budget must be at least 1 slot; got 0"),
    (lambda: TOVA(budget=1.5), "budget must be over 0 and at most 1 as a share of the text; got 1.5"),
    (lambda: Oracle(budget=3), "budget must be at least the 4 slots that are always read"),
    (lambda: Quest(budget=40), "page_size must divide the budget of 40 slots; got 16"),
    (lambda: Quest(budget=32), "budget must be at least the 48 slots"),
    (lambda: Quest(form="paper"), "form must be kernel or script; got 'paper'"),
    (lambda: Oracle(page_size=0), "page_size must be at least 1; got 0"),
    (lambda: Recency(prompt="fast"), "prompt must be dense or stepwise; got 'fast'"),
    (lambda: H2O(decay=0.0), "decay must be over 0 and at most 1; got 0.0"),
    (lambda: H2O(recent=2.0), "recent must be from 0 to 1; got 2.0"),
    (lambda: H2O(budget=16, grace=17), "grace must be from 0 to 16 slots less 0 sinks; got 17"),
    (lambda: SnapKV(budget=32), "observers must be at least 1 and fewer than the budget 32; got 32"),
    (lambda: SnapKV(prompt="stepwise"), "prompt stepwise has no end of a prompt to vote: SnapKV takes it with rolling"),
    (lambda: SnapKV(pool=4), "pool must be an odd number; got 4"),
    (lambda: SnapKV(pooling="sum"), "pooling must be average or max; got 'sum'"),
    (lambda: TokenSelect(budget=512), "budget must be at least the 640 slots"),
    (lambda: TokenSelect(cosine=2.0), "cosine must be from -1 to 1; got 2.0"),
    (lambda: Oracle(head_shares=((0.0,),)), "head_shares must be over 0 and at most 1"),
    (lambda: sparsified(model(), Oracle(budget=1024)), "budget must be at most the 512 slots"),
    (lambda: sparsified(model(), Oracle(dense_layers=2)), "dense_layers must be fewer than the 2 layers"),
    (lambda: sparsified(model(), Oracle(head_shares=((1.0, 1.0),))), "must have 2 layers of 2 KV heads"),
]


@pytest.mark.parametrize(("make", "said"), REFUSED, ids=[said[:40] for _, said in REFUSED])
def test_what_cannot_be_is_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()
