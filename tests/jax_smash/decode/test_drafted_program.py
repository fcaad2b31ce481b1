"""What the compiled programs of drafted decoding do not do: copy the cache, reach the host, compile again."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest

from eval.chips.program import Program, copies, host_traffic
from jax_smash import SamplingOptions, generate
from jax_smash.costs import CostCurve
from jax_smash.decode.budget import ROUND_STEPS, unused
from jax_smash.decode.drafts import Trees
from jax_smash.decode.loop import decode
from jax_smash.decode.programs import PROGRAMS
from jax_smash.draft.recycling import Recycling
from jax_smash.draft.trees.acceptance import prior_rates
from jax_smash.draft.trees.sizing import best_tree
from jax_smash.draft.verify.named import COUPLING, VERIFICATIONS
from jax_smash.methods import DraftOptions, make_method
from jax_smash.serve.session import Session
from tests.drafting import other_model
from tests.tiny import tiny_model

LADDER, FEW = (0, 3, 8), (0, 3)
LEVELS = 4
FLAT = CostCurve(entries=(1, 16), seconds=(1.0, 1.0), batch=1, slots=64, source="made for a test")
STEEP = CostCurve(entries=(1, 16), seconds=(1.0, 16.0), batch=1, slots=64, source="made for a test")


def with_ladder(method, cost, ladder=LADDER):
    """Returns a method that chooses among budgets by a cost curve."""
    rates = prior_rates(LEVELS, 8)
    trees = tuple(best_tree(rates, n, levels=LEVELS if n else 0) for n in ladder)
    sizing = unused(rates, trees, [cost.at(n + 1) for n in ladder])
    memory = method.memory | {"trees": Trees(ladder=trees, choice=jnp.asarray(0, jnp.int32), sizing=sizing)}
    return dataclasses.replace(method, memory=memory, strategy=dataclasses.replace(method.strategy, levels=LEVELS))


def session(name, cost, *, batch=2, ladder=LADDER, prompt="a b a b a b and"):
    """Returns a session that has read its prompts; it chooses among budgets, or drafts nothing where `cost` is None."""
    model = tiny_model(num_layers=1, layer_kinds=("full",))
    made = make_method(model, name, draft=DraftOptions(tree="chain-1" if cost else "off"))
    made = with_ladder(made, cost, ladder) if cost else made
    rows = Session(model, made, slots=128, max_new_tokens=72, sampling=[SamplingOptions()] * batch, seeds=[0] * batch)
    if prompt:
        rows.read([model.encode(prompt) for _ in range(batch)])
    return rows


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("name", ["hybrid", pytest.param("recycling", marks=pytest.mark.slow)])
def test_no_budget_copies_the_cache_or_reaches_the_host(name):
    # The hybrid's program holds recycling's.
    rows = session(name, FLAT, ladder=FEW, prompt=None)
    steps = jnp.asarray(8, jnp.int32)
    compiled = PROGRAMS.program(decode, rows.method.strategy, rows.method.params, rows.state, steps)
    everything = list(Program.of(compiled).instructions())
    # The loop of each tree stands in the loop of rounds.
    assert sum(x.opcode == "while" for x in everything) > len(FEW)
    assert not host_traffic(everything)
    assert not copies(everything, {x.shape for x in rows.state.rows.cache.keys})


@pytest.mark.parametrize(("cost", "most"), [(FLAT, 2), (STEEP, 0)])
def test_the_budget_that_pays_is_used(cost, most):
    # Of the first round, nothing is drafted by either.
    rows = session("recycling", cost)
    while rows.run(16):
        pass
    used = np.asarray(rows.state.shared.memory["trees"].sizing.used)
    assert used.argmax() == most
    assert used[0] == ROUND_STEPS or not most
    assert used.sum() == int(rows.state.shared.memory["trees"].sizing.steps)


def test_acceptance_is_learned_also_while_nothing_is_drafted():
    rows = session("recycling", STEEP)
    before = np.asarray(rows.state.shared.memory["trees"].sizing.known.trials)
    while rows.run(16):
        pass
    sizing = rows.state.shared.memory["trees"].sizing
    assert np.asarray(sizing.used)[1:].sum() == 0
    learned = np.asarray(sizing.known.trials) - before
    assert learned[0].max() > 0
    assert not learned[1:].any()


def test_a_draft_that_is_not_checked_has_one_level():
    levels = set()

    class Listening(Recycling):
        def propose(self, params, own, shared, context, topology):
            levels.add(topology.levels)
            return super().propose(params, own, shared, context, topology)

    rows = session("recycling", STEEP, ladder=FEW)
    drafter = rows.method.strategy.drafter
    listening = Listening(**{field.name: getattr(drafter, field.name) for field in dataclasses.fields(drafter)})
    strategy = dataclasses.replace(rows.method.strategy, drafter=listening)
    rows.method = dataclasses.replace(rows.method, strategy=strategy)
    rows.run(ROUND_STEPS)
    trees = rows.state.shared.memory["trees"]
    assert levels == {1, trees.ladder[1].levels}
    assert trees.ladder[1].levels > 1


def test_the_text_does_not_depend_on_the_budget():
    texts = []
    for cost, ladder in ((None, LADDER), (FLAT, LADDER), (STEEP, LADDER), (STEEP, (0,))):
        rows = session("recycling", cost, ladder=ladder)
        while rows.run(5):
            pass
        texts.append(rows.outputs())
    assert texts[1:] == texts[:1] * 3


@pytest.mark.parametrize("steps", [16, 40])
def test_a_call_makes_as_many_steps_as_it_is_told_to(steps):
    rows = session("recycling", STEEP)
    for part in (1, 9, steps - 10):
        rows.run(part)
    assert rows.state.rows.forwards.tolist() == [steps] * 2


def learned(name, rows):
    """Returns what a drafter has learned that does not depend on when it did."""
    kept, shared = rows.state.rows.memory["drafter"], rows.state.shared.memory["drafter"]
    if name == "recycling":
        return shared.matrix.table[:, 0].tolist(), shared.count.tolist()
    text = kept if name == "lookup" else kept.text
    return [row[:length] for row, length in zip(text.token.tolist(), text.length.tolist(), strict=True)]


# Lookup reads what it missed as the suffix index does.
@pytest.mark.parametrize("name", ["recycling", "suffix", pytest.param("lookup", marks=pytest.mark.slow)])
def test_a_drafter_catches_up_with_one_that_saw_every_step(name):
    # One row, for of two that read one token, the last step's and the last row's are different things to keep.
    late, always = (session(name, cost, batch=1, ladder=FEW) for cost in (STEEP, None))
    seen = []
    for rows in (late, always):
        rows.run(ROUND_STEPS)
        seen.append(learned(name, rows))
        rows.run(ROUND_STEPS - 5)
        seen.append(learned(name, rows))
        rows.read([[7, 8, 9]], limits=[8])
        seen.append(learned(name, rows))
    assert seen[:3] == seen[3:]


@pytest.mark.slow
def test_where_trees_bear_on_the_text_a_drafter_catches_up_at_the_end_of_a_round_alone():
    """So that it does not matter where calls end."""
    seen = []
    for verification in (COUPLING, VERIFICATIONS["typical-lossy"]):
        rows = session("suffix", STEEP, batch=1, ladder=FEW)
        strategy = dataclasses.replace(rows.method.strategy, sampled=True, verification=verification)
        rows.method = dataclasses.replace(rows.method, strategy=strategy)
        for steps in (ROUND_STEPS - 5, 5):
            rows.run(steps)
            seen.append(len(learned("suffix", rows)[0]))
    assert seen[0] > seen[2]
    assert seen[1] == seen[3]


def test_a_drafter_that_cannot_catch_up_is_not_sized():
    with pytest.raises(TypeError, match="trees of Lookahead cannot be sized"):
        session("lookahead", STEEP)


def test_other_prompts_compile_nothing():
    model = tiny_model()
    options = {"method": "recycling", "draft": DraftOptions(tree="chain-3"), "max_new_tokens": 20}
    generate(model, ["a first prompt", "two"], **options)
    compiled = PROGRAMS.compiled
    generate(model, ["other text", "and more"], **options)
    assert PROGRAMS.compiled == compiled


@functools.cache
def replies(method):
    """Returns what is said in three turns of a chat of two rows. All that is read falls in one length bucket."""
    model = tiny_model()
    options = {} if method == "ar" else {"tree": "chain-2"}
    if method == "draft-model":
        options["draft_model"] = other_model()
    if method == "self-sparse":
        options["sparse"] = "recency:budget=12"
    made = make_method(model, method, draft=DraftOptions(**options))
    rows = Session(model, made, slots=160, max_new_tokens=24, sampling=[SamplingOptions()] * 2, seeds=[0, 1])
    said = []
    for text in ("hello oh, hello", "and now again", "once more"):
        turn = [[int(p)] if said else [] for p in rows.state.rows.pending]
        rows.read([first + model.encode(text + str(i)) for i, first in enumerate(turn)], limits=[24, 17])
        while rows.run(7):
            pass
        said.append(rows.outputs())
    return said


@pytest.mark.slow
@pytest.mark.parametrize("name", ["recycling", "lookup", "suffix", "hybrid", "draft-model", "self-sparse"])
def test_a_chat_goes_on_as_with_plain_decoding(name):
    assert replies(name) == replies("ar")


@pytest.mark.parametrize("name", ["recycling", "lookup", "suffix", "hybrid", "draft-model", "self-sparse"])
def test_a_deep_tree_makes_no_larger_program(name):
    def lines(tree):
        model = tiny_model(num_layers=1, layer_kinds=("full",))
        options = {"draft-model": {"draft_model": "int8"}, "self-sparse": {"sparse": "recency:budget=12"}}
        draft = DraftOptions(tree=tree, **options.get(name, {}))
        made = make_method(model, name, draft=draft)
        rows = Session(model, made, slots=128, max_new_tokens=8, sampling=[SamplingOptions()], seeds=[0])
        lowered = decode.lower(made.strategy, made.params, rows.state, jnp.asarray(4, jnp.int32))
        return lowered.as_text().count("\n")

    # A chain of 40 has more words of ancestor bits, and more doublings of its paths.
    assert lines("chain-40") < 1.1 * lines("chain-20")
