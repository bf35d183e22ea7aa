"""Guides: the spellings of a request, what is refused, the canonical form and the key."""

import msgspec
import pytest

from shared.errors import BadRequest
from shared.guide import KINDS, MAX_GUIDE_BYTES, Guide, canonical, from_response_format, guide_from_request, key_of, make_guide

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"const": "ü"}}}
SCHEMA_TEXT = '{"type":"object","properties":{"b":{"type":"integer"},"a":{"const":"ü"}}}'


@pytest.mark.parametrize(
    ("spec", "kind", "text"),
    [
        ({"json": SCHEMA}, "json_schema", SCHEMA_TEXT),  # vLLM's json means a schema
        ({"json": '{"type": "string"}'}, "json_schema", '{"type": "string"}'),
        ({"json": True}, "json_schema", "true"),
        ({"json_object": True}, "json_object", ""),
        ({"any_json": True}, "json", ""),
        ({"regex": "[a-z]+"}, "regex", "[a-z]+"),
        ({"choice": ["a", 'b"']}, "choice", '["a","b\\""]'),
        ({"grammar": 'root ::= "a"'}, "ebnf", 'root ::= "a"'),
        ({"ebnf": 'root ::= "a"'}, "ebnf", 'root ::= "a"'),
        ({"lark": 'start: "a"'}, "lark", 'start: "a"'),  # spec 8: ebnf and lark are two kinds
        ({"structural_tag": {"type": "structural_tag", "format": {}}}, "structural_tag", '{"type":"structural_tag","format":{}}'),
    ],
)
def test_structured_outputs(spec, kind, text):  # spec 4, 10
    guide = guide_from_request(None, spec)
    assert (guide.kind, guide.text) == (kind, text)


