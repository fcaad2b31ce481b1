import itertools
import json
import re

import jax.numpy as jnp
import numpy as np
import pytest

from jax_smash.automaton import DEAD, START, json_schema_automaton, regex_automaton, token_bytes
from tests.tokenizers import byte_tokenizer, small_bpe

TOKENS = [b"a", b"b", b"ab", b"ba", b"", b"abb", b"c", b"bc", b""]
STOP = 4  # The other token without bytes is never allowed.


def reached(automaton, tokens):
    return (
        automaton.trace(automaton.start(1), jnp.asarray([tokens], jnp.int32))[:, -1] if tokens else automaton.start(1)
    )


def allowed(automaton, tokens):
    return np.flatnonzero(np.asarray(automaton.allowed(reached(automaton, tokens)))[0]).tolist()


@pytest.mark.parametrize("regex", ["(?:ab)*c?", "a+b{1,3}", "abb|ba|c{0,2}", "[ab]{2}(?:[ab]{2})?", ""])
def test_the_allowed_tokens_are_those_that_a_match_goes_on_with(regex):
    automaton = regex_automaton(regex, TOKENS, stop_tokens=[STOP])
    spelled = [i for i, text in enumerate(TOKENS) if text]
    texts = ["".join(t) for n in range(8) for t in itertools.product("abc", repeat=n)]
    matches = [text for text in texts if re.fullmatch(regex, text)]
    sequences = [t for n in range(3) for t in itertools.product(spelled, repeat=n)]
    padded = jnp.asarray([[*t, -1, -1][:2] for t in sequences], jnp.int32)
    states = automaton.trace(automaton.start(len(sequences)), padded)[:, -1]
    marks, matched = np.asarray(automaton.allowed(states)), np.asarray(automaton.matched(states))
    for row, tokens in enumerate(sequences):
        so_far = b"".join(TOKENS[i] for i in tokens).decode()
        expected = [i for i in spelled if any(m.startswith(so_far + TOKENS[i].decode()) for m in matches)]
        expected += [STOP] if so_far in matches else []
        assert np.flatnonzero(marks[row]).tolist() == sorted(expected)
        assert matched[row] == (so_far in matches)
        assert (states[row] == DEAD) == (not any(m.startswith(so_far) for m in matches))


def test_behind_a_stop_token_come_stop_tokens_alone():
    automaton = regex_automaton("a*", TOKENS, stop_tokens=[STOP, 6])
    assert allowed(automaton, []) == [0, STOP, 6]
    assert allowed(automaton, [0, STOP]) == [STOP, 6]
    assert allowed(automaton, [0, STOP, 6]) == [STOP, 6]
    assert reached(automaton, [STOP, 0])[0] == DEAD


def test_a_way_that_the_vocabulary_cannot_finish_is_not_taken():
    automaton = regex_automaton("ad|bx|(?:ab)+", TOKENS, stop_tokens=[STOP])
    assert allowed(automaton, []) == [0, 2]
    assert allowed(automaton, [0]) == [1, 3]
    assert allowed(automaton, [0, 3]) == [1, 3]


def test_a_language_that_the_vocabulary_cannot_spell_is_an_error():
    with pytest.raises(ValueError, match="regex 'ad' matches no text that this vocabulary can spell"):
        regex_automaton("ad", TOKENS, stop_tokens=[STOP])


@pytest.mark.parametrize("stop_tokens", [[], [9], [-1]])
def test_a_grammar_needs_stop_tokens_of_the_vocabulary(stop_tokens):
    with pytest.raises(ValueError, match=f"at least one id from 0 to 8; got {re.escape(str(stop_tokens))}"):
        regex_automaton("a", TOKENS, stop_tokens=stop_tokens)


def test_a_schema_that_is_no_json_is_an_error():
    with pytest.raises(ValueError, match=r"JSON schema is not valid JSON: .*line 1"):
        json_schema_automaton('{"type": ', TOKENS, stop_tokens=[STOP])


