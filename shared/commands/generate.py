"""``maskstream generate``: one request, streamed to the terminal."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shared.errors import BadRequest, ConfigError, MaskstreamError, WorkerLost
from shared.flags import Flags

ADDRESS_VARIABLE = "MASKSTREAM_WORKER_ADDRESS"
DEFAULT_ADDRESS = "tcp://127.0.0.1:5555"
SHORT_PARAMETERS: tuple[tuple[str, type, str], ...] = (
    ("max_tokens", int, "tokens at most"), ("temperature", float, "0 chooses the likeliest token"),
    ("top_p", float, "least mass of the tokens to choose from"), ("top_k", int, "how many tokens to choose from"),
    ("seed", int, "the same seed gives the same text"), ("n", int, "number of texts"),
    ("thinking_token_budget", int, "tokens of free text before the end marker is forced"),
)  # fmt: skip


def main(argv: Sequence[str] | None = None, program: str = "maskstream generate") -> int:
    """Exit 0 if the request ended well (and, with a guide and --verify, validly), 1 if not, 2 for a wrong call."""
    try:
        arguments = _flags(program).parse(argv)
        request = _request(arguments)
        import asyncio  # 30 ms that --help does not wait for

        return asyncio.run(_run(arguments, request))
    except (ConfigError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except MaskstreamError as error:
        print(f"error: {error}", file=sys.stderr)
        if isinstance(error, WorkerLost) and error.token_ids:
            print(f"tokens so far: {error.token_ids}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _flags(program: str) -> Flags:
    flags = Flags(program, "Sends one request to a worker.", "MASKSTREAM_GENERATE")
    flags.positional("prompt", "what to say; - reads standard input")
    flags.add("--worker", "front door", twin=ADDRESS_VARIABLE, default=DEFAULT_ADDRESS, metavar="ADDRESS")
    guide: list[str] = []
    flags.add("--schema", "JSON schema that the answer must fit", rivals=guide, metavar="FILE")
    flags.add("--json", "any JSON value", rivals=guide, default=False, action="store_true")
    flags.add("--regex", "pattern of the whole answer", rivals=guide, metavar="PATTERN")
    flags.add("--choice", "one of several answers; once for each", rivals=guide, default=[], metavar="TEXT", action="append")
    flags.add("--ebnf", "EBNF grammar", rivals=guide, metavar="FILE")
    flags.add("--lark", "Lark grammar", rivals=guide, metavar="FILE")
    flags.add("--structural-tag", "structural tag, JSON", rivals=guide, metavar="FILE")
    flags.add("--engine", "engine of the guide (auto without it)", choices=("auto", "xgrammar", "llguidance"))
    flags.add("--raw", "send the prompt as it is, without the chat template", default=False, action="store_true")
    flags.add("--system", "system message", metavar="TEXT")
    flags.add("--verify", "check the finished text with an independent validator", default=False, action="store_true")
    flags.add("--output", "text as it comes, or one JSON object", default="text", choices=("text", "json"))
    flags.add("--deadline-s", "when to give up", type=float, metavar="SECONDS")
    flags.add("--param", "sampling parameter, value as JSON", default=[], metavar="NAME=VALUE", action="append")
    flags.add("--tools", "functions that may be called: a JSON list in OpenAI's form", metavar="FILE")
    flags.add("--tool-choice", "auto, none, required, or the name of a function", metavar="NAME")
    flags.add("--reasoning-end", "free text until this marker, then the guide", metavar="TEXT")
    for name, cast, text in SHORT_PARAMETERS:
        flags.add(f"--{name.replace('_', '-')}", text, type=cast, metavar="VALUE")
    return flags


def _request(arguments: argparse.Namespace) -> dict[str, Any]:
    prompt = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    system = [{"role": "system", "content": arguments.system}] if arguments.system else []
    request: dict[str, Any] = {"verify": arguments.verify, "deadline_s": arguments.deadline_s}
    if arguments.raw:
        request["prompt"] = prompt
    else:
        request["messages"] = [*system, {"role": "user", "content": prompt}]
    guide = _guide(arguments)
    if guide is not None:
        request["structured_outputs"] = guide | ({"engine": arguments.engine} if arguments.engine else {})
    if arguments.tools:
        request |= _tools(arguments)
    if arguments.reasoning_end:
        request["reasoning"] = {"end": arguments.reasoning_end}
    for name, _, _ in SHORT_PARAMETERS:
        if getattr(arguments, name) is not None:
            request[name] = getattr(arguments, name)
    return request | dict(_parameter(text) for text in arguments.param)


def _tools(arguments: argparse.Namespace) -> dict[str, Any]:
    try:
        tools = json.loads(Path(arguments.tools).read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadRequest(f"{arguments.tools} is not JSON: {error}", field="--tools") from error
    choice = arguments.tool_choice
    if choice not in (None, "auto", "none", "required"):
        choice = {"type": "function", "function": {"name": choice}}
    return {"tools": tools, "tool_choice": choice}


def _guide(arguments: argparse.Namespace) -> dict[str, Any] | None:
    for flag, name in (("schema", "json"), ("ebnf", "ebnf"), ("lark", "lark"), ("structural_tag", "structural_tag")):
        if getattr(arguments, flag):
            return {name: Path(getattr(arguments, flag)).read_text(encoding="utf-8")}
    if arguments.json:
        return {"any_json": True}
    if arguments.choice:
        return {"choice": arguments.choice}
    return {"regex": arguments.regex} if arguments.regex is not None else None


def _parameter(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not separator:
        raise BadRequest(f"{text!r} is not NAME=VALUE", field="--param")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


async def _run(arguments: argparse.Namespace, request: dict[str, Any]) -> int:
    from shared.client import AsyncClient, Result

    result: Result | None = None
    async with AsyncClient(arguments.worker) as client:
        async for piece in client.stream(**request):
            if isinstance(piece, Result):
                result = piece
            elif arguments.output == "text" and piece.choice == 0:
                print(piece.text, end="", flush=True)
    if result is None:
        return 1
    _print(arguments.output, result)
    return 0 if result.valid is not False else 1


def _print(output: str, result: Any) -> None:
    import msgspec

    if output == "json":
        print(msgspec.json.encode(result).decode())
        return
    print()
    for choice in result.choices[1:]:
        print(f"--- choice {choice.choice}\n{choice.text}")
    for call in result.tool_calls:
        print(f"call {call.name}: {call.arguments}", file=sys.stderr)
    usage = result.usage
    facts = [f"{usage.completion_tokens} tokens", f"{usage.ms_per_token:.1f} ms/token", str(result.finish_reason)]
    if result.engine:
        rows = " ".join(f"{kind}:{count}" for kind, count in usage.rows.items())
        facts += [result.engine, f"rows {rows}"] + ([f"valid {result.valid}"] if result.valid is not None else [])
    print(f"[{' | '.join(facts + result.warnings)}]", file=sys.stderr)
