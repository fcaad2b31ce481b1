"""Trees that follow what steps take, with a clock that counts steps instead of seconds."""

import dataclasses
import functools
import json

import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash import DraftOptions, SamplingOptions, generate
from jax_smash.cli.generate import record
from jax_smash.costs import CostCurve, Follower
from jax_smash.decode.budget import unused
from jax_smash.decode.programs import PROGRAMS
from jax_smash.draft.trees.acceptance import prior_rates
from jax_smash.draft.trees.sizing import best_tree
from jax_smash.draft.trees.tree import grow
from jax_smash.methods import make_method
from jax_smash.protocols import Needs
from jax_smash.pytree import replace
from jax_smash.serve.generation import QUIET_STEPS
from jax_smash.serve.session import Session
from jax_smash.sharding import make_mesh, place
from tests.tiny import tiny_model

SIZES = (0, 7, 39)
LEVELS = 4
CALLS = 3
NEW = 800
PROMPT = [5, 6, 7, 8]


class Clock:
    """A clock that goes on by what the steps of each call cost.

    Attributes:
      costs: of a step with each tree.
      calls: steps with each tree in every call.
    """

    def __init__(self, costs):
        self.costs, self.calls, self.now = np.asarray(costs), [], 0.0

    def watch(self, rows):
        """Counts the calls of a session."""
        called = rows._called

        def watched(state, steps, clock):
            before = np.asarray(state.shared.memory["trees"].sizing.used)
            began = clock()
            state, _ = called(state, steps, clock)
            self.calls.append(np.asarray(state.shared.memory["trees"].sizing.used) - before)
            self.now += float(self.calls[-1] @ self.costs)
            return state, clock() - began

        rows._called = watched

    def __call__(self):
        return self.now


@dataclasses.dataclass(frozen=True)
class Oracle:
    """Drafts what the model will emit, up to some token; from then on nothing that is right."""

    text: tuple[int, ...]
    right: int

    needs = Needs()

    def init(self, params, batch, slots, block):
        return None

    def read(self, params, own, shared, seen):
        return own, shared

    def propose(self, params, own, shared, context, topology):
        emitted = context.token_length[:, None] - len(PROMPT)
        place = emitted + topology.depth[None] - 1
        known = jnp.asarray(self.text, jnp.int32)[jnp.clip(place, 0, len(self.text) - 1)]
        first = (topology.rank == 0)[None] & (emitted < self.right)
        token = jnp.where(first, known, (known + 1) % 256)
        return grow(topology, token.at[:, 0].set(context.pending)), None

    def learn(self, params, own, shared, made, outcome):
        return own, shared

    def follow(self, params, own, shared, seen, pending):
        return own, shared


@functools.cache
def plain_text():
    """Returns what the model emits."""
    (done,) = generate(model(), [PROMPT], max_new_tokens=NEW)
    return tuple(done.token_ids)


def model():
    return dataclasses.replace(tiny_model(num_layers=1, layer_kinds=("full",), max_positions=1024), stop_tokens=())


def session(costs, curve, *, right=NEW, follows=True):
    """Returns a session of an oracle, and a clock by which its trees are chosen.

    Args:
      costs: of a step with each tree, as the clock has it.
      curve: the same as it is believed at first.
      right: tokens that the oracle knows.
      follows: what steps take is followed.
    """
    method = make_method(model(), "lookup", draft=DraftOptions(tree="chain-4"), slots=1024)
    rates = prior_rates(LEVELS, 4)
    trees = tuple(best_tree(rates, n, levels=LEVELS if n else 0) for n in SIZES)
    clock = Clock(costs)
    ladder = replace(method.memory["trees"], ladder=trees, sizing=unused(rates, trees, curve))
    method = dataclasses.replace(
        method,
        strategy=dataclasses.replace(method.strategy, drafter=Oracle(plain_text(), right)),
        memory=method.memory | {"trees": ladder},
        follower=Follower(curve, clock=clock) if follows else None,
    )
    rows = Session(model(), method, slots=1024, max_new_tokens=NEW, sampling=[SamplingOptions()], seeds=[0])
    clock.watch(rows)
    rows.read([PROMPT])
    return rows, clock


def run(rows, clock, *, until=lambda: False, steps=QUIET_STEPS):
    """Decodes until the row has ended or a condition holds; returns the calls that were made in this time."""
    before = len(clock.calls)
    while not until() and rows.run(steps):
        pass
    assert rows.outputs()[0] == list(plain_text()[: len(rows.outputs()[0])])
    return clock.calls[before:]