def test_a_schema_as_text_and_as_an_object_are_the_same():
    schema = {"enum": ["ab", 1]}
    tokens = token_bytes(byte_tokenizer())
    as_object, as_text = (json_schema_automaton(s, tokens, stop_tokens=[257]) for s in (schema, json.dumps(schema)))
    np.testing.assert_array_equal(as_object.next_state, as_text.next_state)


def steps_to_end(automaton):
    """Returns how many tokens each state is from the nearest accepting one."""
    table = np.asarray(automaton.next_state)
    steps = np.where(np.asarray(automaton.accepting), 0, 10**6)
    while True:
        shorter = np.minimum(steps, np.where(table >= 0, steps[table], 10**6).min(1) + 1)
        if (shorter == steps).all():
            return steps
        steps = shorter


def random_texts(automaton, tokens, stop, count, patience=25):
    """Walks at random, and towards the end once it has lost patience."""
    table, token_class = np.asarray(automaton.next_state), np.asarray(automaton.token_class)
    allowed = np.asarray(automaton.allowed(jnp.arange(len(table), dtype=jnp.int32)))
    steps, rng = steps_to_end(automaton), np.random.default_rng(0)
    for _ in range(count):
        state, out, token = START, b"", None
        for place in itertools.count():
            choices = np.flatnonzero(allowed[state])
            if place > patience:
                nearer = steps[table[state, token_class[choices]]]
                choices = [stop] if stop in choices else choices[nearer == nearer.min()]
            token = int(rng.choice(choices))
            if token == stop:
                break
            assert place < 1000
            out += tokens[token]
            state = int(table[state, token_class[token]])
        yield out.decode()


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "happy": {"type": "boolean"},
        "tags": {"type": "array", "items": {"enum": ["cat", "naïve", 'a"b\\', None]}, "maxItems": 3},
        "home": {"$ref": "#/$defs/place"},
    },
    "required": ["name", "tags"],
    "$defs": {"place": {"type": "object", "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}}}},
}


def is_person(x):
    return (
        isinstance(x, dict)
        and set(x) <= set(PERSON["properties"])
        and 1 <= len(x["name"]) <= 5
        and (type(x.get("age", 0)) is int and 0 <= x.get("age", 0) <= 130)
        and isinstance(x.get("happy", True), bool)
        and len(x["tags"]) <= 3
        and all(tag in ["cat", "naïve", 'a"b\\', None] for tag in x["tags"])
        and (x.get("home", {}) == {} or re.fullmatch("[0-9]{5}", x["home"]["zip"]))
    )


SCHEMAS = {
    "person": (PERSON, is_person),
    "types": ({"type": ["number", "null"]}, lambda x: x is None or isinstance(x, int | float)),
    "bounds": (
        {"type": "array", "items": {"type": "number", "exclusiveMinimum": -3, "maximum": 2}, "minItems": 2},
        lambda x: len(x) >= 2 and all(-3 < n <= 2 for n in x),
    ),
    "map": (
        {"type": "object", "additionalProperties": {"anyOf": [{"type": "integer"}, {"const": {"a": [1]}}]}},
        lambda x: all(type(v) is int or v == {"a": [1]} for v in x.values()),
    ),
    "anything": (True, lambda x: True),
}


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (byte_tokenizer, "person"),
        (byte_tokenizer, "types"),
        (byte_tokenizer, "bounds"),
        pytest.param(byte_tokenizer, "map", marks=pytest.mark.slow),
        pytest.param(byte_tokenizer, "anything", marks=pytest.mark.slow),
        (small_bpe, "person"),
        pytest.param(small_bpe, "types", marks=pytest.mark.slow),
        pytest.param(small_bpe, "bounds", marks=pytest.mark.slow),
        (small_bpe, "map"),
        (small_bpe, "anything"),
    ],
)
def test_random_walks_are_documents_that_fit_the_schema(make, name):
    tokenizer, (schema, fits) = make(), SCHEMAS[name]
    tokens = token_bytes(tokenizer)
    automaton = json_schema_automaton(schema, tokens, stop_tokens=[tokenizer.eos_token_id])
    texts = list(random_texts(automaton, tokens, tokenizer.eos_token_id, 200))
    assert len(set(texts)) > 10
    for text in texts:
        assert fits(json.loads(text)), text
