"""Random schemas over all keywords and values that come near to them, for the property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

NAMES = ["a", "b", "c", "x_1"]
PATTERNS = ["^a", "b$", "^[ab]+$", "^x_", "[0-9]", "^.{2}$", "^(?!a)", "^$", "a|b", "\\S", "^\\w+$"]
NUMBERS = [-3, -1.5, -1, 0, 0.5, 1, 2, 2.5, 3, 7, 10, 100]
SCALARS = st.sampled_from([None, True, False, 0, 1, 2, -1, 1.5, 3, "", "a", "ab", "ba", "x_1", "abc", "7"])
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]

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
        "$ref": st.sampled_from(["#/$defs/one", "#/$defs/two"]),
    }


@st.composite
def _some_keywords(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    table = _keywords(inner)
    chosen = draw(st.lists(st.sampled_from(sorted(table)), min_size=1, max_size=4, unique=True))
    return {name: draw(table[name]) for name in chosen}


def _schemas(depth: int) -> st.SearchStrategy[Any]:
    typed = st.fixed_dictionaries({"type": st.sampled_from(TYPES)})
    leaf = st.booleans() | st.just({}) | typed | st.fixed_dictionaries({"const": SCALARS})
    return leaf if depth == 0 else leaf | _some_keywords(_schemas(depth - 1))


@st.composite
def documents(draw: st.DrawFn, depth: int = 3) -> Any:
    """A schema with two definitions that any part may refer to."""
    root = draw(_some_keywords(_schemas(depth - 1)))
    return {**root, "$defs": {"one": draw(_schemas(1)), "two": draw(_schemas(2))}}
