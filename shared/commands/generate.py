"""``maskstream generate``: one request, streamed to the terminal."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shared.errors import BadRequest, MaskstreamError, WorkerLost

ADDRESS_VARIABLE = "MASKSTREAM_WORKER_ADDRESS"
DEFAULT_ADDRESS = "tcp://127.0.0.1:5555"


def main(argv: Sequence[str] | None = None, program: str = "maskstream generate") -> int:
    """Exit 0 if the request ended well (and, with a guide and --verify, validly), 1 if not, 2 for a wrong call."""
    arguments = _parser(program).parse_args(argv)
    try:
        request = _request(arguments)
        return asyncio.run(_run(arguments, request))
    except (BadRequest, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, OSError) else 1
    except MaskstreamError as error:
        print(f"error: {error}", file=sys.stderr)
        if isinstance(error, WorkerLost) and error.token_ids:
            print(f"tokens so far: {error.token_ids}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser(program: str) -> argparse.ArgumentParser:
    address = os.environ.get(ADDRESS_VARIABLE, DEFAULT_ADDRESS)
    parser = argparse.ArgumentParser(prog=program, description="Sends one request to a worker.", allow_abbrev=False)
    parser.add_argument("prompt", help="what to say; - reads standard input")
    parser.add_argument("--worker", metavar="ADDRESS", default=address, help=f"[{ADDRESS_VARIABLE}, default {DEFAULT_ADDRESS}]")
    guides = parser.add_mutually_exclusive_group()
    guides.add_argument("--schema", metavar="FILE", help="JSON schema that the answer must fit")
    guides.add_argument("--json", action="store_true", help="any JSON value")
    guides.add_argument("--regex", metavar="PATTERN", help="pattern of the whole answer")
    guides.add_argument("--choice", metavar="TEXT", action="append", help="one of several answers; give it once for each")
    guides.add_argument("--ebnf", metavar="FILE", help="EBNF grammar")
    guides.add_argument("--lark", metavar="FILE", help="Lark grammar")
    guides.add_argument("--structural-tag", metavar="FILE", help="structural tag, JSON")
    parser.add_argument("--engine", choices=("auto", "xgrammar", "llguidance"), help="engine of the guide (default auto)")
    parser.add_argument("--raw", action="store_true", help="send the prompt as it is, without the chat template")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--verify", action="store_true", help="check the finished text with an independent validator")
    parser.add_argument("--output", choices=("text", "json"), default="text", help="text as it comes, or one JSON object")
    parser.add_argument("--deadline-s", type=float, metavar="SECONDS", help="when to give up")
    parser.add_argument("--param", metavar="NAME=VALUE", action="append", default=[], help="sampling parameter, value as JSON")
    for name, kind in (("max_tokens", int), ("temperature", float), ("top_p", float), ("top_k", int), ("seed", int), ("n", int)):
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="VALUE")
    return parser


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
    for name in ("max_tokens", "temperature", "top_p", "top_k", "seed", "n"):
        if getattr(arguments, name) is not None:
            request[name] = getattr(arguments, name)
    return request | dict(_parameter(text) for text in arguments.param)


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
    usage = result.usage
    facts = [f"{usage.completion_tokens} tokens", f"{usage.ms_per_token:.1f} ms/token", str(result.finish_reason)]
    if result.engine:
        rows = " ".join(f"{kind}:{count}" for kind, count in usage.rows.items())
        facts += [result.engine, f"rows {rows}"] + ([f"valid {result.valid}"] if result.valid is not None else [])
    print(f"[{' | '.join(facts + result.warnings)}]", file=sys.stderr)
