"""Every method decodes on meshes of eight devices what it decodes on one."""

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jax_smash import DraftOptions, generate
from jax_smash.cache import Block, Write, after, specs
from jax_smash.cache import divided as divided_by_slots
from jax_smash.decode.loop import decode
from jax_smash.decode.programs import PROGRAMS
from jax_smash.loading import Model, grafted, quantised
from jax_smash.methods import METHODS, SmashOptions, make_method
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.session import Session
from jax_smash.sharding import put
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
    SnapKV,
    StreamingLLM,
    TokenSelect,
    sparsified,
)
from tests import chimera, dflash
from tests.drafting import other_model
from tests.eagle import random_drafter
from tests.eagle1 import random_drafter1
from tests.medusa import random_heads
from tests.meshes import MESHES, divided, divisible_model, sharing_slots
from tests.predictors import modules_of, sizes_of
from tests.smashed import modules_for

SLOTS = 96
PROMPTS = [
    "Once upon a time there was a fox",
    "Tea?",
    "The river ran down to the old mill and",
    "abc abc abc",
    "to be or not to be, to be",
    "x",
    "one two three one two",
    "The cat sat on the mat. The cat",
]
WARM = SamplingOptions(temperature=0.9, top_k=50, top_p=0.95)
PENALISED = SamplingOptions(temperature=0.7, repetition_penalty=1.3, presence_penalty=0.4, logit_bias={40: 2.0})
MIXED = [SamplingOptions(), WARM, PENALISED, SamplingOptions(), WARM, PENALISED, WARM, SamplingOptions()]


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to decode.

    Attributes:
      method: of `METHODS`.
      draft: fields of `DraftOptions`.
      drafter: makes a trained drafter for a target; None for methods without.
      smash: fields of `SmashOptions`; such a case has HAMburger's modules.
      policy: of a sparse cache; None for a whole one.
      int8: weights are.
      changes: fields of the model's configuration.
    """

    method: str = "ar"
    draft: dict[str, Any] = dataclasses.field(default_factory=dict)
    drafter: Any = None
    smash: dict[str, Any] = dataclasses.field(default_factory=dict)
    policy: Any = None
    int8: bool = False
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)

    def model(self) -> Model:
        """Returns the model on one device, without a policy."""
        whole = {"layer_kinds": ("full", "full")} if self.policy is not None or self.method == "self-sparse" else {}
        model = divisible_model(**whole | self.changes)
        return quantised(model) if self.int8 else model


QUEST = "quest:budget=12,page_size=4,dense_layers=0"
TREE = "recycling-80"
CASES = {
    "ar": Case(),
    "ar-int8": Case(int8=True),
    "ar-tied": Case(changes={"tied_head": True}),
    "recycling": Case("recycling", {"tree": TREE}),
    "recycling-auto": Case("recycling", {"tree": "auto"}),
    "recycling-probabilities": Case("recycling", {"tree": "auto", "stored_probabilities": True}),
    "recycling-int8": Case("recycling", {"tree": TREE}, int8=True),
    "lookup": Case("lookup", {"tree": "chain-4"}),
    "lookup-auto": Case("lookup"),
    "suffix": Case("suffix", {"tree": "chain-4"}),
    "suffix-auto": Case("suffix"),
    "lookahead": Case("lookahead"),
    "hybrid": Case("hybrid"),
    "draft-model": Case("draft-model", {"tree": "tree-7", "draft_model": "other"}),
    "draft-model-int8": Case("draft-model", {"tree": "chain-4", "draft_model": "int8"}),
    "draft-model-sparse": Case("draft-model", {"tree": "chain-4", "draft_model": "sparse:tova:budget=12"}),
    "draft-model-rejection": Case("draft-model", {"tree": "tree-7", "draft_model": "other", "verify": "rejection"}),
    "eagle": Case("eagle", {"tree": "tree-7"}, random_drafter),
    "eagle-confident": Case("eagle", {"tree": "confident-8:depth=3,width=3"}, random_drafter),
    "chimera-confident": Case("chimera", {"tree": "confident-8:depth=3,width=3"}, chimera.random_drafter),
    "eagle-few": Case("eagle", {"tree": "chain-4"}, functools.partial(random_drafter, tokens=range(30, 140))),
    "eagle-int8": Case("eagle", {"tree": "chain-4"}, random_drafter, int8=True),
    "eagle1": Case("eagle", {"tree": "tree-7"}, random_drafter1),
    "medusa": Case("medusa", {}, random_heads),
    "medusa-int8": Case("medusa", {}, random_heads, int8=True),
    "chimera": Case("chimera", {"tree": "tree-7"}, chimera.random_drafter),
    "chimera-grams": Case("chimera", {"tree": "tree-7", "gram_slots": 16}, chimera.random_drafter),
    "dflash": Case("dflash", {"tree": "tree-12"}, dflash.random_drafter),
    "dflash-rejection": Case("dflash", {"tree": "tree-12", "verify": "rejection"}, dflash.random_drafter),
    "self-sparse": Case("self-sparse", {"tree": "chain-3", "sparse": QUEST}),
    "self-sparse-int8": Case("self-sparse", {"tree": "chain-3", "sparse": QUEST, "draft_model": "int8"}),
    "self-sparse-streaming": Case("self-sparse", {"tree": "tree-7", "sparse": "streaming:slots=12,sinks=2"}),
    "hamburger-blind": Case("hamburger", smash={"mode": "blind"}),
    "hamburger-exact": Case("hamburger", smash={"mode": "exact"}),
    "hamburger-checked": Case("hamburger", smash={"mode": "checked", "micro_head": "200"}),
    "hamburger-int8-head": Case("hamburger", smash={"mode": "exact", "micro_head": "int8"}),
    "hamburger-int8": Case("hamburger", smash={"mode": "blind"}, int8=True),
    "streaming": Case(policy=StreamingLLM(slots=12, sinks=2)),
    "h2o": Case(policy=H2O(budget=12)),
    "tova": Case(policy=TOVA(budget=12)),
    "snapkv": Case(policy=SnapKV(budget=12, observers=6, pool=3)),
    "quest": Case(policy=Quest(budget=16, page_size=4, dense_layers=0)),
    "quest-drafted": Case("recycling", {"tree": "chain-4"}, policy=Quest(budget=16, page_size=4, dense_layers=0)),
    "tokenselect": Case(policy=TokenSelect(budget=12, sinks=2, window=4)),
    "oracle": Case(policy=Oracle(budget=12)),
    "butler": Case(policy=Butler(budget=12)),
    "grouped": Case(policy=GroupedButler(budget=12, window=2)),
    "low-rank": Case(policy=LowRankKeys(budget=12, window=2)),
    "gate": Case(policy=PageGate(budget=16)),
}
DEFAULT = (("eagle", "fsdp=4,tp=2"), ("grouped", "data=2,tp=4"), ("medusa", "data=8"))
"""What runs with every change; the whole matrix by `pytest -m slow -k meshes`."""

STAYING = ("draft-model", "eagle1", "medusa", "chimera", "dflash", "self-sparse", "grouped", "hamburger-blind")
"""Further cases of whose steps the collectives are looked at."""


@functools.cache
def drafter_of(name: str) -> Any:
    return CASES[name].drafter(divisible_model())


def prepared(name: str, mesh: str | None) -> tuple[Model, dict[str, Any]]:
    """Returns the model of a case, on a mesh or on one device, and the options of its method."""
    case = CASES[name]
    model, draft = case.model(), dict(case.draft)
    modules = modules_for(divisible_model()) if case.smash else None
    if mesh is not None:
        model = divided(model, mesh)
    if modules is not None:
        model = grafted(model, modules)
        model = quantised(model) if case.int8 else model
    if case.policy is not None:
        policy, predictor = case.policy, None
        if isinstance(policy, Learned):
            policy = policy.sized(sizes_of(model.config, policy.form))
            predictor = modules_of(policy.predictor)
        model = sparsified(model, policy, predictor)
    if case.drafter is not None:
        draft["drafter"] = drafter_of(name)
    if draft.get("draft_model") == "other":
        draft["draft_model"] = other_model(num_heads=8, num_kv_heads=4, vocab_size=264)
    smash = SmashOptions(**{"confidence": 0.4, "least_rows": 1} | case.smash) if case.smash else SmashOptions()
    return model, {"draft": DraftOptions(**draft), "smash": smash}


def said(name: str, mesh: str | None, sampled: bool) -> list[Any]:
    """Returns what a case decodes, on a mesh or on one device."""
    model, options = prepared(name, mesh)
    with jax.default_matmul_precision("highest"):
        completions = generate(
            model,
            PROMPTS,
            method=CASES[name].method,
            **options,
            sampling=MIXED if sampled else SamplingOptions(),
            seed=[*range(len(PROMPTS))],
            max_new_tokens=20,
            batch_size=len(PROMPTS),
            slots=SLOTS,
            log_probs=1 if sampled else None,
        )
    return completions


@functools.cache
def alone(name: str, sampled: bool) -> list[Any]:
    return said(name, None, sampled)


def of_matrix():
    """Returns every case on every mesh, greedy and sampled; all but those of `DEFAULT` are slow."""
    for name in CASES:
        for sampled in (False, True):
            for mesh in MESHES:
                quick = (name, mesh) in DEFAULT and not sampled
                choice = "sampled" if sampled else "greedy"
                marks = () if quick else pytest.mark.slow
                yield pytest.param(name, sampled, mesh, id=f"{name}-{choice}-{mesh}", marks=marks)


@pytest.mark.parametrize(("name", "sampled", "mesh"), [*of_matrix()])
def test_a_mesh_decodes_what_one_device_does(name, sampled, mesh):
    found, expected = said(name, mesh, sampled), alone(name, sampled)
    assert [c.token_ids for c in found] == [c.token_ids for c in expected]
    assert [(c.target_forwards, c.finish_reason) for c in found] == [
        (c.target_forwards, c.finish_reason) for c in expected
    ]
    assert len({str(c.token_ids) for c in expected}) > 1


@pytest.mark.parametrize("name", ["eagle", *(pytest.param(name, marks=pytest.mark.slow) for name in STAYING)])
def test_no_step_gathers_a_weight(name):
    model, options = prepared(name, "fsdp=4,tp=2")
    method = make_method(model, CASES[name].method, batch=8, slots=SLOTS, **options)
    rows = {"sampling": [SamplingOptions()] * 8, "seeds": [*range(8)]}
    session = Session(model, method, slots=SLOTS, max_new_tokens=16, **rows)
    steps = put(jnp.asarray(4, jnp.int32), session.mesh)
    text = PROGRAMS.program(decode, method.strategy, method.params, session.state, steps).as_text()
    gathered = re.findall(r"= (\w+\[[\d,]*\])\S* all-gather\(", text)
    assert gathered
    weights = {of_whole_rows(w): jax.tree_util.keystr(path) for path, w in divided_weights(method.params)}
    assert len(weights) > 3
    assert not {shape: name for shape, name in weights.items() if shape in gathered}


def divided_weights(params):
    """Returns the weights that `fsdp` divides."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return [(path, w) for path, w in leaves if w.ndim > 1 and "fsdp" in w.sharding.spec]


