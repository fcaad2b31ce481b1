"""Groups that the base checks: the agreed prefix gets one slot."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.cache import EMPTY
from jax_smash.decode.checked import group_block, paths
from jax_smash.methods import SmashOptions, make_method
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.session import Session
from jax_smash.smash.macro_step import Group
from tests.smashed import Plainly, smashed_model
from tests.smashers import base_of, smasher_of

PROMPTS = [[5, 17, 60, 2], [100, 3], list(range(30, 44))]
NEW = 24
FEW = {97: 60.0, 98: 60.0, 99: 60.0}
"""So few tokens to choose from that the modules are often right by chance."""


def decoded(bias, *, new=NEW, steps=50, model=None, **options):
    model = model or smashed_model()
    smash = SmashOptions(**({"mode": "checked", "least_rows": 1} | options))
    made = make_method(model, "hamburger", smash=smash)
    # Three biased tokens always, so that all runs share a program.
    sampling = [SamplingOptions(logit_bias={1: 0.0, 2: 0.0, 3: 0.0} if bias is None else bias)] * 3
    session = Session(model, made, slots=64, max_new_tokens=NEW, sampling=sampling, seeds=[0] * 3)
    session.read(PROMPTS, limits=[new] * 3)
    while session.run(steps):
        pass
    return session


def lengths(session):
    return np.asarray(session.state.rows.memory["smasher"].lengths).tolist()


@functools.cache
def plainly(confidence, limit):
    said = []
    for prompt in PROMPTS:
        row = Plainly(smashed_model(), bias=FEW)
        row.read(prompt)
        said.append((row.checked(NEW, confidence, limit), row))
    return said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"group_length": 4}, {"confidence": 0.0, "limit": 4}),
        ({"group_length": 2}, {"confidence": 0.0, "limit": 2}),
        ({"confidence": 0.45}, None),
    ],
)
def test_text_and_slots_are_those_of_reading_everything_again(options, asked):
    session = decoded(FEW, steps=5, **options)
    expected = plainly(**(asked or {"confidence": 0.45, "limit": 9}))
    assert session.outputs() == [said for said, _ in expected]
    for row, (_, plain) in enumerate(expected):
        assert lengths(session)[row] == [plain.lengths.count(n) for n in range(1, 5)]
        held = np.asarray(session.state.rows.cache.positions[0])[row]
        assert held[held != EMPTY].tolist() == plain.positions
    # Some groups are agreed with wholly, some in part, some not at all.
    longest = options.get("group_length", 1)
    assert all(sum(counts) for counts in list(zip(*lengths(session), strict=True))[:longest])


class Watched:
    """A model whose forwards' entries are counted."""

    def __init__(self, definition):
        self.definition, self.entries = definition, []

    def bind(self, params):
        model = self.definition.bind(params)

        def forward(inputs, *others):
            self.entries.append(inputs.shape[1])
            return model.forward(inputs, *others)

        rest = {name: getattr(model, name) for name in ("embed", "unembed", "init_cache", "vocab_size")}
        return types.SimpleNamespace(forward=forward, **rest)


@pytest.mark.parametrize(
    ("options", "entries"), [({}, 7), ({"micro_steps": 2}, 3), ({"micro_steps": 3, "group_length": 1}, 1)]
)
def test_no_more_is_read_of_a_group_than_it_may_have(options, entries):
    """Its n tokens and the n − 1 fusions of their prefixes, n being asked for and not what was trained."""
    model = smashed_model()
    made = make_method(model, "hamburger", smash=SmashOptions(mode="checked", **options))
    session = Session(model, made, slots=64, max_new_tokens=NEW, sampling=[SamplingOptions()] * 3, seeds=[0] * 3)
    watched = Watched(model.definition)
    strategy = dataclasses.replace(made.strategy, target=watched)
    jax.eval_shape(strategy.step, made.params, session.state)
    assert watched.entries == [entries]


def test_a_micro_decoder_that_is_always_right_fills_every_group():
    """One token is all that either may say."""
    session = decoded({97: 90.0, 2: 0.0, 3: 0.0}, group_length=4, new=21)
    assert session.outputs() == [[97] * 21] * 3
    assert lengths(session) == [[0, 0, 0, 5]] * 3
    assert session.state.rows.forwards.tolist() == [5] * 3
    assert session.state.rows.unread.tolist() == [1] * 3
    assert np.asarray(session.state.rows.cache.positions[0])[1, :8].tolist() == [0, 1, 5, 9, 13, 17, 21, EMPTY]


@pytest.mark.slow
def test_one_that_is_always_wrong_leaves_groups_of_one():
    """The micro head knows one token, which the base never chooses."""
    session = decoded({7: -90.0, 2: 0.0, 3: 0.0}, micro_head="1", group_length=4)
    assert lengths(session) == [[NEW - 1, 0, 0, 0]] * 3
    assert session.state.rows.memory["smasher"].micro_steps.tolist() == [3 * (NEW - 1)] * 3
    plain = Session(
        smashed_model(),
        make_method(smashed_model(), "ar"),
        slots=64,
        max_new_tokens=NEW,
        sampling=[SamplingOptions(logit_bias={7: -90.0})] * 3,
        seeds=[0] * 3,
    )
    plain.read(PROMPTS)
    while plain.run(50):
        pass
    assert session.outputs() == plain.outputs()


def test_entries_of_a_block_by_hand():
    base, smasher = base_of(), smasher_of(micro_steps=3)
    tokens = jnp.array([[7, 8, 9], [30, 31, 0]], jnp.int32)
    group = Group(tokens=tokens, count=jnp.array([3, 2], jnp.int32))
    blocked = jax.jit(lambda group, length: group_block(base, smasher, group, length))
    inputs, position, block = blocked(group, jnp.array([10, 4], jnp.int32))
    assert position.tolist() == [[10, 11, 12, 11, 12], [4, 5, 6, 5, 6]]
    assert block.valid.tolist() == [[True] * 5, [True, True, False, True, False]]
    assert block.mask()[0].astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [0, 0, 0, 1, 0],
        [0, 0, 0, 0, 1],
    ]
    vectors = base.embed(tokens)
    np.testing.assert_array_equal(inputs[:, :3], vectors)
    for column, length in ((3, 2), (4, 3)):
        fused = jax.jit(smasher.fuse)(vectors[:, :length], jnp.full((2,), length, jnp.int32))
        np.testing.assert_allclose(inputs[:, column], fused, atol=1e-6)
    assert paths(group)[0].tolist() == [[-1, -1], [8, -1], [8, 9]]


def test_a_group_of_at_most_one_is_one_entry():
    base, smasher = base_of(), smasher_of(micro_steps=1)
    group = Group(tokens=jnp.array([[7]], jnp.int32), count=jnp.array([1], jnp.int32))
    inputs, position, block = group_block(base, smasher, group, jnp.array([3], jnp.int32))
    assert (inputs.shape[1], position.tolist(), block.mask().tolist()) == (1, [[3]], [[[True]]])
