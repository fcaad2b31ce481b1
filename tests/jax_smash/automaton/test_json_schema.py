import json
import re

import pytest

from jax_smash.automaton.json_schema import schema_regex

FITTING = [
    ({"type": "null"}, ["null"], ["nul", '"null"']),
    ({"type": "boolean"}, ["true", "false"], ["True", "1"]),
    ({"type": "integer"}, ["0", "-7", "1234567890123456"], ["-0", "01", "1.0", "12345678901234567"]),
    ({"type": "number"}, ["0", "-0.5", "1e9", "3.25E-7"], [".5", "1.", "1e", "NaN"]),
    ({"type": "string"}, ['""', '"a b"', r'"\n\"\\"', '"日本"'], ["a", '"a', '"\t"', r'"\x"']),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"é日本"', r'"\n\n"'], ['"a"', '"abcd"']),
    ({"type": "string", "pattern": "^a+$"}, ['"aa"'], ['""', '"b"', "aa"]),
    ({"type": "string", "pattern": r"[ab]\$"}, ['"a$"'], ['"a"']),
    ({"pattern": "x|y"}, ['"x"', '"y"'], ['"xy"', '"x', 'y"']),
    ({"pattern": r"^\d{2}[\w.]+$"}, ['"07a_."', '"12.3"'], ['"٠٧a"', '"07é"', '"07"', '"d7a"']),
    ({"pattern": r"[^\d\]\"\\\x00-\x1f]d"}, ['"xd"', '"٤d"'], ['"5d"', '"]d"']),
    ({"type": "string", "format": "date"}, ['"2024-02-28"'], ['"2024-02-30"', '"24-2-2"']),
    ({"type": "string", "format": "date-time"}, ['"2024-12-01T23:59:59Z"'], ['"2024-12-01"']),
    ({"type": "string", "format": "email"}, ['"a.b@c.org"'], ['"a@b"', '"a b@c.org"']),
    (
        {"type": "string", "format": "uri"},
        ['"https://a.org/b?c=d#e"', '"https://a/%2F#"'],
        ['"a.org"', '"https://a b"', '"https://a/%2"', '"https://a#b#c"'],
    ),
    ({"type": "string", "format": "ipv4"}, ['"255.0.10.9"'], ['"256.0.0.1"', '"1.2.3"']),
    (
        {"type": "string", "format": "uuid"},
        ['"01234567-89ab-cdef-0123-456789abcdef"'],
        ['"0123456789abcdef0123456789abcdef"'],
    ),
    ({"const": {"a": [1, "é*"]}}, ['{"a": [1, "é*"]}'], ['{"a": [1, "é"]}']),
    ({"enum": [1, "a", None, True]}, ["1", '"a"', "null", "true"], ["2", "a"]),
    ({"enum": [1, "a", True], "type": "integer"}, ["1"], ['"a"', "true"]),
    ({"type": "array", "items": {"type": "null"}}, ["[]", "[null]", "[ null, null ]"], ["[null,]", "[,]"]),
    ({"type": "array", "items": {"type": "null"}, "minItems": 2, "maxItems": 3}, ["[null,null]"], ["[null]", "[]"]),
    ({"type": "array", "items": {"type": "null"}, "minItems": 1}, ["[null]", "[null,null,null]"], ["[]"]),
    ({"type": "array", "maxItems": 0}, ["[]"], ["[1]"]),
    ({"type": "array", "prefixItems": [{"type": "null"}, {"const": 1}]}, ["[null,1]"], ["[null]", "[null,1,1]"]),
    ({"type": "object", "additionalProperties": False}, ["{}"], ['{"a":1}']),
    ({"additionalProperties": {"const": 1}}, ["{}", '{"a": 1}', '{"a":1, "b":1}'], ['{"a":2}', '{"a":1,}']),
    (
        {"properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}},
        ["{}", '{"a":1}', '{"c":3}', '{"a":1,"c":3}', '{"a": 1, "b": 2, "c": 3}'],
        ['{"b":2,"a":1}', '{,"b":2}', '{"a":1,}', '{"a":1"b":2}', '{"d":4}'],
    ),
    (
        {"properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}, "required": ["b"]},
        ['{"b":2}', '{"a":1,"b":2}', '{"b":2,"c":3}', '{"a":1,"b":2,"c":3}'],
        ["{}", '{"a":1}', '{"a":1,"c":3}', '{"b":2,}'],
    ),
    ({"properties": {'q"\\.': {"const": 1}}}, [r'{"q\"\\.":1}'], ['{"q":1}']),
    ({"anyOf": [{"type": "null"}, {"const": 1}], "title": "x"}, ["null", "1"], ["2"]),
    ({"oneOf": [{"type": "null"}, {"const": 1}]}, ["null", "1"], ["2"]),
    ({"allOf": [{"$ref": "#/$defs/x~1y"}], "$defs": {"x/y": {"const": 5}}}, ["5"], ["6"]),
    ({"type": ["integer", "string"], "maxLength": 1}, ["12", '"a"'], ['"ab"', "null"]),
    ({}, ["null", '{"a": [1, "b"]}', "[[1], {}]"], ["[[[1]]]", "x"]),
]


@pytest.mark.parametrize(("schema", "good", "bad"), FITTING, ids=[json.dumps(s)[:60] for s, _, _ in FITTING])
def test_documents_that_fit_are_matched_and_others_are_not(schema, good, bad):
    regex = schema_regex(schema)
    for text in good:
        json.loads(text)
        assert re.fullmatch(regex, text), text
    for text in bad:
        assert not re.fullmatch(regex, text), text


REFUSED = [
    ([1], "at # must be an object or true; got \\[1\\]"),
    (False, "at # must be an object or true; got false"),
    ({"items": [1]}, "at #/items must be an object or true; got"),
    ({"type": "text"}, "at #/type must be of null, boolean, .*; got 'text'"),
    ({"type": []}, "at #/type must be a list with at least one entry"),
    ({"minItems": 1, "uniqueItems": True}, "keyword 'uniqueItems' at # is not supported there"),
    ({"properties": {"a": {"not": {}}}}, "keyword 'not' at #/properties/a is not supported there"),
    ({"type": "integer", "multipleOf": 2}, "keyword 'multipleOf' at # is not supported there; supported are type, min"),
    ({"type": "object", "minProperties": 1}, "keyword 'minProperties'"),
    ({"anyOf": [{"type": "null"}], "minLength": 1}, "keyword 'minLength' at # is not supported there; .* anyOf"),
    ({"anyOf": []}, "at #/anyOf must be a list with at least one entry; got \\[\\]"),
    ({"enum": "abc"}, "at #/enum must be a list"),
    ({"enum": [1], "type": "string"}, "must allow a value; got none of type \\['string'\\]"),
    ({"enum": [1], "type": 3}, "must allow a value; got none of type \\[3\\]"),
    ({"const": float("nan")}, "not JSON compliant"),
    ({"allOf": [True, True]}, "at #/allOf must have one entry; got 2"),
    ({"$ref": "other.json"}, "must begin with #; got 'other.json'"),
    ({"$ref": "#/$defs/x"}, "must point into the schema; got '#/\\$defs/x'"),
    ({"properties": {"a": {"$ref": "#"}}}, "at #/properties/a/\\$ref must not lead back to itself"),
    ({"$defs": {"n": {"items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"}, "must not lead back to itself"),
    ({"type": "string", "format": "hostname"}, "at #/format must be of date, .*; got 'hostname'"),
    ({"type": "string", "format": "date", "maxLength": 3}, "only one of pattern, format and a length"),
    ({"type": "string", "minLength": -1}, "at #/minLength must be a whole number, at least 0; got -1"),
    ({"type": "string", "maxLength": "3"}, "at #/maxLength must be a whole number, at least 0; got '3'"),
    ({"type": "string", "minLength": 3, "maxLength": 1}, "at #/maxLength must be at least minLength = 3; got 1"),
    ({"type": "array", "minItems": 2.5}, "at #/minItems must be a whole number"),
    ({"type": "array", "prefixItems": [True], "minItems": 2}, "as many items as its 1 prefixItems"),
    ({"type": "string", "pattern": "("}, "at #/pattern: regex '\\(' is invalid"),
    ({"type": "string", "pattern": "a)|(b"}, "at #/pattern: regex .* is invalid"),
    ({"type": "string", "pattern": ".*"}, "at #/pattern must not match quotes, backslashes or control characters"),
    ({"type": "string", "pattern": "a|^b"}, "anchors and look-around are not supported"),
    (
        {"type": "string", "pattern": "a$|b$"},
        "matches nothing, or a part of it does; the whole text is matched, so anchors",
    ),
    ({"type": "string", "pattern": 3}, "at #/pattern must be a string; got 3"),
    ({"type": "string", "pattern": r"[^\D5]"}, r"at #/pattern must not have \\D between brackets"),
    ({"properties": {"a": True}, "required": ["b"]}, "at #/required must name properties; got \\['b'\\]"),
    ({"properties": [], "required": []}, "must have an object as properties and a list as required"),
    ({"properties": {"a": True}, "required": [["a"]]}, r"at #/required must name properties; got \[\['a'\]\]"),
    ({"const": float("inf")}, "JSON schema at #: Out of range float values are not JSON compliant"),
]


@pytest.mark.parametrize(("schema", "message"), REFUSED, ids=[json.dumps(s)[:60] for s, _ in REFUSED])
def test_a_schema_that_cannot_be_kept_is_refused_with_its_place(schema, message):
    with pytest.raises(ValueError, match=message):
        schema_regex(schema)


def test_a_schema_nested_too_deeply_is_an_error():
    schema = {"type": "null"}
    for _ in range(5000):
        schema = {"items": schema}
    with pytest.raises(ValueError, match="nested too deeply"):
        schema_regex(schema)
