"""Trained drafters catch up with what was read without a draft, as if they had seen every step."""

import dataclasses

import jax.numpy as jnp
import pytest

from jax_smash import SamplingOptions
from jax_smash.automaton import regex_automaton
from jax_smash.decode.budget import ROUND_STEPS, unused
from jax_smash.decode.drafts import Trees
from jax_smash.draft.trees.acceptance import prior_rates
from jax_smash.draft.trees.sizing import best_tree
from jax_smash.draft.trees.tree import chain
from jax_smash.draft.verify.named import VERIFICATIONS
from jax_smash.methods import DraftOptions, make_method
from jax_smash.serve.session import Session
from tests import chimera, dflash
from tests.drafting import proposed, proposing
from tests.eagle import random_drafter
from tests.eagle1 import random_drafter1
from tests.medusa import random_heads
from tests.tiny import tiny_model

LEVELS = 3
KINDS = {
    "eagle": ("eagle", random_drafter),
    "eagle1": ("eagle", random_drafter1),
    "medusa": ("medusa", random_heads),
    "chimera": ("chimera", chimera.random_drafter),
    "dflash": ("dflash", dflash.random_drafter),
}
PROMPTS = [[7, 8, 9, 7, 8], [11, 12], [13, 14, 15]]


@dataclasses.dataclass(frozen=True)
class Forgetful:
    """A drafter that learns nothing later."""

    drafter: object

    @property
    def needs(self):
        return self.drafter.needs

    def init(self, *arguments):
        return self.drafter.init(*arguments)

    def read(self, *arguments):
        return self.drafter.read(*arguments)

    def propose(self, *arguments):
        return self.drafter.propose(*arguments)

    def learn(self, *arguments):
        return self.drafter.learn(*arguments)

    def follow(self, params, own, shared, seen, pending):
        return own, shared


def session(kind, *, sized, wrapped=lambda drafter: drafter, verify="coupling", text=None):
    """Returns a session of three rows that never drafts: because that never pays, or with trees of a root alone.

    A text is all that a grammar lets the rows say.
    """
    method, random = KINDS[kind]
    model = tiny_model(layer_kinds=("full", "full"), **({} if text is None else {"stop_tokens": (0,)}))
    draft = DraftOptions(drafter=random(model), tree=f"chain-{LEVELS}")
    made = make_method(model, method, draft=draft, slots=96)
    rates = prior_rates(LEVELS, 1)
    trees = tuple(best_tree(rates, n, levels=LEVELS if n else 0) for n in ((0, LEVELS) if sized else (0,)))
    sizing = unused(rates, trees, [1.0, 100.0]) if sized else None
    memory = made.memory | {"trees": Trees(ladder=trees, choice=jnp.asarray(0, jnp.int32), sizing=sizing)}
    changes = {"sampled": verify != "coupling", "verification": VERIFICATIONS[verify]}
    strategy = dataclasses.replace(made.strategy, drafter=wrapped(made.strategy.drafter), **changes)
    made = dataclasses.replace(made, memory=memory, strategy=strategy, follower=None)
    grammar = None
    if text is not None:
        grammar = regex_automaton(text, model.token_bytes, stop_tokens=model.stop_tokens)
    rows = Session(
        model, made, slots=96, max_new_tokens=40, sampling=[SamplingOptions()] * 3, seeds=[0, 1, 2], grammar=grammar
    )
    rows.read(PROMPTS, limits=[40, 3, 40])
    return rows


def drafts(rows):
    """Returns what each row would draft now."""
    return proposed(proposing(rows.method.strategy)(rows.method.params, rows.state, chain(LEVELS)))


def few(*names):
    """Returns all kinds as cases, of which all but the named ones are slow."""
    return [kind if kind in names else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]


@pytest.mark.slow
@pytest.mark.parametrize("kind", few("eagle"))
def test_a_drafter_catches_up_with_one_that_saw_every_step(kind):
    late, always, forgetful = (
        session(kind, sized=True),
        session(kind, sized=False),
        session(kind, sized=True, wrapped=Forgetful),
    )
    # Up to the end of a round, and in the midst of one.
    for steps in (ROUND_STEPS, 5):
        for rows in (late, always, forgetful):
            rows.run(steps)
        assert late.outputs() == always.outputs()
        assert drafts(late) == drafts(always)
        assert min(len(set(draft)) for draft in drafts(always)) > 1
        # The control.
        assert drafts(forgetful) != drafts(always)


def test_unchecked_drafts_follow_the_grammar_from_where_they_begin():
    """Only one token may ever follow, so every draft from the right place is right."""
    rows = session("medusa", sized=True, text="ahovcjqxelszgnubipwdkrABCDEFGHIJKLMNOPQRSTUVWXYZ")

    def first_child():
        known = rows.state.shared.memory["trees"].sizing.known
        return float(known.hits[0, 0]), float(known.trials[0, 0])

    hits, trials = first_child()
    for steps in (ROUND_STEPS, 5, ROUND_STEPS - 5):  # Calls may end in the midst of a round.
        rows.run(steps)
    after = first_child()
    assert after[1] > trials + 3
    assert after[0] - hits == pytest.approx(after[1] - trials, abs=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", few("eagle"))
def test_what_was_missed_in_a_turn_is_learned_before_the_next_ones_prompt(kind):
    """Where trees bear on the text, the end of a call is no time to learn."""
    late, always = (session(kind, sized=sized, verify="typical-lossy") for sized in (True, False))
    for rows in (late, always):
        rows.run(5)
    assert late.state.rows.memory["drafts"].missed.count.tolist() == [5, 2, 5]
    assert drafts(late) != drafts(always)
    for rows in (late, always):
        rows.read([[7, 8, 9], [5], [6, 7]], limits=[8, 8, 8])
    assert drafts(late) == drafts(always)
