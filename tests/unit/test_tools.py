"""Tools: what a request may say, the guide that comes of it, the calls in a text."""

import json

import pytest

from grammar_service.plan import plan_guide
from shared.errors import BadRequest, Unsatisfiable, UnsupportedSchema
from shared.protocol import ChatMessage, WireError
from shared.tools import ToolCall, tool_use
from tests.engine_probe import ByteMatcher, matcher_of, producible
from tests.requests_of import ByteEncoder, make_request, sequence_of
from tests.vocabularies import tiny

WEATHER = {
    "name": "weather",
    "description": "Now",
    "parameters": {"properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TIME = {"name": "time"}
TOOLS = [{"type": "function", "function": WEATHER}, {"type": "function", **TIME}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'


def test_both_spellings_of_a_tool():  # spec 11
    use = tool_use(TOOLS, None)
    assert [(tool.name, tool.field) for tool in use.tools] == [("weather", "tools[0].function"), ("time", "tools[1]")]
    assert use.tools[0].parameters == {"type": "object", **WEATHER["parameters"]}
    assert (use.must_call, use.parallel) == (False, True)
    assert tool_use(TOOLS, "none") is tool_use([], "auto") is tool_use(None, None) is None


@pytest.mark.parametrize(
    ("tools", "choice", "field"),
    [
        ([{"name": "a b"}], None, "tools[0].name"), ([TIME, {"description": "x"}], None, "tools[1].name"),
        ([TIME, {"name": "x", "parameters": 3}], None, "tools[1].parameters"),
        ([TIME, {"name": "x", "parameters": {"type": "string"}}], None, "tools[1].parameters"),
        ([{"name": "x", "description": 1}], None, "tools[0].description"), ([{"name": "x", "colour": 1}], None, "tools[0].colour"),
        ([{"type": "function", "function": {"name": "x", "y": 1}}], None, "tools[0].function.y"),
        ([{"type": "function", "function": {"name": "x"}, "name": "x"}], None, "tools[0].function"),
        ([{"type": "retrieval"}], None, "tools[0].type"), ([TIME, TIME], None, "tools[1].name"),
        ([TIME], "maybe", "tool_choice"), ([TIME], {"type": "function", "function": {"name": "x"}}, "tool_choice"),
        ([TIME], {"name": "time"}, "tool_choice"), ([TIME], {"type": "function", "name": "time", "x": 1}, "tool_choice"),
        ([], "required", "tool_choice"), (None, {"type": "function", "name": "time"}, "tool_choice"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tools, choice, field):  # spec 76
    with pytest.raises(BadRequest) as caught:
        tool_use(tools, choice)
    assert caught.value.field == field


def test_parameters_that_are_nested_too_deeply_are_refused():
    schema = {}
    for _ in range(200):
        schema = {"items": schema}
    with pytest.raises(BadRequest) as caught:
        tool_use([{"name": "x", "parameters": schema}], None)
    assert caught.value.field == "tools[0].parameters"


@pytest.mark.parametrize("engine", ["xgrammar", "llguidance"])
@pytest.mark.parametrize(
    ("choice", "parallel", "good", "bad"),
    [
        (
            "auto",
            True,
            ["", "hi < there", CALL, f"so: {CALL}\n{NOW} done"],
            [CALL[:-1], "<tool_call>x", NOW.replace("time", "tim")],
        ),
        ("auto", False, ["", CALL, f"so {NOW}"], [f"{CALL}\n{NOW}", f"{CALL} "]),
        ("required", True, [CALL, f"{CALL}\n{NOW}"], ["", f"so {CALL}"]),
        ("required", False, [CALL, NOW], ["", f"{CALL}{NOW}", "so"]),
        ({"type": "function", "function": {"name": "time"}}, False, [NOW], [CALL, ""]),
    ],
)
def test_the_guide_takes_just_the_calls(engine, choice, parallel, good, bad):  # spec 11, 12, R1
    guide = tool_use(TOOLS, choice, parallel=parallel).guide()
    plan = plan_guide(guide.kind, guide.text, engine=engine)
    matcher = matcher_of(plan) if engine == "llguidance" else ByteMatcher(plan)
    produced = (lambda text: producible(matcher, text)) if engine == "llguidance" else matcher.produces
    wrong_arguments = CALL.replace('"Paris"', "5")
    assert [text for text in good if not produced(text)] == [text for text in [*bad, wrong_arguments] if produced(text)] == []


@pytest.mark.parametrize(
    ("text", "content", "names", "is_whole"),
    [
        ("hello", "hello", [], True), (f"a{CALL}b{NOW}c", "abc", ["weather", "time"], True), (CALL[:-3], CALL[:-3], [], False),
        (f"{NOW}<tool_call>\n{{", "<tool_call>\n{", ["time"], False), ('<tool_call>\n{"name": "other", ', None, [], False),
        (CALL.replace("}}", "} }"), None, [], False), (f"x{'[' * 5000}", f"x{'[' * 5000}", [], True),
        (CALL.replace('"Paris"', "[" * 100_000), None, [], False),
    ],
)  # fmt: skip
def test_calls_are_read_back(text, content, names, is_whole):  # spec R26
    found = tool_use(TOOLS, "auto").calls(text)
    assert ([call.name for call in found.calls], found.is_whole) == (names, is_whole)
    assert found.content == (text if content is None else content)


def test_a_text_is_whole_only_with_the_calls_that_were_asked_for():  # spec R26
    assert not tool_use(TOOLS, "required").calls("hello").is_whole
    assert not tool_use(TOOLS, "auto", parallel=False).calls(CALL + NOW).is_whole
    call = tool_use(TOOLS, "auto").calls(CALL).calls[0]
    assert call == ToolCall(name="weather", arguments='{"city": "Paris"}')
    assert json.loads(tool_use(TOOLS, "auto").schema_of(call).text)["required"] == ["city"]


def test_an_error_of_the_guide_is_told_about_its_tool():  # spec R1
    impossible = {"name": "x", "parameters": {"properties": {"a": False}, "required": ["a"]}}
    use = tool_use([*TOOLS, {"type": "function", "function": impossible}], "auto")
    with pytest.raises(Unsatisfiable) as caught:
        plan_guide("structural_tag", use.guide().text)
    error = use.blamed(WireError.of(caught.value).exception())  # as the worker gets it
    assert error.field == "tools[2].function.parameters"
    remote = tool_use([{"name": "x", "parameters": {"properties": {"a": {"$ref": "http://example.com/x.json"}}}}], "auto")
    with pytest.raises(UnsupportedSchema) as refused:
        plan_guide("structural_tag", remote.guide().text)
    error = remote.blamed(WireError.of(refused.value).exception())
    assert (error.field, error.pointer, error.keyword) == ("tools[0].parameters", "/properties/a", "$ref")


def test_a_request_with_tools():  # spec 11
    request = make_request(tools=TOOLS, tool_choice="required")
    assert (request.guide_kind, request.tools.must_call) == ("structural_tag", True)
    assert make_request(tools=TOOLS, tool_choice="none").guide is None
    with pytest.raises(BadRequest) as caught:
        make_request(tools=TOOLS, structured_outputs={"regex": "a"})
    assert caught.value.field == "tools"
    assert make_request(tools=TOOLS, tool_choice="none", structured_outputs={"regex": "a"}).guide_kind == "regex"


def test_a_template_without_tools_is_warned_of(monkeypatch):
    monkeypatch.setattr(ByteEncoder, "shows_tools", False, raising=False)
    messages = [ChatMessage("user", "x")]
    assert "tools" in make_request(messages=messages, tools=TOOLS, max_length=999).warnings[0]
    assert make_request(messages=messages, tools=TOOLS, tool_choice="none").warnings == make_request(tools=TOOLS).warnings == []


def test_a_choice_carries_its_calls():  # spec 11
    sequence = sequence_of(tools=TOOLS, max_length=400, params={"max_tokens": 300})
    for token in (*f"ok {CALL}".encode(), tiny().stop_ids[0]):
        sequence.take(token, None, 1.0)
    choice = sequence.choice(None)
    assert (choice.content, choice.tool_calls) == ("ok ", [ToolCall(name="weather", arguments='{"city": "Paris"}')])
    assert sequence_of().choice(None).tool_calls is None
