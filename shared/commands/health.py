"""``maskstream health``: exit 0 if well. Of a worker by a round trip, of a grammar service by its endpoint."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from shared.commands.generate import ADDRESS_VARIABLE, DEFAULT_ADDRESS
from shared.errors import ConfigError, MaskstreamError
from shared.flags import Flags

GRAMMAR_URL = "http://127.0.0.1:9101/health"


def main(argv: Sequence[str] | None = None, program: str = "maskstream health") -> int:
    """Exit 0 if well, 1 if not, 2 for a wrong call."""
    flags = Flags(program, "Exit 0 if well, 1 if not.", "MASKSTREAM_HEALTH")
    flags.add("--worker", "front door", twin=ADDRESS_VARIABLE, default=DEFAULT_ADDRESS, metavar="ADDRESS")
    flags.add(
        "--grammar", f"ask a grammar service instead ({GRAMMAR_URL} without a value)", nargs="?", const=GRAMMAR_URL, metavar="URL"
    )
    flags.add("--timeout-s", "patience", type=float, default=5.0, metavar="SECONDS")
    try:
        arguments = flags.parse(argv)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if arguments.grammar:
        return _grammar(arguments.grammar, arguments.timeout_s)
    import asyncio  # 30 ms that --help does not wait for

    return asyncio.run(_worker(arguments.worker, arguments.timeout_s))


def _grammar(url: str, timeout_s: float) -> int:
    if not url.startswith("http://"):
        print(f"error: --grammar has value {url!r}; it must begin with http://", file=sys.stderr)
        return 2
    import urllib.error
    import urllib.request

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
