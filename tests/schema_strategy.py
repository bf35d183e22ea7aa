"""Random schemas over all keywords and values that come near to them, for the property tests."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st

NAMES = ["a", "b", "c", "x_1"]
PATTERNS = ["^a", "b$", "^[ab]+$", "^x_", "[0-9]", "^.{2}$", "^(?!a)", "^$", "a|b", "\\S", "^\\w+$"]
NUMBERS = [-3, -1.5, -1, 0, 0.5, 1, 2, 2.5, 3, 7, 10, 100]
SCALARS = st.sampled_from([None, True, False, 0, 1, 2, -1, 1.5, 3, "", "a", "ab", "ba", "x_1", "abc", "7"])
FORMATS = ["date", "time", "date-time", "ipv4", "ipv6", "uuid", "email", "hostname", "uri", "json-pointer", "regex", "x-unknown"]
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]
THREE = {"$anchor": "three", "type": ["integer", "string"], "maxLength": 2}
LATER = ("prefixItems", "minContains", "maxContains", "dependentRequired", "dependentSchemas", "unevaluatedProperties",
         "unevaluatedItems")  # fmt: skip

values = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*NAMES, "z"]), inner, max_size=3),
    max_leaves=6,
)
counts = st.integers(0, 3)


def _keywords(inner: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    schemas = st.lists(inner, min_size=1, max_size=3)
    props = st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    names = st.lists(st.sampled_from(NAMES), unique=True, max_size=2)
    return {
        "type": st.sampled_from(TYPES) | st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True),
        "enum": st.lists(values, min_size=1, max_size=4),
        "const": values,
        "minimum": st.sampled_from(NUMBERS),
        "maximum": st.sampled_from(NUMBERS),
        "exclusiveMinimum": st.sampled_from(NUMBERS),
        "exclusiveMaximum": st.sampled_from(NUMBERS),
        "multipleOf": st.sampled_from([1, 2, 5, 0.5]),
        "minLength": counts,
        "maxLength": counts,
        "pattern": st.sampled_from(PATTERNS),
        "format": st.sampled_from(FORMATS),
        "items": inner,
        "prefixItems": schemas,
        "minItems": counts,
        "maxItems": counts,
        "uniqueItems": st.booleans(),
        "contains": inner,
        "minContains": counts,
        "maxContains": counts,
        "properties": props,
        "patternProperties": st.dictionaries(st.sampled_from(PATTERNS[:5]), inner, max_size=2),
        "additionalProperties": inner,
        "required": names,
        "minProperties": counts,
        "maxProperties": counts,
        "propertyNames": inner,
        "allOf": schemas,
        "anyOf": schemas,
        "oneOf": schemas,
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "dependentRequired": st.dictionaries(st.sampled_from(NAMES), names, max_size=2),
        "dependentSchemas": st.dictionaries(st.sampled_from(NAMES), inner, max_size=2),
        "unevaluatedProperties": inner,
        "unevaluatedItems": inner,
        "title": st.just("t"),
        "default": values,
        "$ref": st.sampled_from(["#/$defs/one", "#/$defs/two", "#three"]),
    }


def _older_keywords(inner: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    """Draft 7: what later drafts added left out, what they took away put in."""
    table = {name: strategy for name, strategy in _keywords(inner).items() if name not in LATER}
    names = st.lists(st.sampled_from(NAMES), unique=True, max_size=2)
    table["items"] = inner | st.lists(inner, min_size=1, max_size=3)
    table["additionalItems"] = inner
    table["dependencies"] = st.dictionaries(st.sampled_from(NAMES), names | inner, max_size=2)
    table["$ref"] = st.sampled_from(["#/definitions/one", "#/definitions/two"])
    return table


@st.composite
def _some_keywords(draw: st.DrawFn, table: dict[str, st.SearchStrategy[Any]]) -> dict[str, Any]:
    chosen = draw(st.lists(st.sampled_from(sorted(table)), min_size=1, max_size=4, unique=True))
    return {name: draw(table[name]) for name in chosen}


@cache
def _schemas(depth: int, older: bool = False) -> st.SearchStrategy[Any]:
    typed = st.fixed_dictionaries({"type": st.sampled_from(TYPES)})
    leaf = st.booleans() | st.just({}) | typed | st.fixed_dictionaries({"const": SCALARS})
    return leaf if depth == 0 else leaf | _nested(depth, older)


@cache
def _nested(depth: int, older: bool) -> st.SearchStrategy[Any]:
    """Schemas with some keywords, and ``depth`` levels of schemas in all."""
    inner = _schemas(depth - 1, older)
    return _some_keywords(_older_keywords(inner) if older else _keywords(inner))


@st.composite
def documents(draw: st.DrawFn, depth: int = 3) -> Any:
    """A schema with definitions that any part may refer to."""
    root = draw(_nested(depth, False))
    return {**root, "$defs": {"one": draw(_schemas(1)), "two": draw(_schemas(2)), "three": THREE}}


@st.composite
def older_documents(draw: st.DrawFn, depth: int = 3) -> Any:
    """A schema of draft 7."""
    root = draw(_nested(depth, True))
    definitions = {"one": draw(_schemas(1, True)), "two": draw(_schemas(2, True))}
    return {"$schema": "http://json-schema.org/draft-07/schema#", **root, "definitions": definitions}
