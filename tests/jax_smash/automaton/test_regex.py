import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_smash.automaton.regex import byte_machine

REGEXES = [
    "a|ab",
    "a*?",
    "(?:a|ab)(?:c|bcb)?",
    "a*b+",
    "(?:ab|ba)*",
    "a{2,3}(?:b|é)?",
    "[^a]+a?",
    ".*ab",
    "(?i)Ab|c",
    "é|a.b",
    "",
]
COMPILED = {regex: byte_machine(regex) for regex in REGEXES}


@pytest.mark.parametrize("regex", REGEXES)
@settings(max_examples=150, deadline=None)
@given(text=st.text("abcé日", max_size=7))
def test_a_text_is_accepted_exactly_where_python_matches_it(regex, text):
    machine, state = COMPILED[regex], 0
    for byte in text.encode():
        state = machine.next_state[state, byte] if state >= 0 else -1
    assert (state >= 0 and machine.accepting[state]) == bool(re.fullmatch(regex, text))


def test_half_a_character_is_never_whole():
    machine = COMPILED["é|a.b"]
    half = machine.next_state[0, "é".encode()[0]]
    assert half >= 0
    assert not machine.accepting[half]


@pytest.mark.parametrize("regex", ["(", "a{", "[", r"a\1", "(?=a)b"])
def test_an_invalid_expression_is_named(regex):
    with pytest.raises(ValueError, match=f"regex {re.escape(repr(regex))} is invalid"):
        byte_machine(regex)


@pytest.mark.parametrize("regex", ["^a$", r"\ba"])
def test_anchors_are_refused_with_a_reason(regex):
    with pytest.raises(ValueError, match="anchors and look-around are not supported"):
        byte_machine(regex)


@pytest.mark.parametrize("regex", [r"[^\s\S]", r"a|b[^\s\S]", "a$"])
def test_an_expression_that_matches_nothing_is_an_error(regex):
    with pytest.raises(ValueError, match="it matches nothing, or a part of it does"):
        byte_machine(regex)


def test_a_count_costs_no_more_states_than_it_must():
    assert len(byte_machine("[^,]{1,30}").next_state) < 500
    assert len(byte_machine(r"-?[0-9]{1,16}(?:\.[0-9]{1,16})?").next_state) < 50


def test_too_many_states_are_an_error():
    with pytest.raises(ValueError, match=r"regex '\(\?:ab\)\{9000\}' must need at most 16384 states; got 1800\d"):
        byte_machine("(?:ab){9000}")


def test_an_unmatched_parenthesis_is_not_matched_by_ours():
    with pytest.raises(ValueError, match="is invalid"):
        byte_machine("a)|(b")
