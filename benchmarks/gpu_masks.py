"""Does the GPU wait for masks? Step time guided over unguided with a synthetic forward of fixed length, whole system, one GPU.

    python -m benchmarks.gpu_masks RANKS.tiktoken [SERVICES [CELLS]]

RANKS.tiktoken: the rank file of a real vocabulary (``benchmarks.serving`` makes one). Step time is the mean time between the tokens
of a sequence, as clients see it, with every slot busy; the first part of each run warms grammars and templates.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.serving import SCHEMA, VOCAB_SIZE
from shared.client import AsyncClient, Result
from shared.errors import MaskstreamError
from shared.processes import Processes, free_port

CELLS, TOKENS = ((4.0, 64), (2.0, 64), (8.0, 64), (4.0, 1), (4.0, 256)), 160
"""(forward ms, sequences)"""
LONG = {"type": "array", "items": SCHEMA, "minItems": 8, "maxItems": 12}


def main() -> None:
    ranks, services = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 8
    cells = CELLS[: int(sys.argv[3])] if len(sys.argv) > 3 else CELLS
    with tempfile.TemporaryDirectory() as folder:
        rows = [asyncio.run(_measure(ranks, services, ms, count, Path(folder))) for ms, count in cells]
    report.publish("gpu-masks", rows)


async def _measure(ranks: Path, services: int, forward_ms: float, sequences: int, folder: Path) -> dict[str, Any]:
    address, grammar = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    flags = [
        "--client-bind",
        address,
        "--grammar-bind",
        grammar,
        "--metrics-port",
        "0",
        "--device",
        "cuda",
        "--mean-length",
        "1000000",
    ]
    flags += ["--model", f"synthetic:{VOCAB_SIZE}:{ranks}", "--max-slots", str(sequences), "--forward-ms", str(forward_ms)]
    log = folder / "log"
    with Processes(log) as processes:
        processes.start("gpu_worker", *flags)
        for number in range(services):
            processes.start("grammar_service", "--workers", grammar, "--metrics-port", "0", "--name", f"g{number}")
        async with AsyncClient(address, lost_after_s=60.0) as client:
            try:
                await _ready(client, services)
                await _run(client, sequences, guided=True, tokens=48)
                guided = await _run(client, sequences, guided=True, tokens=TOKENS)
                free = await _run(client, sequences, guided=False, tokens=TOKENS)
            except (MaskstreamError, SystemExit):
                print(log.read_text(errors="replace")[-3000:])
                raise
    holds = sum(result.usage.holds for result in guided) / sum(result.usage.completion_tokens for result in guided)
    step, bare = (statistics.median(r.usage.ms_per_token for r in results) for results in (guided, free))
    return {
        "forward ms": forward_ms, "sequences": sequences, "services": services, "guided ms": step, "unguided ms": bare,
        "ratio": step / bare, "holds/token": holds,
    }  # fmt: skip


async def _ready(client: AsyncClient, services: int) -> None:
    for _ in range(100):
        try:
            if len((await client.health(1.0)).grammar_services) == services:
                return
        except MaskstreamError:
            await asyncio.sleep(0.2)
        await asyncio.sleep(0.2)
    raise SystemExit("the system did not come up")


async def _run(client: AsyncClient, sequences: int, *, guided: bool, tokens: int) -> list[Result]:
    guide: dict[str, Any] = {"schema": LONG} if guided else {"ignore_eos": True}
    return list(
        await asyncio.gather(
            *(
                client.generate(f"item {n}", temperature=1.0, seed=n, max_tokens=tokens, deadline_s=300.0, **guide)
                for n in range(sequences)
            )
        )
    )


if __name__ == "__main__":
    main()
