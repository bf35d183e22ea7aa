"""Does the GPU wait for masks? Step time guided over unguided with a synthetic forward of fixed length, whole system, one GPU.

    python -m benchmarks.gpu_masks RANKS.tiktoken [SERVICES [CELLS [WAY]]]

RANKS.tiktoken: the rank file of a real vocabulary (``benchmarks.serving`` makes one). CELLS: how many of them, or 4x64,2x1 (forward
ms x sequences). WAY: ours, seed (``benchmarks.seeds_way``) or both. Step time is the mean time between the tokens of a sequence, as
clients see it, with every slot busy; services have one thread each, since they share the cores; the first part of each run warms
grammars and templates. A step waited where its forward had been done for more than 25 us when the rows came; CPU is that of all the
worker's threads.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from benchmarks import report
from benchmarks.serving import SCHEMA, VOCAB_SIZE
from shared.client import AsyncClient, Result
from shared.errors import MaskstreamError
from shared.processes import Processes, free_port

CELLS = ((4.0, 64), (2.0, 64), (8.0, 64), (4.0, 1), (4.0, 256), (2.0, 1), (8.0, 1), (2.0, 256), (8.0, 256))
"""(forward ms, sequences)"""
TOKENS, LONG = 160, {"type": "array", "items": SCHEMA, "minItems": 8, "maxItems": 12}
WAYS = {"ours": "gpu_worker", "seed": "benchmarks.seeds_way"}
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class Seen(NamedTuple):
    """The worker's counters at one moment."""

    steps: float
    waited: float
    wait_s: float
    copied_bytes: float
    cpu_s: float


def main() -> None:
    ranks, services = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 8
    way = sys.argv[4] if len(sys.argv) > 4 else "ours"
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            asyncio.run(_measure(name, ranks, services, ms, count, Path(folder)))
            for ms, count in _cells(sys.argv[3] if len(sys.argv) > 3 else str(len(CELLS)))
            for name in (WAYS if way == "both" else [way])
        ]
    report.publish("gpu-masks", rows)


def _cells(text: str) -> list[tuple[float, int]]:
    if text.isdecimal():
        return list(CELLS[: int(text)])
    return [(float(ms), int(count)) for ms, _, count in (cell.partition("x") for cell in text.split(","))]


async def _measure(way: str, ranks: Path, services: int, forward_ms: float, sequences: int, folder: Path) -> dict[str, Any]:
    address, grammar = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    port = free_port()
    flags = {
        "client-bind": address, "grammar-bind": grammar, "metrics-port": port, "device": "cuda", "mean-length": 1000000,
        "model": f"synthetic:{VOCAB_SIZE}:{ranks}", "max-slots": sequences, "forward-ms": forward_ms, "max-waiting": 512,
        "max-requests-per-client": 512,
    }  # fmt: skip
    log = folder / "log"
    with Processes(log) as processes:
        worker = processes.start(WAYS[way], *(part for name, value in flags.items() for part in (f"--{name}", str(value))))
        for number in range(services):
            name = f"g{number}"
            processes.start("grammar_service", "--workers", grammar, "--metrics-port", "0", "--name", name, "--threads", "1")
        async with AsyncClient(address, lost_after_s=60.0) as client:
            try:
                await _ready(client, services)
                await _run(client, sequences, guided=True, tokens=48)
                before = _seen(port, worker.pid)
                guided = await _run(client, sequences, guided=True, tokens=TOKENS)
                between = _seen(port, worker.pid)
                free = await _run(client, sequences, guided=False, tokens=TOKENS)
                after = _seen(port, worker.pid)
            except (MaskstreamError, SystemExit):
                print(log.read_text(errors="replace")[-3000:])
                raise
    holds = sum(result.usage.holds for result in guided) / sum(result.usage.completion_tokens for result in guided)
    step, bare = (statistics.median(r.usage.ms_per_token for r in results) for results in (guided, free))
    row = {
        "way": way, "forward ms": forward_ms, "sequences": sequences, "services": services, "guided ms": step, "unguided ms": bare,
        "ratio": step / bare, "holds/token": holds, **_between(before, between, ""), **_between(between, after, "unguided "),
    }  # fmt: skip
    print(report.table([row]), flush=True)
    return row


def _between(before: Seen, after: Seen, name: str) -> dict[str, float]:
    steps, waited, wait_s, copied, cpu_s = (b - a for a, b in zip(before, after, strict=True))
    found = {f"{name}steps that waited": waited / steps, f"{name}CPU ms/step": 1e3 * cpu_s / steps}
    return found if name else {"wait ms/step": 1e3 * wait_s / steps, "KB copied/step": copied / steps / 1e3, **found}


def _seen(port: int, pid: int) -> Seen:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
        families = text_string_to_metric_families(reply.read().decode())
    samples = {(s.name, s.labels.get("le", "")): s.value for family in families for s in family.samples}
    steps = samples["gpu_mask_wait_seconds_count", ""]
    in_time = samples["gpu_mask_wait_seconds_bucket", "2.5e-05"]
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    cpu_s = (int(ticks[11]) + int(ticks[12])) / CLOCK_TICKS
    return Seen(steps, steps - in_time, samples["gpu_mask_wait_seconds_sum", ""], samples["gpu_copied_bytes_total", ""], cpu_s)


async def _ready(client: AsyncClient, services: int) -> None:
    for _ in range(150):
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
