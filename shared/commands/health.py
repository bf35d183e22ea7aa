"""``maskstream health``: exit 0 if well. Of a worker by a round trip through its front door, of a grammar service by its endpoint."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence

from shared.errors import MaskstreamError

WORKER_VARIABLE, GRAMMAR_VARIABLE = "MASKSTREAM_WORKER_ADDRESS", "MASKSTREAM_GRAMMAR_HEALTH_URL"


def main(argv: Sequence[str] | None = None, program: str = "maskstream health") -> int:
    parser = argparse.ArgumentParser(prog=program, description="Exit 0 if well, 1 if not.", allow_abbrev=False)
    worker = os.environ.get(WORKER_VARIABLE, "tcp://127.0.0.1:5555")
    grammar = os.environ.get(GRAMMAR_VARIABLE, "http://127.0.0.1:9101/health")
    parser.add_argument("--worker", metavar="ADDRESS", default=worker, help=f"front door [{WORKER_VARIABLE}, default {worker}]")
    parser.add_argument(
        "--grammar", metavar="URL", nargs="?", const=grammar, help=f"ask a grammar service instead [{GRAMMAR_VARIABLE}, {grammar}]"
    )
    parser.add_argument("--timeout-s", type=float, default=5.0, help="patience (default 5)")
    arguments = parser.parse_args(argv)
    if arguments.grammar:
        return _grammar(arguments.grammar, arguments.timeout_s)
    return asyncio.run(_worker(arguments.worker, arguments.timeout_s))


def _grammar(url: str, timeout_s: float) -> int:
    if not url.startswith("http://"):
        print(f"error: --grammar has value {url!r}; it must begin with http://", file=sys.stderr)
        return 2
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as reply:  # noqa: S310  http only, checked above
            print(reply.read().decode().strip())
            return 0
    except (urllib.error.URLError, OSError) as error:
        print(f"not well: {error}", file=sys.stderr)
        return 1


async def _worker(address: str, timeout_s: float) -> int:
    from shared.client import AsyncClient

    try:
        async with AsyncClient(address, lost_after_s=timeout_s) as client:
            reply = await client.health(timeout_s)
    except MaskstreamError as error:
        print(f"not well: {error}", file=sys.stderr)
        return 1
    state = "ready" if reply.ready else "live" if reply.live else "not live"
    print(
        f"{state}: model {reply.model}, {reply.active} of {reply.num_slots} slots, {reply.waiting} waiting, "
        f"{len(reply.grammar_services)} grammar services"
    )
    return 0 if reply.live else 1
