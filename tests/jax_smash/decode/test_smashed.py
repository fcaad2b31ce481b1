"""Groups that are trusted: each takes one slot of the cache."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.cache import EMPTY
from jax_smash.decode.programs import PROGRAMS
from jax_smash.finish import REASONS
from jax_smash.methods import SmashOptions, make_method
from jax_smash.pytree import replace
from jax_smash.sampling import SamplingOptions
from jax_smash.serve.session import Session
from tests.smashed import Plainly, blind_together, smashed_model

PROMPTS = [[5, 17, 60, 2], [100, 3], list(range(30, 44))]
NEW = 24
CONFIDENCE = 0.45
SURE = 0.3


def decoded(prompts=PROMPTS, *, new=NEW, steps=50, model=None, rows=None, limits=None, share=None, **options):
    """Returns a session that has decoded prompts; one compiled program serves all greedy ones of as many rows."""
    model = model or smashed_model()
    made = make_method(model, "hamburger", smash=SmashOptions(**({"least_rows": 1} | options)))
    if share is not None:
        made = dataclasses.replace(made, memory={"limits": replace(made.memory["limits"], share=jnp.float32(share))})
    rows = rows or len(prompts)
    session = Session(model, made, slots=64, max_new_tokens=NEW, sampling=[SamplingOptions()] * rows, seeds=[0] * rows)
    session.read(prompts, limits=limits or [new] * rows)
    while session.run(steps):
        pass
    return session


def lengths(session):
    return np.asarray(session.state.rows.memory["smasher"].lengths).tolist()


@functools.cache
def plainly(confidence=CONFIDENCE, limit=9, sure=0.0):
    model, said = smashed_model(), []
    for prompt in PROMPTS:
        row = Plainly(model, sure=sure)
        row.read(prompt)
        said.append((row.blind(NEW, confidence, limit), row))
    return said


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"confidence": CONFIDENCE}, {}),
        ({"confidence": CONFIDENCE, "token_confidence": SURE}, {"sure": SURE}),
        ({"group_length": 3}, {"confidence": 0.0, "limit": 3}),
    ],
)
def test_text_and_slots_are_those_of_reading_everything_again(options, asked):
    session = decoded(**options)
    expected = plainly(**asked)
    assert session.outputs() == [said for said, _ in expected]
    for row, (_, plain) in enumerate(expected):
        groups = [*plain.lengths, len(plain.pending)]
        assert lengths(session)[row] == [groups.count(n) for n in range(1, 5)]
        held = np.asarray(session.state.rows.cache.positions[0])[row]
        assert held[held != EMPTY].tolist() == plain.positions
    assert options != {"confidence": CONFIDENCE} or all(len({*p.lengths}) > 1 for _, p in expected)


def test_positions_jump_by_the_length_of_the_group_and_slots_do_not():
    """By hand: a prompt of 4, then groups of 3 tokens, the last one unread."""
    rows = decoded(group_length=3, new=12).state.rows
    full, sliding = (np.asarray(p)[0] for p in rows.cache.positions)
    assert full[:8].tolist() == [0, 1, 2, 3, 6, 9, 12, EMPTY]
    assert sliding[:8].tolist() == full[:8].tolist()
    assert rows.cache.slot_length.tolist()[0] == 7
    assert (rows.token_length.tolist()[0], rows.unread.tolist()[0]) == (16, 3)
    assert rows.forwards.tolist()[0] == 3


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_forced_lengths_are_had(length):
    session = decoded(group_length=length)
    expected = [0] * 4
    expected[length - 1] = NEW // length
    assert lengths(session) == [expected] * 3
    assert session.state.rows.memory["smasher"].micro_steps.tolist() == [NEW - NEW // length] * 3
    assert session.state.rows.forwards.tolist() == [NEW // length - 1] * 3


def test_full_confidence_makes_groups_of_one_and_so_does_one_micro_step():
    for options in ({"confidence": 1.0}, {"micro_steps": 1, "confidence": 0.01}):
        assert lengths(decoded(**options)) == [[NEW, 0, 0, 0]] * 3


def test_what_no_token_is_sure_enough_for_is_groups_of_one_whose_micro_steps_are_in_vain():
    session = decoded(confidence=0.01, token_confidence=1.0)
    assert lengths(session) == [[NEW, 0, 0, 0]] * 3
    assert session.state.rows.memory["smasher"].micro_steps.tolist() == [NEW - 1] * 3
    assert session.outputs() == decoded(confidence=1.0).outputs()


def test_rows_are_as_they_are_alone():
    together = decoded(confidence=CONFIDENCE).outputs()
    for row, prompt in enumerate(PROMPTS):
        alone = [[], [], []]
        alone[row] = prompt
        assert decoded(alone, confidence=CONFIDENCE).outputs()[row] == together[row]


def test_groups_end_together_where_few_rows_would_go_on():
    session = decoded(confidence=CONFIDENCE, least_rows=3)
    assert session.state.rows.memory["smasher"].micro_steps.tolist() == [
        sum((i - 1) * n for i, n in enumerate(row, 1)) for row in lengths(session)
    ]
    assert len({tuple(row) for row in lengths(session)}) == 1
    # Where a micro-step costs as much as a forward of the base, the others' wait is never worth it.
    alone = decoded([PROMPTS[0], [], []], confidence=CONFIDENCE, least_rows=None)
    assert alone.outputs()[0] == plainly()[0][0]


@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, None])
def test_rows_that_wait_for_each_other_say_as_much_of_their_groups_as_the_share_allows(share):
    """Without `least_rows`: every row is whole, and legal. Where no group is cut, it is as it is alone."""
    session = decoded(confidence=CONFIDENCE, share=share, least_rows=None)
    rows = [Plainly(smashed_model()) for _ in PROMPTS]
    for row, prompt in zip(rows, PROMPTS, strict=True):
        row.read(prompt)
    expected = blind_together(rows, NEW, CONFIDENCE, float(session.method.memory["limits"].share))
    assert session.outputs() == expected
    assert [REASONS[code] for code in session.state.rows.finish] == ["length"] * 3
    assert lengths(session) == [[[*row.lengths, len(row.pending)].count(n) for n in range(1, 5)] for row in rows]
    alone = [said for said, _ in plainly()]
    assert (expected == alone) == (share == 0.01)
    if share == 0.5:  # Some groups are cut, and some of several tokens are left.
        slots = [sum(counts) for counts in lengths(session)]
        assert max(slots) < NEW
        assert sum(slots) > sum(len(row.lengths) + 1 for _, row in plainly())


def test_text_does_not_depend_on_how_steps_are_cut():
    assert decoded(confidence=CONFIDENCE, steps=1).outputs() == [said for said, _ in plainly()]


def test_nothing_is_said_behind_a_stop_token_within_a_group():
    text = decoded(group_length=4).outputs()[0]
    place = next(i for i in range(5, NEW) if i % 4 in (1, 2) and text[i] not in text[:i])
    rows = decoded(group_length=4, model=smashed_model(stop_tokens=(text[place],))).state.rows
    assert rows.output[0, : rows.output_length[0]].tolist() == text[: place + 1]
    assert REASONS[rows.finish[0]] == "stop_token"
    assert rows.unread.tolist()[0] == place % 4 + 1
    assert lengths_of(rows)[0] == [0] * (place % 4) + [1] + [0] * (2 - place % 4) + [place // 4]


def lengths_of(rows):
    return np.asarray(rows.memory["smasher"].lengths).tolist()


def test_a_limit_ends_a_group():
    session = decoded(group_length=4, limits=[6, 9, 11])
    assert [len(text) for text in session.outputs()] == [6, 9, 11]
    assert lengths(session) == [[0, 1, 0, 1], [1, 0, 0, 2], [0, 0, 1, 2]]


def test_a_chat_goes_on_behind_a_pending_group():
    """What was said last and not read gets a slot a token; a row that sat out keeps it for later."""
    model = smashed_model()
    made = make_method(model, "hamburger", smash=SmashOptions(confidence=CONFIDENCE, least_rows=1))
    session = Session(model, made, slots=64, max_new_tokens=NEW, sampling=[SamplingOptions()] * 3, seeds=[0] * 3)
    plain = [Plainly(model) for _ in PROMPTS]
    turns = [(PROMPTS, [7, 10, 5]), ([[9, 9, 8], [], [1]], [6, 9, 8]), ([[4], [77, 5], [3, 3]], [5, 7, 3])]
    for prompts, limits in turns:
        session.read(prompts, limits=limits)
        while session.run(3):
            pass
        expected = []
        for row, prompt, limit in zip(plain, prompts, limits, strict=True):
            if prompt:
                row.read(prompt)
            expected.append(row.blind(limit, CONFIDENCE) if prompt else [])
        assert session.outputs() == expected
    assert max(max(row.lengths) for row in plain) > 1


def test_slots_bound_what_is_held_and_the_context_bounds_positions():
    session = decoded(group_length=4)
    held, tokens = int(session.state.rows.cache.slot_length[0]), int(session.state.rows.token_length[0])
    assert (held, tokens) == (9, 28)
    with pytest.raises(ValueError, match=r"row 0 needs 74 slots \(9 held, 44 prompt, 22 new\); the cache has 64"):
        session.read([[1] * 40, [], []], limits=[22, 1, 1])
    config = dataclasses.replace(session.model.config, max_positions=40)
    session.model = dataclasses.replace(session.model, config=config)
    with pytest.raises(ValueError, match=r"row 0 needs 41 positions \(24 taken, 14 prompt, 4 new\); the model's cont"):
        session.read([[1] * 10, [], []], limits=[4, 1, 1])
    assert int(session.state.rows.token_length[0]) == tokens


def test_other_options_and_prompts_compile_nothing():
    decoded(confidence=CONFIDENCE)
    compiled = PROGRAMS.compiled
    for options in ({"confidence": 0.9}, {"micro_steps": 2}, {"group_length": 4}, {"least_rows": 2}):
        decoded([[9, 9], [4, 4, 4, 4, 4], [1]], **options)
    assert PROGRAMS.compiled == compiled
