"""Tools and thoughts through the whole system: worker and grammar service as processes, a synthetic model that knows no tools."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from shared import errors
from shared.client import AsyncClient, Result
from tests.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]
ROOT = Path(__file__).resolve().parents[2]
CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "Oslo"]}}, "required": ["city"], "additionalProperties": False}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "time"}},
]
MESSAGES = [{"role": "user", "content": "hi"}]
SAMPLING = {"temperature": 1.0, "max_tokens": 150, "verify": True}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    flags = ("--max-slots", "8", "--max-length", "512", "--max-waiting", "64")
    with Stack(tmp_path_factory.mktemp("tools"), model="synthetic:49152", services=1, worker_flags=flags) as running:
        async with AsyncClient(running.address, lost_after_s=60.0) as client:
            await running.ready(client)
        yield running


async def called(client: AsyncClient, **arguments: Any) -> Result:
    return await client.generate(messages=MESSAGES, tools=TOOLS, **(SAMPLING | {"seed": 3} | arguments))


# spec 11 12 R26
async def test_a_call_that_must_be_made_is_made_first(client: AsyncClient) -> None:
    for seed in range(4):
        result = await called(client, tool_choice="required", parallel_tool_calls=False, seed=seed)
        (call,) = result.tool_calls
        assert call.name in ("weather", "time") and result.valid is True and result.choices[0].content == ""
        assert json.loads(call.arguments).keys() <= {"city"}
        assert (result.finish_reason, result.stop_reason, result.guide_kind) == ("stop", "grammar", "structural_tag")


async def test_the_function_that_was_chosen(client: AsyncClient) -> None:  # spec 11
    chosen = {"type": "function", "function": {"name": "weather"}}
    for seed in range(3):
        result = await called(client, tool_choice=chosen, parallel_tool_calls=False, seed=seed)
        assert [call.name for call in result.tool_calls] == ["weather"]
        assert json.loads(result.tool_calls[0].arguments)["city"] in ("Paris", "Oslo")


async def test_free_text_where_no_call_is_asked_for(client: AsyncClient) -> None:  # spec 11
    free = await called(client, tool_choice="auto")
    assert free.tool_calls == [] and free.choices[0].content == free.text and free.valid is True
    assert "<tool_call>" not in free.text
    none = await called(client, tool_choice="none")
    assert none.choices[0].tool_calls is None and (none.guide_kind, none.valid) == ("", None)


async def test_a_call_behind_a_thought(client: AsyncClient) -> None:  # spec 12 13
    gate = {"end": "</think>", "budget": 10}
    result = await called(client, tool_choice="required", parallel_tool_calls=False, reasoning=gate)
    assert result.reasoning.endswith("</think>") and result.answer.startswith("<tool_call>")
    assert len(result.tool_calls) == 1 and result.valid is True


async def test_beams_think_too(client: AsyncClient) -> None:  # spec 12, R21
    beams = {"use_beam_search": True, "best_of": 3, "n": 2, "max_tokens": 60, "verify": True}
    result = await client.generate("hi", choice=["yes", "no"], reasoning={"end": "</think>", "budget": 4}, **beams)
    assert len(result.choices) == 2 and [choice.valid for choice in result.choices] == [True, True]
    for choice in result.choices:
        assert choice.text[choice.answer_start :] in ("yes", "no")
        assert choice.text[: choice.answer_start].endswith("</think>")


async def test_a_call_that_is_cut_short_is_no_call(client: AsyncClient) -> None:  # spec R26
    result = await called(client, tool_choice="required", max_tokens=12)
    assert (result.tool_calls, result.valid, result.finish_reason) == ([], False, "length")
    assert result.choices[0].content == result.text


async def test_what_is_wrong_with_a_tool_is_told_about_it(client: AsyncClient) -> None:  # spec R1
    def tool(parameters: Any) -> dict[str, Any]:
        return {"type": "function", "function": {"name": "x", "parameters": parameters}}

    remote = {"properties": {"a": {"$ref": "http://example.com/x.json"}}}
    for tools, choice, code, field in (
        ([TOOLS[0], tool(remote)], None, "unsupported_schema", "tools[1].function.parameters"),
        ([tool({"properties": {"a": False}, "required": ["a"]})], None, "unsatisfiable", "tools[0].function.parameters"),
        ([tool({"properties": 3})], None, "bad_request", "tools[0].function.parameters"),
        ([tool([])], None, "bad_request", "tools[0].function.parameters"),
        (TOOLS, "often", "bad_request", "tool_choice"),
    ):
        with pytest.raises(errors.MaskstreamError) as caught:
            await client.generate(messages=MESSAGES, tools=tools, tool_choice=choice, max_tokens=5)
        assert (caught.value.code, caught.value.field) == (code, field)
    with pytest.raises(errors.BadRequest) as refused:
        await called(client, regex="a")
    assert refused.value.field == "tools"


async def test_the_example_runs(stack: Stack) -> None:
    command = [sys.executable, ROOT / "examples" / "tools.py", stack.address]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("weather({") and done.stdout.endswith("valid: True\n")
