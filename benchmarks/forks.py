"""A beam's session by a fork beside one by replay: milliseconds to its first row, by the length of the text so far.

    python -m benchmarks.forks --out forks.json

One grammar service as a process, a byte vocabulary, a schema of an array of objects.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gpu_worker.grammar_link import WalkStatus
from shared.guide import guide_from_request
from tests.real_services import RealLink

ITEM = {"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}}, "required": ["name", "n"]}
TEXT = b"[" + b", ".join([b'{"name": "abcdefgh", "n": 12345}'] * 40)
ROUNDS = 40


def first_row_ms(real: RealLink, make: Callable[[], int]) -> float:
    """Median time from asking for a session to having its first row."""
    times = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        session = make()
        outcome, _ = real.rows(session)
        times.append(1e3 * (time.perf_counter() - begun))
        if outcome.status is not WalkStatus.OK:
            raise RuntimeError(f"the session's first walk was answered {outcome}")
        real.link.close_session(session)
    return statistics.median(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="forks.json")
    options = parser.parse_args()
    rows, real = [], RealLink(Path(tempfile.mkdtemp()))
    try:
        guide = guide_from_request(None, {"json": {"type": "array", "items": ITEM}})
        if guide is None:
            raise ValueError("a schema is a guide")
        compiled = real.compile(guide)
        for length in (50, 200, 800):
            prefix = tuple(TEXT[:length])
            parent = real.open(compiled, prefix)
            real.rows(parent)
            forked = first_row_ms(real, lambda parent=parent, length=length: real.link.fork(parent, length))
            replayed = first_row_ms(real, lambda prefix=prefix: real.open(compiled, prefix))
            rows.append({"tokens": length, "fork_ms": round(forked, 2), "replay_ms": round(replayed, 2)})
            print(rows[-1], flush=True)
    finally:
        real.close()
    Path(options.out).write_text(json.dumps({"rounds": ROUNDS, "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
