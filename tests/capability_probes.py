"""For each row of the capability table: a schema, values that must be possible, values that must not."""

from __future__ import annotations

from typing import Any

OBJ = {"type": "object"}
AB = {"properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
ANY: list[Any] = []

# (keyword, context): (schema, possible, impossible)
PROBES: dict[tuple[str, str], tuple[Any, list[Any], list[Any]]] = {
    ("type", "one or several"): ({"type": ["integer", "null"]}, [1, None], ["a", 1.5, True, [], {}]),
    ("nullable", "beside type"): ({"type": "string", "nullable": True}, [None, "a"], [1]),
    ("enum", "any values"): ({"enum": ["a", 1, None, {"a": [1]}], "not": {"const": 1}}, ["a", None, {"a": [1]}], [1, "b", {}]),
    ("const", "any value"): ({"const": {"a": [True, "x"]}}, [{"a": [True, "x"]}], [{"a": [True]}, None]),
    ("minimum", "any size"): ({"type": "integer", "minimum": 2**63}, [2**63, 2**70], [2**63 - 1, 0]),
    ("maximum", "any size"): ({"type": "number", "maximum": 2.5}, [2.5, -7, 0], [2.51, 3]),
    ("exclusiveMinimum", "number or draft 4 boolean"): ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, [4], [3]),
    ("exclusiveMaximum", "number or draft 4 boolean"): ({"type": "number", "exclusiveMaximum": 1}, [0.99], [1, 1.5]),
    ("multipleOf", "steps whose last three digits decide"): (
        {"type": "number", "multipleOf": 0.25}, [0.5, 3.75, -1], [0.3, 0.125],
    ),
    ("multipleOf", "other steps"): ({"type": "integer", "multipleOf": 7}, [14, -7, 0], [13, 1]),
    ("multipleOf", "other steps beside not or excluded values"): (
        {"type": "integer", "multipleOf": 7, "not": {"const": 7}}, ANY, ANY,
    ),
    ("minLength", "with pattern and format"): ({"type": "string", "minLength": 3, "pattern": "^a+$"}, ["aaa"], ["aa", "bbb"]),
    ("maxLength", "with pattern and format"): ({"type": "string", "maxLength": 2, "pattern": "^\\S+$"}, ["é"], ["", "aaa", " "]),
    ("pattern", "search, anchors, look-ahead"): ({"type": "string", "pattern": "b|^a(?!x)$"}, ["ab", "a"], ["ax", "", "c"]),
    ("pattern", "back-reference, look-behind, word boundary"): ({"type": "string", "pattern": "(a)\\1"}, ANY, ANY),
    ("format", "known formats"): ({"type": "string", "format": "date"}, ["2024-02-29"], ["2026-02-29", "2026-13-01", "x"]),
    ("format", "regex, iri, idn-*"): (
        {"type": "string", "format": "regex"}, ["^[a-z]+$", "^[a-zA-Z_-]{3,16}$", "['\"]{2}", "a{1,1}b{0,10}"],
        ["(a", "[", "a{3,2}"],
    ),
    ("items", "schema, boolean, or draft 7 tuple"): ({"type": "array", "items": {"type": "integer"}}, [[], [1, 2]], [["a"], {}]),
    ("prefixItems", "with items"): (
        {"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 2}}, [[], [1, 2, 2]], [[2], [1, 1]],
    ),
    ("additionalItems", "behind a draft 7 tuple"): ({"type": "array", "items": [{}], "additionalItems": False}, [[1]], [[1, 2]]),
    ("minItems", ""): ({"type": "array", "minItems": 2}, [[1, 2], [1, 2, 3]], [[], [1]]),
    ("maxItems", ""): ({"type": "array", "maxItems": 1}, [[], [1]], [[1, 2]]),
    ("uniqueItems", "up to 5 possible values"): ({"type": "array", "items": {"enum": [1, "a", None]}, "uniqueItems": True},
                                                 [[], [None, 1, "a"]], [[1, 1], [None, "a", None]]),
    ("uniqueItems", "up to 63 possible values"): ({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9},
                                                   "uniqueItems": True}, [[9, 0, 5]], [[3, 3]]),
    ("uniqueItems", "strings or integers"): ({"type": "array", "items": {"type": "string"}, "uniqueItems": True},
                                             [["a", "b"], []], [["a", "a"], ["xyz", "b", "xyz"]]),
    ("uniqueItems", "objects that must have a string"): (
        {"type": "array", "items": {**OBJ, "properties": {"n": {"type": "string"}}, "required": ["n"]}, "uniqueItems": True},
        [[], [{"n": "a"}, {"n": "b", "z": 1}]], [[{"n": "a"}, {"n": "a"}]],
    ),
    ("uniqueItems", "other items"): ({"type": "array", "items": {"type": "object"}, "uniqueItems": True}, ANY, ANY),
    ("contains", "with minContains and maxContains"): ({"type": "array", "contains": {"const": 1}, "maxContains": 2},
                                                       [[1], [0, 1, 1]], [[], [0], [1, 1, 1]]),
    ("minContains", ""): ({"type": "array", "contains": {"const": 1}, "minContains": 2}, [[1, 0, 1]], [[1], [0, 0]]),
    ("maxContains", ""): (
        {"type": "array", "contains": {"const": 1}, "minContains": 0, "maxContains": 1}, [[], [1, 2]], [[1, 1]],
    ),
    ("properties", "up to 63 in one object"): ({**OBJ, **AB}, [{"a": 1, "b": "x"}, {"b": "x"}, {"c": 1}], [{"a": "x"}, {"b": 1}]),
    ("properties", "false as a schema"): ({**OBJ, "properties": {"a": False}}, [{}, {"b": 1}], [{"a": 1}]),
    ("required", "declared or not"): ({**OBJ, **AB, "required": ["a", "z"]}, [{"a": 1, "z": 1}], [{"a": 1}, {"z": 1}]),
    ("additionalProperties", "schema or boolean"): (
        {**OBJ, **AB, "additionalProperties": {"const": 1}}, [{"a": 2, "c": 1}], [{"c": 2}],
    ),
    ("patternProperties", "overlapping too"): ({**OBJ, "patternProperties": {"^a": {"type": "integer"}, "b$": {"minimum": 5}}},
                                               [{"ab": 5, "ax": 1}, {"b": "x"}], [{"ab": 4}, {"ax": "x"}, {"b": 4}]),
    ("propertyNames", ""): ({**OBJ, "propertyNames": {"maxLength": 2}}, [{}, {"ab": 1}], [{"abc": 1}]),
    ("minProperties", "declared properties"): (
        {**OBJ, **AB, "minProperties": 2, "additionalProperties": False}, [{"a": 1, "b": "x"}], [{}, {"a": 1}],
    ),
    ("minProperties", "two or more undeclared needed"): ({**OBJ, "minProperties": 2}, ANY, ANY),
    ("maxProperties", ""): ({**OBJ, **AB, "maxProperties": 1}, [{}, {"a": 1}, {"z": 1}], [{"a": 1, "b": "x"}, {"a": 1, "z": 1}]),
    ("dependentRequired", ""): (
        {**OBJ, **AB, "dependentRequired": {"a": ["b"]}}, [{}, {"b": "x"}, {"a": 1, "b": "x"}], [{"a": 1}],
    ),
    ("dependentSchemas", ""): ({**OBJ, **AB, "dependentSchemas": {"a": {"maxProperties": 1}}}, [{"a": 1}], [{"a": 1, "b": "x"}]),
    ("dependencies", "names or schemas"): ({**OBJ, **AB, "dependencies": {"a": ["b"]}}, [{"a": 1, "b": "x"}], [{"a": 1}]),
    ("allOf", ""): ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, [3], [2, "x"]),
    ("anyOf", ""): ({"anyOf": [{"type": "integer"}, {"const": "x"}]}, [3, "x"], ["y", None]),
    ("oneOf", "disjoint"): ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, [1, "a"], [None, 1.5]),
    ("oneOf", "overlapping"): ({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 5}]}, [3, 5.5], [7, 4.5]),
    ("not", "any schema"): ({**OBJ, **AB, "not": {"required": ["a"], "properties": {"b": {"const": "x"}}}},
                            [{}, {"b": "x"}, {"a": 1, "b": "y"}], [{"a": 1}, {"a": 1, "b": "x"}]),
    ("if", "with then and else"): ({**OBJ, **AB, "if": {"required": ["a"]}, "then": {"required": ["b"]},
                                    "else": {"maxProperties": 0}},
                                   [{}, {"a": 1, "b": "x"}], [{"a": 1}, {"b": "x"}]),
    ("then", ""): ({"type": "integer", "if": {"minimum": 5}, "then": {"multipleOf": 5}}, [1, 5], [6]),
    ("else", ""): ({"type": "integer", "if": {"minimum": 5}, "else": {"multipleOf": 2}}, [7, 2], [3]),
    ("$ref", "inside the document, with siblings"): (
        {"$ref": "#/$defs/s", "maxLength": 1, "$defs": {"s": {"type": "string"}}}, ["a"], ["ab", 1],
    ),
    ("$ref", "to another document"): ({"$ref": "https://example.com/s"}, ANY, ANY),
    ("unevaluatedProperties", "behind in-place applicators"): (
        {**OBJ, "allOf": [AB], "unevaluatedProperties": False}, [{"a": 1}], [{"c": 1}, {"a": "x"}]),
    ("unevaluatedItems", ""): ({"type": "array", "unevaluatedItems": False}, ANY, ANY),
    ("$dynamicRef", ""): ({"$dynamicRef": "#x"}, ANY, ANY),
}  # fmt: skip
