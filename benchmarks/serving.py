"""The whole system on the synthetic runner at V = 128,256: requests per second, ms per token, waiting for masks, bytes a row.

A real vocabulary: the first 128,253 ranks of Qwen's tokenizer (shipped by the package dashscope) and three special tokens. All
processes share this machine's cores: compare the cells of one run with each other, not with another machine.
"""

from __future__ import annotations

import asyncio
import importlib.util
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import report
from shared.client import AsyncClient, Result
from shared.processes import Processes, free_port

VOCAB_SIZE = 128_256
SPECIALS = 3
SERVICES, CONCURRENT = (1, 2, 4), (1, 8, 32)
REQUESTS_A_CELL, MAX_TOKENS = 64, 64
SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 0, "maximum": 99999},
        "name": {"type": "string", "maxLength": 24},
        "state": {"enum": ["open", "closed", "waiting"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "minItems": 1, "maxItems": 4},
    },
    "required": ["id", "name", "state", "tags"],
    "additionalProperties": False,
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, vocabulary_file(Path(folder)) as file:
        rows = [row for services in SERVICES for row in asyncio.run(_measure(services, file, Path(folder)))]
    report.publish("serving", rows)


@contextmanager
def vocabulary_file(folder: Path) -> Iterator[Path]:
    """The ranks that make a vocabulary of VOCAB_SIZE with the special tokens."""
    spec = importlib.util.find_spec("dashscope")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("pip install --no-deps dashscope: its rank file is the vocabulary of this benchmark")
    lines = (Path(spec.submodule_search_locations[0]) / "resources" / "qwen.tiktoken").read_bytes().splitlines(keepends=True)
    file = folder / "ranks.tiktoken"
    file.write_bytes(b"".join(lines[: VOCAB_SIZE - SPECIALS]))
    yield file


async def _measure(services: int, file: Path, folder: Path) -> list[dict[str, Any]]:
    client_address, grammar_address = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    metrics_port = free_port()
    flags = ["--client-bind", client_address, "--grammar-bind", grammar_address, "--metrics-port", str(metrics_port)]
    flags += ["--model", f"synthetic:{VOCAB_SIZE}:{file}", "--max-slots", "32", "--threads", "1", "--mean-length", "100000"]
    with Processes(folder / "log") as processes:
        processes.start("gpu_worker", *flags)
        for number in range(services):
            processes.start("grammar_service", "--workers", grammar_address, "--metrics-port", "0", "--name", f"g{number}")
        async with AsyncClient(client_address, lost_after_s=30.0) as client:
            await _ready(client, services)
            await _cell(client, 32, metrics_port)  # warm: grammars compiled, templates walked
            return [{"services": services, "concurrent": n} | await _cell(client, n, metrics_port) for n in CONCURRENT]


async def _ready(client: AsyncClient, services: int) -> None:
    for _ in range(120):
        try:
            if len((await client.health(1.0)).grammar_services) == services:
                return
        except Exception:
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.2)
    raise SystemExit("the system did not come up")


async def _cell(client: AsyncClient, concurrent: int, metrics_port: int) -> dict[str, Any]:
    before, started = _metrics(metrics_port), time.perf_counter()
    gate = asyncio.Semaphore(concurrent)

    async def one(number: int) -> Result:
        async with gate:
            return await client.generate(f"item {number}", schema=SCHEMA, temperature=1.0, seed=number, max_tokens=MAX_TOKENS)

    results = await asyncio.gather(*(one(number) for number in range(REQUESTS_A_CELL if concurrent > 1 else 16)))
    seconds = time.perf_counter() - started
    after = _metrics(metrics_port)
    grown = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in after}
    tokens = sum(result.usage.completion_tokens for result in results)
    num_rows = sum(count for name, count in grown.items() if name.startswith("guided_mask_rows_total"))
    return {
        "requests/s": len(results) / seconds,
        "tokens/s": tokens / seconds,
        "ms/token": sum(r.usage.ms_per_token for r in results) / len(results),
        "first token ms": sum(r.usage.time_to_first_token_ms for r in results) / len(results),
        "step waits for masks": grown["gpu_mask_wait_seconds_sum"] / max(grown["gpu_step_seconds_sum"], 1e-9),
        "bytes/row": grown["guided_mask_bytes_total"] / max(num_rows, 1.0),
    }


def _metrics(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:  # loopback, started above
        lines = [line for line in reply.read().decode().splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


if __name__ == "__main__":
    main()
