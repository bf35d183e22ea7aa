"""JSON text, documents and references, and what the plan says besides its grammar."""

from __future__ import annotations

import json
from typing import Any

import pytest

from grammar_service.plan import plan_guide
from grammar_service.schema.document import Document
from grammar_service.schema.reader import read_json
from shared.errors import BadRequest, GrammarTooLarge, MaskstreamError, Unsatisfiable, UnsupportedSchema
from tests.engine_probe import accepts, matcher_of, producible


@pytest.mark.parametrize(
    "text",
    ["", "nope", '{"a":1,"a":2}', "[1e999]", "[NaN]", "[Infinity]", '"\\u0000"', '"\\ud800"', '{"\\u0000":1}', '"abc', "[1,]"],
)
def test_texts_that_are_no_clean_json_are_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        read_json(text)


def test_depth_and_nodes_are_limited_before_anything_recurses() -> None:
    with pytest.raises(GrammarTooLarge):
        read_json("[" * 100_000)
    with pytest.raises(GrammarTooLarge):
        read_json("[" + "0," * 20_000 + "0]")
    assert read_json('["' + "[" * 1_000 + '"]') == ["[" * 1_000]
    assert read_json('"\\\\u0000 \\ud83d\\ude00"') == "\\u0000 \U0001f600"


REFERENCES = [
    ({"$ref": "#/$defs/a", "$defs": {"a": {"const": 1}}}, "#/$defs/a", "/$defs/a"),
    ({"$defs": {"a/b~c": {}}}, "#/$defs/a~1b~0c", "/$defs/a~1b~0c"),
    ({"$defs": {"a b": {}}}, "#/$defs/a%20b", "/$defs/a b"),
    ({"$defs": {"a": {"$anchor": "here"}}}, "#here", "/$defs/a"),
    ({"$id": "http://x.org/root", "$defs": {"a": {"$id": "sub"}}}, "http://x.org/sub", "/$defs/a"),
    ({"$id": "http://x.org/root", "$defs": {"a": {"$id": "sub"}}}, "sub", "/$defs/a"),
    ({"$id": "http://x.org/root.json", "definitions": {"a": {}}}, "http://x.org/root.json#/definitions/a", "/definitions/a"),
    ({"$schema": "http://json-schema.org/draft-04/schema#", "definitions": {"a": {"id": "#old"}}}, "#old", "/definitions/a"),
    ({}, "#", ""),
]


@pytest.mark.parametrize(("schema", "reference", "expected"), REFERENCES)
def test_local_references_are_found(schema: Any, reference: str, expected: str) -> None:
    assert Document(schema).resolve(reference, "") == expected


def test_remote_and_dangling_references_are_refused() -> None:
    with pytest.raises(UnsupportedSchema):
        Document({}).resolve("http://x.org/other", "")
    with pytest.raises(BadRequest):
        Document({}).resolve("#/$defs/none", "")


def test_siblings_of_a_reference_count_from_2019_on_only() -> None:
    schema: dict[str, Any] = {"$ref": "#/definitions/s", "maxLength": 1, "definitions": {"s": {"type": "string"}}}
    assert not accepts("json_schema", schema, '"ab"')
    assert accepts("json_schema", {"$schema": "http://json-schema.org/draft-07/schema#", **schema}, '"ab"')


UNSATISFIABLE: list[Any] = [
    False, {"enum": []}, {"type": "string", "enum": [1]}, {"type": "integer", "minimum": 2, "maximum": 1}, {"$ref": "#"},
    {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}}, {"allOf": [{"type": "string"}, {"type": "null"}]},
    {"type": "string", "minLength": 3, "maxLength": 2}, {"type": "string", "pattern": "^a$", "minLength": 2}, {"not": {}},
    {"type": "array", "minItems": 1, "items": False}, {"oneOf": [{"type": "null"}, {"const": None}]},
    {"type": "object", "required": ["a"], "additionalProperties": False}, {"anyOf": [{"$ref": "#"}, False]},
    {"type": "array", "minItems": 3, "uniqueItems": True, "items": {"enum": [1, 2]}},
]  # fmt: skip


