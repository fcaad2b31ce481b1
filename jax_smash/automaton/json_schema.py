"""JSON schemas as regular expressions.

Every text that the expression matches is JSON and fits the schema; not every document that fits is matched. Objects
have their properties in the order of the schema and no others, `oneOf` is read as `anyOf`, a `pattern` must match the
whole string, spaces stand singly, and numbers have at most 16 digits on either side of the point. Where a keyword
cannot be kept, the schema is refused.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jax_smash.automaton.json_number import DIGITS, integer_between, number_between
from jax_smash.automaton.regex import byte_machine

_SPACE = " ?"
_COMMA = f",{_SPACE}"
_CHARACTER = r'(?:[^"\\\x00-\x1f\x7f-\x9f]|\\["\\/bfnrt])'
_STRING = f'"{_CHARACTER}*"'
_INTEGER = rf"(?:0|-?[1-9][0-9]{{0,{DIGITS - 1}}})"
_NUMBER = rf"-?(?:0|[1-9][0-9]{{0,{DIGITS - 1}}})(?:\.[0-9]{{1,{DIGITS}}})?(?:[eE][+-]?[0-9]{{1,2}})?"
_BOOLEAN = "(?:true|false)"
_ANY_DEPTH = 2

_DATE = "[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_OF_URI = "(?:[A-Za-z0-9._~:/?@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})"
# A date's day stops at 28, so that it exists in every month.
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "email": rf"[A-Za-z0-9_+-]+(?:\.[A-Za-z0-9_+-]+)*@{_LABEL}(?:\.{_LABEL})+",
    "uri": f"[a-z][a-z0-9+.-]*://{_OF_URI}+(?:#{_OF_URI}*)?",
    "ipv4": rf"{_OCTET}(?:\.{_OCTET}){{3}}",
}

_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_"}
"""Classes of a `pattern`, which are those of ECMA-262: other digits and letters of Unicode are not among them."""

_ANNOTATIONS = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "discriminator"}
_ANNOTATIONS |= {"$schema", "$id", "$comment", "$anchor", "$defs", "definitions"}
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_KEYWORDS: dict[str, tuple[str, ...]] = {
    "null": (),
    "boolean": (),
    "integer": _BOUNDS,
    "number": _BOUNDS,
    "string": ("minLength", "maxLength", "pattern", "format"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "object": ("properties", "required", "additionalProperties"),
}


def schema_regex(schema: Any) -> str:
    """Returns a regular expression for documents that fit a JSON schema, given as `json.loads` returns it.

    Raises:
      ValueError: the schema is invalid, recursive, has a keyword that cannot be kept, or fits nothing.
    """
    try:
        return _Compiler(schema).value(schema, "#")
    except RecursionError:
        raise ValueError("JSON schema is nested too deeply") from None


class _Compiler:
    """Holds the whole schema, for references into it."""

    def __init__(self, root: Any):
        self.root = root
        self.open: list[str] = []

    def value(self, schema: Any, where: str) -> str:
        """Returns the expression of one subschema; `where` is its place, for messages."""
        if schema is True:
            return _anything(_ANY_DEPTH)
        if not isinstance(schema, Mapping):
            raise ValueError(f"JSON schema at {where} must be an object or true; got {json.dumps(schema)[:80]}")
        for keyword in ("$ref", "anyOf", "oneOf", "allOf", "enum", "const"):
            if keyword in schema:
                break
        else:
            return self.typed(schema, where)
        content = schema[keyword]
        if keyword in ("enum", "const"):
            _only(schema, where, (keyword, "type"))
            return _literal(_list(content, f"{where}/enum") if keyword == "enum" else [content], schema, where)
        _only(schema, where, (keyword,))
        if keyword == "$ref":
            return self.reference(content, where)
        choices = _list(content, f"{where}/{keyword}")
        if keyword == "allOf" and len(choices) > 1:
            raise ValueError(f"JSON schema at {where}/allOf must have one entry; got {len(choices)}")
        return _either(self.value(choice, f"{where}/{keyword}/{i}") for i, choice in enumerate(choices))

    def reference(self, target: Any, where: str) -> str:
        """Returns the expression of the subschema that a local reference points to."""
        if not isinstance(target, str) or not target.startswith("#"):
            raise ValueError(f"JSON schema at {where}/$ref must begin with #; got {target!r}")
        if target in self.open:
            raise ValueError(f"JSON schema at {where}/$ref must not lead back to itself; got {target!r}")
        found = self.root
        for part in target.lstrip("#/").split("/") if target.strip("#/") else ():
            part = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or part not in found:
                raise ValueError(f"JSON schema at {where}/$ref must point into the schema; got {target!r}")
            found = found[part]
        self.open.append(target)
        regex = self.value(found, target)
        self.open.pop()
        return regex

    def typed(self, schema: Mapping[str, Any], where: str) -> str:
        """Returns the expression of a schema that names its type or types, or implies one by its keywords."""
        kinds = schema.get("type")
        if kinds is None:
            implied = [k for k in ("object", "array", "string") if any(word in schema for word in _KEYWORDS[k])]
            if not implied:
                _only(schema, where, ())
                return _anything(_ANY_DEPTH)
            kinds = implied[:1]
        kinds = [kinds] if isinstance(kinds, str) else _list(kinds, f"{where}/type")
        for kind in kinds:
            if not isinstance(kind, str) or kind not in _KEYWORDS:
                raise ValueError(f"JSON schema at {where}/type must be of {', '.join(_KEYWORDS)}; got {kind!r}")
        _only(schema, where, ("type", *(word for kind in kinds for word in _KEYWORDS[kind])))
        return _either(self.one_type(kind, schema, where) for kind in kinds)

    def one_type(self, kind: str, schema: Mapping[str, Any], where: str) -> str:
        """Returns the expression of one type, with the keywords of the schema that belong to it."""
        if kind == "string":
            return _string(schema, where)
        if kind == "array":
            return self.array(schema, where)
        if kind == "object":
            return self.object(schema, where)
        if kind in ("integer", "number") and any(word in schema for word in _BOUNDS):
            return (integer_between if kind == "integer" else number_between)(schema, where)
        return {"null": "null", "boolean": _BOOLEAN, "integer": _INTEGER, "number": _NUMBER}[kind]

    def array(self, schema: Mapping[str, Any], where: str) -> str:
        """Returns the expression of an array: a fixed row of items, or a count of items that are alike."""
        least, most = _counts(schema, "minItems", "maxItems", where)
        if "prefixItems" in schema:
            prefix = _list(schema["prefixItems"], f"{where}/prefixItems")
            if not least <= len(prefix) <= (len(prefix) if most is None else most):
                raise ValueError(f"JSON schema at {where} must allow as many items as its {len(prefix)} prefixItems")
            items = [self.value(item, f"{where}/prefixItems/{i}") for i, item in enumerate(prefix)]
            return _bracketed("[", _COMMA.join(items), "]")
        if most == 0:
            return r"\[\]"
        item = self.value(schema.get("items", True), f"{where}/items")
        return _bracketed("[", _repeated(item, least, most), "]")

    def object(self, schema: Mapping[str, Any], where: str) -> str:
        """Returns the expression of an object: the properties of the schema in order, or any names."""
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            raise ValueError(f"JSON schema at {where} must have an object as properties and a list as required")
        missing = [name for name in required if not isinstance(name, str) or name not in properties]
        if missing:
            raise ValueError(f"JSON schema at {where}/required must name properties; got {missing}")
        if not properties:
            others = schema.get("additionalProperties", True)
            if others is False:
                return r"\{\}"
            value = self.value(others, f"{where}/additionalProperties")
            return _bracketed("{", _repeated(f"{_STRING}:{_SPACE}{value}", 0, None), "}")
        members = [
            (
                f"{_quoted(name)}:{_SPACE}{self.value(content, f'{where}/properties/{name}')}",
                name in required,
            )
            for name, content in properties.items()
        ]
        return _bracketed("{", _members(members), "}")


def _members(members: list[tuple[str, bool]]) -> str:
    """Returns the expression of members in order, (expression, required) each, with commas between those present."""
    first = next((i for i, (_, required) in enumerate(members) if required), None)
    if first is None:
        # One alternative for each member that could be the first; then every later one brings its comma.
        tails = [
            m + "".join(f"(?:{_COMMA}{later})?" for later, _ in members[i + 1 :]) for i, (m, _) in enumerate(members)
        ]
        return f"(?:{'|'.join(tails)})?"
    before = "".join(f"(?:{m}{_COMMA})?" for m, _ in members[:first])
    after = "".join(f"{_COMMA}{m}" if required else f"(?:{_COMMA}{m})?" for m, required in members[first + 1 :])
    return before + members[first][0] + after


def _string(schema: Mapping[str, Any], where: str) -> str:
    given = [word for word in ("pattern", "format") if word in schema]
    counted = "minLength" in schema or "maxLength" in schema
    if len(given) + counted > 1:
        raise ValueError(f"JSON schema at {where} must have only one of pattern, format and a length")
    if "format" in schema:
        if schema["format"] not in _FORMATS:
            raise ValueError(
                f"JSON schema at {where}/format must be of {', '.join(_FORMATS)}; got {schema['format']!r}"
            )
        return f'"{_FORMATS[schema["format"]]}"'
    if "pattern" in schema:
        return f'"(?:{_inner_pattern(schema["pattern"], where)})"'
    if not counted:
        return _STRING
    least, most = _counts(schema, "minLength", "maxLength", where)
    return f'"{_CHARACTER}{{{least},{"" if most is None else most}}}"'


def _inner_pattern(pattern: Any, where: str) -> str:
    """Returns a pattern in Rust's syntax without its outer anchors, once it matches nothing that JSON would escape."""
    if not isinstance(pattern, str):
        raise ValueError(f"JSON schema at {where}/pattern must be a string; got {pattern!r}")
    inner = pattern.removeprefix("^")
    if re.search(r"(?<!\\)(?:\\\\)*\$$", inner):
        inner = inner[:-1]
    inner = _with_own_classes(inner, where)
    try:
        bytes_matched = np.nonzero(byte_machine(inner).next_state >= 0)[1]
    except ValueError as error:
        raise ValueError(f"JSON schema at {where}/pattern: {error}") from None
    if any(byte < 0x20 or byte in b'"\\' for byte in np.unique(bytes_matched).tolist()):
        raise ValueError(
            f"JSON schema at {where}/pattern must not match quotes, backslashes or control characters, as "
            rf"[^\"\\\x00-\x1f] does not; got {pattern!r}"
        )
    return inner


