"""``maskstream demo``: a worker, two grammar services, four requests at once, a table, and a verdict."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shared.errors import ConfigError, MaskstreamError, WorkerLost
from shared.flags import Flags
from shared.processes import Processes, free_port

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "languages": {
            "type": "array",
            "items": {"enum": ["English", "French", "German", "Japanese"]},
            "minItems": 1,
            "maxItems": 2,
        },
    },
    "required": ["name", "age", "languages"],
    "additionalProperties": False,
}
REQUESTS: dict[str, dict[str, Any]] = {
    "json_schema": {"schema": PERSON, "ask": "Describe a person as JSON.", "max_tokens": 120, "temperature": 0.8, "seed": 7},
    "regex": {"regex": "[A-Z][a-z]{2,12}, [0-9]{4}", "ask": "A city and a year?", "max_tokens": 40, "temperature": 0.8, "seed": 7},
    "choice": {"choice": ["yes", "no", "it depends"], "ask": "Is the sea blue?", "max_tokens": 20},
    "none": {"ask": "Name a fruit, in one short sentence.", "max_tokens": 32, "temperature": 0.7, "seed": 7},
}
Row = list[str]


def main(argv: Sequence[str] | None = None, program: str = "maskstream demo") -> int:
    """Exit 0 only if every request ended and every guided text is valid."""
    flags = Flags(program, "Runs a worker, grammar services and four requests at once, and judges the answers.", "MASKSTREAM_DEMO")
    flags.add("--model", "folder of a prepared model; the demo model without it", default="", metavar="FOLDER")
    flags.add("--services", "grammar services", type=int, default=2, metavar="N")
    flags.add("--start-s", "patience with the start", type=float, default=120.0, metavar="SECONDS")
    try:
        arguments = flags.parse(argv)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    import asyncio  # 30 ms that --help does not wait for

    with tempfile.TemporaryDirectory(prefix="maskstream-demo-") as folder:
        log = Path(folder) / "processes.log"
        with Processes(log) as processes:
            try:
                return asyncio.run(_run(arguments, processes))
            except MaskstreamError as error:
                print(f"demo failed: {error}\n{log.read_text(errors='replace')[-4000:]}", file=sys.stderr)
                return 1


async def _run(arguments: argparse.Namespace, processes: Processes) -> int:
    import asyncio

    from shared.client import AsyncClient

    address = f"tcp://127.0.0.1:{free_port()}"
    worker = _start(arguments, processes, address)
    async with AsyncClient(address, lost_after_s=30.0) as client:
        await _until_ready(client, worker, arguments)
        print(f"asking: {len(REQUESTS)} requests at once", flush=True)
        rows = await asyncio.gather(*(_ask(client, name, dict(request)) for name, request in REQUESTS.items()))
    _print_table([row for row, _ in rows])
    good = all(right for _, right in rows)
    print("all requests ended and every guided text is valid" if good else "NOT all right")
    return 0 if good else 1


def _start(arguments: argparse.Namespace, processes: Processes, address: str) -> subprocess.Popen[bytes]:
    grammar = f"tcp://127.0.0.1:{free_port()}"
    print(f"starting: one worker, {arguments.services} grammar services", flush=True)
    model = ["--model", arguments.model] if arguments.model else []
    flags = ["--client-bind", address, "--grammar-bind", grammar, "--metrics-port", "0", "--max-slots", "4", *model]
    worker = processes.start("gpu_worker", *flags)
    for number in range(arguments.services):
        processes.start("grammar_service", "--workers", grammar, "--metrics-port", "0", "--name", f"grammar-{number + 1}")
    return worker


async def _until_ready(client: Any, worker: subprocess.Popen[bytes], arguments: argparse.Namespace) -> None:
    import asyncio

    started = time.monotonic()
    said = ""
    while True:
        state = await _state(client, arguments.services)
        if state != said:
            print(f"{state} ({time.monotonic() - started:.1f} s)", flush=True)
            said = state
        if state.startswith("ready"):
            return
        if worker.poll() is not None or time.monotonic() - started > arguments.start_s:
            raise WorkerLost(f"the worker is not ready after {time.monotonic() - started:.0f} s (exit status {worker.poll()})")
        await asyncio.sleep(0.2)


async def _state(client: Any, services: int) -> str:
    try:
        health = await client.health(timeout_s=1.0)
    except WorkerLost:
        return "loading the model and warming up"
    here = len(health.grammar_services)
    return (
        f"ready: model {health.model}"
        if health.ready and here >= services
        else f"waiting for grammar services: {here} of {services}"
    )


async def _ask(client: Any, name: str, request: dict[str, Any]) -> tuple[Row, bool]:
    from shared.client import Result

    messages = [{"role": "user", "content": request.pop("ask")}]
    shown = ""
    try:
        async for piece in client.stream(messages=messages, verify=name != "none", deadline_s=120.0, **request):
            if isinstance(piece, Result):
                print(f"  {name:<12} {json.dumps(shown, ensure_ascii=False)}" if shown else f"  {name:<12} .", flush=True)
                return _row(name, piece), piece.valid is True or (name == "none" and piece.valid is None)
            shown += piece.text
            if len(shown) >= 24:
                print(f"  {name:<12} {json.dumps(shown, ensure_ascii=False)}", flush=True)
                shown = ""
    except MaskstreamError as error:
        return [name, str(error), "", "", "", "", "", ""], False
    return [name, "ended without a result", "", "", "", "", "", ""], False


def _row(name: str, result: Any) -> Row:
    usage = result.usage
    rows = " ".join(f"{kind}:{count}" for kind, count in sorted(usage.rows.items()))
    valid = "-" if result.valid is None else "yes" if result.valid else "NO"
    times = [f"{usage.time_to_first_token_ms:.0f}", f"{usage.ms_per_token:.1f}"]
    return [name, json.dumps(result.text, ensure_ascii=False), result.engine, str(usage.completion_tokens), rows, *times, valid]


def _print_table(rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("guide", "text", "engine", "tokens", "mask rows", "first ms", "ms/token", "valid")
    for row in rows:
        table.add_row(*row)
    console = Console()
    Console(width=console.width if console.is_terminal else 160).print(table)