@pytest.mark.slow
def test_a_flat_curve_and_kept_drafts_draft_many_nodes_within_three_calls():
    rows, clock = session((1.0, 1.0, 1.0), (1.0, 1.0, 1.0))
    calls = run(rows, clock)
    assert any(used[2] for used in calls[:CALLS])
    assert sum(used[2] for used in calls) > 0.5 * np.sum(calls)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_who_asks_for_few_steps_at_once_has_drafts_too(steps):
    rows, clock = session((1.0, 1.0, 1.0), (1.0, 1.0, 1.0))
    calls = run(rows, clock, steps=steps)
    assert all(used.sum() <= steps for used in calls)
    assert sum(used[2] for used in calls) > 0.5 * np.sum(calls)


def test_a_curve_that_calls_dear_trees_cheap_is_found_out():
    wrong, right = (1.0, 1.0, 1.0), (1.0, 6.0, 30.0)
    drafted = {
        follows: sum(used[1:].sum() for used in run(*session(right, wrong, follows=follows)))
        for follows in (True, False)
    }
    assert drafted[True] <= 8
    # The control: the curve is believed.
    assert drafted[False] > 30


def test_when_drafts_stop_being_kept_it_is_off_within_three_calls():
    rows, clock = session((1.0, 1.3, 1.5), (1.0, 1.3, 1.5), right=NEW // 4)
    calls = run(rows, clock, until=lambda: len(rows.outputs()[0]) >= NEW // 4)
    assert calls[-1][1:].sum() > 0
    after = run(rows, clock)
    assert len(after) > CALLS
    assert sum(used[0] for used in after[CALLS:]) > 0.8 * np.sum(after[CALLS:])


def decoded(costs, **options):
    """Returns what is sampled, checked by a rule for which the trees bear on the text."""
    (done,) = generate(
        model(),
        [[5, 6, 7, 8] * 4],
        method="recycling",
        draft=DraftOptions(costs=costs, verify="typical-lossy"),
        sampling=SamplingOptions(temperature=1.0),
        max_new_tokens=120,
        **options,
    )
    return done


@pytest.fixture
def curves(tmp_path):
    """Files of a curve by which trees pay and of one by which none does."""
    files = []
    for name, seconds in (("flat", (1.0, 1.0, 1.0)), ("steep", (1.0, 40.0, 80.0))):
        curve = CostCurve(entries=(1, 4, 16), seconds=seconds, batch=1, slots=64, source=name)
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps(dataclasses.asdict(curve)))
    return files


@pytest.mark.slow
def test_where_trees_bear_on_the_text_a_curve_alone_decides_and_a_run_can_be_made_again(curves, tmp_path):
    flat, steep = curves
    first = decoded(flat)
    drafted = first.drafted
    assert sum(steps for _, steps in drafted.choices) == first.target_forwards
    assert max(nodes for nodes, _ in drafted.choices) > 0
    assert drafted.costs == {}
    # By other calls, and by the curve that the run itself has written.
    lines = tmp_path / "run.jsonl"
    lines.write_text(json.dumps(record(first, model(), sampled=False)) + "\n")
    for costs, options in ((flat, {"steps": 7}), (lines, {}), (lines, {"on_text": lambda *_: None})):
        again = decoded(costs, **options)
        assert again.token_ids == first.token_ids
        assert again.drafted.choices == drafted.choices
    # The control: other choices, another text.
    other = decoded(steep)
    assert other.drafted.choices != drafted.choices
    assert other.token_ids != first.token_ids


@pytest.mark.slow
def test_without_a_curve_of_its_own_such_a_rule_follows_no_clock():
    assert decoded(None).drafted.choices


def test_where_the_text_does_not_depend_on_trees_costs_are_told():
    (done,) = generate(model(), [PROMPT], method="recycling", max_new_tokens=200)
    assert done.drafted.choices == []
    assert all(cost > 0 for cost in done.drafted.costs.values())


@pytest.mark.slow
def test_on_a_mesh_calls_are_timed_and_nothing_is_compiled_for_it():
    divided = dataclasses.replace(model(), params=place(model().params, make_mesh("data=2")))
    prompts = [[5, 6, 7, 8], [8, 7, 6]]
    (first, _) = done = generate(divided, prompts, method="lookup", max_new_tokens=120)
    assert [c.token_ids for c in done] == [c.token_ids for c in generate(model(), prompts, max_new_tokens=120)]
    assert sum(first.drafted.steps.values()) == first.target_forwards
    compiled = PROGRAMS.compiled
    generate(divided, prompts, method="lookup", max_new_tokens=120)
    assert PROGRAMS.compiled == compiled