@pytest.mark.parametrize("schema", UNSATISFIABLE, ids=json.dumps)
def test_schemas_without_a_finite_instance_are_refused(schema: Any) -> None:  # spec R1
    with pytest.raises(Unsatisfiable):
        plan_guide("json_schema", json.dumps(schema))


MALFORMED: list[Any] = [
    {"type": "foo"}, {"type": 5}, {"type": []}, {"properties": []}, {"required": "a"}, {"minimum": "1"}, {"minLength": -1},
    {"multipleOf": 0}, {"allOf": []}, {"allOf": {}}, {"enum": 1}, {"$ref": 1}, {"items": 3}, {"pattern": 1}, [], 5, "x",
    {"uniqueItems": 1}, {"properties": {"a": 1}}, {"dependentRequired": {"a": "b"}},
]  # fmt: skip


@pytest.mark.parametrize("schema", MALFORMED, ids=json.dumps)
def test_malformed_schemas_are_bad_requests(schema: Any) -> None:
    with pytest.raises(BadRequest):
        plan_guide("json_schema", json.dumps(schema))


def test_a_refusal_names_pointer_keyword_and_a_way_out() -> None:  # spec R1
    schema = {"properties": {"a": {"type": "string", "pattern": "(x)\\1"}}}
    with pytest.raises(UnsupportedSchema) as caught:
        plan_guide("json_schema", json.dumps(schema))
    assert (caught.value.pointer, caught.value.keyword) == ("/properties/a/pattern", "pattern")
    assert "rewrite" in caught.value.message


def test_validate_drops_the_keyword_and_says_so() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(x)\\1"}, "b": {"type": "integer"}}}
    plan = plan_guide("json_schema", json.dumps(schema), on_unsupported="validate")
    matcher = matcher_of(plan)
    assert plan.validate_after
    assert plan.dropped == ["#/properties/a/pattern pattern"]
    assert producible(matcher, '{"a":"xx","b":1}')
    assert not producible(matcher, '{"a":1}')


def test_a_dropped_keyword_is_dropped_under_not_as_well() -> None:
    schema = {"type": "string", "not": {"pattern": "(x)\\1"}}
    plan = plan_guide("json_schema", json.dumps(schema), on_unsupported="validate")
    assert producible(matcher_of(plan), '"ab"')


@pytest.mark.parametrize("spaces", [0, 1, 8])
def test_white_space_is_bounded(spaces: int) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer", "multipleOf": 7}}}}
    matcher = matcher_of(plan_guide("json_schema", json.dumps(schema), max_whitespace=spaces))
    gap = " " * spaces
    assert producible(matcher, f'{{{gap}"a"{gap}:{gap}[{gap}7{gap},{gap}14{gap}]{gap}}}')
    assert not producible(matcher, f'{{{gap} "a":[7]}}')
    assert not producible(matcher, f'{{"a":[{gap} 7]}}')
    assert not producible(matcher, ' {"a":[7]}')


@pytest.mark.parametrize(("kind", "value"), [("choice", ["a", 1]), ("choice", "x"), ("regex", 3), ("nope", ""), ("ebnf", None)])
def test_values_of_the_wrong_kind_are_refused(kind: str, value: Any) -> None:
    with pytest.raises(MaskstreamError):
        plan_guide(kind, value)


def test_the_order_of_properties_can_be_fixed() -> None:
    schema = json.dumps({"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": False})
    matcher = matcher_of(plan_guide("json_schema", schema, any_order=False))
    assert producible(matcher, '{"a":1,"b":2}')
    assert not producible(matcher, '{"b":1,"a":2}')
    assert producible(matcher_of(plan_guide("json_schema", schema)), '{"b":1,"a":2}')