def _with_own_classes(pattern: str, where: str) -> str:
    """Returns a pattern with `_CLASSES` written out."""
    inside = False

    def written(found: re.Match[str]) -> str:
        nonlocal inside
        part = found[0]
        if len(part) == 1:
            inside = part == "[" or (inside and part != "]")
            return part
        name = part[1].lower()
        if name not in _CLASSES:
            return part
        if part[1] == name:
            return _CLASSES[name] if inside else f"[{_CLASSES[name]}]"
        if inside:
            raise ValueError(f"JSON schema at {where}/pattern must not have {part} between brackets")
        return f"[^{_CLASSES[name]}]"

    return re.sub(r"\\.|[\[\]]", written, pattern, flags=re.DOTALL)


def _literal(values: list[Any], schema: Mapping[str, Any], where: str) -> str:
    """Returns the expression of given values, those alone that have the schema's type."""
    kinds = schema.get("type")
    kinds = kinds if kinds is None or isinstance(kinds, list) else [kinds]
    fitting = [v for v in values if kinds is None or any(_has_type(v, kind) for kind in kinds)]
    if not fitting:
        raise ValueError(f"JSON schema at {where} must allow a value; got none of type {kinds}")
    try:
        texts = [json.dumps(value, ensure_ascii=False, allow_nan=False) for value in fitting]
    except ValueError as error:
        raise ValueError(f"JSON schema at {where}: {error}") from error
    return _either(map(re.escape, texts))