@pytest.mark.parametrize(
    ("spec", "kind", "text"),
    [
        ({"type": "json_object"}, "json_object", ""),
        ({"type": "json"}, "json", ""),
        ({"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}, "json_schema", SCHEMA_TEXT),
        ({"type": "json_schema", "schema": SCHEMA}, "json_schema", SCHEMA_TEXT),
        ({"type": "json_schema", "json_schema": SCHEMA}, "json_schema", SCHEMA_TEXT),
        ({"type": "regex", "pattern": "a|b"}, "regex", "a|b"),
        ({"type": "ebnf", "grammar": 'root ::= "a"'}, "ebnf", 'root ::= "a"'),
        ({"type": "lark", "grammar": 'start: "a"'}, "lark", 'start: "a"'),
        ({"type": "choice", "choice": ["a"]}, "choice", '["a"]'),
        ({"type": "structural_tag", "format": {"a": 1}}, "structural_tag", '{"type":"structural_tag","format":{"a":1}}'),
        ({"type": "structural_tag", "structural_tag": {"a": 1}}, "structural_tag", '{"a":1}'),
    ],
)
def test_response_format(spec, kind, text):  # spec 11, 14
    guide = guide_from_request(spec, None)
    assert (guide.kind, guide.text) == (kind, text)


def test_triggered_tags_are_carried():  # spec 11, 14
    tags = [{"begin": "<f>", "content": {"type": "any_text"}, "end": "</f>"}]
    spec = {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<f"], "tags": tags}, "engine": "xgrammar"}
    guide = from_response_format(spec)
    assert msgspec.json.decode(guide.text) == {"type": "structural_tag", "format": spec["format"]}
    assert guide.engine == "xgrammar"


@pytest.mark.parametrize(
    ("response_format", "structured_outputs"),
    [
        (None, None), ({}, {}), ({"type": "text"}, None), (None, {"json_object": False}), (None, {"regex": None}),
        (None, {"engine": "auto"}),
    ],
)  # fmt: skip
def test_no_guide(response_format, structured_outputs):  # spec 10: zero is allowed
    assert guide_from_request(response_format, structured_outputs) is None


def test_text_beside_a_guide_is_one_guide():
    assert guide_from_request({"type": "text"}, {"regex": "a"}).kind == "regex"


@pytest.mark.parametrize(
    ("response_format", "structured_outputs", "field", "part"),
    [
        (None, {"regex": "a", "choice": ["b"]}, "structured_outputs", "2 guides given (regex, choice)"),  # the count is named
        (None, {"regex": "a", "lark": "b", "json": {}}, "structured_outputs", "3 guides"),
        ({"type": "json"}, {"regex": "a"}, "response_format", "2 guides"),
        (None, {"regx": "a"}, "structured_outputs.regx", "one of json"),
        ({"type": "jason"}, None, "response_format.type", "one of json_object"),
        ({"type": []}, None, "response_format.type", "one of json_object"),
        ({"type": "regex"}, None, "response_format.pattern", "takes a string"),
        ({"type": "regex", "pattern": "a", "patern": 1}, None, "response_format.patern", "unknown field"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, None, "response_format.json_schema.schema", "no schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}, "x": 1}}, None, "response_format.json_schema.x", "unknown"),
        ({"type": "json_schema", "json_schema": {}, "schema": {}}, None, "response_format.schema", "exactly one"),
        (None, {"choice": []}, None, None),
        (None, {"choice": "abc"}, "structured_outputs.choice", "list of strings"),
        (None, {"choice": ["a", 1]}, "structured_outputs.choice", "list of strings"),
        (None, {"json": 5}, "structured_outputs.json", "an object"),
        (None, {"json": {"minimum": float("nan")}}, "structured_outputs.json", "not JSON"),
        (None, {"json": {"x": b"bytes"}}, "structured_outputs.json", "not JSON"),
        (None, {"json_object": {"type": "object"}}, "structured_outputs.json_object", "takes no value"),
        (None, {"regex": "a", "engine": "outlines"}, "engine", "Invalid enum value"),
        (None, {"regex": "a", "max_whitespace": 65}, "max_whitespace", "<= 64"),
        (None, {"json": {}, "property_order": "alphabet"}, "property_order", "Invalid enum value"),
        (None, {"regex": "a" * (MAX_GUIDE_BYTES + 1)}, "structured_outputs.regex", "more than"),
        (None, {"regex": "ü" * (MAX_GUIDE_BYTES // 2 + 1)}, "structured_outputs.regex", "more than"),
    ],
)  # fmt: skip
def test_refused_by_name(response_format, structured_outputs, field, part):  # spec 1, 10, R1
    if field is None:  # an empty choice is asked for: the schema front says that no text fits it
        assert guide_from_request(response_format, structured_outputs).text == "[]"
        return
    with pytest.raises(BadRequest) as caught:
        guide_from_request(response_format, structured_outputs)
    assert caught.value.field == field
    assert part in caught.value.message


def test_unknown_kind_lists_the_right_ones():
    with pytest.raises(BadRequest, match="one of json, json_object"):
        make_guide("yaml", "x")
    assert len(KINDS) == 8


def test_deep_value_is_refused():
    value: dict = {}
    for _ in range(100_000):
        value = {"a": value}
    with pytest.raises(BadRequest, match="not JSON"):
        make_guide("json_schema", value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1,\n "b": [1, 2]}', '{"a":1,"b":[1,2]}'),
        ('{"a":"\\u00fc\\u0041"}', '{"a":"üA"}'),
        ('{"a":1.50}', '{"a":1.5}'),
    ],
)  # fmt: skip
def test_spellings_share_a_key(one, other):  # spec 137
    guides = [Guide(kind="json_schema", text=text) for text in (one, other)]
    assert canonical(guides[0]) == canonical(guides[1])
    assert key_of(guides[0]) == key_of(guides[1])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1,"b":2}', '{"b":2,"a":1}'),  # the order of properties is the order of the output
        ('{"const":1}', '{"const":1.0}'),
        ('{"const":12345678901234567890.5}', '{"const":12345678901234567890.0}'),  # a float cannot tell these apart
        ('{"const":1e400}', '{"const":1e500}'),
        ('{"a":1,"a":2}', '{"a":2}'),
        ('{"const":"\\ud800"}', '{"const":"\\ud801"}'),  # lone surrogates have no UTF-8
    ],
)
def test_other_languages_have_other_keys(one, other):  # spec 137, R1
    assert key_of(Guide(kind="json_schema", text=one)) != key_of(Guide(kind="json_schema", text=other))


@pytest.mark.parametrize(
    "option",
    [{"engine": "xgrammar"}, {"max_whitespace": 0}, {"after_guide": "free"}, {"kind": "lark"}, {"property_order": "schema"}],
)
def test_options_are_part_of_the_key(option):
    plain = Guide(kind="ebnf", text="x")
    assert key_of(plain) != key_of(msgspec.structs.replace(plain, **option))
