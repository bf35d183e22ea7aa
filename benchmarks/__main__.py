"""``python -m benchmarks [NAME ...]``: runs the named measurements, or all that need no GPU."""

from __future__ import annotations

import importlib
import sys

BENCHMARKS = {
    "serving": "requests per second and ms per token by grammar services and concurrent requests",
    "grammar": "the grammar service: rows per second beside the bare engine, step latency, memory, time to a first row",
    "worker_step": "the worker's Python in one step, by part",
}


def main() -> int:
    names = sys.argv[1:] or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"unknown benchmark {unknown[0]!r}; one of:", *(f"  {name}: {text}" for name, text in BENCHMARKS.items()), sep="\n")
        return 2
    for name in names:
        importlib.import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