def _has_type(value: Any, kind: Any) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    kinds: dict[type, tuple[str, ...]] = {int: ("integer", "number"), float: ("number",), str: ("string",)}
    kinds |= {list: ("array",), dict: ("object",), type(None): ("null",)}
    return kind in kinds.get(type(value), ())


def _anything(depth: int) -> str:
    """Returns the expression of any document whose arrays and objects nest at most so deep."""
    simple = f"null|{_BOOLEAN}|{_NUMBER}|{_STRING}"
    if not depth:
        return f"(?:{simple})"
    inner = _anything(depth - 1)
    array = _bracketed("[", _repeated(inner, 0, None), "]")
    mapping = _bracketed("{", _repeated(f"{_STRING}:{_SPACE}{inner}", 0, None), "}")
    return f"(?:{simple}|{array}|{mapping})"


def _repeated(item: str, least: int, most: int | None) -> str:
    """Returns the expression of items with commas between them; `most` is not 0."""
    rest = f"(?:{_COMMA}{item}){{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
    return f"{item}{rest}" if least else f"(?:{item}{rest})?"


def _bracketed(left: str, inner: str, right: str) -> str:
    return f"\\{left}{_SPACE}{inner}{_SPACE}\\{right}"


def _either(choices: Iterable[str]) -> str:
    return f"(?:{'|'.join(choices)})"


def _quoted(name: str) -> str:
    return re.escape(json.dumps(name, ensure_ascii=False))


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"JSON schema at {where} must be a list with at least one entry; got {value!r}")
    return value


def _counts(schema: Mapping[str, Any], least: str, most: str, where: str) -> tuple[int, int | None]:
    """Returns the least and the largest count that two keywords name; None for no largest."""
    low, high = schema.get(least, 0), schema.get(most)
    for word, value in ((least, low), (most, 0 if high is None else high)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ValueError(f"JSON schema at {where}/{word} must be a whole number, at least 0; got {value!r}")
    if high is not None and high < low:
        raise ValueError(f"JSON schema at {where}/{most} must be at least {least} = {low}; got {high}")
    return low, high


def _only(schema: Mapping[str, Any], where: str, supported: Iterable[str]) -> None:
    supported = list(dict.fromkeys(supported))
    for keyword in schema:
        if keyword not in _ANNOTATIONS and keyword not in supported:
            raise ValueError(
                f"JSON schema keyword {keyword!r} at {where} is not supported there; "
                f"supported are {', '.join(supported) or 'annotations alone'}"
            )
