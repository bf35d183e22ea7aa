"""Tool calling: the tools of a request, the guide that lets a text call them exactly, and the calls in a finished text.

A call is written as Hermes and Qwen models write it; free text stands around it:

    <tool_call>
    {"name": "weather", "arguments": {"city": "Paris"}}
    </tool_call>
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from shared.errors import BadRequest, MaskstreamError
from shared.guide import Guide, blamed, make_guide

TRIGGER = "<tool_call>"
END = "}\n</tool_call>"
MAX_TOOLS, MAX_DEPTH = 128, 64
CHOICES = ("none", "auto", "required")
NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_FIELDS = {"name", "description", "parameters", "strict"}
_CONTENT_POINTER = re.compile(r"/format/tags/(\d+)/content")


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One call of a finished text; ``arguments`` is JSON text as the model wrote it."""

    name: str
    arguments: str


class Tool(NamedTuple):
    """``parameters`` is the schema of the arguments; ``field`` is where the request has it."""

    name: str
    description: str
    parameters: dict[str, Any]
    field: str

    @property
    def begin(self) -> str:
        return f'{TRIGGER}\n{{"name": "{self.name}", "arguments": '

    def shown(self) -> dict[str, Any]:
        """As chat templates take it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class Calls(NamedTuple):
    """What a text holds: ``content`` is the text without the calls; ``is_whole`` is false where a call is cut short or wrong."""

    content: str
    calls: list[ToolCall]
    is_whole: bool


class ToolUse(NamedTuple):
    """The tools that may be called (all that the model is shown, or the one that was chosen), whether one must be, and whether
    several may be."""

    tools: list[Tool]
    shown: list[Tool]
    must_call: bool
    parallel: bool

    def guide(self) -> Guide:
        """Raises BadRequest where the tools are larger than a guide may be."""
        tags = [
            {"type": "tag", "begin": tool.begin, "content": {"type": "json_schema", "json_schema": tool.parameters}, "end": END}
            for tool in self.tools
        ]
        form = {
            "type": "triggered_tags", "triggers": [TRIGGER], "tags": tags,
            "at_least_one": self.must_call, "stop_after_first": not self.parallel,
        }  # fmt: skip
        return make_guide("structural_tag", {"type": "structural_tag", "format": form}, field="tools")

    def blamed(self, error: MaskstreamError) -> MaskstreamError:
        """An error about the guide, told about the tool that it comes from."""
        found = _CONTENT_POINTER.match(error.pointer)
        if found and int(found.group(1)) < len(self.tools):
            error.field, error.pointer = f"{self.tools[int(found.group(1))].field}.parameters", error.pointer[found.end() :]
            return error
        return blamed(error, "tools")

    def calls(self, text: str) -> Calls:
        """The calls in a text, told without any engine."""
        content, at = "", 0
        calls: list[ToolCall] = []
        while (found := text.find(TRIGGER, at)) >= 0:
            content += text[at:found]
            call, at = self._call(text, found)
            if call is None:
                return Calls(content + text[found:], calls, False)
            calls.append(call)
        is_whole = (bool(calls) or not self.must_call) and (self.parallel or len(calls) < 2)
        return Calls(content + text[at:], calls, is_whole)

    def _call(self, text: str, at: int) -> tuple[ToolCall | None, int]:
        tool = next((tool for tool in self.tools if text.startswith(tool.begin, at)), None)
        if tool is None:
            return None, at
        start = at + len(tool.begin)
        try:
            _, stop = json.JSONDecoder().raw_decode(text, start)
        except (ValueError, RecursionError):
            return None, at
        if not text.startswith(END, stop):
            return None, at
        return ToolCall(name=tool.name, arguments=text[start:stop]), stop + len(END)

    def schema_of(self, call: ToolCall) -> Guide:
        """What the arguments of a call have to fit."""
        tool = next(tool for tool in self.tools if tool.name == call.name)
        return make_guide("json_schema", tool.parameters)


def tool_use(
    tools: Sequence[Mapping[str, Any]] | None, choice: str | Mapping[str, Any] | None, *, parallel: bool = True
) -> ToolUse | None:
    """What the request's tools come to; None where nothing may be called. Raises BadRequest naming the field."""
    known = _read(tools or ())
    if not known and choice not in (None, "none", "auto"):
        raise BadRequest("there are no tools to choose from", field="tool_choice")
    if not known or choice == "none":
        return None
    if isinstance(choice, Mapping):
        return ToolUse([_chosen(known, choice)], known, True, parallel)
    if choice is not None and choice not in CHOICES:
        raise BadRequest(f"{choice!r}: one of {', '.join(CHOICES)}, or a function by name", field="tool_choice")
    return ToolUse(known, known, choice == "required", parallel)


def _chosen(tools: list[Tool], choice: Mapping[str, Any]) -> Tool:
    """``{"type": "function", "function": {"name": ...}}``, or with the name beside the type."""
    inner = choice.get("function", choice)
    name = inner.get("name") if isinstance(inner, Mapping) else None
    if choice.get("type") != "function" or not set(choice) <= {"type", "function", "name"} or not isinstance(name, str):
        raise BadRequest('a choice by name is {"type": "function", "function": {"name": ...}}', field="tool_choice")
    for tool in tools:
        if tool.name == name:
            return tool
    raise BadRequest(f"there is no tool {name!r}; one of {', '.join(tool.name for tool in tools)}", field="tool_choice")


def _read(tools: Sequence[Mapping[str, Any]]) -> list[Tool]:
    found: list[Tool] = []
    for at, entry in enumerate(tools):
        tool = _tool(entry, f"tools[{at}]")
        if any(tool.name == other.name for other in found):
            raise BadRequest(f"a tool {tool.name!r} is there already", field=f"{tool.field}.name")
        found.append(tool)
    return found


def _tool(entry: Mapping[str, Any], field: str) -> Tool:
    """OpenAI's form, ``{"type": "function", "function": {...}}``, or the function's fields beside the type."""
    if entry.get("type", "function") != "function":
        raise BadRequest(f"{entry['type']!r}: only functions can be called", field=f"{field}.type")
    function = {name: value for name, value in entry.items() if name != "type"}
    if "function" in function:
        if len(function) > 1 or not isinstance(function["function"], Mapping):
            raise BadRequest("a function is an object, with nothing beside it", field=f"{field}.function")
        function, field = dict(function["function"]), f"{field}.function"
    if extra := sorted(set(function) - _FIELDS):
        raise BadRequest(f"unknown field {extra[0]!r}", field=f"{field}.{extra[0]}")
    name, description = function.get("name"), function.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadRequest("1 to 64 letters, digits, underscores, dots and hyphens", field=f"{field}.name")
    if not isinstance(description, str | None):
        raise BadRequest("must be a string", field=f"{field}.description")
    return Tool(name, description or "", _parameters(function.get("parameters"), f"{field}.parameters"), field)


def _parameters(schema: Any, field: str) -> dict[str, Any]:
    if schema is None:
        return NO_PARAMETERS
    if not isinstance(schema, Mapping):
        raise BadRequest("must be a JSON schema, an object", field=field)
    if schema.get("type", "object") != "object":
        raise BadRequest(f"arguments are an object, not {schema['type']!r}", field=field)
    if _is_deeper(schema, MAX_DEPTH):
        raise BadRequest(f"nested more than {MAX_DEPTH} deep", field=field)
    return {"type": "object", **schema}


def _is_deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [inner for outer in level for inner in _inside(outer)]
    return bool(level)


def _inside(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, Mapping) else list(value) if isinstance(value, list) else []