def of_whole_rows(weight):
    """Returns how a program writes the type of a weight's share where only `tp` divides it."""
    spec = P(*(None if axis == "fsdp" else axis for axis in weight.sharding.spec))
    shape = NamedSharding(weight.sharding.mesh, spec).shard_shape(weight.shape)
    return f"f32[{','.join(map(str, shape))}]"


def test_every_method_is_in_the_matrix():
    assert {case.method for case in CASES.values()} == set(METHODS)


@pytest.mark.slow
def test_devices_that_share_a_caches_slots_decode_what_one_does():
    """A prompt in two chunks and greedy steps, one layer of two sliding, on four devices."""
    model = divisible_model(window=16)
    text = jnp.asarray([list(prompt.encode()[:12]) for prompt in (PROMPTS[0], PROMPTS[2])], jnp.int32)
    cache = model.definition.bind(model.params["target"]).init_cache(2, 32, 8)

    def step(params, cache, tokens):
        bound = model.definition.bind(params)
        position = cache.slot_length[:, None] + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        out = bound.forward(bound.embed(tokens), position, cache, Block.causal(jnp.ones(tokens.shape, bool)))
        logits = bound.unembed(out.hidden[:, -1])
        count = after(jnp.full(2, tokens.shape[1], jnp.int32), logits[:, 0])
        return cache.commit(out.block_kv, Write(position=position, count=count)), logits

    def decoded(step, params, cache):
        said, told = [], []
        for start in (0, 8):
            cache, logits = step(params, cache, text[:, start : start + 8])
        for _ in range(14):
            told.append(np.asarray(logits))
            said.append(np.argmax(logits, axis=-1)[:, None].astype(np.int32))
            cache, logits = step(params, cache, said[-1])
        return np.concatenate(said, axis=1), np.stack(told)

    apart = divided_by_slots(cache, "seq", 4)
    mesh = sharing_slots(4)
    lies = specs(apart)
    sharded = jax.shard_map(step, mesh=mesh, in_specs=(P(), lies, P()), out_specs=(lies, P()), check_vma=False)
    with jax.default_matmul_precision("highest"):
        expected, wanted = decoded(jax.jit(step), model.params["target"], cache)
        found, told = decoded(jax.jit(sharded), model.params["target"], apart)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(told, wanted, atol=1e-5 * np.abs(wanted).max())
    assert len(np.unique(expected)) > 4
